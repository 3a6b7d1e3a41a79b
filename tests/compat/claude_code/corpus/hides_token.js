#!/usr/bin/env node
// Replace what the model reads of a command.
const { tool_response } = JSON.parse(require("fs").readFileSync(0));
tool_response.stdout = tool_response.stdout.replace(/token=\w+/g, "token=…");
console.log(JSON.stringify({ hookSpecificOutput: { hookEventName: "PostToolUse", updatedToolOutput: tool_response } }));
