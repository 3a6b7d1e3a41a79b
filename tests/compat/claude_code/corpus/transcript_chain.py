#!/usr/bin/env python3
"""Each line of the transcript names the one before, and each result has a call."""

import json
import sys

event = json.load(sys.stdin)
lines = [json.loads(line) for line in open(event["transcript_path"])]
parent, calls, problems = None, set(), []
for line in lines:
    if line["parentUuid"] != parent:
        problems.append("broken chain")
    parent = line["uuid"]
    if line["sessionId"] != event["session_id"] or not line["timestamp"].endswith("Z"):
        problems.append("wrong session or time")
    content = line["message"]["content"]
    for block in content if isinstance(content, list) else []:
        if block["type"] == "tool_use":
            calls.add(block["id"])
        if block["type"] == "tool_result" and block["tool_use_id"] not in calls:
            problems.append("a result without a call")
if event.get("tool_use_id") not in calls:
    problems.append("the call is not there")
if problems:
    sys.exit(", ".join(problems))
print("transcript is sound", file=sys.stderr)
sys.exit(2)
