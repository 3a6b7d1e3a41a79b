#!/usr/bin/env node
// Rewrite JSON files with two spaces after they were written.
const fs = require("fs");
let raw = "";
process.stdin.setEncoding("utf8");
process.stdin.on("data", (chunk) => (raw += chunk));
process.stdin.on("end", () => {
  const { tool_input: given, tool_response: response } = JSON.parse(raw);
  const file = given?.file_path;
  if (!response?.success || !file?.endsWith(".json")) process.exit(0);
  try {
    fs.writeFileSync(file, JSON.stringify(JSON.parse(fs.readFileSync(file, "utf8")), null, 2) + "\n");
    console.log(`formatted ${file}`);
  } catch (error) {
    console.error(`${file}: ${error.message}`);
    process.exit(2);
  }
});
