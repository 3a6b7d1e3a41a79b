"""The world of an agent in a crash test: records effects and model calls in a file that outlives the processes."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from windlass.deltas import AnyDelta
from windlass.logs import Log
from windlass.messages import ModelReply, ModelRequest, as_reply, digest
from windlass.protocols import Model, Store, StoredValue, Values
from windlass.records import Record

from .models import FunctionModel, Scriptable, UnexpectedCall


class Cut(Struct, frozen=True):
    """Where to kill a process: before or after its n-th write to the store, or after its n-th note in the journal."""

    moment: Literal["before write", "after write", "after note"]
    number: int


What: TypeAlias = Literal["effect", "undone", "asked", "replied", "raised"]


class Note(Struct, frozen=True):
    """One line of the journal: an effect or its undoing, or a model call, its reply or its error; and the process."""

    what: What
    name: str
    key: str | None = None
    process: int = 0


_notes = msgspec.json.Decoder(Note)
Row: TypeAlias = Scriptable | tuple[Scriptable, ...]


class Journal:
    """The file in which the processes of one run note what happened. Each has a number, and perhaps a cut."""

    def __init__(self, path: Path, process: int = 0, cut: Cut | None = None) -> None:
        self.path = path
        self.process = process
        self.cut = cut
        self.written = 0

    def note(self, what: What, name: str, key: str | None = None) -> None:
        """Write a line. Once this returns, the line survives the death of the process."""
        line = msgspec.json.encode(Note(what, name, key, self.process)) + b"\n"
        file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            os.write(file, line)
        finally:
            os.close(file)
        self.written += 1
        self.strike("after note", self.written)

    def strike(self, moment: str, number: int) -> None:
        """Kill this process if this is its cut."""
        if self.cut is not None and (self.cut.moment, self.cut.number) == (moment, number):
            os.kill(os.getpid(), signal.SIGKILL)

    def notes(self) -> list[Note]:
        """All notes so far, of all processes."""
        if not self.path.exists():
            return []
        return [_notes.decode(line) for line in self.path.read_bytes().split(b"\n")[:-1]]

    def count(self, name: str, key: str | None, *what: str) -> int:
        """The number of notes of these kinds with this name and key."""
        return sum(note.what in what and (note.name, note.key) == (name, key) for note in self.notes())


class World:
    """The world in which a scenario builds its agent; it is the same in every process of a run.

    Give `store` to the agent; it will run in `session`. Tools may keep files in `folder`. Call `effect` in tools, and
    make models with `model` or wrap them with `watch`. Both write a line to a file before they return, so that nothing
    is lost when a process is killed.
    """

    def __init__(self, journal: Journal, store: Store, session: str) -> None:
        self._journal = journal
        self.store = store
        self.session = session

    @property
    def folder(self) -> Path:
        """A folder for the files of this run, such as a tool's own database.

        Each run starts with an empty one. All its processes, killed and resumed, share it; no other run does. It is
        deleted afterwards.
        """
        folder = self._journal.path.parent / "files"
        folder.mkdir(exist_ok=True)
        return folder

    def effect(self, name: str, key: str | None = None) -> int:
        """Record that something happens in the world; returns how often it has happened by now.

        Without a `key`, it must not happen more often than without a crash. With an idempotency key, it may be repeated
        and counts once.
        """
        self._journal.note("effect", name, self._plain(key))
        return self.count(name, key)

    def undo(self, name: str, key: str | None = None) -> None:
        """Record that an effect is undone, if it has happened; for the compensation of a tool."""
        self._journal.note("undone", name, self._plain(key))

    def count(self, name: str, key: str | None = None) -> int:
        """The number of times an effect has happened in all processes, undone or not."""
        return self._journal.count(name, self._plain(key), "effect")

    def _plain(self, key: str | None) -> str | None:
        """The key without the name of the session, which differs between runs."""
        return None if key is None else key.replace(self.session, "session")

    def model(self, *script: Row, name: str = "scripted") -> Model:
        """A model that follows a script by the conversation in its request, not by its memory.

        The n-th row is the reply to a conversation in which the model has spoken n times before. If a row is a tuple,
        repeated calls — after an error, or because the reply was rejected — get its items in order, and then the last
        item again.
        """

        def reply(request: ModelRequest) -> Scriptable:
            place = _place(request)
            if place >= len(script):
                raise UnexpectedCall(f"model {name!r} has spoken {place} times, but its script has {len(script)} rows")
            row = script[place]
            if not isinstance(row, tuple):
                return row
            return row[min(self._journal.count(_identity(request), None, "replied", "raised"), len(row) - 1)]

        return self.watch(FunctionModel(reply, name=name))

    def watch(self, model: Model) -> Model:
        """The same model, with its calls noted in the journal and its replies marked for the log."""
        kind = _WatchedStreaming if hasattr(model, "stream") else _Watched
        return kind(model, self._journal)


def _place(request: ModelRequest) -> int:
    """How often the model has spoken in the conversation, without rejected replies."""
    messages = list(request.messages)
    if messages and messages[-1].origin == "regenerate":
        messages = messages[:-1]
        if messages and messages[-1].role == "assistant" and not messages[-1].id:
            messages.pop()
    return Counter(message.role for message in messages)["assistant"]


def _identity(request: ModelRequest) -> str:
    """The identity of a call: a repeated call has the same, whatever the tools returned in between."""
    first = next((message.text for message in request.messages if message.role == "user"), "")
    return f"{request.model}:{digest(request.system, first)[:8]}:{_place(request)}"


class _Watched:
    """A model whose calls are noted. Each reply carries the identity of its call into the log."""

    def __init__(self, model: Model, journal: Journal) -> None:
        self.model = model
        self.journal = journal
        self.name = model.name

    async def reply(self, request: ModelRequest) -> ModelReply:
        identity = self._note_call(request)
        try:
            return self._note_reply(identity, await self.model.reply(request))
        except Exception:
            self.journal.note("raised", identity)
            raise

    def _note_call(self, request: ModelRequest) -> str:
        identity = _identity(request)
        self.journal.note("asked", identity)
        return identity

    def _note_reply(self, identity: str, value: Any) -> ModelReply:
        reply = as_reply(value)
        self.journal.note("replied", identity)
        return reply.replace(response_id=identity)


class _WatchedStreaming(_Watched):
    """The same for a model that can stream."""

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        identity = self._note_call(request)
        pieces: AsyncGenerator[Any, None] = self.model.stream(request)  # type: ignore[attr-defined]
        try:
            async for piece in pieces:
                yield piece if isinstance(piece, str | AnyDelta) else self._note_reply(identity, piece)
        except Exception:
            self.journal.note("raised", identity)
            raise
        finally:
            await pieces.aclose()


class CrashingStore:
    """A store that numbers its writes and calls `strike` before and after each of them."""

    def __init__(self, store: Store, strike: Callable[[str, int], None]) -> None:
        self._store = store
        self._strike = strike
        self.writes: list[str] = []

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Any = None) -> bool:
        kinds = ", ".join(type(record).__name__ for record in records)
        return bool(await self._write(kinds, self._store.append(session, records, expected, claim)))

    async def create(self, logs: Sequence[Log]) -> None:
        await self._write("new sessions", self._store.create(logs))

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        return bool(await self._write(f"inbox: {kind}", self._store.put(session, key, kind, data)))

    async def put_pipeline(self, digest: str, data: bytes) -> None:
        await self._write("pipeline", self._store.put_pipeline(digest, data))

    async def advance(self, session: str, reader: str, seq: int, expected: int | None = None) -> bool:
        return bool(await self._write(f"cursor of {reader}", self._store.advance(session, reader, seq, expected)))

    @property
    def values(self) -> _CrashingValues:
        return _CrashingValues(self._store.values, self._write)

    async def _write(self, what: str, work: Any) -> Any:
        self.writes.append(what)
        number = len(self.writes)
        self._strike("before write", number)
        done = await work
        self._strike("after write", number)
        return done

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class _CrashingValues:
    """The values of a store that may crash before and after each write."""

    def __init__(self, values: Values, write: Callable[[str, Any], Any]) -> None:
        self._values = values
        self._write = write
        self.read = values.read
        self.find = values.find

    async def write(self, name: str, key: str, value: StoredValue | None, *, now: float) -> None:
        await self._write(f"value of {name}", self._values.write(name, key, value, now=now))

    async def change(
        self, name: str, key: str, change: Any, *, now: float, once: str = "", until: float | None = None
    ) -> Any:
        work = self._values.change(name, key, change, now=now, once=once, until=until)
        return await self._write(f"value of {name}", work)

    async def clear(self, name: str, prefix: str = "") -> int:
        return int(await self._write(f"values of {name}", self._values.clear(name, prefix)))
