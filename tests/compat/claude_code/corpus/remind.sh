#!/usr/bin/env bash
cat > /dev/null
echo '{"hookSpecificOutput": {"hookEventName": "PreToolUse", "additionalContext": "The tests are in tests/."}}'
