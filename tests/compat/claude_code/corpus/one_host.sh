#!/usr/bin/env bash
url=$(jq -r .tool_input.url)
[[ $url == https://docs.example.org/* ]] || { echo "only docs.example.org, not $url" >&2; exit 2; }
