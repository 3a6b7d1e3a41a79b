"""A second consumer of a turn: it reads the log, and adds provisional text if the turn runs in this process."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

import msgspec

from ._kernel.voice import Voice, without_words
from .deltas import AnyDelta, ArgumentsDelta, StreamEvent
from .errors import ConfigError, SessionUnknown
from .events import Progressed
from .messages import Message
from .protocols import Store, WakingStore
from .records import (
    Asked,
    Concluded,
    Delegated,
    Fact,
    HookDecided,
    MessageAdded,
    ModelAttempted,
    ModelReplied,
    Record,
    ReplyRejected,
    Resumed,
    Rewritten,
    StepEnded,
    Suspended,
    ToolCalled,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    TurnStarted,
)
from .states import of_latest_turn

_FIRST_PAUSE, _LAST_PAUSE, _LAST_PAUSE_HERE = 0.02, 0.5, 0.1
"""How long to wait, in seconds, before the log is read again: at first, at most, and at most for a turn that runs
here."""

LAST_PAUSE_WOKEN = 1.0
"""The same, at most, where the store tells of appends."""


class RunningHere(Protocol):
    """A turn that runs in this process. `voice` is its stream, if it is streamed; `has_ended` says that the log has its
    end."""

    @property
    def voice(self) -> Voice | None: ...

    @property
    def has_ended(self) -> bool: ...


class Watch:
    """The events of a turn for a second consumer: `async for event in agent.watch("s1")`.

    Records are those of the log, each exactly once and in order, with `seq`, their position in it. Those of sub-agents
    have a `path` and come after the `Delegated` that started them and before the end of the step; watch the session of
    an agent in the background by itself. Pass `token` as
    `since` to continue after the last event.

    Deltas, `Progressed` and `Retracted` are provisional: they come only if the turn is streamed in this process, and
    some may be left out. Each delta has its `step`, `round`, `attempt` and `offset`; the first one has all text of the
    attempt so far. A `ModelReplied` of the same step, a `Resumed` or a newer attempt replaces them. Text that hooks
    hold back is not shown, and a reply that they reject comes without its words.

    It ends when the turn has ended, is suspended, or is interrupted and nobody continues it. Leaving it does not affect
    the turn.
    """

    def __init__(
        self,
        store: Store,
        session: str,
        running: Callable[[], RunningHere | None],
        since: str | None = None,
        *,
        reviews_replies: bool = False,
        reviews_answer: bool = False,
    ) -> None:
        self._store = store
        self._session = session
        self._running = running
        self._review = Review(replies=reviews_replies, answer=reviews_answer)
        self._positions: Positions | None = None if since is None else Positions.read(since, session)
        self._live = LiveText()
        self._ended = False
        self._events = self._watch()

    @property
    def token(self) -> str:
        """The position after the last event. It is valid in every process with the same store."""
        if self._positions is None:
            raise ConfigError("the watch has no token yet: read its first event")
        return self._positions.token()

    def __aiter__(self) -> AsyncGenerator[StreamEvent, None]:
        return self._events

    async def __anext__(self) -> StreamEvent:
        return await anext(self._events)

    async def aclose(self) -> None:
        """Stop watching."""
        await self._events.aclose()

    async def __aenter__(self) -> Watch:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # ------------------------------------------------------------ reading

    async def _watch(self) -> AsyncGenerator[StreamEvent, None]:
        positions = await self._start()
        bell, pause, longest_elsewhere = Bell(), _FIRST_PAUSE, _LAST_PAUSE
        leave = listen(self._store, self._session, bell)
        try:
            while True:
                running = self._running()  # asked before the log is read: what it wrote is there
                alive = running is not None or await self._is_driven(positions.root)
                voice = None if running is None else running.voice
                bell.listen_to(voice)
                fresh = False
                async with _closing(self._records(positions, positions.root)) as records:
                    async for record in records:
                        fresh = True
                        yield record
                for event in self._live.since(voice):
                    fresh = True
                    yield event
                if self._ended or (not alive and not fresh):
                    return
                longest = longest_elsewhere if running is None else _LAST_PAUSE_HERE
                pause = _FIRST_PAUSE if fresh else min(2 * pause, longest)
                if fresh and running is None and longest_elsewhere == LAST_PAUSE_WOKEN:
                    pause = longest
                if alive and await bell.rings(pause):
                    pause = _FIRST_PAUSE
                    if running is None:  # the store tells of appends
                        longest_elsewhere = LAST_PAUSE_WOKEN
        finally:
            leave()
            bell.listen_to(None)

    async def _is_driven(self, shown: Position | None) -> bool:
        """Whether another process works on the turn, or an engine will go on with it."""
        ownership = await self._store.ownership(self._session)
        return ownership.alive or (ownership.engine != "" and (shown is None or not shown.stopped))

    async def _start(self) -> Positions:
        """Where to begin: after the token, or with the latest turn."""
        running = self._running()
        alive = running is not None or await self._is_driven(None)
        log = await self._store.read(self._session)
        if running is not None and running.has_ended:  # meanwhile: now the log has all of that turn
            alive, log = False, await self._store.read(self._session)
        if not log and not alive:
            raise SessionUnknown(f"there is no session {self._session!r}", session=self._session)
        if self._positions is None:
            self._positions = Positions(self._session, _start_of_turn(log, alive=alive))
        elif (read := self._positions.root.read) > len(log):
            raise ConfigError(
                f"the token is at record {read} of session {self._session!r}, which has {len(log)}: it belongs to "
                "another store, or the session was erased"
            )
        return self._positions

    async def _records(self, positions: Positions, log: Position) -> AsyncGenerator[StreamEvent, None]:
        """The new records of a log that may be shown, and those of its sub-agents at their places."""
        is_root = log is positions.root
        found = await self._store.read(log.session, log.read)
        for known in list(log.children):  # they were written before the record with which their step ends
            async with _closing(self._records(positions, known)) as records:
                async for record in records:
                    yield record
        review = self._review if is_root else EVERYTHING
        for record in review.settled(found):
            if is_root and log.ended and isinstance(record, TurnStarted):
                self._ended = True
                return
            log.note(record)
            child = log.add(record.session) if isinstance(record, Delegated) and not record.background else None
            if is_root:
                self._live.note(record)
            yield record.replace(seq=log.read, path="" if is_root else log.session)
            if child is not None:
                async with _closing(self._records(positions, child)) as records:
                    async for below in records:
                        yield below


def _start_of_turn(log: Sequence[Record], *, alive: bool) -> int:
    """How many records come before the latest turn. A turn that runs may not be in the log yet."""
    ends = [at for at, record in enumerate(log, 1) if isinstance(record, TurnStarted | TurnEnded)]
    if alive and (not ends or isinstance(log[ends[-1] - 1], TurnEnded)):
        return ends[-1] if ends else 0
    return len(log) - len(of_latest_turn(log))


class _closing:
    """Closes an async generator at the end of a block."""

    def __init__(self, generator: AsyncGenerator[StreamEvent, None]) -> None:
        self._generator = generator

    async def __aenter__(self) -> AsyncGenerator[StreamEvent, None]:
        return self._generator

    async def __aexit__(self, *_: object) -> None:
        await self._generator.aclose()


# ---------------------------------------------------------------- positions


class Position:
    """How many records of a log were shown, and where its sub-agents' logs stand. `ended` says that the end of its turn
    was shown, and `stopped` that it is the last that is known of the turn: it has ended, or waits."""

    def __init__(self, session: str, read: int = 0) -> None:
        self.session = session
        self.read = read
        self.children: list[Position] = []
        self.ended = self.stopped = False

    def note(self, record: Record) -> None:
        """A record is shown. The sub-agents of a step end before it does."""
        self.read += 1
        if isinstance(record, StepEnded | TurnEnded):
            self.children = []
        self.ended = isinstance(record, TurnEnded) or (self.ended and not isinstance(record, TurnStarted))
        if isinstance(record, TurnEnded | Suspended):
            self.stopped = True
        elif isinstance(record, TurnStarted | Resumed):
            self.stopped = False

    def add(self, session: str) -> Position:
        """A sub-agent begins. One that goes on keeps its position."""
        known = [child for child in self.children if child.session == session]
        if not known:
            known = [Position(session)]
            self.children += known
        return known[0]

    def plain(self) -> list[Any]:
        """The position as plain values."""
        return [self.session, self.read, [child.plain() for child in self.children]]

    @classmethod
    def of(cls, session: str, read: int, children: list[Any]) -> Position:
        """The position that plain values stand for."""
        if read < 0:
            raise ValueError("a position below 0")
        made = cls(session, read)
        made.children = [cls.of(*child) for child in children]
        return made


def position_after(session: str, records: int) -> str:
    """The token of a watch that has shown so many records of a session."""
    return Positions(session, records).token()


class Positions:
    """The positions in the log of a session and in those of its sub-agents, as one token."""

    def __init__(self, session: str, read: int) -> None:
        self.root = Position(session, read)

    def token(self) -> str:
        """The token of these positions."""
        return base64.urlsafe_b64encode(msgspec.json.encode([1, *self.root.plain()])).decode().rstrip("=")

    @classmethod
    def read(cls, token: str, session: str) -> Positions:
        """The positions of a token."""
        try:
            text = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
            version, name, read, children = msgspec.json.decode(text, type=tuple[int, str, int, list[Any]])
            made = cls(name, read)
            made.root = Position.of(name, read, children)
        except (ValueError, TypeError, msgspec.MsgspecError):
            raise ConfigError(f"since={token!r} is not a token of agent.watch") from None
        if version != 1:
            raise ConfigError("the token was made by a newer version of Windlass")
        if name != session:
            raise ConfigError(f"the token belongs to session {name!r}, not to {session!r}")
        return made


async def current_token(store: Store, session: str) -> str:
    """The token of a session as it is now. A watch from there shows only what comes next."""
    positions = Positions(session, 0)
    await _move_to_end(store, positions.root)
    return positions.token()


async def _move_to_end(store: Store, position: Position) -> None:
    """Pass over all records of a log, and of the sub-agents that its open step has."""
    for record in await store.read(position.session, position.read):
        position.note(record)
        if isinstance(record, Delegated) and not record.background:
            position.add(record.session)
    for child in position.children:
        await _move_to_end(store, child)


# ---------------------------------------------------------------- what may be shown


class Review(msgspec.Struct, frozen=True):
    """What hooks still judge when it is in the log: `replies`, and the `answer` with which the turn ends.

    A record with words waits until the log says whether they stand. If they do not, it comes without them.
    """

    replies: bool = True
    answer: bool = True

    def settled(self, records: Sequence[Record]) -> Iterator[Record]:
        """The records, up to the first one that has to wait."""
        at = 0
        while at < len(records):
            record = records[at]
            if not self._waits(record):
                yield without_words(record) if self._precedes(record) else record  # type: ignore[misc]
                at += 1
                continue
            end, stands = self._verdict(records, at)
            if end is None:
                return
            for held in records[at:end]:
                hides = not stands or self._precedes(held)
                yield without_words(held) if hides else held  # type: ignore[misc]
            at = end

    def _waits(self, record: Record) -> bool:
        if isinstance(record, ModelReplied):
            return self.replies or (self.answer and not record.reply.tool_calls)
        if isinstance(record, MessageAdded):
            return self.answer and isinstance(record.message, Message) and record.message.role == "assistant"
        return self.answer and isinstance(record, Concluded)

    def _precedes(self, record: Record) -> bool:
        """Whether a record has words that no hook has judged, and no verdict follows."""
        if not self.replies and not self.answer:
            return False
        if isinstance(record, ModelAttempted):
            return True
        if isinstance(record, Rewritten):
            return record.event in ("ModelCalling", "ModelReplying")
        return self.answer and isinstance(record, HookDecided | ToolDecided)

    def _verdict(self, records: Sequence[Record], at: int) -> tuple[int | None, bool]:
        """Up to where the records wait together, and whether their words stand; None if it is not known yet."""
        first = records[at]
        asks_tools = isinstance(first, ModelReplied) and bool(first.reply.tool_calls)
        is_answer = self.answer and not asks_tools
        for index in range(at + 1, len(records)):
            match records[index]:
                case ReplyRejected() | Suspended():
                    return index, False
                case ModelReplied() | ModelAttempted():
                    return index, True
                case TurnEnded(text=text):
                    return index, text is None
                case ToolDecided() | ToolCalled() | ToolReturned() | StepEnded() if not is_answer:
                    return index, True
                case Asked(event=event) if not is_answer and event in ("ToolCalling", "Delegating"):
                    return index, True
                case _:
                    pass
        return None, False


EVERYTHING = Review()
"""For the logs of sub-agents, whose hooks are not known here."""


# ---------------------------------------------------------------- provisional text


class LiveText:
    """Follows the text that a stream of this process has released, at its own pace."""

    def __init__(self) -> None:
        self._voice: Voice | None = None
        self._released: list[AnyDelta] | None = None
        self._read = 0
        self._retractions = 0
        self._offsets: dict[int, int] = {}
        self._shown = 0
        self._replied = (0, 0)
        self._progress: dict[tuple[str, str], Progressed] = {}

    def note(self, record: Record) -> None:
        """A record that replaces text which was shown."""
        if isinstance(record, ModelReplied):
            self._replied = max(self._replied, (record.step, record.round))

    def since(self, voice: Voice | None) -> Iterator[Fact | AnyDelta]:
        """What was released since the last time."""
        if voice is None:
            return
        if voice is not self._voice:
            self._voice, self._retractions, self._released = voice, len(voice.retractions), None
        for retracted in voice.retractions[self._retractions :]:
            self._retractions += 1
            if retracted.step == self._shown:
                self._shown = 0
                yield retracted
        yield from self._deltas(voice.released)
        for key, progress in list(voice.progress.items()):
            if self._progress.get(key) is not progress:
                self._progress[key] = progress
                yield progress

    def _deltas(self, released: list[AnyDelta]) -> Iterator[AnyDelta]:
        """New pieces, joined as far as they belong together; those of a reply that was shown whole are left out."""
        if released is not self._released:
            self._released, self._read, self._offsets = released, 0, {}
        pieces = released[self._read :]
        self._read += len(pieces)
        start = 0
        for end in range(1, len(pieces) + 1):
            if end < len(pieces) and (pieces[end].part, type(pieces[end])) == (pieces[start].part, type(pieces[start])):
                continue
            first, text = pieces[start], "".join([piece.text for piece in pieces[start:end]])
            start = end
            offset = self._offsets.get(first.part, 0)
            self._offsets[first.part] = offset + len(text)
            if first.round and (first.step, first.round) <= self._replied:
                continue
            self._shown = first.step
            name = {"name": first.name, "call": first.call} if isinstance(first, ArgumentsDelta) else {}
            yield first.replace(text=text, offset=offset, seq=0, **name)


def listen(store: Store, session: str, bell: Bell, *, ends: bool = False) -> Callable[[], None]:
    """Let a store ring a bell after appends of other processes, if it can; returns how to end that."""
    return store.listen(session, bell.ring, ends=ends) if isinstance(store, WakingStore) else lambda: None


class Bell:
    """Wakes a watcher when the stream or the log that it listens to has something new."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = asyncio.Event()
        self._voice: Voice | None = None

    def listen_to(self, voice: Voice | None) -> None:
        """Listen to a stream, and no longer to the one before."""
        if voice is not self._voice:
            if self._voice is not None:
                self._voice.channel.bells.remove(self.ring)
            self._voice = voice
            if voice is not None:
                voice.channel.bells.append(self.ring)

    def ring(self) -> None:
        """Called by the stream or the store, perhaps in another thread."""
        if not self._rung.is_set():
            with suppress(RuntimeError):  # the watcher's loop is closed
                self._loop.call_soon_threadsafe(self._rung.set)

    async def rings(self, patience: float) -> bool:
        """Wait for something new, but not longer than this; whether there is."""
        with suppress(TimeoutError):
            async with asyncio.timeout(patience):
                await self._rung.wait()
        rung = self._rung.is_set()
        self._rung.clear()
        return rung


__all__ = ["Watch", "current_token"]
