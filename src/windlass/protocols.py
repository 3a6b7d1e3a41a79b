"""The ports: what a model, a store and a clock must offer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any, Protocol, runtime_checkable

from .deltas import AnyDelta
from .logs import Batch, SessionInfo, Verified
from .messages import Message, ModelReply, ModelRequest
from .records import Asked, Record


@runtime_checkable
class Model(Protocol):
    """Something that replies. `name` is what requests and records call it."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: ModelRequest) -> ModelReply | Message | str:
        """Answer a request, or raise a `ModelError`."""
        ...


@runtime_checkable
class StreamingModel(Model, Protocol):
    """A model that can also be heard while it speaks; it is asked to when somebody streams the turn."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Answer a request piece by piece; last of all comes the whole reply.

        A `str` is a piece of text. The pieces of a part, joined, are what the reply has at that place. A generator that
        is closed stops asking. Raise a `ModelError` if the answer breaks off.
        """
        ...


class Clock(Protocol):
    """Where time comes from: seconds since the epoch, and seconds that only ever go forward.

    Who sleeps has nothing else to do; who waits for the `alarm` watches others work.
    """

    def now(self) -> float: ...
    def monotonic(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...
    async def alarm(self, seconds: float) -> None: ...


class Store(Protocol):
    """An append-only log per session, an inbox per session, and cursors of those who read behind it.

    `append` refuses with `SessionConflict` unless the log has exactly `expected` records, and returns whether the
    inbox has something. A batch is stored as a whole or not at all, and acknowledged when `append` returns. Whoever is
    cancelled in an `append` finds out by reading: it is in the log, or never will be. One process advances a session at
    a time. A store can be used from any thread and any event loop. Where nothing outlives the process `durable` is
    false, and nobody waits for an acknowledgement before calling a tool.
    """

    @property
    def durable(self) -> bool: ...

    async def append(self, session: str, records: Sequence[Record], expected: int) -> bool: ...
    async def read(self, session: str, start: int = 0) -> Sequence[Record]: ...
    async def sessions(self) -> Sequence[str]:
        """The ids of all sessions, in the order in which they began."""
        ...

    async def batches(self, session: str, start: int = 0) -> Sequence[Batch]:
        """The append batches that hold the records from `start` on, with their links in the chain."""
        ...

    async def find(
        self, *, search: str = "", status: str | None = None, limit: int | None = None
    ) -> Sequence[SessionInfo]:
        """Sessions by a text in their id, first message or agent, and by status; the latest first."""
        ...

    async def approvals(self, session: str | None = None) -> Sequence[tuple[str, Asked]]:
        """The open questions of one session or of all."""
        ...

    async def prune(self, *, before: float) -> int:
        """Drop transient context of turns that ended before a moment; nothing of a turn that is open is touched."""
        ...

    async def erase(self, session: str) -> bool:
        """Erase a session and those of its sub-agents; that it was there, and the head of its chain, stay."""
        ...

    async def verify(self, session: str) -> Verified:
        """Follow the hash chain of a session; raises `StoreError` where it is broken."""
        ...

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        """Put an entry into the inbox; False if that key is there already."""
        ...

    async def take(self, session: str, taken: Sequence[str]) -> Sequence[tuple[str, str, Any]]:
        """The entries of the inbox that are not yet `taken`, in the order of their arrival.

        Of one that the log says was taken only the key is kept.
        """
        ...

    async def cursor(self, session: str, reader: str) -> int:
        """How many records of a session a reader has read; 0 if it has read none."""
        ...

    async def advance(self, session: str, reader: str, seq: int, expected: int | None = None) -> bool:
        """Set the cursor of a reader. With `expected`, only if the cursor is still there; False if it is not."""
        ...

    async def behind(self, reader: str) -> Sequence[SessionInfo]:
        """The sessions whose log goes on after the cursor of a reader, in the order in which they began."""
        ...

    async def put_pipeline(self, digest: str, data: bytes) -> None: ...
    async def pipeline(self, digest: str) -> bytes | None: ...
    async def close(self) -> None: ...


class Capability(Protocol):
    """A bundle of hooks, tools, slots, criteria and instructions that installs itself through a registrar."""

    def install(self, registrar: Any, /) -> None: ...
