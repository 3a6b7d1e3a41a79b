#!/usr/bin/env bash
cat > /dev/null
echo "the build is red" >&2
exit 2
