#!/usr/bin/env node
// Pass the input through, as hooks of some collections do.
let data = "";
process.stdin.on("data", (chunk) => (data += chunk));
process.stdin.on("end", () => process.stdout.write(data));
