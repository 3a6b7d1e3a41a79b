#!/usr/bin/env bash
# Variables for all later commands.
if [ -n "$CLAUDE_ENV_FILE" ]; then
  echo 'export PROJECT_COLOUR="dark blue"' >> "$CLAUDE_ENV_FILE"
fi
