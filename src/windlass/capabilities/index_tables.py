"""The tables of a full-text index in SQLite: passages by file, ranked by BM25, and the words that are too common."""

from __future__ import annotations

import re
import sqlite3
from array import array
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from windlass.errors import ConfigError

VERSION = 1
COMMON = 0.2
"""A word in more than this part of all passages is not searched for: it costs much and tells little."""
SMALL = 500
"""An index with fewer passages searches for common words, too."""
MOST_TERMS = 12
"""How many words of a query are searched for at most: the rarest."""
_WORD = re.compile(r"\w+")


class Row(NamedTuple):
    """A passage of the index."""

    id: int
    path: str
    first: int
    last: int
    text: str
    score: float = 0.0


class IndexTables:
    """The tables. One thread at a time may use them."""

    def __init__(self, database: str, tokenizer: str, shape: str) -> None:
        self._connection = sqlite3.connect(database, check_same_thread=False, isolation_level=None, timeout=30)
        self._frequencies: dict[str, int] = {}
        self._total = self._counted = 0
        self._files: dict[str, tuple[int, int, str]] = {}
        self._version: int | None = None
        try:
            self._open(tokenizer, f"{VERSION} {tokenizer} {shape}")
        except sqlite3.Error as error:
            self._connection.close()
            if "fts5" in str(error):
                raise ConfigError(f"this Python's SQLite cannot search texts: {error}; it needs FTS5") from error
            raise ConfigError(f"the index {database!r} cannot be opened: {error}") from error

    def _open(self, tokenizer: str, version: str) -> None:
        run, quoted = self._connection.execute, tokenizer.replace("'", "''")
        run("create table if not exists version (text text)")
        found = run("select text from version").fetchone()
        if found is not None and found[0] != version:
            for table in ("passages", "places", "files", "vectors", "version"):
                run(f"drop table if exists {table}")
            run("create table version (text text)")
            found = None
        if found is None:
            run("insert into version values (?)", (version,))
        run("create table if not exists files (path text primary key, changed integer, size integer, digest text)")
        run("create table if not exists places (id integer primary key, path text, first integer, last integer)")
        run("create index if not exists places_by_path on places (path)")
        run("create table if not exists vectors (id integer primary key, data blob)")
        run(f"create virtual table if not exists passages using fts5(path, text, tokenize = '{quoted}')")
        run("insert into passages (passages, rank) values ('rank', 'bm25(2.0, 1.0)')")
        run("create virtual table temp.words using fts5vocab('main', 'passages', 'row')")
        run(f"create virtual table temp.probe using fts5(word, tokenize = '{quoted}')")
        run("create virtual table temp.probe_words using fts5vocab('temp', 'probe', 'instance')")

    def close(self) -> None:
        """Release the database."""
        self._connection.close()

    # ------------------------------------------------------------ writing

    def __enter__(self) -> IndexTables:
        self._connection.execute("begin immediate")
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._connection.execute("commit" if kind is None else "rollback")
        if kind is not None:
            self._version = None

    def files(self) -> Mapping[str, tuple[int, int, str]]:
        """The files of the index: when each was changed, its size and its digest. They are read again if another
        process has changed them."""
        version: int = self._connection.execute("pragma data_version").fetchone()[0]
        if version != self._version:
            rows = self._connection.execute("select path, changed, size, digest from files")
            self._files = {path: (changed, size, digest) for path, changed, size, digest in rows}
            self._version = version
        return self._files

    def put_file(self, path: str, changed: int, size: int, digest: str) -> None:
        """Note the state of a file."""
        self._connection.execute("insert or replace into files values (?, ?, ?, ?)", (path, changed, size, digest))
        self._files[path] = (changed, size, digest)

    def add(self, path: str, pieces: Iterable[tuple[int, int, str]]) -> None:
        """Add the passages of a file."""
        run = self._connection.execute
        for first, last, text in pieces:
            place = run("insert into places (path, first, last) values (?, ?, ?)", (path, first, last)).lastrowid
            run("insert into passages (rowid, path, text) values (?, ?, ?)", (place, path, text))

    def remove(self, path: str) -> None:
        """Remove a file and its passages."""
        run = self._connection.execute
        for table, column in (("passages", "rowid"), ("vectors", "id")):
            run(f"delete from {table} where {column} in (select id from places where path = ?)", (path,))
        run("delete from places where path = ?", (path,))
        run("delete from files where path = ?", (path,))
        self._files.pop(path, None)

    def count_words(self) -> None:
        """Learn which words are common, if there is much that was not counted yet."""
        total: int = self._connection.execute("select count(*) from places").fetchone()[0]
        if total < SMALL or abs(total - self._counted) > total // 20:
            rows = self._connection.execute("select term, doc from temp.words where doc > ?", (total // 100,))
            self._frequencies = dict(rows.fetchall()) if total >= SMALL else {}
            self._counted = total
        self._total = total

    # ------------------------------------------------------------ searching

    def search(self, query: str, limit: int) -> list[Row]:
        """The passages with words of a query, the best first."""
        words = self._rare_words(query)
        if not words:
            return []
        match = " OR ".join([f'"{word}"' for word in words])
        sql = (
            "select p.rowid, p.path, places.first, places.last, p.text, -p.rank from passages p "
            "join places on places.id = p.rowid where passages match ? order by p.rank limit ?"
        )
        return [Row(*row) for row in self._connection.execute(sql, (match, limit))]

    def _rare_words(self, query: str) -> list[str]:
        """The words of a query that are worth searching for. They are compared as the index has them: as stems."""
        words = list(dict.fromkeys(_WORD.findall(query)))[:200]
        if len(words) <= MOST_TERMS and not self._frequencies:
            return words
        seen = {word: self._frequency(terms) for word, terms in self._terms(words).items()}
        rarest = sorted(seen, key=lambda word: seen[word])
        common = self._total * COMMON if self._frequencies else self._total + 1
        return [word for word in rarest if seen[word] <= common][:MOST_TERMS] or rarest[:1]

    def _frequency(self, terms: Sequence[str]) -> int:
        return min([self._frequencies.get(term, 0) for term in terms], default=0)

    def _terms(self, words: Sequence[str]) -> dict[str, list[str]]:
        """What the tokenizer makes of each word."""
        run = self._connection.execute
        run("delete from temp.probe")
        self._connection.executemany("insert into temp.probe (rowid, word) values (?, ?)", enumerate(words))
        found: dict[str, list[str]] = {word: [] for word in words}
        for number, term in run("select doc, term from temp.probe_words"):
            found[words[int(number)]].append(term)
        return {word: terms for word, terms in found.items() if terms}

    # ------------------------------------------------------------ vectors

    def without_vectors(self) -> list[tuple[int, str]]:
        """The passages that have no vector yet."""
        sql = "select rowid, text from passages where rowid not in (select id from vectors)"
        return self._connection.execute(sql).fetchall()

    def put_vectors(self, vectors: Iterable[tuple[int, array[float]]]) -> None:
        """Store the vectors of passages."""
        rows = [(place, vector.tobytes()) for place, vector in vectors]
        self._connection.executemany("insert or replace into vectors values (?, ?)", rows)

    def vectors(self) -> list[tuple[int, array[float]]]:
        """All vectors, with the ids of their passages."""
        rows = self._connection.execute("select id, data from vectors order by id")
        return [(place, array("f", data)) for place, data in rows]

    def rows(self, ids: Sequence[int]) -> list[Row]:
        """Some passages, in this order."""
        sql = (
            "select p.rowid, p.path, places.first, places.last, p.text from passages p "
            "join places on places.id = p.rowid where p.rowid = ?"
        )
        return [Row(*self._connection.execute(sql, (place,)).fetchone()) for place in ids]
