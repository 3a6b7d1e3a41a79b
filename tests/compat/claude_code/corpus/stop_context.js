#!/usr/bin/env node
const input = JSON.parse(require("fs").readFileSync(0));
if (!input.stop_hook_active) {
  console.log(JSON.stringify({ hookSpecificOutput: {
    hookEventName: "Stop", additionalContext: "You said: " + input.last_assistant_message } }));
}
