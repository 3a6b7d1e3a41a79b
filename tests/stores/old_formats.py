"""Stores of format 2, as an earlier version of Windlass wrote them."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

import psycopg

from windlass.records import Injected, Record
from windlass.stores.batches import lines_of, pack

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
"""

POSTGRES = """
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
ALTER TABLE batches ALTER COLUMN data SET STORAGE EXTERNAL;
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


BEFORE_ENGINES = ("DROP INDEX owned", "DROP INDEX unfinished", "ALTER TABLE sessions DROP COLUMN engine")
"""Statements that take back what format 6 added."""


class OldBatch(NamedTuple):
    """A batch of format 2, maybe pruned."""

    records: Sequence[Record]
    pruned: bool = False


def old_rows(batches: Sequence[OldBatch]) -> list[tuple[Any, ...]]:
    """The rows of a log: seq, count, link, data, pruned."""
    link, seq, rows = bytes(16), 0, []
    for batch in batches:
        link = blake2b(lines_of(batch.records), digest_size=16, key=link).digest()
        left = [
            record.replace(parts=()) if batch.pruned and isinstance(record, Injected) and not record.durable else record
            for record in batch.records
        ]
        rows.append((seq, len(left), link, pack(lines_of(left)), batch.pruned))
        seq += len(left)
    return rows


def fill(execute: Callable[[str, tuple[Any, ...]], Any], sessions: dict[str, Sequence[OldBatch]]) -> None:
    """Write sessions, an erased one, an inbox entry, a cursor and a pipeline. Parameters are written as `%s`."""
    for number, (session, batches) in enumerate(sessions.items(), 1):
        rows = old_rows(batches)
        row = (number, session, "open", "checker", "t", 10.0, 10.0, rows[-1][0] + rows[-1][1], rows[-1][2])
        execute(
            "INSERT INTO sessions (number, id, status, agent, title, started, updated, records, head) OVERRIDE "
            "VALUES (%s, %s, %s, %s, %s, %s, %s, %s, %s)",
            row,
        )
        for one in rows:
            execute("INSERT INTO batches VALUES (%s, %s, %s, %s, %s, %s)", (number, *one))
    execute(
        "INSERT INTO inbox (session, key, position, kind, data) OVERRIDE VALUES (%s, %s, 1, %s, %s)",
        ("s", b"k", "steer", b"7"),
    )
    execute("INSERT INTO cursors VALUES (%s, %s, %s)", ("s", "audit", 1))
    execute("INSERT INTO pipelines VALUES (%s, %s)", ("digest", b"data"))


def old_sqlite(file: Path, sessions: dict[str, Sequence[OldBatch]]) -> None:
    """Make a file of format 2."""
    db = sqlite3.connect(file)
    db.executescript(f"{SQLITE}; PRAGMA application_id = {0x57494E44}; PRAGMA user_version = 2")
    fill(lambda query, row: db.execute(query.replace("%s", "?").replace("OVERRIDE ", ""), row), sessions)
    db.commit()
    db.close()


def old_postgres(url: str, sessions: dict[str, Sequence[OldBatch]]) -> None:
    """Make a schema of format 2."""
    with psycopg.connect(url) as db:
        db.execute("CREATE SCHEMA windlass")
        db.execute("SET search_path = windlass")
        db.execute(POSTGRES.encode())
        db.execute("INSERT INTO format VALUES (2)")
        fill(
            lambda query, row: db.execute(query.replace("OVERRIDE", "OVERRIDING SYSTEM VALUE").encode(), row), sessions
        )
        db.execute("SELECT setval(pg_get_serial_sequence('sessions', 'number'), 1000)")
