"""The tables of a PostgreSQL schema, their version, and the upgrades from earlier versions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from windlass.errors import StoreError

from .chains import Chain
from .derived import cursor_checksum, entry_checksum, pipeline_checksum, tombstone_checksum
from .old_parents import fill_parents
from .postgres_server import Format
from .reading import BatchRow
from .session_rows import fill_rows
from .shared import Execute
from .tallies import TABLE, fill_tallies
from .upgrading import check_fingerprint, sealed_rows

if TYPE_CHECKING:
    from .postgres_server import Connection, Settings

VERSION = 6
VALUES = b"""
CREATE TABLE storage (
    name BYTEA NOT NULL, key BYTEA NOT NULL, data BYTEA NOT NULL, expires DOUBLE PRECISION, checksum BYTEA NOT NULL,
    PRIMARY KEY (name, key)
);
CREATE INDEX expiring ON storage (expires) WHERE expires IS NOT NULL;
CREATE TABLE storage_ids (
    name BYTEA NOT NULL, key BYTEA NOT NULL, id BYTEA NOT NULL, expires DOUBLE PRECISION, checksum BYTEA NOT NULL,
    PRIMARY KEY (name, key, id)
);
CREATE INDEX expiring_ids ON storage_ids (expires) WHERE expires IS NOT NULL;
"""
TALLIES = TABLE.format(bytes="BYTEA").encode()
OWNERS = b"""
CREATE INDEX owned ON sessions (owner) WHERE owner != '';
CREATE INDEX unfinished ON sessions (owner) WHERE status = 'running';
"""
SCHEMA = (
    rb"""
CREATE TABLE format (version INTEGER NOT NULL);
CREATE TABLE sessions (
    number BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, id TEXT COLLATE "C" NOT NULL UNIQUE,
    status TEXT NOT NULL DEFAULT 'open', agent TEXT NOT NULL DEFAULT '', title TEXT NOT NULL DEFAULT '',
    started DOUBLE PRECISION NOT NULL, updated DOUBLE PRECISION NOT NULL,
    records BIGINT NOT NULL DEFAULT 0, head BYTEA NOT NULL, epoch BIGINT NOT NULL DEFAULT 0,
    parent TEXT COLLATE "C" NOT NULL DEFAULT '', owner TEXT NOT NULL DEFAULT '',
    start BYTEA NOT NULL DEFAULT '\x00000000000000000000000000000000', checksum BYTEA,
    claim BYTEA NOT NULL DEFAULT '', engine TEXT NOT NULL DEFAULT ''
);
CREATE INDEX children ON sessions (parent) WHERE parent != '';
CREATE TABLE batches (
    session BIGINT NOT NULL, seq BIGINT NOT NULL, count INTEGER NOT NULL, link BYTEA NOT NULL, data BYTEA NOT NULL,
    seals BYTEA, nonce BYTEA, PRIMARY KEY (session, seq)
);
ALTER TABLE batches ALTER COLUMN data SET STORAGE EXTERNAL;
CREATE INDEX prunable ON batches (session, seq) WHERE nonce IS NOT NULL;
CREATE TABLE asks (
    position BIGINT GENERATED ALWAYS AS IDENTITY, session BIGINT NOT NULL, id BYTEA NOT NULL, data BYTEA NOT NULL,
    PRIMARY KEY (session, id)
);
CREATE TABLE inbox (
    position BIGINT GENERATED ALWAYS AS IDENTITY, session TEXT NOT NULL, key BYTEA NOT NULL, kind TEXT NOT NULL,
    data BYTEA NOT NULL, taken BOOLEAN NOT NULL DEFAULT false, checksum BYTEA NOT NULL DEFAULT '',
    PRIMARY KEY (session, key)
);
CREATE INDEX waiting ON inbox (session) WHERE NOT taken;
CREATE TABLE cursors (
    session TEXT NOT NULL, reader TEXT NOT NULL, seq BIGINT NOT NULL, checksum BYTEA NOT NULL DEFAULT '',
    PRIMARY KEY (session, reader)
);
CREATE TABLE pipelines (digest TEXT PRIMARY KEY, data BYTEA NOT NULL, checksum BYTEA NOT NULL DEFAULT '');
CREATE TABLE settings (name TEXT PRIMARY KEY, value BYTEA NOT NULL);
"""
    + VALUES
    + TALLIES
    + OWNERS
)
MIGRATIONS: dict[int, bytes] = {
    1: b"UPDATE inbox SET data = '' WHERE taken",
    2: rb"""
