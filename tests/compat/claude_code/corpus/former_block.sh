#!/usr/bin/env bash
# The former way to refuse.
cat > /dev/null
echo '{"decision": "block", "reason": "refused the former way"}'
