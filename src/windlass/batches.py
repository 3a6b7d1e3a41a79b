"""Batches: many inputs, each in a turn of its own, some at once; the results come in order or as they are ready."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterable, AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sized
from typing import Any, Generic, NamedTuple, Self, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from ._progress import Report, check_progress
from .errors import ConfigError
from .messages import AnyMessage, Message, json_with_surrogates
from .outcomes import Cancelled, Completed, Failed, error_value
from .records import Outcome
from .results import Result

OutputT = TypeVar("OutputT")
Inputs: TypeAlias = Iterable[AnyMessage] | AsyncIterable[AnyMessage]

AHEAD = 2
"""How many times `concurrency` inputs may be read before the first of their results is taken."""

STOPPED = "the batch was stopped"
"""Why the turns of a batch that is left are cancelled."""


class BatchItem(Struct, Generic[OutputT], frozen=True):
    """An `input` of a batch and what became of it.

    `index` is its place among the inputs, from 0 on, and `session` the id of its session, if the batch has a name.
    `result` is that of its turn; it is None if the turn could not be run, and `error` says why.
    """

    index: int
    input: AnyMessage
    session: str | None = None
    result: Result[OutputT] | None = None
    error: Exception | None = None

    @property
    def outcome(self) -> Outcome:
        """How the turn ended. A turn that could not be run has failed."""
        return self._failure() if self.result is None else self.result.outcome

    @property
    def ok(self) -> bool:
        """Whether the turn is completed."""
        return isinstance(self.outcome, Completed)

    @property
    def text(self) -> str:
        """The answer. Raises the error if there is none."""
        return self._finished().text

    @property
    def output(self) -> OutputT:
        """The answer as the agent's `output` type. Raises the error if there is none."""
        return self._finished().output

    def _failure(self) -> Failed:
        assert self.error is not None
        return Failed(error_value(self.error))

    def _finished(self) -> Result[OutputT]:
        if self.result is None:
            assert self.error is not None
            raise self.error
        return self.result


class BatchProgress(Struct, frozen=True):
    """How far a batch is.

    `done` is how many turns are over, `failed` how many of these are not completed, `running` how many are under way.
    `total` is how many inputs there are, or None if that is not known.
    """

    done: int = 0
    failed: int = 0
    running: int = 0
    total: int | None = None


class BatchTurns(NamedTuple, Generic[OutputT]):
    """How the turns of a batch are run: `read` checks an input, `run` runs it in a session, `resume` resumes a session,
    and `find` returns what a session has, or None."""

    read: Callable[[AnyMessage], Message]
    run: Callable[[Message, str | None], Awaitable[Result[OutputT]]]
    resume: Callable[[str], Awaitable[Result[OutputT]]]
    find: Callable[[str], Awaitable[Result[OutputT] | None]]


