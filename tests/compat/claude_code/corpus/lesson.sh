#!/usr/bin/env bash
# After a failed command, a hint that depends on the error.
read -r -d '' INPUT || true
ERR=$(jq -r '.error' <<<"$INPUT")
case "$ERR" in
  *"broke"*) printf '{"hookSpecificOutput":{"hookEventName":"PostToolUseFailure","additionalContext":"hint: run make clean (%s)"}}' "$(jq -r .tool_name <<<"$INPUT")" ;;
esac
