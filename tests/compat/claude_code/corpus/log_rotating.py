#!/usr/bin/env python3
"""Append each event to logs/<event>.json in the working folder, as a list; keep the last 50."""

import json
import sys
from pathlib import Path

try:
    data = json.load(sys.stdin)
    folder = Path.cwd() / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{data['hook_event_name'].lower()}.json"
    entries = json.loads(path.read_text()) if path.exists() else []
    entries.append(data)
    path.write_text(json.dumps(entries[-50:], indent=2))
    sys.exit(0)
except json.JSONDecodeError:
    sys.exit(0)
except Exception:
    sys.exit(0)
