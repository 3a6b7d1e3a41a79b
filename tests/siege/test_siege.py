"""The log under siege, on both stores: kills, stops, cuts, takeovers, cancels, double resumes of trees, and tampering.

`make siege` is the whole, with a new seed each time; otherwise a few seconds with a fixed one.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from windlass import Completed, Suspended
from windlass.errors import StoreError
from windlass.messages import ToolCallPart
from windlass.records import Answered, Asked, ModelReplied, Record, ToolCalled, ToolReturned, TurnEnded
from windlass.testing import unpaired

from . import workers
from .workers import SESSIONS, Site, open_quickly

WHOLE = bool(os.environ.get("WINDLASS_SIEGE"))
SEED = int(os.environ.get("WINDLASS_SIEGE_SEED", "7"))
SECONDS = 60 if WHOLE else 4
RESUMES = 500 if WHOLE else 25
"""Double resumes on each of the two stores."""

TAMPERINGS = 200 if WHOLE else 12
"""How often the tables of a store are changed after its siege."""


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/store.db"
    found: str = request.getfixturevalue("database")
    return found


@pytest.fixture
def start(tmp_path: Path, address: str) -> Iterator[Any]:
    """Starts processes; none outlives the test."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    started: list[subprocess.Popen[str]] = []

    def start(what: str, *rest: str) -> subprocess.Popen[str]:
        command = [sys.executable, workers.__file__, what, str(tmp_path), address, *rest]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE} if what == "race" else {}
        started.append(subprocess.Popen(command, env=environment, text=True, **pipes))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


def noted(path: Path) -> list[list[str]]:
    return [line.split() for line in path.read_text().splitlines()] if path.exists() else []


async def logs_of(store: Any) -> dict[str, list[Record]]:
    """All logs, each with a chain that verifies."""
    sessions = await store.sessions()
    for session in sessions:
        await store.verify(session)
    return {session: list(await store.read(session)) for session in sessions}


def tokens_of(logs: dict[str, list[Record]], kind: type[ToolCalled] | type[ToolReturned]) -> list[tuple[str, str]]:
    """The tokens of the unsafe calls that were called or have returned, each with the status of its result."""
    tokens: dict[str, str] = {}
    for log in logs.values():
        for record in log:
            for part in record.reply.message.parts if isinstance(record, ModelReplied) else ():
                if isinstance(part, ToolCallPart) and "token" in part.json:
                    tokens[part.id] = json.loads(part.json)["token"]
    found = [record for log in logs.values() for record in log if isinstance(record, kind) and record.call in tokens]
    return [
        (tokens[record.call], getattr(record.result, "status", "") if kind is ToolReturned else "") for record in found
    ]


def check_effects(folder: Path, logs: dict[str, list[Record]]) -> None:
    """No unsafe call was carried out twice, or without its start in a log, or is said to be done and was not."""
    effects = Counter(words[1] for words in noted(folder / "effects") if words[0] in ("send", "sign"))
    assert [token for token, times in effects.items() if times > 1] == [], "unsafe calls that were carried out twice"
    called = {token for token, _ in tokens_of(logs, ToolCalled)}
    assert effects.keys() - called == set(), "unsafe calls whose start is in no log"
    done = {token for token, status in tokens_of(logs, ToolReturned) if status == "ok"}
    assert done - effects.keys() == set(), "unsafe calls that returned and were not carried out"


def check_answers(folder: Path, logs: dict[str, list[Record]]) -> None:
    """What the store has accepted is in the log, unless the turn that asked ended in another way."""
    for session, ask_id, _ in noted(folder / "answers"):
        log = logs[session]
        if not any(isinstance(record, Answered) and record.id == ask_id for record in log):
            asked = next(n for n, record in enumerate(log) if isinstance(record, Asked) and record.id == ask_id)
            end = next(record for record in log[asked:] if isinstance(record, TurnEnded))
            assert not isinstance(end.outcome, Completed), f"the answer to {ask_id} was lost"


