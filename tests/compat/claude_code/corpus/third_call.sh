#!/usr/bin/env bash
# A counter for each session, in a file named after it.
session=$(jq -r .session_id)
file="${TMPDIR:-/tmp}/calls-$session"
count=$(( $(cat "$file" 2>/dev/null || echo 0) + 1 ))
echo "$count" > "$file"
(( count < 3 )) || { echo "this is call $count" >&2; exit 2; }
