#!/bin/bash
# The last text of the assistant, and the last prompt of the user, from the transcript.
INPUT=$(cat)
T=$(echo "$INPUT" | jq -r .transcript_path)
T="${T/#\~/$HOME}"
PROMPT=$(jq -r 'select(.type=="user") | .message.content | select(type=="string")' "$T" | tail -n 1)
TOOL=$(jq -r 'select(.type=="assistant") | .message.content[]? | select(.type=="tool_use") | .name' "$T" | tail -n 1)
UUIDS=$(jq -r '.uuid' "$T" | sort | uniq -d | wc -l | tr -d ' ')
echo "prompt=$PROMPT tool=$TOOL duplicates=$UUIDS" >&2
exit 2
