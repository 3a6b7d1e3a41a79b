#!/usr/bin/env bash
# Keep the input of any event, one file for each.
input=$(cat)
mkdir -p seen
printf '%s\n' "$input" >> "seen/$(jq -r .hook_event_name <<<"$input").jsonl"
