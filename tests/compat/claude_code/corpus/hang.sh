#!/usr/bin/env bash
# Never ends, and has children.
sleep 600 &
echo $! > child.pid
sleep 600
