#!/usr/bin/env bash
# Goes on in the background while its output is still open.
cat > /dev/null
sleep 600 &
echo $! > child.pid
echo '{"decision": "block", "reason": "blocked, with a child"}'
