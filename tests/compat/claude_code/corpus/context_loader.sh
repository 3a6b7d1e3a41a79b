#!/usr/bin/env bash
# SessionStart: notes, todo list and state of git as context.
echo "## Project context"
[ -f .claude/NOTES.md ] && { echo "Notes:"; cat .claude/NOTES.md; }
echo "Branch: $(git branch --show-current 2>/dev/null || echo '-')"
echo "Started from: $(jq -r .source)"
