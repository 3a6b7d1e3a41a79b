#!/usr/bin/env python3
import json

print(json.dumps({"decision": "block", "reason": "y" * 3_000_000}))
