#!/usr/bin/env bash
error=$(jq -r .error)
jq -nc --arg e "$error" '{hookSpecificOutput: {hookEventName: "PostToolUseFailure", additionalContext: ("seen: " + $e)}}'
