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

LOGS: dict[str, list[str]] = json.loads((Path(__file__).parent / "logs" / "format_2.json").read_text("utf-8"))
"""`q` waits for a person, two sub-agents below; `done` has ended. Users own `q/7/7` and `q/1/2`."""

CHILDREN = {"q/1/1": "q", "q/1/1/1/1": "q/1/1", "done/1/1": "done", "done/1/1/1/1": "done/1/1"}

SQLITE = """
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL DEFAULT 'open',
    agent TEXT NOT NULL DEFAULT '', title TEXT NOT NULL DEFAULT '', started REAL NOT NULL, updated REAL NOT NULL,
    records INTEGER, head BLOB
);
CREATE TABLE batches (
    session INTEGER NOT NULL, seq INTEGER NOT NULL, count INTEGER NOT NULL, link BLOB NOT NULL, data BLOB NOT NULL,
    pruned INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (session, seq)
) WITHOUT ROWID;
CREATE TABLE asks (
    position INTEGER PRIMARY KEY, session INTEGER NOT NULL, id BLOB NOT NULL, data BLOB NOT NULL, UNIQUE (session, id)
);
CREATE TABLE inbox (
    session TEXT NOT NULL, key BLOB NOT NULL, position INTEGER NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (session, key)
) WITHOUT ROWID;
CREATE INDEX waiting ON inbox (session) WHERE taken = 0;
CREATE TABLE cursors (
    session TEXT NOT NULL, reader TEXT NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY (session, reader)
) WITHOUT ROWID;
CREATE TABLE pipelines (digest TEXT PRIMARY KEY, data BLOB NOT NULL) WITHOUT ROWID;
PRAGMA application_id = 1464421956;
"""

POSTGRES = """
CREATE SCHEMA windlass;
SET search_path = windlass;
CREATE TABLE format (version INTEGER NOT NULL);
CREATE TABLE sessions (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT COLLATE "C" NOT NULL UNIQUE,
    status TEXT NOT NULL DEFAULT 'open', agent TEXT NOT NULL DEFAULT '', title TEXT NOT NULL DEFAULT '',
    started DOUBLE PRECISION NOT NULL, updated DOUBLE PRECISION NOT NULL,
    records BIGINT NOT NULL DEFAULT 0, head BYTEA NOT NULL, epoch BIGINT NOT NULL DEFAULT 0
);
CREATE TABLE batches (
    session BIGINT NOT NULL, seq BIGINT NOT NULL, count INTEGER NOT NULL, link BYTEA NOT NULL, data BYTEA NOT NULL,
    pruned BOOLEAN NOT NULL DEFAULT false, PRIMARY KEY (session, seq)
);
CREATE TABLE asks (
    position BIGINT GENERATED ALWAYS AS IDENTITY, session BIGINT NOT NULL, id BYTEA NOT NULL, data BYTEA NOT NULL,
    PRIMARY KEY (session, id)
);
CREATE TABLE inbox (
    position BIGINT GENERATED ALWAYS AS IDENTITY, session TEXT NOT NULL, key BYTEA NOT NULL, kind TEXT NOT NULL,
    data BYTEA NOT NULL, taken BOOLEAN NOT NULL DEFAULT false, PRIMARY KEY (session, key)
);
CREATE INDEX waiting ON inbox (session) WHERE NOT taken;
CREATE TABLE cursors (
    session TEXT NOT NULL, reader TEXT NOT NULL, seq BIGINT NOT NULL, PRIMARY KEY (session, reader)
);
CREATE TABLE pipelines (digest TEXT PRIMARY KEY, data BYTEA NOT NULL);
"""


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
    db.executescript(SQLITE)
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
