"""A folder with a module of tools and hooks, in which agent files are written."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

MODULE = '''
from windlass import Deny, tool
from windlass.testing import ScriptedModel, calls, says


def model():
    return ScriptedModel(calls("add", a=1, b=2), says("three"))


def delegating():
    return ScriptedModel(calls("helper", task="1 + 2?"), says("done"))


def named(name):
    model = ScriptedModel(says("hi"))
    model.name = name
    return model


@tool(effect="pure")
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def refuse(event):
    return Deny("not today")


def question(call):
    return "May it?"


class Upper:
    def feed(self, text):
        yield text.upper()

    def flush(self):
        return ()


broken = 1 / 1
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder is the current one. Modules that are imported from it are forgotten after the test."""
    (tmp_path / "parts.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    known = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]
