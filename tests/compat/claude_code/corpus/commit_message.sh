#!/usr/bin/env bash
# Conventional commits only.
set -euo pipefail
input=$(cat)
command=$(jq -r '.tool_input.command // empty' <<<"$input")
[[ "$command" =~ ^git[[:space:]]+commit ]] || exit 0
message=$(sed -nE "s/.*-m[[:space:]]+[\"']([^\"']+)[\"'].*/\1/p" <<<"$command")
if ! grep -qE '^(feat|fix|docs|refactor|test|chore)(\([a-z-]+\))?!?: .{3,}' <<<"$message"; then
  jq -n --arg reason "commit message '$message' is not conventional" '{
    hookSpecificOutput: {hookEventName: "PreToolUse", permissionDecision: "deny", permissionDecisionReason: $reason}
  }'
fi
