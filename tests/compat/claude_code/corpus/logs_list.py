#!/usr/bin/env python3
"""Keep all inputs in one JSON list."""

import json
import sys
from pathlib import Path

data = json.load(sys.stdin)
folder = Path("logs")
folder.mkdir(exist_ok=True)
file = folder / "pre_tool_use.json"
rows = json.loads(file.read_text()) if file.exists() else []
rows.append(data)
file.write_text(json.dumps(rows, indent=2))
