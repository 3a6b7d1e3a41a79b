#!/usr/bin/env bash
# Replaces the input and forgets the content.
path=$(jq -r .tool_input.file_path)
jq -nc --arg p "$path" '{hookSpecificOutput: {hookEventName: "PreToolUse", updatedInput: {file_path: $p}}}'
