#!/usr/bin/env node
const data = JSON.parse(require("fs").readFileSync(0, "utf8"));
const rules = { test: "use the skill 'testing'", deploy: "use the skill 'release'" };
const hits = Object.entries(rules).filter(([word]) => new RegExp(`\\b${word}`, "i").test(data.prompt));
if (hits.length) {
  console.log(
    JSON.stringify({
      hookSpecificOutput: { hookEventName: "UserPromptSubmit", additionalContext: hits.map(([, hint]) => hint).join("\n") },
    }),
  );
}
