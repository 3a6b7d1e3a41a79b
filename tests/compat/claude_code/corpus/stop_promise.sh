#!/bin/bash
# Loop with a state file, until the assistant says the promise; the number of rounds is limited.
set -uo pipefail
STATE=".claude/loop.local.md"
[[ -f "$STATE" ]] || exit 0
HOOK_INPUT=$(cat)
ROUND=$(sed -n 's/^round: //p' "$STATE")
TRANSCRIPT_PATH=$(echo "$HOOK_INPUT" | jq -r '.transcript_path')
if ! grep -q '"role":"assistant"' "$TRANSCRIPT_PATH"; then rm "$STATE"; exit 0; fi
LAST=$(grep '"role":"assistant"' "$TRANSCRIPT_PATH" | tail -1 | jq -r '.message.content | map(select(.type=="text")) | map(.text) | join("\n")')
if [[ "$LAST" == *"<promise>DONE</promise>"* ]] || [[ "$ROUND" -ge 3 ]]; then rm "$STATE"; exit 0; fi
sed -i.old "s/^round: .*/round: $((ROUND + 1))/" "$STATE" && rm -f "$STATE.old"
jq -n --arg prompt "again, round $ROUND" --arg msg "🔄 round $((ROUND + 1))" \
  '{"decision": "block", "reason": $prompt, "systemMessage": $msg}'
exit 0
