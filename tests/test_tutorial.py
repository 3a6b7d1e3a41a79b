"""The tutorial runs from top to bottom as a reader would run it, and prints what its commands print."""

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

PROJECT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def transcripts() -> ModuleType:
    spec = importlib.util.spec_from_file_location("transcripts", PROJECT / "docs" / "transcripts.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.timeout(300)
def test_the_tutorial_prints_what_its_commands_print():
    command = [sys.executable, str(PROJECT / "docs" / "transcripts.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ended 2026-11-19 02:15:44.706 UTC, after 19.552 s", "ended 2027-01-02 11:00:00.001 UTC, after 3 ms"),
        ("  02:15:25.166  reply   calls", "  03:16:26.177  reply   calls"),
        ("model ███▌      1.2 s", "model █ 0.3 s"),
        ("2 passed in 3.03s", "2 passed in 12.10s"),
        ("digest 3f9c2a77e1", "digest 00aa11bb22"),
    ],
)
def test_times_ids_and_bars_may_differ(transcripts, one, other):
    assert transcripts.same(one, other)


@pytest.mark.parametrize(
    ("one", "other"),
    [("refund: Allow", "refund: Deny"), ("C3 30.0", "C3 30.0\nC3 30.0"), ("2 passed in 3s", "1 passed in 3s")],
)
def test_nothing_else_may_differ(transcripts, one, other):
    assert not transcripts.same(one, other)


def test_a_page_whose_output_is_out_of_date_is_written_anew(transcripts, monkeypatch, tmp_path):
    page = (
        "# A page\n\n```python\n# hello.py\nprint('hello')\n```\n\n```console\n$ python hello.py\nhello, world\n```\n"
    )
    (tmp_path / "page.md").write_text(page, encoding="utf-8")
    monkeypatch.setattr(transcripts, "DOCS", tmp_path)
    assert transcripts.written("page.md") == page.replace("hello, world", "hello")


def test_a_block_that_names_no_file_is_refused(transcripts, monkeypatch, tmp_path):
    (tmp_path / "page.md").write_text("```python\nprint('hello')\n```\n", encoding="utf-8")
    monkeypatch.setattr(transcripts, "DOCS", tmp_path)
    with pytest.raises(transcripts.Problem, match="does not name its file"):
        transcripts.written("page.md")
