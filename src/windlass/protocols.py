"""The ports: what a model, a store and a clock must offer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar, runtime_checkable

from .deltas import AnyDelta
from .logs import Batch, Log, SessionInfo, Verified
from .messages import Message, ModelReply, ModelRequest
from .ownership import Claim, Lost, Ownership, Passes, Work
from .records import Asked, Record

T = TypeVar("T")


@runtime_checkable
class Model(Protocol):
    """A language model. `name` identifies it in requests and records."""

    @property
    def name(self) -> str: ...

    async def reply(self, request: ModelRequest) -> ModelReply | Message | str:
        """Answer a request, or raise a `ModelError`."""
        ...


@runtime_checkable
class StreamingModel(Model, Protocol):
    """A model that can also stream its reply. `stream` is called instead of `reply` if the turn is streamed."""

    def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        """Answer a request piece by piece; the last item is the whole reply.

        A `str` is a piece of text. The joined pieces of a part must equal that part of the reply. When the generator is
        closed, it must end the request. Raise a `ModelError` if the reply breaks off.
        """
        ...


class Clock(Protocol):
    """The source of time: `now` in seconds since the epoch, and `monotonic` seconds, which never go back.

    `sleep` pauses its caller. `alarm` is awaited by a watchdog beside running work: a fake clock must not skip ahead
    for it. A clock that goes with the event loop may also offer `timeout(seconds)`, an `asyncio.Timeout`: then no task
    is needed to limit the time of some work.
    """

    def now(self) -> float:
        """The time in seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Seconds since any moment; they never go back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Pause the caller."""
        ...

    async def alarm(self, seconds: float) -> None:
        """Return after some seconds, beside work that is running."""
        ...


class StoredValue(NamedTuple):
    """A value of a `Storage` as a store keeps it: JSON, and the time from which on it no longer counts."""

    data: bytes
    expires: float | None = None


class Values(Protocol):
    """The values that a store keeps beside its logs, by the name of their storage and by key.

    They belong to no session. The store has no clock: it returns expired values, too, and may drop those that have
    expired by the `now` of a write. `Store.prune` drops them. A value, or a key that was used, counts for all processes
    as soon as the method returns. After a cancel, the next read shows whether a change happened: it will not happen
    later.
    """

    async def read(self, name: str, key: str) -> StoredValue | None:
        """The value of a key; None if there is none."""
        ...

    async def write(self, name: str, key: str, value: StoredValue | None, *, now: float) -> None:
        """Set the value of a key. None deletes it, with the ids that were used for it."""
        ...

    async def change(
        self,
        name: str,
        key: str,
        change: Callable[[StoredValue | None], tuple[StoredValue | None, T]],
        *,
        now: float,
        once: str = "",
        until: float | None = None,
    ) -> T | None:
        """Change the value of a key, while nobody else can change it, and return what the function says.

        `change` gets the value and returns the new one, with an answer; it may be called more than once, on any
        thread. If it returns the value that it was given, nothing is written. With the id `once`, a change is made at
        most once for the key: if one was written with this id before, `change` is not called, and None is returned. The
        id is kept at least until the time `until`, or as long as the key if there is none.
        """
        ...

    async def find(
        self, name: str, prefix: str = "", *, data: bool = True, last: int | None = None, now: float = 0.0
    ) -> Sequence[tuple[str, StoredValue]]:
        """The keys that begin with a text, in the order of their code points, with their values.

        Without `data`, the values are empty. With `last`, only so many are returned: the last ones that have not
        expired at the time `now`.
        """
        ...

    async def clear(self, name: str, prefix: str = "") -> int:
        """Delete the keys that begin with a text, with the ids that were used for them; returns how many."""
        ...


class Store(Protocol):
    """An append-only log and an inbox per session, and the cursors of readers of the log.

    `append` raises `SessionConflict` unless the log has exactly `expected` records, and returns whether the inbox has
    entries. A batch is stored completely or not at all, and is acknowledged when `append` returns. After an `append`
    was cancelled, the next read shows whether it happened: it will not happen later. One process at a time advances a
    session: a claim says for which pass a batch is written. A store can be used from any thread and any event loop.
    `durable` is false if nothing outlives the process; tools are then called without waiting for an acknowledgement.
    """

    @property
    def durable(self) -> bool: ...

    @property
    def passes(self) -> Passes:
        """The passes that run in this process over the sessions of this store, through any store of its address."""
        ...

    @property
    def values(self) -> Values:
        """The values that capabilities and the application keep in this store."""
        ...

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Claim | None = None) -> bool:
        """Append a batch of records to a log of `expected` records; returns whether the inbox has entries.

        With a claim, the batch is written only for the pass that it names; see `Claim`. A claim that begins a pass may
        come without records.
        """
        ...

    async def ownership(self, session: str) -> Ownership:
        """Who owns a session."""
        ...

    async def release(self, session: str, epoch: int) -> None:
        """End a pass over a session, if it is still the latest. For a pass whose last batch did not end it."""
        ...

    async def unread(self, sessions: Sequence[str]) -> Sequence[str]:
        """Those of these sessions whose inbox has entries that the log has not taken."""
        ...

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        """The records of a session from `start` on; none if there is no such session."""
        ...

    async def sessions(self) -> Sequence[str]:
        """The ids of all sessions, in the order in which they began."""
        ...

    async def batches(self, session: str, start: int = 0) -> Sequence[Batch]:
        """The append batches that hold the records from `start` on, with their links in the chain.

        `read` and `batches` raise `StoreError` if what they read was changed, or if the end of the log is missing.
        """
        ...

    async def create(self, logs: Sequence[Log]) -> None:
        """Store new sessions, all of them or none. Raises `SessionConflict` if one of the ids was used before."""
        ...

    async def find(
        self, *, search: str = "", status: str | None = None, limit: int | None = None
    ) -> Sequence[SessionInfo]:
        """Find sessions by a text in their id, first message or agent, and by status; the latest first.

        Case is ignored. Invalid arguments, such as a negative limit or an unknown status, raise `ConfigError`.
        """
        ...

    async def approvals(self, session: str | None = None) -> Sequence[tuple[str, Asked]]:
        """The questions without an answer in the log, of one session or of all. Their answers may wait in the inbox."""
        ...

    async def prune(self, *, before: float) -> int:
        """Drop the transient context of turns that ended before `before`; open turns are not touched.

        Also drops the values that expired before `before`. Returns how much context was pruned. Sessions can be
        advanced meanwhile.
        """
        ...

    async def erase(self, session: str) -> bool:
        """Erase a session and those of its sub-agents; a tombstone with the head of its chain remains."""
        ...

    async def verify(self, session: str) -> Verified:
        """Check the log of a session, and that all else the store keeps of it agrees with it; raises `StoreError`."""
        ...

    async def verify_store(self) -> Sequence[str]:
        """Check the rest of the store. Returns what is wrong, one sentence each."""
        ...

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        """Put an entry into the inbox; False if the key already exists."""
        ...

    async def inbox(self, session: str, taken: Sequence[str]) -> Sequence[tuple[str, str, Any]]:
        """The inbox entries whose keys are not in `taken`, in the order of their arrival.

        Once the log says that an entry was taken, the store keeps only its key.
        """
        ...

    async def cursor(self, session: str, reader: str) -> int:
        """How many records of a session a reader has read; 0 if it has read none."""
        ...

    async def advance(self, session: str, reader: str, seq: int, expected: int | None = None) -> bool:
        """Set the cursor of a reader. With `expected`, only if the cursor is still there; otherwise returns False."""
        ...

    async def behind(self, reader: str) -> Sequence[SessionInfo]:
        """The sessions with records after the cursor of a reader, in the order in which they began."""
        ...

    async def put_pipeline(self, digest: str, data: bytes) -> None:
        """Store the description of a pipeline under its digest."""
        ...

    async def pipeline(self, digest: str) -> bytes | None:
        """The description of a pipeline, or None if the store does not have it."""
        ...

    async def close(self) -> None:
        """Release the store's resources."""
        ...


