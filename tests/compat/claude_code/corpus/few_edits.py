#!/usr/bin/env python3
import json
import sys

edits = json.load(sys.stdin)["tool_input"]["edits"]
if len(edits) > 1 and all({"old_string", "new_string"} <= set(edit) for edit in edits):
    print(f"{len(edits)} edits at once", file=sys.stderr)
    sys.exit(2)
