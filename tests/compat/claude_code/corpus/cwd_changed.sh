#!/bin/bash
jq -c '{old_cwd, new_cwd, hook_event_name}' >> "$CLAUDE_PROJECT_DIR/moves.jsonl"
[ -n "$CLAUDE_ENV_FILE" ] && echo "export HERE=$(basename "$PWD")" >> "$CLAUDE_ENV_FILE"
exit 0
