#!/usr/bin/env bash
# State below the current folder, which is the project.
mkdir -p .claude/state
jq -c '{tool: .tool_name, at: .cwd}' >> .claude/state/calls.jsonl
