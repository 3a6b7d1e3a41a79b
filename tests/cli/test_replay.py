"""`windlass replay` and `windlass diff`: what they print, and with which code they exit."""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from windlass import Agent, Allow, tool
from windlass.cli import main
from windlass.records import ToolDecided
from windlass.stores import SQLiteStore
from windlass.testing import ScriptedModel, calls, says

from .terminals import Terminal

TILL = """
from windlass import Agent, Deny, ToolCalling, tool

class NoModel:
    name = "scripted"

    async def reply(self, request):
        raise AssertionError("asked")

@tool
async def pay(euros: int) -> str:
    "Pay."
    raise AssertionError("called")

def limited(most):
    agent = Agent(NoModel(), tools=[pay], name="till")

    @agent.gate(ToolCalling)
    def limit(event):
        return Deny("too much \\x1b[31m") if event.call.arguments["euros"] > most else None

    return agent

agent = limited(100)

def no_scope(session):
    return {}[session]

def strict():
    return limited(10)

def critical():
    agent = limited(100)

    @agent.gate(ToolCalling)
    async def critic(event, turn):
        await turn.ask("scripted", "fine?")

    return agent
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an agent's module and a store with two sessions."""
    (tmp_path / "till.py").write_text(TILL, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.delenv("WINDLASS_STORE", raising=False)

    @tool
    async def pay(euros: int) -> str:
        """Pay."""
        return f"paid {euros}"

    async def record() -> None:
        for session, euros in (("small", 5), ("large", 50)):
            model = ScriptedModel(calls("pay", euros=euros), says("done"))
            agent = Agent(model, tools=[pay], name="till", store="sqlite:///windlass.db")
            await agent.run("pay", session=session)
            await agent.aclose()

    asyncio.run(record())
    return tmp_path


def windlass(*arguments: str) -> Result:
    return CliRunner().invoke(main, arguments)


def test_it_exits_with_0_if_all_is_decided_as_it_was(folder: Path):
    done = windlass("replay", "--agent", "till")
    assert (done.exit_code, done.stdout) == (0, "2 sessions: 2 as recorded (4 verdicts)\n")


def test_it_exits_with_1_and_names_what_is_decided_otherwise(folder: Path):
    done = windlass("replay", "--agent", "till:strict")
    assert done.exit_code == 1
    assert "large  different" in done.stdout
    assert "turn 1, step 1  ToolCalling of pay: allow is now deny: too much \\x1b[31m (by limit)" in done.stdout
    assert "1 × pay: allow → deny by limit" in done.stdout
    assert "\x1b" not in done.stdout


def test_it_exits_with_2_if_something_cannot_be_judged(folder: Path):
    done = windlass("replay", "--agent", "till:critical")
    assert done.exit_code == 2
    assert "2 × not judged: critic on ToolCalling: asks model 'scripted'" in done.stdout


def test_it_prints_json_and_markdown(folder: Path):
    data = json.loads(windlass("replay", "--agent", "till:strict", "--json").stdout)
    assert data["summary"]["different"] == data["summary"]["blocked"] == data["summary"]["exit_code"] == 1
    assert [(one["session"], one["differences"][0]["tool"]) for one in data["sessions"]] == [("large", "pay")]
    table = windlass("replay", "--agent", "till:strict", "--markdown").stdout
    assert "| `large` | 1 | `pay: allow` | `deny: too much \\x1b[31m` | `limit` |" in table


def test_it_replays_the_named_sessions_or_the_recent_ones(folder: Path):
    assert "1 session: 1 as recorded" in windlass("replay", "small", "--agent", "till:strict").stdout
    assert windlass("replay", "--agent", "till:strict", "--since", "1h").exit_code == 1
    tomorrow = time.strftime("%Y-%m-%d", time.localtime(time.time() + 2 * 86400))
    none = windlass("replay", "--agent", "till:strict", "--since", tomorrow)
    assert (none.exit_code, none.stdout) == (5, "no session was replayed\n"), "0 says that all is as it was"


def test_rules_alone_suffice(folder: Path):
    (folder / "policy.toml").write_text('allow = ["pay(euros=5)"]\nunmatched = "deny"\n', encoding="utf-8")
    done = windlass("replay", "--rules", "policy.toml")
    assert done.exit_code == 1
    assert "1 × pay: allow → deny by permissions" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--agent or a policy with --rules"),
        (["--agent", "till", "--replaces", "x"], "--replaces needs --rules"),
        (["--agent", "till", "--since", "soon"], "'soon' is not a time"),
        (["--agent", "nowhere"], "there is no module 'nowhere'"),
        (["nobody", "--agent", "till"], "there is no session 'nobody'"),
        (["--agent", "till", "--store", "sqlite:///none.db"], "there is no store at"),
        (["--agent", "till", "--scope", "till:no_scope"], "--scope failed: KeyError: 'small'"),
        (["--agent", "till", "--json", "--markdown"], "--json or --markdown"),
        (["--rules", "broken.toml"], "broken.toml"),
    ],
    ids=lambda value: None if isinstance(value, str) else " ".join(value) or "nothing",
)
def test_a_mistake_is_named_and_is_no_result(folder: Path, arguments: list[str], words: str):
    (folder / "broken.toml").write_text("allow = 5\n", encoding="utf-8")
    done = windlass("replay", *arguments)
    assert done.exit_code == 2, "1 says that something is decided otherwise"
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not os.path.exists("none.db")


