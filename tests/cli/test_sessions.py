"""`windlass sessions`, `show`, `approve` and `resume`, on a real file: what they print, and how they refuse."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result

from windlass import Agent, Ask, Session, ToolCalling, TurnStarting, tool
from windlass.approvals import open_questions
from windlass.cli import main
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FunctionModel, calls, says

from .terminals import Terminal

T = TypeVar("T")

COUNTER = """
from pathlib import Path
from windlass import Agent, Ask, ToolCalling, tool
from windlass.testing import FunctionModel, calls, says


@tool
async def pay(euros: int, x: str = "") -> str:
    "Pay."
    with Path("paid").open("a") as file:
        file.write(f"{euros}\\n")
    return f"paid {euros}"


def reply(request):
    return calls("pay", euros=5) if request.messages[-1].role == "user" else says(request.messages[-1].parts[0].text)


agent = Agent(FunctionModel(reply), tools=[pay], name="till", store="sqlite:///till.db", secrets=["hunter2"])
agent.gate(ToolCalling)(lambda event: Ask(f"Pay {event.call.arguments['euros']} euros?"))
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with an agent's module, which is forgotten afterwards."""
    (tmp_path / "counter.py").write_text(COUNTER, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.delenv("WINDLASS_STORE", raising=False)
    return tmp_path


def windlass(*arguments: str, store: str | None = "sqlite:///till.db", **options: Any) -> Result:
    given = [*arguments, "--store", store] if store is not None and arguments[0] != "resume" else list(arguments)
    return CliRunner().invoke(main, given, **options)


def refused(result: Result, *words: str) -> None:
    """The command failed as it should: a message, exit code 1, and no traceback."""
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, SystemExit)
    assert result.stderr.startswith("Error: ")
    assert "Traceback" not in result.output
    for word in words:
        assert word in result.stderr


def in_store(work: Callable[[SQLiteStore], Awaitable[T]], file: str = "till.db") -> T:
    async def run() -> T:
        store = SQLiteStore(file)
        try:
            return await work(store)
        finally:
            await store.close()

    return asyncio.run(run())


@tool
async def pay(euros: int) -> str:
    """Pay."""
    raise AssertionError("nobody has approved")


def fill(*sessions: str, message: str = "Pay the rent.") -> None:
    """Sessions, each with a question that waits."""

    async def work(store: SQLiteStore) -> None:
        agent = Agent(FunctionModel(lambda request: calls("pay", euros=5)), tools=[pay], name="till", store=store)
        agent.gate(ToolCalling)(lambda event: Ask("Pay 5 euros?"))
        for session in sessions:
            await agent.run(message, session=session)

    in_store(work)


def finished(session: str, message: str = "Hello") -> None:
    """A session with a turn that is over, for which something was injected."""

    async def work(store: SQLiteStore) -> None:
        agent = Agent(FunctionModel(lambda request: says("Good day.")), name="greeter", store=store)
        agent.inject(TurnStarting)(lambda event: "It is Monday.")
        await agent.run(message, session=session)

    in_store(work)


def tamper(session: str) -> None:
    """Swap the bytes of the first batch for those of another one."""
    database = sqlite3.connect("till.db")
    with database:
        (number,) = database.execute("SELECT number FROM sessions WHERE id = ?", (session,)).fetchone()
        (other,) = database.execute("SELECT data FROM batches WHERE session != ? AND seq = 0", (number,)).fetchone()
        database.execute("UPDATE batches SET data = ? WHERE session = ? AND seq = 0", (other, number))
    database.close()


# ---------------------------------------------------------------- the store


def test_the_store_is_named_by_an_option_a_variable_or_the_default(folder, monkeypatch):
    finished("hello")
    assert "hello" in windlass("sessions", "list").output
    monkeypatch.setenv("WINDLASS_STORE", "sqlite:///till.db")
    assert "hello" in windlass("sessions", "list", store=None).output
    monkeypatch.delenv("WINDLASS_STORE")
    os.rename("till.db", "windlass.db")
    assert "hello" in windlass("sessions", "list", store=None).output


@pytest.mark.parametrize(
    "command",
    [["sessions", "list"], ["sessions", "verify"], ["sessions", "prune"], ["show", "s"], ["approve"]],
    ids=" ".join,
)
def test_a_store_that_nobody_knows_is_refused(folder, command):
    refused(windlass(*command, store="mysql://there"), "'mysql://there' is not the address of a store")


def test_a_store_in_memory_has_nothing_to_show(folder):
    result = windlass("sessions", "list", store="memory:")
    assert result.exit_code == 2
    assert "--store" in result.stderr


def test_a_file_that_is_no_store_is_refused(folder):
    Path("till.db").write_text("Dear diary, " * 100)
    refused(windlass("sessions", "list"), "till.db")
    assert Path("till.db").read_text().startswith("Dear diary")


@pytest.mark.parametrize(
    "command",
    [
        ["sessions", "verify", "nobody"],
        ["sessions", "export", "nobody"],
        ["sessions", "erase", "nobody", "--yes"],
        ["show", "nobody"],
        ["why", "nobody"],
        ["approve", "nobody", "nobody/1/1"],
        ["resume", "counter", "nobody"],
    ],
    ids=lambda command: " ".join(command[:2]),
)
def test_a_session_that_is_not_there_is_an_error(folder, command):
    finished("somebody")
    refused(windlass(*command), "'nobody'")


