#!/bin/bash
# Debug lines before the JSON: it is plain text then, and decides nothing.
echo "[debug] checking…"
echo '{"hookSpecificOutput":{"hookEventName":"PreToolUse","permissionDecision":"deny","permissionDecisionReason":"never seen"}}'
