#!/usr/bin/env python3
import json
import sys

json.load(sys.stdin)
print('{"continue": false, "stopReason": "the budget of today is used up", "decision": "block", "reason": "x"}')