# ---------------------------------------------------------------- sessions


def test_sessions_are_listed_the_latest_first(folder):
    fill("rent")
    finished("hello", "Good\nmorning \x1b[31m")
    result = windlass("sessions", "list")
    assert result.exit_code == 0
    first, second = result.output.splitlines()
    assert first.startswith("hello ")
    assert "open, " in first
    assert "\x1b" not in first
    assert first.endswith("Good morning \\x1b[31m")
    assert "suspended, 1 open question" in second
    assert second.endswith("Pay the rent.")


def test_sessions_are_searched_and_filtered(folder):
    fill("rent")
    finished("hello")
    assert windlass("sessions", "list", "--search", "RENT").output.startswith("rent ")
    assert windlass("sessions", "list", "--search", "greeter").output.startswith("hello ")
    assert windlass("sessions", "list", "--status", "suspended").output.startswith("rent ")
    assert windlass("sessions", "list", "--limit", "1").output.count("\n") == 1
    assert windlass("sessions", "list", "--search", "nothing").output == ""
    assert windlass("sessions", "list", "--status", "asleep").exit_code == 2


def test_sessions_are_listed_as_data(folder):
    fill("rent")
    (line,) = windlass("sessions", "list", "--json").output.splitlines()
    told = json.loads(line)
    assert (told["session"], told["status"], told["agent"], told["waiting"]) == ("rent", "suspended", "till", 1)


def test_chains_are_verified(folder):
    fill("rent")
    finished("hello")
    result = windlass("sessions", "verify")
    assert result.exit_code == 0
    *lines, summary = result.output.splitlines()
    assert summary == "2 verified, 0 broken"
    assert sorted(line.partition(":")[0] for line in lines) == ["hello", "rent"]
    assert all("records verified, head " in line for line in lines)
    assert windlass("sessions", "verify", "rent").output.splitlines() == [line for line in lines if "rent" in line]


def test_a_broken_chain_is_found(folder):
    fill("rent")
    finished("hello")
    tamper("rent")
    refused(windlass("sessions", "verify", "rent"), "'rent'")
    refused(windlass("sessions", "verify"), "'rent'")
    assert windlass("sessions", "verify", "hello").exit_code == 0


def test_a_log_that_was_cut_short_is_found_and_not_resumed(folder):
    fill("rent")
    finished("hello")
    database = sqlite3.connect("till.db")
    with database:
        (number,) = database.execute("SELECT number FROM sessions WHERE id = 'rent'").fetchone()
        (last,) = database.execute("SELECT max(seq) FROM batches WHERE session = ?", (number,)).fetchone()
        database.execute("DELETE FROM batches WHERE session = ? AND seq = ?", (number, last))
    database.close()
    words = ("'rent'", f"broken at record {last}", "it ends early: the session's row says that it has")
    refused(windlass("sessions", "verify"), *words)
    refused(windlass("sessions", "verify", "rent"), *words)
    assert windlass("sessions", "verify", "hello").exit_code == 0
    refused(windlass("resume", "counter", "rent"), *words)
    assert not (folder / "paid").exists()


def test_a_damaged_batch_is_told_by_every_command_that_reads_it(folder):
    fill("rent")
    database = sqlite3.connect("till.db")
    with database:
        database.execute("UPDATE batches SET data = x'00ff00'")
    database.close()
    for command in (["sessions", "verify"], ["sessions", "export", "rent"], ["show", "rent"], ["approve", "rent", "x"]):
        refused(windlass(*command), "'rent'", "damaged")
    refused(windlass("resume", "counter", "rent"), "'rent'", "damaged")


def test_a_session_is_exported_and_imported(folder):
    fill("rent")
    shown = windlass("sessions", "export", "rent")
    assert windlass("sessions", "export", "rent", "-o", "rent.jsonl").output == ""
    assert Path("rent.jsonl").read_text() == shown.output
    header = json.loads(shown.output.splitlines()[0])
    pipelines = header.pop("pipelines")
    assert header == {"windlass": 2, "session": "rent", "records": 7, "start": header["start"]}
    assert [json.loads(text)["tools"][0]["name"] for text in pipelines.values()] == ["pay"]
    result = windlass("sessions", "import", "rent.jsonl", store="sqlite:///other.db")
    assert (result.exit_code, result.output) == (0, "imported rent\n")
    assert windlass("sessions", "export", "rent", store="sqlite:///other.db").output == shown.output
    assert windlass("sessions", "import", "rent.jsonl", "--as", "again").output == "imported again\n"
    assert "again" in windlass("sessions", "list", "--status", "suspended").output


