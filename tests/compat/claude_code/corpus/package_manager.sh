#!/usr/bin/env bash
# Rewrite npm to pnpm, with all other fields.
jq -c 'if (.tool_input.command // "") | test("^npm ") then
  {hookSpecificOutput: {hookEventName: "PreToolUse", permissionDecision: "allow",
    updatedInput: (.tool_input | .command |= sub("^npm "; "pnpm "))}}
else empty end'