ALTER TABLE sessions ADD COLUMN IF NOT EXISTS parent TEXT COLLATE "C" NOT NULL DEFAULT '',
    ADD COLUMN IF NOT EXISTS owner TEXT NOT NULL DEFAULT '',
    ADD COLUMN start BYTEA NOT NULL DEFAULT '\x00000000000000000000000000000000', ADD COLUMN checksum BYTEA;
CREATE INDEX IF NOT EXISTS children ON sessions (parent) WHERE parent != '';
UPDATE sessions SET start = '' WHERE status = 'erased';
ALTER TABLE batches ADD COLUMN seals BYTEA, ADD COLUMN nonce BYTEA;
UPDATE batches SET seals = '' WHERE pruned;
ALTER TABLE batches DROP COLUMN pruned, ALTER COLUMN seals SET DEFAULT '\x00',
    ADD CONSTRAINT "upgraded by a newer Windlass: restart this process with it" CHECK (seals != '\x00');
CREATE INDEX prunable ON batches (session, seq) WHERE nonce IS NOT NULL;
ALTER TABLE inbox ADD COLUMN checksum BYTEA NOT NULL DEFAULT '';
ALTER TABLE cursors ADD COLUMN checksum BYTEA NOT NULL DEFAULT '';
ALTER TABLE pipelines ADD COLUMN checksum BYTEA NOT NULL DEFAULT '';
CREATE TABLE settings (name TEXT PRIMARY KEY, value BYTEA NOT NULL);
INSERT INTO settings VALUES ('key', '');
ALTER TABLE sessions ALTER COLUMN start DROP DEFAULT;
ALTER TABLE inbox ALTER COLUMN checksum DROP DEFAULT;
ALTER TABLE cursors ALTER COLUMN checksum DROP DEFAULT;
ALTER TABLE pipelines ALTER COLUMN checksum DROP DEFAULT;
""",
    3: VALUES + TALLIES,
    4: b"ALTER TABLE sessions ADD COLUMN claim BYTEA NOT NULL DEFAULT ''",
    5: b"ALTER TABLE sessions ADD COLUMN engine TEXT NOT NULL DEFAULT '';" + OWNERS,
}
"""The SQL that upgrades each version to the next.

