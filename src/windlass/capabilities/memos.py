"""Memos: what an agent remembers, kept in its store or in Markdown files, by a key such as a user's name."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from threading import RLock
from typing import Protocol, TypeVar
from urllib.parse import quote

from msgspec import Struct

from windlass.errors import ConfigError
from windlass.storage import Storage

T = TypeVar("T")
LONGEST_KEY = 150
_MARK = re.compile(r"\s*<!-- ([0-9a-f]{12}) (\S+) -->\s*\Z")
_CAPITAL = re.compile(r"(?<!%)(?<!%[0-9A-F])[A-Z]")
_GAP = re.compile(r"\n\s*\n")
_ITEM = re.compile(r"[-*] +")


class Memo(Struct, frozen=True):
    """Something that is remembered: its `id`, the `text`, and `at` which time, in seconds since the epoch."""

    id: str
    text: str
    at: float = 0.0

    @classmethod
    def of(cls, text: str, origin: str, at: float) -> Memo:
        """A memo of a time `at`, whose id follows from its `origin`, so that the same is not remembered twice."""
        return cls(digest_of(origin), text, at)


class MemoBackend(Protocol):
    """Where memos are kept. All methods may be called from any task, by several processes at once."""

    async def read(self, key: str, most: int) -> Sequence[Memo]:
        """The latest memos of a key, at most `most`, the newest first."""
        ...

    async def add(self, key: str, memo: Memo) -> bool:
        """Keep a `memo`, unless there is one with this id or this text; returns whether it was added."""
        ...

    async def remove(self, key: str, id: str) -> bool:
        """Drop a memo; False if there is none with this id."""
        ...


def digest_of(text: str) -> str:
    """Twelve letters and digits that stand for a text."""
    return blake2b(text.encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def _safe(key: str) -> str:
    """A key as a text of letters, digits and a few signs, which is also a name for a file.

    Two keys have two names, also where file names ignore case: capital letters are written as numbers.
    """
    if not isinstance(key, str):
        raise TypeError(f"the key of a memory must be a text, not {key!r:.80}")
    name = _CAPITAL.sub(lambda found: f"%{ord(found[0]):X}", quote(key, safe=" @+=,")).replace(".", "%2E")
    return name if len(name) <= LONGEST_KEY else f"{name[:100]}%-{blake2b(key.encode(), digest_size=12).hexdigest()}"


class StoredMemos:
    """Memos in the store of the agent: each is a value whose key says since when it is there, and what it is."""

    def __init__(self, storage: Storage) -> None:
        self._storage = storage

    async def read(self, key: str, most: int) -> Sequence[Memo]:
        """The latest memos of a key, the newest first."""
        found = await self._storage.items(_safe(key) + "\n", last=most)
        return [Memo(one.rpartition(".")[2], value["text"], value["at"]) for one, value in reversed(found.items())]

    async def add(self, key: str, memo: Memo) -> bool:
        """Keep a memo."""
        prefix, text = _safe(key) + "\n", f".{digest_of(memo.text)}."
        keys = await self._storage.keys(prefix)
        if any(text in one or one.endswith(memo.id) for one in keys):
            return False
        start = f"{prefix}{int(memo.at * 1e6):017d}."
        number = sum([one.startswith(start) for one in keys])
        own = f"{start}{number:06d}{text}{memo.id}"
        await self._storage.put(own, {"text": memo.text, "at": memo.at})
        return await self._keep_first(prefix, text) == own

    async def _keep_first(self, prefix: str, text: str) -> str:
        """Several may have added a text at once: whoever sees that keeps the first and drops the others."""
        first, *others = [one for one in await self._storage.keys(prefix) if text in one]
        for one in others:
            await self._storage.delete(one)
        return first

    async def remove(self, key: str, id: str) -> bool:
        """Drop a memo."""
        found = [one for one in await self._storage.keys(_safe(key) + "\n") if one.endswith(f".{id}")]
        for one in found:
            await self._storage.delete(one)
        return bool(found)


class MemoryFiles:
    """Memos in Markdown files that people can read and edit: one for each key in a folder, or a single `.md` file.

    Each item of a list is a memo, and so is each paragraph. What is written by an agent ends with a comment: the id of
    the memo and its time. A file is replaced as a whole, so a reader never sees half of it.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._single = self.path.suffix == ".md"
        if self.path.is_dir() if self._single else self.path.is_file():
            raise ConfigError(f"MemoryFiles({str(path)!r}): give a folder, or a file whose name ends with .md")
        self._lock = RLock()

    def __repr__(self) -> str:
        return f"MemoryFiles({str(self.path)!r})"

    def file_of(self, key: str) -> Path:
        """The file for a key. No key leads out of the folder."""
        return self.path if self._single else self.path / f"{_safe(key)}.md"

    async def read(self, key: str, most: int) -> Sequence[Memo]:
        """The latest memos of a key, at most `most`, the newest first."""
        memos = await asyncio.to_thread(self._load, key)
        return memos[::-1][:most]

    async def add(self, key: str, memo: Memo) -> bool:
        """Append a `memo` to its file."""

        def change(text: str) -> tuple[str, bool]:
            memo_text = _GAP.sub("\n", memo.text.strip())  # an empty line would end the item
            if any(one.id == memo.id or one.text == memo_text for one in _memos(text)):
                return text, False
            at = datetime.fromtimestamp(memo.at, UTC).isoformat()
            lines = memo_text.replace("-->", "--&gt;").replace("\n", "\n  ")
            start = "# Memory\n\n" if not text.strip() else text if text.endswith("\n") else text + "\n"
            return f"{start}- {lines} <!-- {memo.id} {at} -->\n", True

        return await asyncio.to_thread(self._change, key, change)

    async def remove(self, key: str, id: str) -> bool:
        """Drop a memo from its file."""

        def change(text: str) -> tuple[str, bool]:
            blocks = list(_blocks(text))
            kept = [block for block in blocks if (memo := _memo(block)) is None or memo.id != id]
            return "".join(kept), len(kept) < len(blocks)

        return await asyncio.to_thread(self._change, key, change)

    def _load(self, key: str) -> list[Memo]:
        return list(_memos(self._text(self.file_of(key))))

    def _text(self, file: Path) -> str:
        if file.is_symlink() and not self._single:
            raise ConfigError(f"{file} is a link; memory is only kept in files of its folder")
        try:
            return file.read_text("utf-8") if file.exists() else ""
        except UnicodeDecodeError as error:
            raise ConfigError(f"the memory in {file} is not a text in UTF-8: {error}") from error

    def _change(self, key: str, change: Callable[[str], tuple[str, bool]]) -> bool:
        file = self.file_of(key)
        file.parent.mkdir(parents=True, exist_ok=True)
        with self._lock, _locked(file.parent / ".lock"):
            before = self._text(file)
            after, changed = change(before)
            if changed:
                new = file.with_name(f".{file.name[:60]}.{os.getpid()}.new")
                with open(new, "w", encoding="utf-8") as out:
                    out.write(after)
                    out.flush()
                    os.fsync(out.fileno())
                os.replace(new, file)
        return changed


