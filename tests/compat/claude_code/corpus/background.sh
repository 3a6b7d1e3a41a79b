#!/usr/bin/env bash
# Started with async: its decision does not count, its context comes later.
cat > /dev/null
sleep 0.2
echo '{"decision": "block", "reason": "ignored", "hookSpecificOutput": {"hookEventName": "PostToolUse", "additionalContext": "the check is done"}}'