def test_what_cannot_be_imported_is_told(folder):
    fill("rent")
    windlass("sessions", "export", "rent", "-o", "rent.jsonl")
    refused(windlass("sessions", "import", "rent.jsonl"), "'rent' already exists")
    whole = Path("rent.jsonl").read_text()
    Path("rent.jsonl").write_text(whole.replace("Pay the rent.", "Pay the boss."))
    refused(windlass("sessions", "import", "rent.jsonl", "--as", "boss"), "rent.jsonl: line", "differ from the")
    Path("rent.jsonl").write_text(whole[: len(whole) // 2])
    refused(windlass("sessions", "import", "rent.jsonl", "--as", "boss"))
    Path("rent.jsonl").write_bytes(b"\xff\xfe\x00 no text at all")
    refused(windlass("sessions", "import", "rent.jsonl", "--as", "boss"), "rent.jsonl")
    assert windlass("sessions", "import", "missing.jsonl").exit_code == 2
    assert "boss" not in windlass("sessions", "list").output


def test_an_export_that_cannot_be_written_is_told(folder):
    fill("rent")
    refused(windlass("sessions", "export", "rent", "-o", "no/such/folder.jsonl"), "no/such/folder.jsonl")


def test_a_session_is_erased_if_its_user_means_it(folder):
    fill("rent")
    assert windlass("sessions", "erase", "rent", input="n\n").exit_code == 1
    assert "rent" in windlass("sessions", "list", "--status", "suspended").output
    result = windlass("sessions", "erase", "rent", "--yes")
    assert (result.exit_code, result.output) == (0, "erased rent\n")
    assert "erased" in windlass("sessions", "list").output
    refused(windlass("show", "rent"), "'rent'")


def test_what_was_injected_is_pruned(folder):
    fill("rent")
    finished("hello")
    assert windlass("sessions", "prune").output == "batches pruned: 0\n"
    assert windlass("sessions", "prune", "--days", "-1").output == "batches pruned: 1\n"
    assert "It is Monday." not in windlass("show", "hello", "--records", "--json").output
    assert "1 batches pruned" in windlass("sessions", "verify", "hello").output


# ---------------------------------------------------------------- show


def test_a_session_is_shown_as_a_story_as_records_and_as_data(folder):
    fill("rent")
    for command in ("show", "why"):
        assert "Pay 5 euros?" in windlass(command, "rent").output
        assert json.loads(windlass(command, "rent", "--json").output)["session"] == "rent"
    records = windlass("show", "rent", "--records").stdout.splitlines()
    assert [records[0].split()[place] for place in (0, 3)] == ["1", "SessionOpened"]
    lines = windlass("show", "rent", "--records", "--json").output.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == [line.split()[3] for line in records]
    assert [json.loads(line.split(maxsplit=4)[4]) for line in records] == [
        {name: value for name, value in json.loads(line).items() if name not in ("kind", "at")} for line in lines
    ]


def test_any_text_can_be_shown_and_moved(folder):
    finished("odd", "a \ud800 b")
    for command in (
        ["show", "odd"],
        ["why", "odd"],
        ["why", "odd", "--json"],
        ["show", "odd", "--records"],
        ["show", "odd", "--records", "--json"],
    ):
        assert windlass(*command).exit_code == 0, command
    assert windlass("show", "odd", "--json").exit_code == 0
    assert windlass("sessions", "list").exit_code == 0
    assert windlass("sessions", "list", "--json").exit_code == 0
    windlass("sessions", "export", "odd", "-o", "odd.jsonl")
    assert windlass("sessions", "import", "odd.jsonl", "--as", "even").exit_code == 0


# ---------------------------------------------------------------- approve and resume


def test_what_is_asked_is_listed(folder):
    fill("rent", "food")
    result = windlass("approve")
    assert "rent  rent/1/1  Pay 5 euros?" in result.output
    assert "food  food/1/1  Pay 5 euros?" in result.output
    assert 'pay {"euros":5}' in result.output
    assert "answers: approve, edit, reject, respond" in result.output
    assert "food" not in windlass("approve", "rent").output
    assert windlass("approve", "nobody").output == "no open questions\n"


def test_the_question_of_a_sub_agent_is_listed_once_where_it_can_be_resumed(folder):
    Path("boss.py").write_text(
        "from counter import *\n"
        "boss = Agent(FunctionModel(lambda request: says('Done.') if request.messages[-1].role == 'tool' else "
        "calls('till', task='Pay.')), tools=[agent.as_tool()], store='sqlite:///till.db')\n"
        "boss.run_sync('See to it.', session='top')\n"
    )
    subprocess.run([sys.executable, "boss.py"], check=True)
    assert windlass("approve").output.count("Pay 5 euros?") == 1
    assert "top  top//1/1/1/1  Pay 5 euros?" in windlass("approve").output
    assert "top//1/1  top//1/1/1/1  Pay 5 euros?" in windlass("approve", "top//1/1").output
    result = windlass("approve", "top//1/1", "top//1/1/1/1")
    assert result.output == "approve: saved for the next resume of top\n"


def test_the_list_shows_who_has_approved_and_who_is_still_needed(folder):
    async def work(store: SQLiteStore) -> None:
        for name, priority in (("rent", 0), ("fire", 9)):
            agent = Agent(FunctionModel(lambda request: calls("pay", euros=5)), tools=[pay], name="till", store=store)
            ask = Ask("Pay?", approvers=("ann", "bob"), quorum=2, details={"to": name}, priority=priority)
            agent.gate(ToolCalling, name="two")(lambda event, ask=ask: ask)
            await agent.run("Pay.", session=name)

    in_store(work)
    listed = windlass("approve").output
    assert listed.index("fire/1/1") < listed.index("rent/1/1")
    assert '    details: {"to": "fire"}\n    priority: 9\n' in listed
    assert "    two: 0 of 2, needs ann or bob\n" in listed
    assert windlass("approve", "rent", "rent/1/1", "--by", "ann", "--remember", "pay(5)").exit_code == 0
    assert "    two: 1 of 2 (ann), needs bob\n" in windlass("approve", "rent").output
    refused(windlass("approve", "rent", "rent/1/1", "--by", "ann"), "ann has answered it already")
    refused(windlass("approve", "rent", "rent/1/1", "--by", "eve"), "may not answer")
    digest = in_store(lambda store: store.approvals("rent"))[0][1].digest
    edit = ("approve", "fire", "fire/1/1", "--by", "ann", "--edit")
    unchecked = windlass(*edit, '{"euros": 3}')
    assert (unchecked.exit_code, "--edit needs --agent" in unchecked.output) == (2, True)
    refused(
        windlass(*edit, '{"euros": "many"}', "--agent", "counter:agent", store=None), "the edited arguments do not fit"
    )
    assert "    two: 0 of 2, needs ann or bob\n" in windlass("approve", "fire").output
    sys.modules.pop("counter", None)  # another process would not have it
    done = windlass(*edit, '{"euros": 3}', "--agent", "counter:agent", store=None)
    assert done.exit_code == 0, done.output
    assert 'pay {"euros":3}' in windlass("approve", "fire").output
    refused(windlass("approve", "fire", "fire/1/1", "--by", "bob", "--digest", digest), "edited since")
    assert windlass("approve", "rent", "rent/1/1", "--by", "bob", "--digest", digest).exit_code == 0
    assert windlass("approve", "rent").output == "no open questions\n"
    sys.modules.pop("counter", None)
    assert windlass("resume", "counter:agent", "rent").exit_code == 0
    assert '"remember":"pay(5)"' in windlass("show", "rent", "--records", "--json").output
    assert windlass("approve", "x", "y", "--remember", "rm x").exit_code == 2
    assert windlass("approve", "x", "y", "--remember", "rm", "--reject", "no").exit_code == 2


def test_who_answers_is_noted_even_if_nobody_says_so(folder, monkeypatch):
    monkeypatch.setenv("LOGNAME", "eve")
    fill("rent")
    assert windlass("approve", "rent", "rent/1/1").exit_code == 0
    assert windlass("resume", "counter:agent", "rent").exit_code == 0
    assert '"by":"eve"' in windlass("show", "rent", "--records", "--json").output


EDITED = '[Before this call ran, ann changed its arguments to {"euros":3,"x":""}]\n'


@pytest.mark.parametrize(
    ("options", "word", "text", "paid"),
    [
        ([], "approve", "paid 5", "5\n"),
        (["--reject", "too dear"], "reject", "Denied: too dear", None),
        (["--edit", '{"euros": 3}'], "edit", EDITED + "paid 3", "3\n"),
        (["--respond", "paid in cash"], "respond", "paid in cash", None),
    ],
    ids=["approve", "reject", "edit", "respond"],
)
def test_an_answer_counts_when_the_session_is_resumed(folder, options, word, text, paid):
    fill("rent")
    checked: Any = (*options, "--agent", "counter:agent") if word == "edit" else options
    store = None if word == "edit" else "sqlite:///till.db"
    result = windlass("approve", "rent", "rent/1/1", *checked, "--by", "ann", store=store)
    sys.modules.pop("counter", None)  # another process would not have it
    assert (result.exit_code, result.output) == (0, f"{word}: saved for the next resume of rent\n")
    assert not Path("paid").exists()
    result = windlass("resume", "counter:agent", "rent")
    assert (result.exit_code, result.stdout) == (0, f"{text}\n")
    assert "rent: completed" in result.stderr
    assert (Path("paid").read_text() if Path("paid").exists() else None) == paid
    assert '"by":"ann"' in windlass("show", "rent", "--records", "--json").output
    assert windlass("approve").output == "no open questions\n"


@pytest.mark.parametrize(
    ("options", "agent"),
    [
        *[
            (options, agent)
            for options in (["--reject", "not hunter2"], ["--respond", "hunter2"])
            for agent in (True, False)
        ],
        (["--edit", '{"euros": 3, "x": "hunter2"}'], True),
    ],
)
def test_the_secrets_of_an_agent_are_masked_before_its_answer_is_kept_or_when_it_is_taken(folder, options, agent):
    fill("rent")
    answer = ["approve", "rent", "rent/1/1", *options]
    given = windlass(*answer, "--agent", "counter:agent", store=None) if agent else windlass(*answer)
    assert given.exit_code == 0, given.output
    ((_, _, kept),) = in_store(lambda store: store.inbox("rent", ()))
    assert ("hunter2" in repr(kept), "•••" in repr(kept)) == (not agent, agent)
    assert (b"hunter2" in Path("till.db").read_bytes()) == (not agent)
    sys.modules.pop("counter", None)  # another process would not have it
    assert windlass("resume", "counter:agent", "rent").exit_code == 0
    assert in_store(lambda store: store.inbox("rent", ())) == []
    records = windlass("show", "rent", "--records", "--json").output
    assert ("hunter2" in records, "•••" in records) == (False, True)
    assert b"hunter2" not in Path("till.db").read_bytes()


def test_an_agent_is_asked_in_its_own_store(folder, monkeypatch):
    fill("rent")
    monkeypatch.setenv("WINDLASS_STORE", "sqlite:///other.db")
    assert "rent/1/1" in windlass("approve", "--agent", "counter", store=None).output
    assert not Path("other.db").exists()
    result = windlass("approve", "--agent", "counter")
    assert (result.exit_code, "leave out --store" in result.stderr) == (2, True)
    Path("forgetful.py").write_text("from counter import *\nagent = Agent(FunctionModel(reply))\n")
    result = windlass("approve", "--agent", "forgetful", store=None)
    assert (result.exit_code, "in-memory store has nothing to show" in result.stderr) == (2, True)
    result = windlass("approve", "--agent", "nowhere", store=None)
    assert (result.exit_code, "nowhere" in result.stderr) == (2, True)


def test_an_answer_that_does_not_fit_is_refused(folder):
    fill("rent")
    refused(windlass("approve", "rent", "rent/9/9"), "no such question is open", "rent/1/1")
    assert windlass("approve", "rent", "rent/1/1").exit_code == 0
    refused(windlass("approve", "rent", "rent/1/1", "--reject", "no"), "answered already")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        (["--edit", "{euros: 3}"], "JSON object"),
        (["--edit", "[3]"], "JSON object"),
        (["--edit", ""], "JSON object"),
        (["--reject", "no", "--respond", "yes"], "one of"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else value,
)
def test_bad_input_is_refused_before_anything_is_kept(folder, options, word):
    fill("rent")
    result = windlass("approve", "rent", "rent/1/1", *options)
    assert result.exit_code == 2
    assert word in result.stderr
    assert windlass("approve", "rent", "rent/1/1").exit_code == 0


def test_a_turn_that_still_waits_says_what_for(folder):
    fill("rent")
    result = windlass("resume", "counter", "rent")
    assert result.exit_code == 0
    assert "rent: suspended" in result.stderr
    assert "open question: rent/1/1  Pay 5 euros?" in result.stderr
    assert not Path("paid").exists()


def test_what_cannot_be_resumed_is_told(folder):
    finished("hello")
    refused(windlass("resume", "counter", "hello"), "'hello'")
    assert windlass("resume", "no_such_module", "hello").exit_code == 2


def test_a_broken_chain_does_not_keep_an_answer(folder):
    fill("rent")
    database = sqlite3.connect("till.db")
    with database:
        database.execute("UPDATE batches SET data = x'00'")
    database.close()
    refused(windlass("approve", "rent", "rent/1/1"), "damaged")


# ---------------------------------------------------------------- a store that is not there


@pytest.mark.parametrize(
    "command",
    [
        ("show", "rent"),
        ("show", "rent", "--context", "1"),
        ("sessions", "list"),
        ("sessions", "verify"),
        ("sessions", "export", "rent"),
        ("sessions", "erase", "rent", "--yes"),
        ("sessions", "prune"),
        ("approve",),
        ("approve", "rent", "rent/1/1"),
    ],
    ids=" ".join,
)
@pytest.mark.parametrize("store", ["sqlite:///nowhere.db", "sqlite:///no/such/folder/till.db", None])
def test_a_command_that_looks_makes_no_store(folder, command, store):
    before = sorted(folder.rglob("*"))
    refused(windlass(*command, store=store), "there is no store at", "--store")
    assert sorted(folder.rglob("*")) == before


def test_resume_makes_no_store(folder):
    before = sorted(folder.rglob("*.db"))
    refused(windlass("resume", "counter", "rent"), "there is no store at")
    assert sorted(folder.rglob("*.db")) == before


def test_import_makes_the_store(folder):
    finished("hello")
    windlass("sessions", "export", "hello", "-o", "hello.jsonl")
    assert windlass("sessions", "import", "hello.jsonl", store="sqlite:///new.db").exit_code == 0
    assert Path("new.db").exists()


# ---------------------------------------------------------------- what the list of questions says


def test_an_answered_question_is_not_listed(folder):
    fill("rent", "food")
    assert windlass("approve", "rent", "rent/1/1").exit_code == 0
    listed = windlass("approve").output
    assert "rent" not in listed
    assert "food" in listed
    assert windlass("approve", "rent").output == "no open questions\n"


def test_the_list_says_who_may_answer_and_until_when(folder):
    named = COUNTER.replace('euros?")', 'euros?", approvers=("ann", "bob"), expires=3600)')
    (folder / "named.py").write_text(named, encoding="utf-8")
    assert named != COUNTER
    done = subprocess.run(
        [sys.executable, "-c", "import named; named.agent.run_sync('go', session='rent')"], cwd=folder, check=False
    )
    assert done.returncode == 0
    listed = windlass("approve").output
    assert "    approvers: ann, bob\n" in listed
    assert "    expires: 20" in listed
    assert ", then it counts as reject\n" in listed


# ---------------------------------------------------------------- a scope

DESK = """
from windlass import Agent, Ask, ToolCalling, Turn, tool
from windlass.testing import FunctionModel, calls, says


class Desk:
    def __init__(self, session):
        self.session = session


@tool
async def pay(euros: int, turn: Turn[Desk]) -> str:
    "Pay."
    return f"paid {euros} for {turn.scope.session}"


def reply(request):
    return calls("pay", euros=5) if request.messages[-1].role == "user" else says(request.messages[-1].parts[0].text)


agent = Agent(FunctionModel(reply), tools=[pay], scope=Desk, name="till", store="sqlite:///till.db")
agent.gate(ToolCalling)(lambda event: Ask("Pay?"))


async def later(session):
    return Desk(f"{session}, later")


def scope(session):
    return Desk(session)


def broken(session):
    raise OSError("no database")


def another(session):
    return session


nothing = 5
"""


@pytest.fixture
def desk(folder: Path) -> None:
    """A session that waits, of an agent that needs a scope; a person has answered."""
    (folder / "desk.py").write_text(DESK, encoding="utf-8")
    code = "import desk; desk.agent.run_sync('go', session='rent', scope=desk.Desk('rent'))"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)
    assert windlass("approve", "rent", "rent/1/1").exit_code == 0


def records() -> int:
    return len(in_store(lambda store: store.read("rent")))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "needs a scope of type Desk, but got none"),
        (("--scope", "desk:another"), "needs a scope of type Desk, but got a value of type str"),
        (("--scope", "desk:broken"), "OSError: no database"),
    ],
    ids=["none", "another type", "broken"],
)
def test_an_agent_that_needs_a_scope_is_not_resumed_without_it_and_the_answer_is_not_burnt(desk, options, words):
    before = records()
    refused(windlass("resume", "desk", "rent", *options), words, "--scope")
    assert records() == before
    del sys.modules["desk"]  # in another process
    result = windlass("resume", "desk", "rent", "--scope", "desk:scope")
    assert (result.exit_code, result.stdout) == (0, "paid 5 for rent\n")