async def bring_to_an_end(folder: Path, store: Any, session: str) -> None:
    """Resume a session until its turn is over: approve what it asks, as a person would."""
    site = Site(folder, random.Random(1))
    agent = site.agent(session, store)
    for _ in range(60):
        if (await agent.state(session)).over:
            return
        await site.answer(agent, session, reject=0.0)
        await agent.resume(session)
    raise AssertionError(f"session {session!r} does not come to an end")


@pytest.mark.timeout(SECONDS + 300)
async def test_a_siege_leaves_every_promise_of_the_log_intact(tmp_path, address, start):
    with_seed = f"with seed {SEED}"
    warden = start("siege", str(SEED), str(SECONDS))
    while warden.poll() is None:  # noqa: ASYNC110 - there is no other way to wait for it
        await asyncio.sleep(0.05)
    assert warden.returncode == 0, with_seed
    errors = [json.loads(line) for line in _lines(tmp_path / "errors")]
    assert errors == [], with_seed
    store = open_quickly(address)
    sessions = [session for session in SESSIONS if session in await store.sessions()]
    assert sessions, "nothing was done"
    for session in sessions:
        await bring_to_an_end(tmp_path, store, session)
    logs = await logs_of(store)
    check_effects(tmp_path, logs)
    check_answers(tmp_path, logs)
    assert not any("could not work" in repr(log) for log in logs.values()), with_seed
    assert await store.approvals() == [], with_seed
    agent = Site(tmp_path, random.Random(1)).agent("boss", store)
    for session in sessions:
        assert unpaired((await agent.state(session)).messages) == [], (session, with_seed)
    assert await store.verify_store() == [], with_seed
    await store.close()
    await tamper(address, random.Random(SEED))
    counts = {name: len(_lines(tmp_path / name)) for name in ("done", "refused", "broken", "effects", "answers")}
    sys.stdout.write(f"seed {SEED}, {noted(tmp_path / 'born')[0][0]} processes, {len(logs)} sessions: {counts}\n")


async def tamper(address: str, dice: random.Random) -> None:
    """Change what the siege has left, behind the store's back: `verify` and the next use see it each time."""
    tables = Tables(address)
    store = open_quickly(address)
    agent = Site(Path(), dice).agent("clerk", store)
    for number in range(TAMPERINGS):
        rows = tables.batches()
        changes = tables.changes(rows, dice)
        session, what, queries = changes[number % len(changes)]
        for query, values in queries:
            tables.execute(query, *values)
        with pytest.raises(StoreError, match=re.escape(repr(session))):
            await store.verify(session)
        with pytest.raises(StoreError):
            await store.read(session)
        if "//" not in session:
            for use in (agent.run("1", session=session), agent.resume(session)):
                with pytest.raises(StoreError):
                    await use
        tables.restore(session)
        assert (await store.verify(session)).records, (session, what, f"with seed {SEED}")
    assert await store.verify_store() == []
    await store.close()
    tables.close()


