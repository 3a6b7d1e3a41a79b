#!/usr/bin/env python3
"""Leaves its group, and hangs."""

import subprocess
import time

process = subprocess.Popen(["sleep", "600"], start_new_session=True)
with open("child.pid", "w") as file:
    file.write(str(process.pid))
time.sleep(600)