@pytest.mark.parametrize(("target", "paid"), [("desk", "rent"), ("desk:Desk", "rent"), ("desk:later", "rent, later")])
def test_a_scope_is_made_of_the_sessions_id(desk, target, paid):
    result = windlass("resume", "desk", "rent", "--scope", target)
    assert (result.exit_code, result.stdout) == (0, f"paid 5 for {paid}\n")


@pytest.mark.parametrize("target", ["desk:nothing", "desk:absent", "no_such_module:scope"])
def test_what_makes_no_scope_is_refused(desk, target):
    result = windlass("resume", "desk", "rent", "--scope", target)
    assert result.exit_code == 2
    assert "--scope" in result.stderr


# ---------------------------------------------------------------- what a person approves is shown whole

LONG = "Monthly rent for the flat, as agreed with the landlord; " * 20


def ask_for_transfer(*sessions: str, question: str = "Pay?") -> None:
    @tool
    async def transfer(note: str, iban: str) -> str:
        """Transfer money."""
        raise AssertionError("nobody has approved")

    async def work(store: SQLiteStore) -> None:
        model = FunctionModel(lambda request: calls("transfer", note=LONG, iban="MALLORY-666"))
        agent = Agent(model, tools=[transfer], store=store)
        agent.gate(ToolCalling)(lambda event: Ask(question))
        for session in sessions:
            await agent.run("go", session=session)

    in_store(work)


