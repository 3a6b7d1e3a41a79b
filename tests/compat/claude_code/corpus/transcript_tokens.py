#!/usr/bin/env python3
"""Add up the tokens of the transcript, and warn above a budget."""

import json
import sys

event = json.load(sys.stdin)
used, seen = 0, set()
with open(event["transcript_path"], encoding="utf-8") as file:
    for line in file:
        entry = json.loads(line)
        if entry.get("type") != "assistant":
            continue
        message = entry["message"]
        if message["id"] in seen:
            continue
        seen.add(message["id"])
        usage = message["usage"]
        used += usage["input_tokens"] + usage["output_tokens"] + usage.get("cache_read_input_tokens", 0)
print(f"{used} tokens in {len(seen)} messages", file=sys.stderr)
sys.exit(2 if used else 0)
