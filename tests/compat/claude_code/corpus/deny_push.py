#!/usr/bin/env python3
"""Refuse to push to main, with a permission decision."""

import json
import sys

data = json.load(sys.stdin)
if data["tool_name"] == "Bash" and "push" in data["tool_input"]["command"]:
    answer = {
        "hookEventName": "PreToolUse",
        "permissionDecision": "deny",
        "permissionDecisionReason": "Nobody pushes from here.",
    }
    print(json.dumps({"hookSpecificOutput": answer}))