def test_a_long_argument_does_not_hide_the_others(folder):
    question = "Shall I pay " + "the rent and " * 30 + "a bribe?"
    ask_for_transfer("rent", question=question)
    whole = f'transfer {{"note":"{LONG}","iban":"MALLORY-666"}}'
    listed = windlass("approve").stdout
    assert question in listed
    assert whole in listed
    explained = windlass("why", "rent").stdout
    assert " ".join(whole.split()) in " ".join(explained.split())
    for command in (["why", "rent"], ["show", "rent"]):
        shown = windlass(*command).stdout
        assert "MALLORY-666" in shown
        assert question in " ".join(shown.split())
    assert "MALLORY-666" in windlass("show", "rent", "--records").stdout


def test_cut_text_says_how_much_is_cut_and_how_to_see_it_and_in_a_pipe_nothing_is_cut(folder):
    ask_for_transfer("rent")
    finished("hello", "Good morning, " * 30)
    for command in (["show", "hello"], ["show", "rent", "--records"], ["why", "hello"], ["sessions", "list"]):
        given = [*command, "--store", "sqlite:///till.db"]
        with Terminal(folder, *given, rows=400, columns=80, NO_COLOR="1") as terminal:
            assert terminal.ends() == 0
        assert "…(+" in terminal.screen
        assert "…(+N) stands for N characters: repeat the command with --full to see them" in terminal.screen
        with Terminal(folder, *given, "--full", rows=400, columns=80, NO_COLOR="1") as terminal:
            assert terminal.ends() == 0
        assert "…" not in terminal.screen
        piped = windlass(*command)
        assert "…" not in piped.output
        assert piped.stderr == ""
        if "rent" not in command:
            assert " ".join(piped.stdout.split()).count("Good morning,") >= 14  # a title has 200 characters


