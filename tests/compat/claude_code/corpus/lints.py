#!/usr/bin/env python3
import json
import sys

data = json.load(sys.stdin)
text = open(data["tool_input"]["file_path"]).read()
if "\t" in text:
    print(json.dumps({"decision": "block", "reason": "There are tabs in the file. Use spaces."}))
