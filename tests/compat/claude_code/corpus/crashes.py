#!/usr/bin/env python3
import json
import sys

data = json.load(sys.stdin)
print(data["tool_input"]["no such field"])
