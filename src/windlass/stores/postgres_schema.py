"""The tables of a PostgreSQL schema, their version, and the upgrades from earlier versions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.errors import StoreError

if TYPE_CHECKING:
    from .postgres_server import Connection, Settings

VERSION = 3
SCHEMA = b"""
CREATE TABLE format (version INTEGER NOT NULL);
CREATE TABLE sessions (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT COLLATE "C" NOT NULL UNIQUE,
    status TEXT NOT NULL DEFAULT 'open', agent TEXT NOT NULL DEFAULT '', title TEXT NOT NULL DEFAULT '',
    started DOUBLE PRECISION NOT NULL, updated DOUBLE PRECISION NOT NULL,
    records BIGINT NOT NULL DEFAULT 0, head BYTEA NOT NULL, epoch BIGINT NOT NULL DEFAULT 0,
    parent TEXT NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT ''
);
CREATE INDEX children ON sessions (parent) WHERE parent != '';
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
MIGRATIONS: dict[int, bytes] = {
    1: b"UPDATE inbox SET data = '' WHERE taken",
    2: b"""
ALTER TABLE sessions ADD COLUMN IF NOT EXISTS parent TEXT NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS owner TEXT NOT NULL DEFAULT '';
CREATE INDEX IF NOT EXISTS children ON sessions (parent) WHERE parent != '';
""",
}
"""The SQL that upgrades each version to the next."""

_LOCK = 0x57494E44
"""The advisory lock for changing the tables."""


def _version(db: Connection, settings: Settings) -> int:
    """The version of the tables, or 0 without tables. A newer version is refused, and nothing is changed."""
    found = db.execute("SELECT to_regclass(%s)", (f"{settings.schema}.format",)).fetchone()
    if found is None or found[0] is None:
        return 0
    row = db.execute("SELECT max(version) FROM format").fetchone()
    version = int(row[0]) if row is not None and row[0] is not None else 0
    if version > VERSION:
        raise StoreError(
            f"the schema {settings.schema!r} ({settings.place}) was written by a newer Windlass (format {version}; "
            f"this version reads up to {VERSION}); install the newer version, or use another schema. "
            "Nothing was changed"
        )
    return version


def migrate(db: Connection, settings: Settings) -> None:
    """Create or upgrade the tables; an advisory lock lets one process at a time do so."""
    from psycopg.sql import SQL, Identifier

    if _version(db, settings) == VERSION:
        return
    db.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    with db.without_limit():
        version = _version(db, settings)
        if version == 0:
            db.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(settings.schema)))
            db.execute(SCHEMA)
        while 0 < version < VERSION:
            db.execute(MIGRATIONS[version])
            version += 1
        db.execute("DELETE FROM format")
        db.execute("INSERT INTO format VALUES (%s)", (VERSION,))
    db.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))
