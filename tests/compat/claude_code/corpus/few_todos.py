#!/usr/bin/env python3
import json
import sys

todos = json.load(sys.stdin)["tool_input"]["todos"]
if [todo["status"] for todo in todos] != ["completed", "in_progress", "pending"]:
    print(f"unexpected: {todos}", file=sys.stderr)
    sys.exit(2)
print(json.dumps({"systemMessage": f"{len(todos)} things to do: {todos[1]['content']}"}))
