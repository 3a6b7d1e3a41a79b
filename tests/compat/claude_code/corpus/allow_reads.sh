#!/usr/bin/env bash
# Allow commands that only read.
case "$(jq -r .tool_input.command)" in
  ls*|cat*|git\ status*)
    jq -nc '{hookSpecificOutput: {hookEventName: "PreToolUse", permissionDecision: "allow"}}' ;;
esac
