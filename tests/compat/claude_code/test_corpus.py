"""Scripts as people have them, run by an agent: each does what it does in Claude Code."""

from __future__ import annotations

import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest

from windlass import Suspended
from windlass.testing import calls

from .plays import CORPUS, Project, command, on, results

CASES: list[dict[str, Any]] = tomllib.loads((Path(__file__).parent / "corpus.toml").read_text())["case"]


def name_of(case: dict[str, Any]) -> str:
    what = case.get("script") or case["command"].split()[0]
    return f"{case.get('event', 'PreToolUse')}-{what}-{case['call'][0]}"


def skip_without_jq(case: dict[str, Any]) -> None:
    """Not every machine has jq, which hook scripts like to call; CI must have it."""
    text = (CORPUS / case["script"]).read_text() if "script" in case else case["command"]
    if "needs" in case and shutil.which(case["needs"]) is None:
        pytest.skip(f"{case['needs']} is not installed")
    if "jq" in text and shutil.which("jq") is None and not os.environ.get("CI"):
        pytest.skip("jq is not installed")


async def played(project: Project, case: dict[str, Any], **options: Any) -> tuple[str, str, list[Any]]:
    """The status of the call, what the model or a person read about it, and the runs of the hook."""
    skip_without_jq(case)
    event = case.get("event", "PreToolUse")
    handler = command(case.get("script") or case["command"])
    hooks = project.load(on(event, handler, matcher="*"), **options)
    (project.folder / "a.txt").write_text("a\n")
    name, arguments = case["call"]
    if "repeat" in case:
        arguments = {**arguments, "content": arguments["content"] * case["repeat"]}
    unmatched = case.get("unmatched", "allow")
    result = await project.play(hooks, calls(name, **arguments), unmatched=unmatched)
    if isinstance(result.outcome, Suspended):
        return "asked", result.outcome.waiting_for[0].question, hooks.runs
    [returned] = results(result)
    return returned.status, returned.text, hooks.runs


def make_repository(folder: Path, branch: str) -> None:
    subprocess.run(["git", "init", "-q", "-b", branch], cwd=folder, check=True)
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
    subprocess.run(["git", *identity, "commit", "-q", "--allow-empty", "-m", "x"], cwd=folder, check=True)


@pytest.mark.parametrize("case", CASES, ids=name_of)
async def test_a_script_does_what_it_does_in_claude_code(project: Project, case: dict[str, Any]):
    if "git" in case:
        make_repository(project.folder, case["git"])
    status, text, runs = await played(project, case)
    assert status == case.get("status", "ok"), (text, [run.why for run in runs])
    assert case.get("text", "") in text
    assert "\x1b" not in text
    assert runs
    why = " ".join([run.why for run in runs])
    assert case["why"] in why if "why" in case else why == ""
    if "ran" in case:
        assert project.ran[-1]["command"] == case["ran"]
    if "message" in case:
        assert project.messages == [case["message"]]
    for path, part in case.get("files", {}).items():
        assert part in (project.folder / path).read_text()


@pytest.mark.parametrize("case", [case for case in CASES if "strict" in case], ids=name_of)
async def test_in_the_strict_mode_a_broken_guard_blocks(project: Project, case: dict[str, Any]):
    status, text, _ = await played(project, case, mode="strict")
    assert status == case["strict"], text
    assert "a broken hook blocks here" in text


SAME_WHEN_STRICT = [case for case in CASES if "strict" not in case and "why" not in case]


@pytest.mark.parametrize("case", SAME_WHEN_STRICT[::4], ids=name_of)
async def test_in_the_strict_mode_a_sound_hook_does_the_same(project: Project, case: dict[str, Any]):
    if "git" in case:
        return
    status, text, _ = await played(project, case, mode="strict")
    assert status == case.get("status", "ok"), text


def test_every_script_of_the_corpus_is_used():
    """A script that no test names proves nothing."""
    tests = "".join([file.read_text() for file in Path(__file__).parent.glob("*.*")])
    assert [one.name for one in CORPUS.iterdir() if one.name not in tests] == []