@contextmanager
def _locked(path: Path) -> Generator[None, None, None]:
    """Hold a lock among processes, where the system has such locks."""
    with open(path, "a") as file:
        try:
            import fcntl
        except ImportError:  # Windows: only threads of this process wait for each other
            yield
            return
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _blocks(text: str) -> Iterator[str]:
    """A text in pieces that make up the whole: items of lists, paragraphs, headings, empty lines."""
    block = ""
    for line in text.splitlines(keepends=True):
        goes_on = line.strip() and not line.startswith("#") and not _ITEM.match(line)
        if block and not (goes_on and block.strip() and not block.startswith("#")):
            yield block
            block = ""
        block += line
    if block:
        yield block


def _memo(block: str) -> Memo | None:
    if not block.strip() or block.startswith("#"):
        return None
    mark = _MARK.search(block)
    text = _MARK.sub("", block) if mark else block.strip()
    plain = "\n".join([line.strip() for line in _ITEM.sub("", text, count=1).splitlines()]).strip()
    plain = plain.replace("--&gt;", "-->")
    if mark is None:
        return Memo(digest_of(plain), plain)
    try:
        at = datetime.fromisoformat(mark[2]).timestamp()
    except ValueError:  # a person has changed it
        at = 0.0
    return Memo(mark[1], plain, at)


def _memos(text: str) -> Iterator[Memo]:
    yield from [memo for block in _blocks(text) if (memo := _memo(block)) is not None]
