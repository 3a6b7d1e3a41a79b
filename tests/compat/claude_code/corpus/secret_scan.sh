#!/bin/sh
# POSIX: look for keys in what is about to be written.
body=$(jq -r '[.tool_input.content, .tool_input.new_string, (.tool_input.edits[]?.new_string)] | map(select(. != null)) | join("\n")')
for pattern in 'AKIA[0-9A-Z]{16}' 'ghp_[A-Za-z0-9]{36}' '-----BEGIN [A-Z ]*PRIVATE KEY-----' 'xox[baprs]-[0-9A-Za-z-]{10,}'; do
  if printf '%s' "$body" | grep -Eq -e "$pattern"; then
    printf 'secret found (%s)\n' "$pattern" >&2
    exit 2
  fi
done