Processes that have the store open with format 1 or 2 look at its format only once. So the tables refuse their rows,
which lack the columns that came with format 3.
"""

STEPS: dict[int, Callable[[Connection, Chain], None]] = {
    2: lambda db, chain: _upgrade_logs(db),
    3: lambda db, chain: fill_tallies(executes(db), chain),
    4: lambda db, chain: fill_rows(executes(db), chain),
}
"""What else an upgrade does, after its SQL."""


def executes(db: Connection) -> Execute:
    """Runs statements on a connection."""

    def execute(query: str, *values: Any) -> Sequence[Sequence[Any]]:
        done = db.execute(query.replace("?", "%s").encode(), values)
        return done.fetchall() if done.description else ()

    return execute


def _upgrade_logs(db: Connection) -> None:
    """What SQL alone cannot do: parents first, because the rows of erased sessions are then given their checksums."""
    fill_parents(executes(db))
    _seal_logs(db)


def _seal_logs(db: Connection) -> None:
    """Seal what can be pruned, and give the rows of the other tables their checksums.

    An empty column `seals` stands for a batch that was pruned in the old format.
    """
    for number, session in db.execute("SELECT number, id FROM sessions WHERE status != 'erased'").fetchall():
        rows = db.execute(
            "SELECT seq, count, link, data, seals, nonce FROM batches WHERE session = %s ORDER BY seq", (number,)
        ).fetchall()
        changed = sealed_rows(session, [BatchRow(*row) for row in rows])
        for row in changed:
            db.execute(
                "UPDATE batches SET link = %s, data = %s, seals = %s, nonce = %s WHERE session = %s AND seq = %s",
                (row.link, row.data, row.seals, row.nonce, number, row.seq),
            )
        if changed:
            db.execute("UPDATE sessions SET head = %s WHERE number = %s", (changed[-1].link, number))
    chain = Chain()
    for one in db.execute("SELECT session, key, kind, position, taken, data FROM inbox").fetchall():
        query = "UPDATE inbox SET checksum = %s WHERE session = %s AND key = %s"
        db.execute(query, (entry_checksum(chain, *one), *one[:2]))
    for one in db.execute("SELECT session, reader, seq FROM cursors").fetchall():
        query = "UPDATE cursors SET checksum = %s WHERE session = %s AND reader = %s"
        db.execute(query, (cursor_checksum(chain, *one), *one[:2]))
    for one in db.execute("SELECT digest, data FROM pipelines").fetchall():
        query = "UPDATE pipelines SET checksum = %s WHERE digest = %s"
        db.execute(query, (pipeline_checksum(chain, *one), one[0]))
    numbers = db.execute("SELECT number FROM sessions WHERE status = 'erased'").fetchall()
    mark_tombstones(db, chain, [number for (number,) in numbers])


def mark_tombstones(db: Connection, chain: Chain, numbers: Sequence[int]) -> None:
    """Give the rows of erased sessions their checksums."""
    query = (
        "SELECT number, id, agent, title, parent, started, updated, records, head FROM sessions WHERE number = ANY(%s)"
    )
    for row in db.execute(query, (list(numbers),)).fetchall():
        db.execute("UPDATE sessions SET checksum = %s WHERE number = %s", (tombstone_checksum(chain, row), row[0]))


VERSION_QUERY = b"SELECT max(version) FROM format"
"""The version of the tables."""

_LOCK = 0x57494E44
"""The advisory lock for changing the tables."""


def _version(db: Connection, settings: Settings) -> int:
    """The version of the tables, or 0 without tables. A newer version is refused, and nothing is changed."""
    found = db.execute("SELECT to_regclass(%s)", (f"{settings.schema}.format",)).fetchone()
    if found is None or found[0] is None:
        return 0
    row = db.execute(VERSION_QUERY).fetchone()
    version = int(row[0]) if row is not None and row[0] is not None else 0
    if version > VERSION:
        raise StoreError(
            f"the schema {settings.schema!r} ({settings.place}) was written by a newer Windlass (format {version}; "
            f"this version reads up to {VERSION}); install the newer version, or use another schema. "
            "Nothing was changed"
        )
    return version


def check_current(version: int | None, settings: Settings) -> None:
    """Raise if another version of Windlass has changed the tables since this process opened the store."""
    if version != VERSION:
        newer = "open the store again" if (version or 0) < VERSION else "install that version and restart this process"
        raise StoreError(
            f"the schema {settings.schema!r} ({settings.place}) was changed to format {version} by another version of "
            f"Windlass while it was open (this version uses format {VERSION}); {newer}. Nothing was written"
        )


def _check_key(db: Connection, settings: Settings, version: int, chain: Chain) -> None:
    """Refuse a schema that was made with another key, or without one."""
    if version:
        found = db.execute("SELECT value FROM settings WHERE name = 'key'").fetchone() if version >= 3 else (b"",)
        place = f"the schema {settings.schema!r} ({settings.place})"
        check_fingerprint(place, None if found is None else found[0], chain)


@lru_cache(maxsize=64)
def format_of(chain: Chain) -> Format:
    """How stores with a key open a schema. It is the same object for equal keys, so that they share connections."""
    return Format(partial(migrate, chain=chain), VERSION_QUERY, check_current)


def migrate(db: Connection, settings: Settings, chain: Chain) -> None:
    """Create or upgrade the tables; an advisory lock lets one process at a time do so."""
    from psycopg.sql import SQL, Identifier

    version = _version(db, settings)
    _check_key(db, settings, version, chain)
    if version == VERSION:
        return
    db.execute("SELECT pg_advisory_lock(%s)", (_LOCK,))
    with db.without_limit():
        version = _version(db, settings)
        if version:  # waits for writers, whose transactions begin with reading it; later ones find the new version
            db.execute("LOCK TABLE format IN ACCESS EXCLUSIVE MODE")
            version = _version(db, settings)
        _check_key(db, settings, version, chain)
        if version == 0:
            db.execute(SQL("CREATE SCHEMA IF NOT EXISTS {}").format(Identifier(settings.schema)))
            db.execute(SCHEMA)
            db.execute("INSERT INTO settings VALUES ('key', %s)", (chain.fingerprint,))
        while 0 < version < VERSION:
            db.execute(MIGRATIONS[version])
            if version in STEPS:
                STEPS[version](db, chain)
            version += 1
        db.execute("DELETE FROM format")
        db.execute("INSERT INTO format VALUES (%s)", (VERSION,))
    db.execute("SELECT pg_advisory_unlock(%s)", (_LOCK,))
