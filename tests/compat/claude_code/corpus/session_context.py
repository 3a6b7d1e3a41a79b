#!/usr/bin/env python3
import json
import sys

source = json.load(sys.stdin)["source"]
print(json.dumps({"hookSpecificOutput": {"hookEventName": "SessionStart", "additionalContext": f"source: {source}"}}))
