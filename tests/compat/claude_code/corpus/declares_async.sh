#!/usr/bin/env bash
cat > /dev/null
echo '{"async": true, "asyncTimeout": 10000}'
sleep 0.2
echo '{"hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "declared and done"}}'
