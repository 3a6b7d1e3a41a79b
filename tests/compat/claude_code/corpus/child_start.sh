#!/usr/bin/env bash
jq -c '{hookSpecificOutput: {hookEventName: "SubagentStart", additionalContext: ("welcome, " + .agent_type)}}'
