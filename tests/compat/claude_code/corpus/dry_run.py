#!/usr/bin/env python3
"""Turn every git push into a dry run, and keep the other fields."""

import json
import sys

data = json.load(sys.stdin)
given = data["tool_input"]
if given["command"].startswith("git push"):
    given["command"] += " --dry-run"
    answer = {"hookEventName": "PreToolUse", "permissionDecision": "allow", "updatedInput": given}
    print(json.dumps({"hookSpecificOutput": answer}))
