#!/usr/bin/env bash
# Go on until the assistant says DONE, as it stands in the transcript.
input=$(cat)
transcript=$(jq -r .transcript_path <<<"$input")
[ -f "$transcript" ] || { echo "no transcript" >&2; exit 0; }
last=$(grep '"role":"assistant"' "$transcript" | tail -1 | jq -r '.message.content | map(select(.type == "text")) | map(.text) | join("\n")')
[[ $last == *DONE* ]] && exit 0
jq -nc --arg last "$last" '{decision: "block", reason: ("not done yet: " + $last)}'
