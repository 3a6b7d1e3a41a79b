#!/usr/bin/env python3
"""After an edit of Python, report what does not compile, as a decision."""

import json
import sys

event = json.load(sys.stdin)
path = event["tool_input"].get("file_path", "")
if path.endswith(".py"):
    try:
        compile(open(path, encoding="utf-8").read(), path, "exec")
    except SyntaxError as error:
        print(json.dumps({"decision": "block", "reason": f"line {error.lineno}: {error.msg}"}))
sys.exit(0)
