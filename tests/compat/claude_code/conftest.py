"""Hooks under test see folders of their own, never those of the person who runs the tests."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from .plays import Project


@pytest.fixture(autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for the data of Windlass and the settings of the user."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("WINDLASS_HOME", str(folder))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(folder / "claude"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1")
    tools = str(Path(sys.executable).parent)  # which has node, for a machine that has none
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{tools}")
    return folder


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)
