#!/usr/bin/env node
console.log(JSON.stringify({ hookSpecificOutput: {
  hookEventName: "UserPromptSubmit", additionalContext: "Answer in one sentence." }, suppressOutput: true }));
