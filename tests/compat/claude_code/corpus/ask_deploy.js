#!/usr/bin/env node
// Ask a person before anything is deployed.
const fs = require("fs");
const input = JSON.parse(fs.readFileSync(0, "utf8"));
if (/deploy/.test(input.tool_input.command || "")) {
  console.log(JSON.stringify({ hookSpecificOutput: {
    hookEventName: "PreToolUse", permissionDecision: "ask", permissionDecisionReason: "Deploy now?" } }));
}
