#!/usr/bin/env bash
# Looks at a variable that nobody sets.
if [[ $CLAUDE_TOOL_INPUT == *secret* ]]; then
  echo "secret" >&2
  exit 2
fi
