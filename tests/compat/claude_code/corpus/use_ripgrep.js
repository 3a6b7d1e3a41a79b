#!/usr/bin/env node
// A hook about searches.
const { tool_name, tool_input } = JSON.parse(require("fs").readFileSync(0));
const text = JSON.stringify([tool_name, tool_input.pattern, tool_input.glob, tool_input["-i"], tool_input.path]);
console.error(text);
process.exit(2);
