#!/usr/bin/env node
// Look for keys in what is written.
const chunks = [];
process.stdin.on("data", (c) => chunks.push(c)).on("end", () => {
  const { tool_name, tool_input } = JSON.parse(Buffer.concat(chunks));
  const text = tool_name === "Write" ? tool_input.content
    : tool_name === "Edit" ? tool_input.new_string
    : (tool_input.edits || []).map((edit) => edit.new_string).join("\n");
  if (/AKIA[0-9A-Z]{16}/.test(text)) {
    console.error("there is a key in " + tool_name);
    process.exit(2);
  }
});
