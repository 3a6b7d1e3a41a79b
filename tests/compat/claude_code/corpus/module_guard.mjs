#!/usr/bin/env node
import { stdin, exit, stderr } from "node:process";
const chunks = [];
for await (const chunk of stdin) chunks.push(chunk);
const { tool_name: tool, tool_input: given } = JSON.parse(Buffer.concat(chunks).toString());
if (["Write", "Edit", "MultiEdit"].includes(tool) && /node_modules|dist\//.test(given.file_path ?? "")) {
  stderr.write("generated folders are not edited\n");
  exit(2);
}
