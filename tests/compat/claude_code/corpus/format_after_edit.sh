#!/usr/bin/env bash
# Trim trailing spaces after an edit, by the extension of the file.
FILE=$(jq -r '.tool_input.file_path // .tool_response.filePath // empty')
[ -z "$FILE" ] && exit 0
[ -f "$FILE" ] || exit 0
case "${FILE##*.}" in
  txt|md) sed -i.bak -E 's/[[:space:]]+$//' "$FILE" && rm -f "$FILE.bak" ;;
  py) command -v ruff >/dev/null 2>&1 && ruff format "$FILE" >/dev/null 2>&1 ;;
esac
exit 0
