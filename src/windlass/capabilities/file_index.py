"""FileIndex: a full-text index over the files of a folder, in this process, without a model."""

from __future__ import annotations

import os
from array import array
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from math import isfinite, sqrt
from operator import mul
from pathlib import Path
from threading import RLock
from time import time_ns
from typing import Any

from msgspec import Struct

from windlass.errors import ConfigError, ToolError
from windlass.tools import Tool, tool
from windlass.turns import Turn

from .file_scans import FoundFile, files_in, pieces_of, read_text
from .index_tables import IndexTables, Row
from .options import require, require_count, require_seconds
from .passages import Passage, element, fuse

TEXTS = ("*.md", "*.markdown", "*.rst", "*.txt")
IGNORED = (".*", "node_modules", "__pycache__")
STEMS = "porter unicode61 remove_diacritics 2"
SETTLED = 2_000_000_000
"""A file that was changed less than so many nanoseconds ago is compared by its content: it may change again within one
tick of the clock."""
BATCH = 64
"""How many passages an embedding function gets at once."""
CANDIDATES = 5
"""How many times more passages than asked for each ranking has before two of them are fused."""

Embed = Callable[[Sequence[str]], Sequence[Sequence[float]]]


class IndexChanges(Struct, frozen=True):
    """What a refresh of an index found: the paths of files that were `added`, `changed` and `removed`, and why others
    were `skipped`."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    skipped: dict[str, str] = {}


class FileIndex:
    """Search the text files of a `folder` by their words, ranked by BM25, with SQLite.

    The index is kept in memory, or in a `database` file so that the next process need not read all files again. Files
    whose names match `patterns` and not `ignore` are read, up to `largest` bytes each, and split into passages of about
    `passage` characters. `refresh` looks for files that were added, changed or removed; `Retrieve` and the tool do so
    before a search if the last look is `every` seconds ago. With `embed`, a plain function that turns texts into
    vectors, passages are also ranked by their meaning, and both rankings are fused. `tokenizer` is a tokenizer of
    SQLite's FTS5; the default compares stems of English words and ignores case and accents.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        patterns: Sequence[str] = TEXTS,
        ignore: Sequence[str] = IGNORED,
        database: str | os.PathLike[str] = ":memory:",
        passage: int = 1600,
        largest: int = 1_000_000,
        every: float = 30.0,
        embed: Embed | None = None,
        tokenizer: str = STEMS,
        name: str | None = None,
    ) -> None:
        self.folder = os.fspath(folder)
        require("FileIndex", "folder", self.folder, os.path.isdir(self.folder), "an existing folder")
        for option, given in (("patterns", patterns), ("ignore", ignore)):
            texts = not isinstance(given, str) and all(isinstance(one, str) for one in given)
            require("FileIndex", option, given, texts, "a list of patterns of file names")
        for option, count in (("passage", passage), ("largest", largest)):
            require_count("FileIndex", option, count, least=100)
        require_seconds("FileIndex", "every", every, zero=True)
        require("FileIndex", "embed", embed, embed is None or callable(embed), "a function of a list of texts")
        self.patterns, self.ignore = tuple(patterns), tuple(ignore)
        self.passage, self.largest, self.every, self.embed = passage, largest, every, embed
        self.name = Path(os.path.abspath(self.folder)).name if name is None else name
        self._tables = IndexTables(os.fspath(database), tokenizer, f"{passage} {embed is not None}")
        self._lock = RLock()
        self._looked: float | None = None
        self._vectors: list[tuple[int, array[float]]] | None = None

    # ------------------------------------------------------------ keeping up with the files

    def refresh(self, now: float | None = None) -> IndexChanges:
        """Bring the index up to date with the files. With `now`, a time in seconds, only if that is due."""
        with self._lock:
            if now is not None and self._looked is not None and 0 <= now - self._looked < self.every:
                return IndexChanges()
            with self._tables as tables:
                changes = self._compare(tables)
                self._embed_new(tables)
                if self._looked is None or changes.added or changes.changed or changes.removed:
                    tables.count_words()
                    self._vectors = None
            self._looked = 0.0 if now is None else now
            return changes

    def _compare(self, tables: IndexTables) -> IndexChanges:
        known, began = tables.files(), time_ns()
        gone = set(known)
        added: list[str] = []
        changed: list[str] = []
        skipped: dict[str, str] = {}
        for file in files_in(self.folder, self.patterns, self.ignore, skipped):
            before = known.get(file.path)
            if before is not None and before[:2] == (file.changed, file.size):
                gone.discard(file.path)
                continue
            try:
                text, digest = self._read(file)
            except (OSError, ValueError) as error:
                skipped[file.path] = getattr(error, "strerror", None) or str(error)
                continue
            gone.discard(file.path)
            settled = file.changed if file.changed < began - SETTLED else -1
            if before is None or before[2] != digest:
                (added if before is None else changed).append(file.path)
                tables.remove(file.path)
                tables.add(file.path, pieces_of(text, self.passage))
            tables.put_file(file.path, settled, file.size, digest)
        for path in gone:
            tables.remove(path)
        return IndexChanges(tuple(sorted(added)), tuple(sorted(changed)), tuple(sorted(gone)), skipped)

    def _read(self, file: FoundFile) -> tuple[str, str]:
        if file.size > self.largest:
            raise ValueError(f"it has {file.size:,} bytes; at most {self.largest:,} are read")
        try:
            return read_text(self.folder, file.path)
        except UnicodeDecodeError:
            raise ValueError("it is not UTF-8 text") from None

    # ------------------------------------------------------------ searching

    def search(self, query: str, limit: int = 5) -> list[Passage]:
        """The passages that match a text best. Any text is a legal `query`: its words count, it has no syntax."""
        with self._lock:
            if self._looked is None:
                self.refresh()
            if self.embed is None:
                return [_passage(row) for row in self._tables.search(query, limit)]
            wanted = limit * CANDIDATES
            by_words = [_passage(row) for row in self._tables.search(query, wanted)]
            return fuse(by_words, list(self._by_meaning(query, wanted)))[:limit]

    def _by_meaning(self, query: str, limit: int) -> Iterator[Passage]:
        if self._vectors is None:
            self._vectors = self._tables.vectors()
        wanted = self._embedded([query])[0]
        scores = {place: sum(map(mul, vector, wanted)) for place, vector in self._vectors}
        best = sorted(scores, key=lambda place: -scores[place])[:limit]
        yield from [_passage(row._replace(score=scores[row.id])) for row in self._tables.rows(best)]

    def _embed_new(self, tables: IndexTables) -> None:
        rows = [] if self.embed is None else tables.without_vectors()
        for at in range(0, len(rows), BATCH):
            batch = rows[at : at + BATCH]
            vectors = self._embedded([text for _, text in batch])
            tables.put_vectors(zip([place for place, _ in batch], vectors, strict=True))

    def _embedded(self, texts: list[str]) -> list[array[float]]:
        """The vectors of texts, with the length 1."""
        assert self.embed is not None
        try:
            vectors = [array("f", vector) for vector in self.embed(texts)]
        except TypeError as error:
            raise ConfigError(f"FileIndex: embed must return a list of numbers for each text: {error}") from error
        if len(vectors) != len(texts):
            raise ConfigError(f"FileIndex: embed returned {len(vectors)} vectors for {len(texts)} texts")
        sizes = {len(vector) for vector in vectors}
        if len(sizes) > 1 or not all(map(isfinite, chain.from_iterable(vectors))):
            raise ConfigError("FileIndex: embed must return vectors of one length, with finite numbers")
        lengths = [sqrt(sum(map(mul, vector, vector))) or 1.0 for vector in vectors]
        return [array("f", [x / length for x in vector]) for vector, length in zip(vectors, lengths, strict=True)]

    # ------------------------------------------------------------ as a tool

    def tool(self, name: str = "search_files", description: str | None = None) -> Tool[..., Any]:
        """A tool with which the model searches the files itself: `Agent(tools=[index.tool()])`."""

        def search(query: str, turn: Turn[Any], limit: int = 5) -> str:
            """Search the files.

            Args:
                query: words to look for
                limit: how many passages to return at most
            """
            if not 1 <= limit <= 50:
                raise ToolError("limit must be from 1 to 50")
            self.refresh(turn.now())
            return "\n".join([element(one.source, one.text) for one in self.search(query, limit)]) or "Nothing found."

        text = description or f"Search the files of {self.name} by words; returns passages with their sources."
        return tool(effect="pure", name=name, description=text)(search)

    def close(self) -> None:
        """Release the database. The index cannot be used any more."""
        with self._lock:
            self._tables.close()


def _passage(row: Row) -> Passage:
    return Passage(row.text, f"{row.path}:{row.first}-{row.last}", row.score)
