"""Stores of formats 1 and 2, written by their own SQL, with logs that a version of that time wrote."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path

import psycopg

from windlass.records import Asked, decode
from windlass.stores.batches import change_of, pack
from windlass.stores.derived import Derived

from .old_formats import POSTGRES, SQLITE

LOGS: dict[str, list[str]] = json.loads((Path(__file__).parent / "logs" / "format_2.json").read_text("utf-8"))
"""`q` waits for a person, two sub-agents below; `done` has ended. Users own `q/7/7` and `q/1/2`."""

CHILDREN = {"q/1/1": "q", "q/1/1/1/1": "q/1/1", "done/1/1": "done", "done/1/1/1/1": "done/1/1"}


def _rows(log: Sequence[str]) -> tuple[list[tuple[int, int, bytes, bytes]], list[tuple[bytes, bytes]], Derived]:
    """The batches of a log, two records each, its open questions, and what its row says."""
    link, batches, derived = bytes(16), list[tuple[int, int, bytes, bytes]](), Derived()
    for seq in range(0, len(log), 2):
        derived.add([decode(line.encode()) for line in log[seq : seq + 2]], first=not seq)
        lines = "\n".join(log[seq : seq + 2]).encode()
        link = blake2b(lines, digest_size=16, key=link).digest()
        batches.append((seq, len(log[seq : seq + 2]), link, pack(lines)))
    change = change_of([decode(line.encode()) for line in log])
    assert change is not None
    assert change.status is not None
    asks = [(asked.id.encode(), line.encode()) for line in log for asked in [decode(line.encode())]
            if isinstance(asked, Asked) and asked.id in change.asked]  # fmt: skip
    return batches, asks, derived


def write_sqlite(file: Path, version: int, logs: dict[str, list[str]] = LOGS) -> None:
    """An SQLite file of format 1 or 2. In format 1 the rows do not say where their logs end."""
    db = sqlite3.connect(file, isolation_level=None)
    db.execute("PRAGMA journal_mode = WAL")
    db.executescript(f"{SQLITE}; PRAGMA application_id = {0x57494E44}")
    for number, (session, log) in enumerate(logs.items(), 1):
        batches, asks, row = _rows(log)
        end = (len(log), batches[-1][2]) if version > 1 else (None, None)
        db.execute(
            "INSERT INTO sessions VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (number, session, row.status, row.agent, row.title, row.started, row.updated, *end),
        )
        db.executemany(f"INSERT INTO batches VALUES ({number}, ?, ?, ?, ?, 0)", batches)
        db.executemany(f"INSERT INTO asks (session, id, data) VALUES ({number}, ?, ?)", asks)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()


def write_postgres(url: str, version: int, logs: dict[str, list[str]] = LOGS) -> None:
    """A PostgreSQL schema of format 1 or 2."""
    with psycopg.connect(url) as db:
        db.execute("CREATE SCHEMA windlass")
        db.execute("SET search_path = windlass")
        db.execute(POSTGRES.encode())
        for number, (session, log) in enumerate(logs.items(), 1):
            batches, asks, row = _rows(log)
            db.execute(
                "INSERT INTO sessions (id, status, agent, title, started, updated, records, head) "
                "VALUES (%s, %s, %s, %s, %s, %s, %s, %s)",
                (session, row.status, row.agent, row.title, row.started, row.updated, len(log), batches[-1][2]),
            )
            for batch in batches:
                db.execute("INSERT INTO batches VALUES (%s, %s, %s, %s, %s)", (number, *batch))
            for ask in asks:
                db.execute("INSERT INTO asks (session, id, data) VALUES (%s, %s, %s)", (number, *ask))
        db.execute("INSERT INTO format VALUES (%s)", (version,))
