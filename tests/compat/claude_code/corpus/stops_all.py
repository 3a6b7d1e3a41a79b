#!/usr/bin/env python3
import json

print(json.dumps({"continue": False, "stopReason": "The budget of today is spent."}))
