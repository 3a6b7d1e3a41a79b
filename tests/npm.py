"""Packages from npm for tests: installed once into the virtual environment, by a lock file."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent


def install(source: Path, name: str) -> Path:
    """Install what a folder's lock file names; returns `node_modules`. Without a network the tests are skipped."""
    cache = Path(sys.prefix) / name
    cache.mkdir(exist_ok=True)
    lock = (source / "package-lock.json").read_bytes()
    with open(cache / "lock", "w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        done = cache / "done.json"
        if not done.exists() or done.read_bytes() != lock:
            for file in ("package.json", "package-lock.json"):
                shutil.copy(source / file, cache / file)
            command = [BIN / "npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund"]
            path = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}
            for _ in range(3):  # the network may fail for a moment
                result = subprocess.run(command, cwd=cache, env=path, capture_output=True, text=True)
                if not result.returncode:
                    break
            if result.returncode:
                if os.environ.get("WINDLASS_REQUIRE_NPM"):
                    raise RuntimeError(result.stderr)
                pytest.skip(f"packages cannot be installed from npm: {result.stderr[-300:]}")
            done.write_bytes(lock)
    return cache / "node_modules"
