#!/usr/bin/env python3
"""Refuse dangerous commands, by a table of expressions."""

import json
import re
import sys

RULES = [
    (r"\brm\s+(-[a-zA-Z]*[rf][a-zA-Z]*\s+)+(/|~|\$HOME|\.\.)", "rm of a root, home or parent folder"),
    (r"\bgit\s+push\b.*(--force\b(?!-with-lease)|\s-f\b)", "force push; use --force-with-lease"),
    (r"\bchmod\s+(-R\s+)?777\b", "chmod 777"),
    (r":\(\)\s*\{\s*:\|:&\s*\};:", "fork bomb"),
    (r"\b(curl|wget)\b[^|]*\|\s*(sudo\s+)?(ba|z)?sh\b", "a script from the network is piped into a shell"),
    (r"\bdd\b.*\bof=/dev/", "dd to a device"),
]


def main():
    try:
        data = json.load(sys.stdin)
    except json.JSONDecodeError as error:
        print(f"invalid input: {error}", file=sys.stderr)
        sys.exit(1)
    if data.get("tool_name") != "Bash":
        sys.exit(0)
    command = data.get("tool_input", {}).get("command", "")
    found = [why for pattern, why in RULES if re.search(pattern, command)]
    if found:
        for why in found:
            print(f"• {why}", file=sys.stderr)
        sys.exit(2)
    sys.exit(0)


if __name__ == "__main__":
    main()
