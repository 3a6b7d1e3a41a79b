#!/usr/bin/env bash
cat > /dev/null
echo '{"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny", "permissionDecisionReason": "JSON decides"}}'
exit 3
