#!/usr/bin/env python3
# Keep the agent away from .env files, whatever tool it uses.
import json
import sys

data = json.load(sys.stdin)
name, given = data.get("tool_name", ""), data.get("tool_input", {})
path = given.get("file_path", "") if name in ("Read", "Edit", "MultiEdit", "Write") else ""
command = given.get("command", "") if name == "Bash" else ""
hit = (".env" in path and not path.endswith(".env.sample")) or any(
    word in command for word in ("cat .env", "source .env", "cp .env", "> .env")
)
if hit:
    print("BLOCKED: .env files hold secrets; use .env.sample", file=sys.stderr)
    sys.exit(2)
