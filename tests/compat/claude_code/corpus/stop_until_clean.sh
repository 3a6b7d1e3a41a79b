#!/bin/bash
# Do not stop while a marker file is there; guard against endless loops.
INPUT=$(cat)
if [ "$(jq -r '.stop_hook_active' <<< "$INPUT")" = "true" ]; then exit 0; fi
if [ -f .claude/unfinished ]; then
  jq -n '{"decision": "block", "reason": "there is unfinished work in .claude/unfinished"}'
fi