class Tables:
    """The tables of a store, for whoever changes them behind its back."""

    def __init__(self, address: str) -> None:
        if address.startswith("sqlite:///"):
            self._db: Any = sqlite3.connect(address.removeprefix("sqlite:///"), isolation_level=None, timeout=60)
            self._mark = "?"
        else:
            self._db = psycopg.connect(address, autocommit=True)
            self._db.execute("SET search_path = windlass")
            self._mark = "%s"
        self._whole = self.batches()

    def close(self) -> None:
        self._db.close()

    def execute(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        done = self._db.execute(query.replace("?", self._mark), values)
        return list(done.fetchall()) if done.description else []

    def batches(self) -> list[tuple[Any, ...]]:
        """Session, number, seq, count, link and data of all batches."""
        return self.execute(
            "SELECT id, session, seq, count, link, data FROM batches JOIN sessions ON session = number "
            "WHERE status != 'erased' ORDER BY session, seq"
        )

    def changes(self, rows: list[tuple[Any, ...]], dice: random.Random) -> list[tuple[str, str, list[Any]]]:
        """Ways to change a batch that was chosen at random: its session, what is done, and the statements."""
        session, number, seq, count, link, data = dice.choice(rows)
        where, at = "WHERE session = ? AND seq = ?", (number, seq)
        other = dice.choice([row for row in rows if row[1:3] != at])
        byte = dice.randrange(16)
        flipped = link[:byte] + bytes([link[byte] ^ 1 << dice.randrange(8)]) + link[byte + 1 :]
        return [
            (session, "a bit of a link", [(f"UPDATE batches SET link = ? {where}", (flipped, *at))]),
            (session, "a deleted batch", [(f"DELETE FROM batches {where}", at)]),
            (session, "a count", [(f"UPDATE batches SET count = count + 1 {where}", at)]),
            (session, "data cut short", [(f"UPDATE batches SET data = ? {where}", (data[: len(data) // 2], *at))]),
            (session, "the batch of another place", [
                (f"UPDATE batches SET count = ?, link = ?, data = ?, seals = NULL, nonce = NULL {where}",
                 (*other[3:], *at)),
            ]),
            (session, "an inserted batch", [
                ("INSERT INTO batches VALUES (?, ?, ?, ?, ?, NULL, NULL)", (number, 10**6, count, link, data)),
            ]),
        ]  # fmt: skip

    def restore(self, session: str) -> None:
        """Put the batches of a session back as the siege has left them."""
        rows = [row for row in self._whole if row[0] == session]
        self.execute("DELETE FROM batches WHERE session = ?", rows[0][1])
        for row in rows:
            self.execute("INSERT INTO batches VALUES (?, ?, ?, ?, ?, NULL, NULL)", *row[1:])


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


@pytest.mark.timeout(RESUMES + 300)
async def test_of_several_resumes_of_a_tree_one_wins_and_every_effect_happens_once(tmp_path, address, start):
    """As when a message about an approval is delivered twice or three times."""
    dice, store = random.Random(SEED), open_quickly(address)
    racers = [start("race", str(SEED + number)) for number in range(3)]
    agent = Site(tmp_path, dice).agent("boss", store)
    for number in range(RESUMES):
        session = f"boss-{number}"
        await agent.run("2", session=session)
        while isinstance((state := await agent.state(session)).outcome, Suspended):
            way, ids = dice.choice(("resolve", "answers")), [asked.id for asked in state.waiting]
            ends = await _race(dice.sample(racers, dice.choice((2, 2, 3))), " ".join([session, way, *ids]))
            won = [end for end in ends if not end.startswith(_REFUSALS)]
            # an answer that was stored before is used by the first resume; a later one finds what is asked then
            assert len(won) == 1 or (way == "resolve" and won), (session, ends, f"with seed {SEED}")
        assert state.outcome == Completed(), (session, state.outcome)
    logs = await logs_of(store)
    check_effects(tmp_path, logs)
    answered = {record.id for log in logs.values() for record in log if isinstance(record, Answered)}
    accepted = [ask_id for _, ask_id, _ in noted(tmp_path / "answers")]
    assert len(accepted) == len(set(accepted)), "an answer was accepted twice"
    assert set(accepted) <= answered, "an answer was lost"
    returned = [status for _, status in tokens_of(logs, ToolReturned)]
    assert set(returned) <= {"ok"}, "all were approved, and nobody was killed"
    assert not any("could not work" in repr(log) for log in logs.values())
    assert await store.approvals() == []
    await store.close()


_REFUSALS = ("SessionBusy", "SessionConflict", "NotSuspended", "StaleAnswer")


async def _race(racers: list[subprocess.Popen[str]], line: str) -> list[str]:
    """Let several processes resume a session at once; how that ended for each."""
    for racer in racers:
        assert racer.stdin is not None
        racer.stdin.write(f"{line}\n")
        racer.stdin.flush()
    return [json.loads(await asyncio.to_thread(racer.stdout.readline)) for racer in racers]  # type: ignore[union-attr]
