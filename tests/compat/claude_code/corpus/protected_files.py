#!/usr/bin/env python3
"""Files that nobody may change."""

import json
import sys
from pathlib import Path

data = json.load(sys.stdin)
path = Path(data["tool_input"].get("file_path", ""))
if not path.is_absolute():
    print(f"not an absolute path: {path}", file=sys.stderr)
    sys.exit(2)
if path.name.startswith(".env") or "migrations" in path.parts:
    print(f"{path.name} is protected", file=sys.stderr)
    sys.exit(2)
