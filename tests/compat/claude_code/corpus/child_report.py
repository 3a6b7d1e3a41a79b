#!/usr/bin/env python3
import json
import os
import sys

data = json.load(sys.stdin)
if not data["stop_hook_active"] and not os.path.exists(data["agent_transcript_path"]):
    sys.exit(1)
if not data["stop_hook_active"]:
    print(json.dumps({"decision": "block", "reason": f"{data['agent_type']}, add a summary"}))
