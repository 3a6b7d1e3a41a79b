#!/usr/bin/env python3
import json
import sys

event = json.load(sys.stdin)
lines = event["tool_input"].get("content", "").count("\n")
if lines > 500:
    sys.stderr.write(f"{lines} lines are too many for one file; split it\n")
    sys.exit(2)
