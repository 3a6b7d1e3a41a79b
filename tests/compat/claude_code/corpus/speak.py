#!/usr/bin/env -S uv run --script
# /// script
# requires-python = ">=3.11"
# dependencies = []
# ///
"""Speak what is done. It is a script for uv, which may be missing."""

import json
import sys

data = json.load(sys.stdin)
print(json.dumps({"systemMessage": f"🔊 {data['tool_name']} is done", "suppressOutput": True}))
