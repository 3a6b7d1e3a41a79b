#!/usr/bin/env bash
echo "== my guard, version 2 =="
echo '{"decision": "block", "reason": "never read"}'
