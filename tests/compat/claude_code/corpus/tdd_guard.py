#!/usr/bin/env python3
"""No change of src/ before a test was touched in this session. State is in .claude/tdd/<session>.json."""

import json
import os
import pathlib
import sys

event = json.load(sys.stdin)
given = event["tool_input"]
path = pathlib.PurePosixPath(os.path.relpath(given.get("file_path", ""), event["cwd"]))
state_file = pathlib.Path(".claude/tdd") / (event["session_id"] + ".json")
state = json.loads(state_file.read_text()) if state_file.exists() else {"tests": []}
if path.parts[:1] == ("tests",):
    state["tests"].append(str(path))
    state_file.parent.mkdir(parents=True, exist_ok=True)
    state_file.write_text(json.dumps(state))
elif path.parts[:1] == ("src",) and not state["tests"]:
    out = {"decision": "block", "reason": "write a failing test in tests/ first", "surplus": {"score": 0.3}}
    json.dump(out, sys.stdout)
