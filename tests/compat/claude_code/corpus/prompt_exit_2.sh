#!/usr/bin/env bash
jq -e '.prompt | test("forbidden")' >/dev/null && { echo "that word is not allowed" >&2; exit 2; }
exit 0
