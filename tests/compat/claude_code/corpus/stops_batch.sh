#!/usr/bin/env bash
cat > /dev/null
echo "enough for today" >&2
exit 2
