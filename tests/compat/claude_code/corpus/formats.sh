#!/usr/bin/env bash
# Change the file that was written, in place.
path=$(jq -r '.tool_response.filePath // .tool_input.file_path')
[ -f "$path" ] && tr 'a-z' 'A-Z' < "$path" > "$path.new" && mv "$path.new" "$path"
exit 0
