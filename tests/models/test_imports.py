"""Importing Windlass, and knowing the names of its vendors, loads no SDK."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"openai", "anthropic", "google", "xllamacpp", "botocore", "httpx", "httpx2", "genai_prices", "pydantic"}


@pytest.mark.parametrize("module", ["windlass", "windlass.models", "windlass.testing", "windlass.prices"])
def test_an_import_loads_no_sdk(module: str):
    code = f"import {module}, sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())
