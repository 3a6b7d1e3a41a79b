#!/usr/bin/env bash
# What the assistant said before the call.
transcript=$(jq -r .transcript_path)
last=$(grep '"role":"assistant"' "$transcript" | tail -n 1)
jq -e '.message.content[] | select(.type == "tool_use" and .name == "Bash")' <<<"$last" >/dev/null || exit 0
echo "the transcript has the call" >&2
exit 2
