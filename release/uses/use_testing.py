import pathlib
import subprocess
import sys

import hypothesis
import pytest

from windlass.testing import strategies

pathlib.Path("test_it.py").write_text("def test_it(): pass")
command = [sys.executable, "-m", "pytest", "-q", "--trace-config", "test_it.py"]
done = subprocess.run(command, capture_output=True, text=True)
assert done.returncode == 0, done.stdout
assert "windlass.testing.plugin" in done.stdout, done.stdout
print(hypothesis.__name__, pytest.__name__, strategies.__name__)
