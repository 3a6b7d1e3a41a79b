#!/bin/bash
# A copy of the file before it is edited.
FILE=$(jq -r '.tool_input.file_path')
[ -f "$FILE" ] && mkdir -p .claude/backups && cp "$FILE" ".claude/backups/$(basename "$FILE").$(jq -n 'now|floor').bak"
ls .claude/backups 2>/dev/null | wc -l > .claude/backups.count
exit 0
