#!/usr/bin/env bash
# A JSON text with a line break in it goes through echo: a shell that expands it breaks the JSON.
INPUT=$(cat)
command=$(echo "$INPUT" | jq -r '.tool_input.command') || exit 1
[[ $command == *"line two"* ]] && { echo "two lines are too many" >&2; exit 2; }
exit 0
