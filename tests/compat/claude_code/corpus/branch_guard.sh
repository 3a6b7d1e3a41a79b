#!/bin/bash
# No commits on main; runs git in the folder of the session.
CMD=$(jq -r '.tool_input.command')
case "$CMD" in
  *"git commit"*) ;;
  *) exit 0 ;;
esac
BRANCH=$(git rev-parse --abbrev-ref HEAD 2>/dev/null || echo none)
if [ "$BRANCH" = "main" ] || [ "$BRANCH" = "master" ]; then
  echo "❌ no commits on $BRANCH: git switch -c feature/…" 1>&2
  exit 2
fi
