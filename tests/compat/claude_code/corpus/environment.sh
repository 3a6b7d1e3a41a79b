#!/usr/bin/env bash
# Everything that a hook may rely on.
input=$(cat)
fail() { echo "$1" >&2; exit 2; }
[ "$CLAUDE_PROJECT_DIR" = "$(pwd -P)" ] || fail "project: $CLAUDE_PROJECT_DIR, folder: $(pwd -P)"
[ "$CLAUDECODE" = 1 ] || fail "CLAUDECODE: $CLAUDECODE"
[ "$CLAUDE_CODE_SESSION_ID" = "$(jq -r .session_id <<<"$input")" ] || fail "session: $CLAUDE_CODE_SESSION_ID"
[ -z "$(env | grep ^OTEL_)" ] || fail "OTEL variables are passed on"
[ -z "$CLAUDE_ENV_FILE" ] || fail "CLAUDE_ENV_FILE is set here"
[ -p /dev/stdin ] || [ -S /dev/stdin ] || true
[ "$(ps -o tty= -p $$ | tr -d ' ')" = "?" ] || fail "there is a terminal"
