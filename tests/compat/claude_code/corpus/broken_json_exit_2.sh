#!/usr/bin/env bash
cat > /dev/null
echo '{"decision": }'
echo "blocked anyway" >&2
exit 2
