#!/usr/bin/env python3
"""After all calls of a step."""

import json
import sys

calls = json.load(sys.stdin)["tool_calls"]
names = [call["tool_name"] for call in calls]
context = f"{len(calls)} calls: {', '.join(names)}"
print(json.dumps({"hookSpecificOutput": {"hookEventName": "PostToolBatch", "additionalContext": context}}))
