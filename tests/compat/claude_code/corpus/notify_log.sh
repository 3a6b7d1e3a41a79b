#!/usr/bin/env bash
# Desktop notification where there is one; else a log in the home of the agent. Never in the way.
{
  MSG=$(jq -r '.message // .tool_name // "done"')
  if command -v osascript >/dev/null; then osascript -e "display notification \"$MSG\""; fi
  if command -v notify-send >/dev/null; then notify-send "agent" "$MSG"; fi
  mkdir -p "$CLAUDE_PROJECT_DIR/.claude/logs"
  echo "$(date +%s) $MSG" >> "$CLAUDE_PROJECT_DIR/.claude/logs/notifications.log"
} >/dev/null 2>&1 &
exit 0
