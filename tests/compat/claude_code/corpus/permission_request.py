#!/usr/bin/env python3
import json
import sys

data = json.load(sys.stdin)
command = data["tool_input"]["command"]
if command.startswith("make"):
    decision = {"behavior": "allow"}
elif command.startswith("npm"):
    decision = {"behavior": "allow", "updatedInput": {**data["tool_input"], "command": f"{command} --silent"}}
else:
    decision = {"behavior": "deny", "message": f"nobody allows {command}"}
print(json.dumps({"hookSpecificOutput": {"hookEventName": "PermissionRequest", "decision": decision}}))
