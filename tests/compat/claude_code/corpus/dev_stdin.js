#!/usr/bin/env node
// Opens its input by name, which a socket would not allow.
const input = JSON.parse(require("fs").readFileSync("/dev/stdin", "utf8"));
if (input.tool_input.command.includes("curl")) {
  console.error("no curl");
  process.exit(2);
}
