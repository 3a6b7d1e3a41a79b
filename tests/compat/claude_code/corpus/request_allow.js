#!/usr/bin/env node
const event = JSON.parse(require("fs").readFileSync("/dev/stdin", "utf8"));
const behavior = event.tool_input.command.startsWith("make") ? "allow" : "deny";
const decision = behavior === "allow" ? { behavior } : { behavior, message: "only make" };
process.stdout.write(JSON.stringify({ hookSpecificOutput: { hookEventName: "PermissionRequest", decision } }));
