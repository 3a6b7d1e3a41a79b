#!/usr/bin/env bash
cat > /dev/null
echo '{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow"}}'
echo "exit code 2 wins" >&2
exit 2
