#!/usr/bin/env bash
cat > /dev/null
echo '{"hookSpecificOutput": {"hookEventName": "PermissionRequest", "permissionDecision": "allow"}}'
