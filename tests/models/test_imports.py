"""Importing Windlass, and knowing the names of its vendors, loads no SDK."""

from __future__ import annotations

import subprocess
import sys

import pytest

from windlass.errors import ConfigError
from windlass.models import open_model

HEAVY = {"openai", "anthropic", "google", "xllamacpp", "botocore", "httpx", "httpx2", "genai_prices", "pydantic"}


@pytest.mark.parametrize("module", ["windlass", "windlass.models", "windlass.testing", "windlass.prices"])
def test_an_import_loads_no_sdk(module: str):
    code = f"import {module}, sys; print(*sorted({{name.partition('.')[0] for name in sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not HEAVY & set(done.stdout.split())


def test_a_family_of_packages_of_which_the_right_one_is_missing_is_told_apart(monkeypatch: pytest.MonkeyPatch):
    """`google` can be imported as soon as any package of Google's is there."""
    import google

    for name in [name for name in sys.modules if name.startswith(("windlass.models.google", "google.genai"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(google, "genai", raising=False)
    monkeypatch.setattr(google, "__path__", [])
    needed = r"needs 'google.genai', which is not installed: pip install 'windlass\[google\]'"
    with pytest.raises(ConfigError, match=needed):
        open_model("google:gemini-2.5-flash")
