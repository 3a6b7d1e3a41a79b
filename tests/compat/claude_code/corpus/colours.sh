#!/usr/bin/env bash
cat > /dev/null
printf '\033[31mred\033[0m \033]0;a new title\007and \033[2Jcleared\r' >&2
exit 2
