#!/usr/bin/env python3
import json
import sys

answer = {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "said in JSON"}
print(json.dumps({"hookSpecificOutput": answer}))
print("said on stderr", file=sys.stderr)
sys.exit(2)
