"""Commands under test use folders of their own, never those of the person who runs the tests."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which Windlass keeps its data and settings."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("WINDLASS_HOME", str(folder))
    monkeypatch.setenv("WINDLASS_CONFIG", str(folder / "config"))
    return folder