class Batch(Generic[OutputT]):
    """The turns of a batch while they run: `async for item in agent.map(inputs)` yields a `BatchItem` for each input.

    Nothing runs until it is iterated. To leave it early, use `async with agent.map(…) as batch`, which cancels the
    turns that run when the block is left, or call `aclose`.

    `agent.map` makes it, and explains `inputs`, `concurrency`, `ordered` and `progress`. `turns` is how the agent runs
    a turn, and `name` the name of the batch.
    """

    def __init__(
        self,
        inputs: Inputs,
        turns: BatchTurns[OutputT],
        *,
        concurrency: int = 8,
        ordered: bool = True,
        name: str | None = None,
        progress: bool | Callable[[BatchProgress], object] = False,
    ) -> None:
        if type(concurrency) is not int or concurrency < 1:
            raise ConfigError(f"map(concurrency={concurrency!r}): concurrency must be a whole number, 1 or more")
        check_progress(progress, "map")
        self._source = _source(inputs)
        self._turns = turns
        self._concurrency = concurrency
        self._name = name
        self._total = len(inputs) if isinstance(inputs, Sized) else None
        self._report = Report(progress)
        self._pulling = asyncio.Lock()
        self._room = asyncio.Semaphore(AHEAD * concurrency)
        self._changed = asyncio.Event()
        self._finished: _Finished[OutputT] = _InOrder() if ordered else _AsReady()
        self._indices = itertools.count()
        self._ended = False
        self._broken: Exception | None = None
        self._done = self._failed = self._running = 0
        self._items = self._read()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> BatchItem[OutputT]:
        return await anext(self._items)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Cancel the turns that run, and start no more."""
        await self._items.aclose()

    async def collect(self) -> list[BatchItem[OutputT]]:
        """All items in a list, for inputs that end."""
        return [item async for item in self]

    # ------------------------------------------------------------ turns

    async def _read(self) -> AsyncGenerator[BatchItem[OutputT], None]:
        workers = [asyncio.ensure_future(self._work()) for _ in range(self._concurrency)]
        for worker in workers:
            worker.add_done_callback(lambda _: self._changed.set())
        try:
            self._report(self.progress)
            while True:
                self._changed.clear()
                while (item := self._finished.next()) is not None:
                    yield item
                    self._room.release()
                if all(worker.done() for worker in workers) and not self._changed.is_set():
                    break
                await self._changed.wait()
            for worker in workers:
                worker.result()
            if self._broken is not None:
                raise self._broken
        finally:
            for worker in workers:
                worker.cancel(STOPPED)
            await asyncio.gather(*workers, return_exceptions=True)
            self._report.close()

    @property
    def progress(self) -> BatchProgress:
        """How far the batch is."""
        return BatchProgress(self._done, self._failed, self._running, self._total)

    async def _work(self) -> None:
        """Run one turn after the other, until there are no more inputs."""
        while (pulled := await self._pull()) is not None:
            self._running += 1
            item = await self._item(*pulled)
            self._running -= 1
            self._done += 1
            self._failed += not item.ok
            self._finished.put(item)
            self._changed.set()
            self._report(self.progress)

    async def _pull(self) -> tuple[int, AnyMessage] | None:
        """The next input, when there is room for its result; None if there are no more."""
        async with self._pulling:
            if self._ended:
                return None
            await self._room.acquire()
            try:
                return next(self._indices), await anext(self._source)
            except StopAsyncIteration:
                self._ended = True
            except Exception as error:  # the turns that run come to their end first
                self._ended, self._broken = True, error
            return None

    async def _item(self, index: int, given: AnyMessage) -> BatchItem[OutputT]:
        session = None
        try:
            message = self._turns.read(given)
            if self._name is None:
                return BatchItem(index, given, None, await self._turns.run(message, None))
            for session in _sessions(self._name, index, message):
                result = await self._continue(message, session)
                if result is not None:
                    return BatchItem(index, given, session, result)
            raise AssertionError("there is always another session")
        except Exception as error:
            return BatchItem(index, given, session, None, error)

    async def _continue(self, message: Message, session: str) -> Result[OutputT] | None:
        """The result of a session: found, resumed or run now; None if its turn was cancelled earlier."""
        found = await self._turns.find(session)
        if found is None or found.state.turn is None:
            return await self._turns.run(message, session)
        if not found.state.over:
            return await self._turns.resume(session)
        return None if isinstance(found.outcome, Cancelled) else found


def _sessions(name: str, index: int, message: Message) -> Iterator[str]:
    """The ids of the sessions for an input: one, and others for when its turn was cancelled.

    An id has a digest of the input, so that another input at the same place is not taken for it.
    """
    text = json_with_surrogates(msgspec.to_builtins(message))
    first = f"{name}/{index}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
    yield first
    for attempt in itertools.count(2):
        yield f"{first}.{attempt}"


LONGEST_SUFFIX = "/999999999999-0123456789ab.9999"
"""What the id of a session adds to the name of its batch, at most."""


def _source(inputs: Inputs) -> AsyncIterator[AnyMessage]:
    """The inputs, one after the other."""
    given: Any = inputs
    if isinstance(given, str | bytes | Message):
        raise ConfigError(f"map({given!r:.40}): give a list or another iterable of messages, not a single one")
    if hasattr(given, "__aiter__"):
        found: AsyncIterator[AnyMessage] = aiter(given)
        return found
    try:
        return _Plain(iter(given))
    except TypeError:
        raise ConfigError(f"map({given!r:.40}): give an iterable of messages") from None


class _Plain:
    """A plain iterator as an async one."""

    def __init__(self, inputs: Iterator[AnyMessage]) -> None:
        self._inputs = inputs

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyMessage:
        for given in self._inputs:
            return given
        raise StopAsyncIteration


# ---------------------------------------------------------------- finished items


class _AsReady(Generic[OutputT]):
    """Finished items, as they are ready."""

    def __init__(self) -> None:
        self._items: deque[BatchItem[OutputT]] = deque()

    def put(self, item: BatchItem[OutputT]) -> None:
        self._items.append(item)

    def next(self) -> BatchItem[OutputT] | None:
        return self._items.popleft() if self._items else None


class _InOrder(Generic[OutputT]):
    """Finished items, in the order of the inputs."""

    def __init__(self) -> None:
        self._items: dict[int, BatchItem[OutputT]] = {}
        self._index = 0

    def put(self, item: BatchItem[OutputT]) -> None:
        self._items[item.index] = item

    def next(self) -> BatchItem[OutputT] | None:
        item = self._items.pop(self._index, None)
        self._index += item is not None
        return item


_Finished: TypeAlias = _AsReady[OutputT] | _InOrder[OutputT]


__all__ = ["Batch", "BatchItem", "BatchProgress"]
