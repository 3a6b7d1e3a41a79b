"""The tables of an SQLite file, their version, and the upgrades from earlier versions."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial
from pathlib import Path

from windlass.errors import StoreError

from .chains import Chain
from .derived import cursor_checksum, entry_checksum, pipeline_checksum, tombstone_checksum
from .old_parents import fill_parents
from .reading import BatchRow
from .session_rows import fill_rows
from .shared import Execute
from .sqlite_file import Format
from .tables import TOMBSTONE
from .tallies import TABLE, fill_tallies
from .upgrading import check_fingerprint, sealed_rows

VERSION = 6
APPLICATION = 0x57494E44  # "WIND"
VALUES = """
CREATE TABLE storage (
    name BLOB NOT NULL, key BLOB NOT NULL, data BLOB NOT NULL, expires REAL, checksum BLOB NOT NULL,
    PRIMARY KEY (name, key)
);
CREATE INDEX expiring ON storage (expires) WHERE expires IS NOT NULL;
CREATE TABLE storage_ids (
    name BLOB NOT NULL, key BLOB NOT NULL, id BLOB NOT NULL, expires REAL, checksum BLOB NOT NULL,
    PRIMARY KEY (name, key, id)
) WITHOUT ROWID;
CREATE INDEX expiring_ids ON storage_ids (expires) WHERE expires IS NOT NULL;
"""
TALLIES = TABLE.format(bytes="BLOB")
OWNERS = """
CREATE INDEX owned ON sessions (owner) WHERE owner != '';
CREATE INDEX unfinished ON sessions (owner) WHERE status = 'running';
"""
SCHEMA = f"""
CREATE TABLE sessions (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, status TEXT NOT NULL DEFAULT 'open',
    agent TEXT NOT NULL DEFAULT '', title TEXT NOT NULL DEFAULT '', started REAL NOT NULL, updated REAL NOT NULL,
    records INTEGER, head BLOB, parent TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT '',
    epoch INTEGER NOT NULL DEFAULT 0, start BLOB NOT NULL DEFAULT x'00000000000000000000000000000000', checksum BLOB,
    claim BLOB NOT NULL DEFAULT x'', engine TEXT NOT NULL DEFAULT ''
);
{OWNERS}CREATE INDEX children ON sessions (parent) WHERE parent != '';
CREATE TABLE batches (
    session INTEGER NOT NULL, seq INTEGER NOT NULL, count INTEGER NOT NULL, link BLOB NOT NULL, data BLOB NOT NULL,
    seals BLOB, nonce BLOB, PRIMARY KEY (session, seq)
) WITHOUT ROWID;
CREATE INDEX prunable ON batches (session, seq) WHERE nonce IS NOT NULL;
CREATE TABLE asks (
    position INTEGER PRIMARY KEY, session INTEGER NOT NULL, id BLOB NOT NULL, data BLOB NOT NULL, UNIQUE (session, id)
);
CREATE TABLE inbox (
    position INTEGER PRIMARY KEY, session TEXT NOT NULL, key BLOB NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0, checksum BLOB NOT NULL DEFAULT x'', UNIQUE (session, key)
);
CREATE INDEX waiting ON inbox (session, position) WHERE taken = 0;
CREATE TABLE cursors (
    session TEXT NOT NULL, reader TEXT NOT NULL, seq INTEGER NOT NULL, checksum BLOB NOT NULL DEFAULT x'',
    PRIMARY KEY (session, reader)
) WITHOUT ROWID;
CREATE TABLE pipelines (
    digest TEXT PRIMARY KEY, data BLOB NOT NULL, checksum BLOB NOT NULL DEFAULT x''
) WITHOUT ROWID;
CREATE TABLE settings (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
{VALUES}{TALLIES}"""
MIGRATIONS: dict[int, str] = {
    1: """
UPDATE sessions SET records = coalesce((SELECT max(seq + count) FROM batches WHERE session = number), 0),
    head = coalesce((SELECT link FROM batches WHERE session = number ORDER BY seq DESC LIMIT 1), zeroblob(16))
    WHERE status != 'erased';
UPDATE inbox SET data = x'' WHERE taken = 1;
""",
    2: """
ALTER TABLE sessions ADD COLUMN parent TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE sessions ADD COLUMN epoch INTEGER NOT NULL DEFAULT 0;
CREATE INDEX children ON sessions (parent) WHERE parent != '';
ALTER TABLE sessions ADD COLUMN start BLOB NOT NULL DEFAULT x'00000000000000000000000000000000';
ALTER TABLE sessions ADD COLUMN checksum BLOB;
UPDATE sessions SET start = x'' WHERE status = 'erased';
ALTER TABLE batches RENAME TO old_batches;
CREATE TABLE batches (
    session INTEGER NOT NULL, seq INTEGER NOT NULL, count INTEGER NOT NULL, link BLOB NOT NULL, data BLOB NOT NULL,
    seals BLOB DEFAULT x'00', nonce BLOB, PRIMARY KEY (session, seq)
) WITHOUT ROWID;
INSERT INTO batches SELECT session, seq, count, link, data, CASE WHEN pruned AND count THEN x'' END, NULL
    FROM old_batches;
DROP TABLE old_batches;
CREATE INDEX prunable ON batches (session, seq) WHERE nonce IS NOT NULL;
ALTER TABLE inbox RENAME TO old_inbox;
DROP INDEX waiting;
CREATE TABLE inbox (
    position INTEGER PRIMARY KEY, session TEXT NOT NULL, key BLOB NOT NULL, kind TEXT NOT NULL, data BLOB NOT NULL,
    taken INTEGER NOT NULL DEFAULT 0, checksum BLOB NOT NULL DEFAULT x'', UNIQUE (session, key)
);
CREATE INDEX waiting ON inbox (session, position) WHERE taken = 0;
INSERT INTO inbox (session, key, kind, data, taken)
    SELECT session, key, kind, data, taken FROM old_inbox ORDER BY session, position;
DROP TABLE old_inbox;
ALTER TABLE cursors ADD COLUMN checksum BLOB NOT NULL DEFAULT x'';
ALTER TABLE pipelines ADD COLUMN checksum BLOB NOT NULL DEFAULT x'';
CREATE TABLE settings (name TEXT PRIMARY KEY, value BLOB NOT NULL) WITHOUT ROWID;
INSERT INTO settings VALUES ('key', x'');
""",
    3: VALUES + TALLIES,
    4: "ALTER TABLE sessions ADD COLUMN claim BLOB NOT NULL DEFAULT x''",
    5: f"ALTER TABLE sessions ADD COLUMN engine TEXT NOT NULL DEFAULT '';{OWNERS}",
}
"""The SQL that upgrades each version to the next."""

STEPS: dict[int, Callable[[sqlite3.Connection, Chain], None]] = {
    2: lambda db, chain: _upgrade_logs(db),
    3: lambda db, chain: fill_tallies(executes(db), chain),
    4: lambda db, chain: fill_rows(executes(db), chain),
}
"""What else an upgrade does, after its SQL."""


def executes(db: sqlite3.Connection) -> Execute:
    """Runs statements on a connection."""
    return lambda query, *values: db.execute(query, values).fetchall()


OLD_WRITERS = {
    "sessions": "NEW.records IS NULL AND NEW.start = zeroblob(16)",
    "batches": "NEW.seals = x'00'",
    "inbox": "NEW.checksum = x''",
}
"""How to tell a row that a process of format 1 or 2 writes: it leaves out columns that came later."""


def _upgrade_logs(db: sqlite3.Connection) -> None:
    """What SQL alone cannot do: parents first, because the rows of erased sessions are then given their checksums."""
    fill_parents(executes(db))
    _seal_logs(db)
    _refuse_old_writers(db)


def _refuse_old_writers(db: sqlite3.Connection) -> None:
    """Refuse the rows of processes that have the file open with format 1 or 2: these look at its format only once."""
    text = "the file was upgraded by a newer Windlass: install that version and restart this process"
    for table, old in OLD_WRITERS.items():
        db.execute(
            f"CREATE TRIGGER old_{table} BEFORE INSERT ON {table} WHEN {old} BEGIN SELECT RAISE(ABORT, '{text}'); END"
        )


def _seal_logs(db: sqlite3.Connection) -> None:
    """Seal what can be pruned, and give the rows of the other tables their checksums.

    An empty column `seals` stands for a batch that was pruned in the old format.
    """
    for number, session in db.execute("SELECT number, id FROM sessions WHERE status != 'erased'").fetchall():
        rows = db.execute(
            "SELECT seq, count, link, data, seals, nonce FROM batches WHERE session = ? ORDER BY seq", (number,)
        )
        changed = sealed_rows(session, [BatchRow(*row) for row in rows])
        for row in changed:
            db.execute(
                "UPDATE batches SET link = ?, data = ?, seals = ?, nonce = ? WHERE session = ? AND seq = ?",
                (row.link, row.data, row.seals, row.nonce, number, row.seq),
            )
        if changed:
            db.execute("UPDATE sessions SET head = ? WHERE number = ?", (changed[-1].link, number))
    chain = Chain()
    for row in db.execute("SELECT session, key, kind, position, taken, data FROM inbox").fetchall():
        db.execute(
            "UPDATE inbox SET checksum = ? WHERE session = ? AND key = ?", (entry_checksum(chain, *row), *row[:2])
        )
    for row in db.execute("SELECT session, reader, seq FROM cursors").fetchall():
        db.execute(
            "UPDATE cursors SET checksum = ? WHERE session = ? AND reader = ?", (cursor_checksum(chain, *row), *row[:2])
        )
    for row in db.execute("SELECT digest, data FROM pipelines").fetchall():
        db.execute("UPDATE pipelines SET checksum = ? WHERE digest = ?", (pipeline_checksum(chain, *row), row[0]))
    for row in db.execute(f"SELECT {TOMBSTONE} FROM sessions WHERE status = 'erased'").fetchall():
        db.execute("UPDATE sessions SET checksum = ? WHERE number = ?", (tombstone_checksum(chain, row), row[0]))


def check_version(db: sqlite3.Connection, path: Path) -> int:
    """The version of the file. A file of a newer version or of another application is refused and not changed.

    The tables are counted first: a process that creates the file right now writes all three in one transaction.
    """
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    application = int(db.execute("PRAGMA application_id").fetchone()[0])
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if application != APPLICATION and tables:
        raise StoreError(f"{path} is an SQLite file of another application; use another file")
    if version > VERSION:
        raise StoreError(
            f"{path} was written by a newer Windlass (format {version}; this version reads up to {VERSION}); "
            "install the newer version, or use another file. Nothing was changed"
        )
    return version


def is_current(db: sqlite3.Connection) -> bool:
    """Whether the file has the format of this version."""
    return int(db.execute("PRAGMA user_version").fetchone()[0]) == VERSION


def check_current(db: sqlite3.Connection, path: Path) -> None:
    """Raise if another version of Windlass has changed the format since the file was opened."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version != VERSION:
        newer = "install that version and restart this process" if version > VERSION else "open the store again"
        raise StoreError(
            f"{path} was changed to format {version} by another version of Windlass while it was open (this version "
            f"uses format {VERSION}); {newer}. Nothing was written"
        )


def check_key(db: sqlite3.Connection, path: Path, chain: Chain) -> int:
    """`check_version`, and the key: a file that was made with another key, or without one, is refused."""
    version = check_version(db, path)
    if version:
        found = db.execute("SELECT value FROM settings WHERE name = 'key'").fetchone() if version >= 3 else (b"",)
        check_fingerprint(str(path), None if found is None else found[0], chain)
    return version


@lru_cache(maxsize=64)
def format_of(chain: Chain) -> Format:
    """How the stores with a key open a file. It is the same object for equal keys, so that they share the file."""
    return Format(partial(check_key, chain=chain), partial(migrate, chain=chain), is_current, check_current)


def migrate(db: sqlite3.Connection, path: Path, chain: Chain) -> None:
    """Create the tables, or upgrade them step by step, in one transaction."""
    if check_version(db, path) == VERSION:
        return
    db.execute("BEGIN IMMEDIATE")
    try:
        version = check_key(db, path, chain)
        if version == 0:
            _run(db, SCHEMA)
            db.execute("INSERT INTO settings VALUES ('key', ?)", (chain.fingerprint,))
        while 0 < version < VERSION:
            _run(db, MIGRATIONS[version])
            if version in STEPS:
                STEPS[version](db, chain)
            version += 1
        db.execute(f"PRAGMA application_id = {APPLICATION}")
        db.execute(f"PRAGMA user_version = {VERSION}")
        db.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):
            db.execute("ROLLBACK")
        raise


def _run(db: sqlite3.Connection, script: str) -> None:
    for statement in script.split(";"):
        if statement.strip():
            db.execute(statement)
