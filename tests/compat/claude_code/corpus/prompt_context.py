#!/usr/bin/env python3
import datetime
import json
import sys

data = json.load(sys.stdin)
prompt = data.get("prompt") or data.get("user_prompt") or ""
if "secret" in prompt.lower():
    print(json.dumps({"decision": "block", "reason": "the prompt speaks of a secret"}))
    sys.exit(0)
print(f"Today is {datetime.date.today():%A}.")
if prompt.endswith("-u"):
    print("Think step by step.")
