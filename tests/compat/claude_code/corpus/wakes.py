#!/usr/bin/env python3
import sys
import time

time.sleep(0.2)
print("the tests fail", file=sys.stderr)
sys.exit(2)
