#!/usr/bin/env python3
import json
import re
import sys

data = json.load(sys.stdin)
if re.search(r"password\s*[:=]", data["prompt"], re.IGNORECASE):
    print(json.dumps({"decision": "block", "reason": "Do not type passwords here."}))
