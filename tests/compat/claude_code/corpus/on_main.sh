#!/usr/bin/env bash
# No edits on the branch main.
branch=$(git rev-parse --abbrev-ref HEAD 2>/dev/null)
if [ "$branch" = main ]; then
  echo "make a branch first" >&2
  exit 2
fi
