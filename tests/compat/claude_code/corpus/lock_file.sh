#!/bin/bash
# Refuse edits of lock files by name, with a case statement.
f=$(python3 -c 'import json,sys; print(json.load(sys.stdin)["tool_input"].get("file_path",""))')
case "$(basename "$f")" in
  package-lock.json|yarn.lock|poetry.lock|uv.lock|Cargo.lock) echo "$(basename "$f") is generated" >&2; exit 2 ;;
esac