def test_what_is_shown_for_approval_comes_from_the_log_and_not_from_an_unchained_table(folder):
    fill("rent")
    database = sqlite3.connect("till.db")
    with database:
        (data,) = database.execute("SELECT data FROM asks").fetchone()
        database.execute("UPDATE asks SET data = ?", (data.replace(b"Pay 5 euros?", b"Pay 1 euro??"),))
    database.close()
    assert "Pay 5 euros?" in windlass("approve").stdout
    assert "Pay 1 euro" not in windlass("approve").stdout


def test_a_damaged_session_does_not_hide_the_questions_of_the_others(folder):
    fill("rent", "food")
    database = sqlite3.connect("till.db")
    with database:
        database.execute("UPDATE batches SET data = x'00ff00' WHERE session = 1")
    database.close()
    result = windlass("approve")
    refused(result, "'rent'", "damaged")
    assert "food  food/1/1  Pay 5 euros?" in result.stdout


# ---------------------------------------------------------------- answered questions are not open


def listings(agent: Agent[Any, Any], session: str) -> list[Any]:
    """What every listing says is open."""

    async def work(store: SQLiteStore) -> list[Any]:
        return [asked.id for _, asked in await open_questions(store)]

    infos = [json.loads(line) for line in windlass("sessions", "list", "--json").stdout.splitlines()]
    return [
        *in_store(work),
        *[asked.id for asked in asyncio.run(Session(agent, session).approvals())],
        *[info["session"] for info in infos if info.get("waiting")],
        *re.findall(r"open question", windlass("sessions", "list").stdout),
        *re.findall(r".*answers:.*", windlass("approve").stdout),
    ]


