#!/usr/bin/env bash
# Plain text on stdout is context.
echo "Branch: $(git rev-parse --abbrev-ref HEAD 2>/dev/null || echo none)"
