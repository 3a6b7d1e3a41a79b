#!/usr/bin/env bash
# Refuse to delete files: the classic guard with jq and exit code 2.
command=$(jq -r '.tool_input.command // empty')
if [[ $command =~ (^|[;&|[:space:]])rm[[:space:]] ]]; then
  echo "Use the bin instead of rm: $command" >&2
  exit 2
fi
