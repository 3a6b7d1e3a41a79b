#!/usr/bin/env python3
"""Write into drafts/ instead."""

import json
import os
import sys

data = json.load(sys.stdin)
given = data["tool_input"]
given["file_path"] = os.path.join(data["cwd"], "drafts", os.path.basename(given["file_path"]))
print(json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", "updatedInput": given}}))