def test_a_policy_that_crashes_is_named_with_its_error(folder: Path):
    (folder / "odd.py").write_text(ODD, encoding="utf-8")
    crashes = windlass("replay", "large", "--agent", "odd:crashing")
    assert crashes.exit_code == 1
    assert "allow is now deny: failed: ValueError: oops (by broken)" in crashes.stdout
    leaves = windlass("replay", "--agent", "odd:leaving")
    assert leaves.exit_code == 2, "1 says that something is decided otherwise"
    assert leaves.stdout.count("SystemExit: 1") == 2


ODD = """
import sys
from till import limited
from windlass import ToolCalling

def crashing():
    agent = limited(100)

    @agent.gate(ToolCalling)
    def broken(event):
        raise ValueError("oops")

    return agent

def leaving():
    agent = limited(100)
    agent.gate(ToolCalling)(lambda event: sys.exit(1))
    return agent
"""


def test_a_log_that_no_agent_wrote_does_not_end_the_replay_of_others(folder: Path):
    async def append() -> None:
        store = SQLiteStore("windlass.db")
        await store.append("odd", [ToolDecided("odd/1/1", Allow())], 0)
        await store.close()

    asyncio.run(append())
    done = windlass("replay", "--agent", "till")
    assert done.exit_code == 2
    assert "odd  failed: the log of session 'odd' is broken at record 1" in done.stdout
    assert "3 sessions: 2 as recorded, 1 could not be replayed" in done.stdout


@pytest.mark.parametrize("columns", [40, 80, 120])
def test_on_a_terminal_each_verdict_has_its_lines_and_nothing_wraps_by_itself(folder: Path, columns: int):
    with Terminal(folder, "replay", "--agent", "till:strict", columns=columns) as terminal:
        assert terminal.ends() == 1
    lines = terminal.screen.splitlines()
    assert all(len(line) < columns for line in lines), terminal.screen
    text = " ".join(terminal.screen.split())
    assert 'turn 1, step 1 pay {"euros":50} allow → deny by limit: "too much \\x1b[31m"' in text
    assert "2 sessions: 1 as recorded, 1 decided differently, 1 blocked that happened (3 verdicts)" in text


def test_a_difference_is_shown_side_by_side_where_it_begins(folder: Path):
    record_long("first", "a" * 3000 + "left")
    record_long("second", "a" * 3000 + "right")
    with Terminal(folder, "diff", "first", "second", columns=80) as terminal:
        assert terminal.ends() == 1
    assert all(len(line) < 80 for line in terminal.screen.splitlines())
    assert "…(+" in terminal.screen
    assert "left" in terminal.screen
    assert "right" in terminal.screen
    with Terminal(folder, "diff", "first", "second", columns=40) as terminal:
        assert terminal.ends() == 1
    assert all(len(line) < 40 for line in terminal.screen.splitlines())


def record_long(session: str, message: str) -> None:
    async def work() -> None:
        agent = Agent(ScriptedModel(says("done")), store="sqlite:///windlass.db")
        await agent.run(message, session=session)
        await agent.aclose()

    asyncio.run(work())


def test_diff_shows_what_is_common_and_the_first_difference(folder: Path):
    done = windlass("diff", "small", "large")
    assert done.exit_code == 1
    assert "= user     pay" in done.stdout
    assert "first difference: turn 1, step 1" in done.stdout
    assert 'small: calls: pay {"euros":5}\nlarge: calls: pay {"euros":50}' in done.stdout
    assert windlass("diff", "small", "small").exit_code == 0
    assert json.loads(windlass("diff", "small", "large", "--json").stdout)["second"]["text"] == 'pay {"euros":50}'
    missing = windlass("diff", "small", "none")
    assert "there is no session 'none'" in missing.stderr
    assert missing.exit_code == 2, "1 says that they differ"
