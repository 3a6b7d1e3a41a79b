"""What the inspector opens: stores and exported files; and what it reads of any log."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass import Agent, tool
from windlass.errors import SessionUnknown
from windlass.evals import EvalRun
from windlass.inspector.digests import digest
from windlass.inspector.score import Score
from windlass.inspector.sessions import head, turn_view
from windlass.inspector.sources import is_live, open_source
from windlass.logs import SessionInfo
from windlass.records import KINDS
from windlass.server.json import to_json
from windlass.stores import MemoryStore, SQLiteStore
from windlass.testing import ScriptedModel, calls, says
from windlass.testing.strategies import records
from windlass.transfer import export_session

from . import shop
from .test_security import ask


def windlass(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "windlass", *arguments], capture_output=True, text=True, timeout=60)


@given(st.lists(records(), max_size=12))
def test_any_log_can_be_shown(log: Any):
    score = Score("s")
    score.extend(log)
    for view in [head(score), digest(score), *[turn_view(turn) for turn in score.turns]]:
        to_json(view)


def test_every_kind_of_record_has_a_reader():
    from windlass.inspector.score import _READERS

    assert {kind.__name__ for kind in _READERS} == set(KINDS)


async def test_rows_that_changed_are_those_of_the_new_records(database: Path):
    store = SQLiteStore(database)
    log = list(await store.read("desk-8841"))
    await store.close()
    for at in range(1, len(log)):
        score = Score("desk-8841")
        score.extend(log[:at])
        before = {json.dumps([row["n"], row.get("call")]): to_json(row) for turn in score.turns for row in turn.rows}
        score.extend(log[at:])
        changed = {
            json.dumps([row["n"], row.get("call")]) for turn in score.turns for row in turn.rows if row["z"] > at
        }
        for turn in score.turns:
            for row in turn.rows:
                key = json.dumps([row["n"], row.get("call")])
                assert key in changed or before.get(key) == to_json(row)


async def test_exported_sessions_can_be_opened_from_one_file(
    database: Path, tmp_path: Path, started: Callable[..., Any]
):
    store = SQLiteStore(database)
    file = tmp_path / "sent.jsonl"
    lines = [*await export_session(store, "desk-8841"), *await export_session(store, "desk-8840")]
    await store.close()
    file.write_text("\n".join(lines), encoding="utf-8")
    process = started(file)
    found = json.loads(ask(process, "/api/sessions")[2])
    assert {one["session"] for one in found["sessions"]} == {"desk-8841", "desk-8840"}
    assert found["store"] == "sent.jsonl"
    turn = json.loads(ask(process, "/api/sessions/desk-8841/turns/1")[2])
    assert turn["turn"]["state"] == "done"


async def test_a_session_that_was_erased_is_gone_from_the_page(tmp_path: Path):
    source = await open_source(f"sqlite:///{tmp_path / 'a.db'}")
    await Agent(ScriptedModel(says("x")), store=source.store).run("hello", session="s")
    assert (await source.log("s")).score.turns
    await source.store.erase("s")
    with pytest.raises(SessionUnknown):
        await source.log("s")
    await source.store.close()


async def test_the_name_of_a_store_holds_no_password():
    for address, name in (
        ("postgresql://ann:secret@db.example/agents?password=secret", "agents"),
        ("postgresql://ann:secret@db.example", "db.example"),
    ):
        source = await open_source(address)
        assert source.name == name
        await source.close()


async def test_a_sub_agent_of_a_session_with_a_slash_is_live_with_it():
    store, child = MemoryStore(), "team/42//1/1"
    seen: list[bool] = []

    @tool
    async def look(session: str) -> str:
        """Look who is live."""
        seen.append(await is_live(store, SessionInfo(session, parent="team/42" if session == child else "")))
        return "seen"

    agent = Agent(ScriptedModel(calls([("look", {"session": name}) for name in ("team/42", child, "team")]), says("x")),
                  tools=[look], store=store)  # fmt: skip
    await agent.run("go", session="team/42")
    assert sorted(seen) == [False, True, True]


def test_a_store_that_does_not_exist_is_an_error_and_no_file_is_made(tmp_path: Path):
    result = windlass("ui", str(tmp_path / "no.db"), "--port", "0")
    assert result.returncode == 1
    assert "there is no file" in result.stderr
    result = windlass("ui", f"sqlite:///{tmp_path / 'no.db'}", "--port", "0")
    assert result.returncode == 1
    assert "there is no store" in result.stderr
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_neither_is_an_error(tmp_path: Path):
    (tmp_path / "notes.txt").write_text("hello")
    result = windlass("ui", str(tmp_path / "notes.txt"), "--port", "0")
    assert result.returncode == 1
    assert "neither a store nor a session" in result.stderr
    assert "Traceback" not in result.stderr


def test_a_saved_evaluation_in_the_place_of_a_store_is_told_where_it_goes(tmp_path: Path):
    EvalRun("desk", ()).save(tmp_path / "run.json")
    result = windlass("ui", str(tmp_path / "run.json"), "--port", "0")
    assert result.returncode == 1
    assert "name it with --evals" in result.stderr


def test_the_store_is_also_named_like_that_of_other_commands(
    started: Callable[..., Any], database: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    assert ask(started("--store", database), "/api/sessions")[0] == 200
    monkeypatch.setenv("WINDLASS_STORE", f"sqlite:///{database}")
    assert json.loads(ask(started(), "/api/sessions")[2])["store"] == database.name
    monkeypatch.setenv("WINDLASS_STORE", f"sqlite:///{tmp_path / 'no.db'}")
    result = windlass("ui", "--port", "0")
    assert result.returncode == 1
    assert "windlass ui FILE" in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("deep.jsonl", '{"windlass":' + "[" * 100_000 + "]" * 100_000 + "}", "not a JSON object"),
        ("lie.jsonl", '{"windlass":2,"session":"x","records":1}\n{"kind":"SessionEnded"}\n{"link":"00","count":1}\n',
         "differ from the exported ones"),
        ("garbage.db", "SQLite format 3\0" + "x" * 9000, "not an SQLite file, or it is damaged"),
        ("later.db", None, "was written by a newer Windlass"),
        ("other.db", None, "an SQLite file of another application"),
    ],
)  # fmt: skip
def test_a_file_that_lies_or_is_not_ours_is_an_error_and_stays_as_it_is(
    tmp_path: Path, name: str, content: str | None, words: str
):
    path = tmp_path / name
    if content is None:
        with closing(sqlite3.connect(path)) as db:
            db.execute("CREATE TABLE notes (text)")
            if name == "later.db":
                application = sqlite3.connect(_own(tmp_path)).execute("PRAGMA application_id").fetchone()[0]
                db.execute(f"PRAGMA application_id = {application}")
                db.execute("PRAGMA user_version = 9999")
            db.commit()
    else:
        path.write_text(content)
    before = path.read_bytes()
    result = windlass("ui", str(path), "--port", "0")
    assert result.returncode == 1
    assert words in result.stderr
    assert "Traceback" not in result.stderr
    assert path.read_bytes() == before


def _own(folder: Path) -> Path:
    """An empty store."""
    path = folder / "own.db"

    async def make() -> None:
        store = SQLiteStore(path)
        await store.find()
        await store.close()

    shop.in_thread(make)
    return path


def test_a_list_that_is_cut_says_so(inspector: Any):
    whole, cut = [json.loads(ask(inspector, f"/api/sessions{query}")[2]) for query in ("", "?limit=2")]
    assert not whole["more"]
    assert len(whole["sessions"]) > 10
    assert cut["more"]
    assert cut["sessions"] == whole["sessions"][:2]


def test_ctrl_c_ends_it_without_an_error(started: Callable[..., Any], database: Path):
    process = started(database)
    assert ask(process, "/api/sessions")[0] == 200
    assert process.end() in (0, 130)