@runtime_checkable
class WakingStore(Store, Protocol):
    """A store that can wake readers of a log when another process has appended to it. Readers of others poll."""

    def listen(self, session: str, ring: Callable[[], None], *, ends: bool = False) -> Callable[[], None]:
        """Call `ring` after appends to a session or to its sub-agents'; returns a function that ends that.

        With `ends`, only appends that end a turn or let it wait count. `ring` is called on any thread, perhaps without
        a reason, and perhaps not at all: data is always read from the log, from time to time also without a call.
        """
        ...


@runtime_checkable
class WorkStore(Store, Protocol):
    """A durable store from which workers take sessions, in any number of processes."""

    async def take_work(
        self, agent: str, limit: int, *, except_for: Collection[str] = (), due: Sequence[str] = ()
    ) -> Sequence[Work]:
        """Take up to `limit` sessions of an agent that have work and that nobody works on, the most urgent first.

        A pass of this process is begun for each of them, so that nobody else takes them. There is work in a session if
        its turn runs although its process has ended, or was interrupted; if it waits for a person and an answer or a
        cancel has come, or its question is `due`; or if a message is queued. No session is taken that is in
        `except_for`, runs in this process, or is driven by an engine.
        """
        ...

    async def assign(self, session: str, engine: str, *, former: str = "") -> str:
        """Let an engine drive a session, unless another one than `former` does; returns the engine that does then.

        Raises `SessionBusy` if a turn runs in the session, and another engine or none has begun it.
        """
        ...

    shows_life: bool
    """Whether `signs_of_life` knows something."""

    async def signs_of_life(self, engine: str) -> Mapping[str, str]:
        """For the processes that work on sessions of an engine: a text that changes as long as the process works.

        A process that runs turns changes it about once a second. One that is stopped or cut off is alive, but silent.
        Processes about which the store knows nothing are left out.
        """
        ...

    async def take_lost(self, engine: str, limit: int, *, silent: Collection[str] = ()) -> Sequence[Lost]:
        """Up to `limit` sessions that an engine drives and whose process has died, or is in `silent`.

        They have no owner afterwards, and their process writes no more. So each loss is returned to one caller, which
        tells the engine. It may be the session of an agent in the background, below one that the engine drives.
        """
        ...

    async def unserved(self, engine: str, agent: str, limit: int) -> Sequence[str]:
        """Up to `limit` sessions of an agent that an engine drives and nobody works on, although a message is queued,
        or an answer or a cancel has come for a turn that waits."""
        ...


class Capability(Protocol):
    """A bundle of hooks, tools, slots, criteria and instructions that installs itself through a registrar."""

    def install(self, registrar: Any, /) -> None:
        """Register everything. It is called once for each agent, when the agent is put together."""
        ...
