#!/usr/bin/env python3
"""Believes in a field that does not exist, and in exit code 1."""

import json
import sys

print(json.dumps({"result": "block", "reason": "validation failed"}))
sys.exit(1)
