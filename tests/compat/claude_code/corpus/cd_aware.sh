#!/bin/sh
# Where am I? Both must agree: the field, and the folder that this script runs in.
cwd=$(jq -r .cwd)
echo "$cwd" >> "$CLAUDE_PROJECT_DIR/cwds.txt"
[ "$(pwd -P)" = "$(cd "$cwd" && pwd -P)" ] || { echo "cwd is $cwd, but this is $(pwd)" >&2; exit 2; }