@pytest.mark.parametrize("asked_in", ["top", "top//1/1"])
def test_an_answered_question_is_open_nowhere(folder, asked_in):
    Path("boss.py").write_text(BOSS)
    sys.path.insert(0, str(folder))
    boss = import_module("boss").boss
    boss.run_sync("See to it.", session="top")
    assert len(listings(boss, "top")) == 8
    assert windlass("approve", asked_in, "top//1/1/1/1").exit_code == 0
    assert listings(boss, "top") == []
    assert listings(boss, "top//1/1") == []
    stale = windlass("approve", "top", "top/9/9")
    refused(stale, "no such question is open; no question is open")


def test_an_answer_that_reached_only_the_sub_agent_counts_for_its_parent_too(folder):
    """Whoever answers may die between the two inboxes; the sub-agent's decides."""
    Path("boss.py").write_text(BOSS)
    sys.path.insert(0, str(folder))
    boss = import_module("boss").boss
    boss.run_sync("See to it.", session="top")
    assert windlass("approve", "top", "top//1/1/1/1").exit_code == 0
    database = sqlite3.connect("till.db")
    with database:
        assert database.execute("DELETE FROM inbox WHERE session = 'top'").rowcount == 1
        database.execute("DELETE FROM tallies WHERE kind = 'inbox' AND session = 'top'")
    database.close()
    assert listings(boss, "top") == []


BOSS = """
from counter import *
boss = Agent(FunctionModel(lambda request: says('Done.') if request.messages[-1].role == 'tool' else
    calls('till', task='Pay.')), tools=[agent.as_tool()], store='sqlite:///till.db')
"""


# ---------------------------------------------------------------- every broken session is reported


def test_verify_reports_every_broken_session_and_verifies_the_others(folder):
    fill("one", "two", "three", "four")
    tamper("one")
    tamper("three")
    result = windlass("sessions", "verify")
    refused(result, "'one'", "'three'", "2 verified, 2 broken")
    assert [line.partition(":")[0] for line in result.stdout.splitlines()] == ["two", "four"]


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE sessions SET head = NULL WHERE id = 'rent'",
        "UPDATE sessions SET records = 'many' WHERE id = 'rent'",
        "UPDATE batches SET count = 'x' WHERE session = 1",
        "UPDATE batches SET link = 7 WHERE session = 1",
        "UPDATE batches SET data = 7 WHERE session = 1",
        "DELETE FROM batches WHERE session = 1",
    ],
)
def test_verify_goes_on_after_any_damage(folder, damage):
    fill("rent", "food")
    database = sqlite3.connect("till.db")
    with database:
        database.execute(damage)
    database.close()
    result = windlass("sessions", "verify")
    refused(result, "'rent'", "1 verified, 1 broken")
    assert result.stdout.startswith("food: ")


def test_no_damage_of_the_file_ends_in_a_traceback(folder):
    """Bytes are flipped all over a file; each command succeeds, or names the session or the file."""
    fill("rent", "food")
    finished("hello")
    in_store(lambda store: store.sessions())  # the last process that closes it empties the write-ahead log
    whole = Path("till.db").read_bytes()
    dice = random.Random(14)
    failures = 0
    for at in range(60):
        damaged = bytearray(whole)
        for _ in range(dice.choice([1, 1, 3, 40])):
            damaged[dice.randrange(len(damaged))] ^= 1 << dice.randrange(8)
        for command in COMMANDS_THAT_READ:
            Path("bad.db").write_bytes(damaged)
            for rest in ("bad.db-wal", "bad.db-shm"):
                Path(rest).unlink(missing_ok=True)
            result = windlass(*command, store="sqlite:///bad.db")
            if result.exit_code:
                failures += 1
                refused(result)
                assert re.search(r"session|pipeline '|bad\.db", result.stderr), (at, command, result.stderr)
            else:
                assert result.exception is None, (at, command)
    assert failures > 20


COMMANDS_THAT_READ = [
    ["sessions", "list"],
    ["sessions", "verify"],
    ["sessions", "head"],
    ["sessions", "export", "rent"],
    ["show", "rent"],
    ["show", "rent", "--records"],
    ["show", "rent", "--context", "1"],
    ["approve"],
]


