#!/usr/bin/env python3
import json
import sys
import warnings

warnings.warn("old API", DeprecationWarning, stacklevel=1)
print("INFO loading rules", file=sys.stderr)
event = json.load(sys.stdin)
print(
    json.dumps(
        {
            "hookSpecificOutput": {
                "hookEventName": "PreToolUse",
                "permissionDecision": "ask",
                "permissionDecisionReason": "please look",
                "confidence": 0.9,
            },
            "metadata": {"version": 3},
            "suppressOutput": True,
        },
        indent=2,
    )
)