# ---------------------------------------------------------------- heads that are kept elsewhere


def keep(name: str = "heads", *options: str) -> list[str]:
    """Keep the heads of all sessions in a file."""
    result = windlass("sessions", "head", *options)
    assert result.exit_code == 0, result.output
    Path(name).write_text(result.stdout)
    return result.stdout.splitlines()


def grow(session: str) -> None:
    finished(session, "More.")


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_heads_are_kept_and_still_on_the_chain_when_a_session_has_grown(folder, options):
    finished("hello")
    finished("odd \t\u202e one")
    fill("rent")
    lines = keep("heads", *options)
    assert len(lines) == 3
    if not options:
        (line,) = windlass("sessions", "head", "hello").stdout.splitlines()
        name, records, head = line.split("\t")
        assert (name, f"{records} records verified, head {head}") in [
            tuple(line.split(": ", 1)) for line in windlass("sessions", "verify", "hello").stdout.splitlines()
        ]
    grow("hello")
    grow("odd \t\u202e one")
    finished("new")
    result = windlass("sessions", "verify", "--against", "heads")
    assert result.exit_code == 0, result.output
    assert result.stdout.endswith("4 verified, 0 broken; 3 of 3 kept heads are still on their chains\n")
    assert result.stderr == ""
    assert windlass("sessions", "verify", "hello", "--against", "heads").exit_code == 0
    Path("heads").write_text("".join(f"{line}\n" for line in lines + keep("later", *options)))  # a file that grows
    assert windlass("sessions", "verify", "--against", "heads").exit_code == 0


def rewrite_history(session: str) -> None:
    """Replace a session by another one that verifies: whoever can write the file can do that."""
    windlass("sessions", "export", session, "-o", "forged")
    database = sqlite3.connect("till.db")
    with database:
        (number,) = database.execute("SELECT number FROM sessions WHERE id = ?", (session,)).fetchone()
        database.execute("DELETE FROM batches WHERE session = ?", (number,))
        database.execute("DELETE FROM sessions WHERE number = ?", (number,))
        database.execute("DELETE FROM tallies WHERE session = ?", (session,))
    database.close()
    finished(session, "Something else.")
    database = sqlite3.connect("till.db")
    with database:
        (new,) = database.execute("SELECT number FROM sessions WHERE id = ?", (session,)).fetchone()
        database.execute("UPDATE sessions SET number = ? WHERE number = ?", (number, new))
        database.execute("UPDATE batches SET session = ? WHERE session = ?", (number, new))
    database.close()


def test_a_history_that_was_rewritten_verifies_but_not_against_its_kept_head(folder):
    finished("hello")
    fill("rent")
    keep()
    rewrite_history("hello")
    assert windlass("sessions", "verify").exit_code == 0
    result = windlass("sessions", "verify", "--against", "heads")
    refused(result, "hello: different; ", "2 verified, 0 broken; 1 of 2 kept heads are still on their chains")
    refused(windlass("sessions", "verify", "hello", "--against", "heads"), "hello: different; ")
    assert windlass("sessions", "verify", "rent", "--against", "heads").exit_code == 0


def test_what_is_missing_shorter_or_erased_is_reported_against_kept_heads(folder):
    for name in ("hello", "short", "gone", "wiped"):
        finished(name)
    grow("short")
    lines = keep()
    database = sqlite3.connect("till.db")
    with database:
        database.execute("DELETE FROM batches WHERE session = 3")
        database.execute("DELETE FROM sessions WHERE number = 3")
        half = database.execute("SELECT seq + count, link FROM batches WHERE session = 2 AND seq = 0").fetchone()
        database.execute("DELETE FROM batches WHERE session = 2 AND seq > 0")
        database.execute("UPDATE sessions SET records = ?, head = ? WHERE number = 2", half)
    database.close()
    windlass("sessions", "erase", "wiped", "--yes")
    result = windlass("sessions", "verify", "--against", "heads")
    refused(result, "gone: missing; ", "short: shorter; it has ", "wiped: erased; ", "1 of 4 kept heads")
    assert "hello:" not in result.stderr
    refused(windlass("sessions", "verify", "gone", "--against", "heads"), "gone: missing; ")
    refused(windlass("sessions", "verify", "wiped", "--against", "heads"), "wiped: erased; ")
    assert len(lines) == 4


@pytest.mark.parametrize("content", ["hello\tmany\tabcd", "hello", "{}", '{"session":1,"records":1,"head":"ab"}', "[]"])
def test_a_file_that_has_no_heads_is_refused(folder, content):
    finished("hello")
    keep()
    Path("bad").write_text(Path("heads").read_text() + content)
    refused(windlass("sessions", "verify", "--against", "bad"), "bad, line 2 is not a head")


def test_the_head_of_a_broken_log_is_not_printed_and_the_others_are(folder):
    fill("rent")
    finished("hello")
    database = sqlite3.connect("till.db")
    with database:
        database.execute(
            "DELETE FROM batches WHERE session = 1 AND seq = (SELECT max(seq) FROM batches WHERE session = 1)"
        )
    database.close()
    result = windlass("sessions", "head")
    refused(result, "'rent'")
    assert result.stdout.startswith("hello\t")
