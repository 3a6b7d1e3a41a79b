"""The edges of a simulated agent: its clock, store, models and tools, with what the seed makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from copy import copy
from random import Random
from typing import Any, NoReturn

import msgspec

from windlass.deltas import AnyDelta
from windlass.errors import ConfigError, StoreError
from windlass.logs import Log
from windlass.messages import ModelReply, ModelRequest, Usage
from windlass.ownership import Claim, Ownership, Passes
from windlass.protocols import Model, StoredValue, Values
from windlass.records import Record, decode, encode
from windlass.testing.models import Scripted, breaks, calls, play_stream, play_whole, says
from windlass.tools import Tool

from .grammar import ERRORS, SAYS, Reply
from .lives import LIFE
from .loops import running
from .refusals import remembered
from .values import fitting
from .worlds import EPOCH, INVOCATION, Invocation, Stage, current


class ProcessDied(BaseException):
    """The simulated process is dead: whatever runs in it ends."""


class SimulatedClock:
    """Virtual time."""

    def now(self) -> float:
        return EPOCH + _loop_time()

    def monotonic(self) -> float:
        return _loop_time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def alarm(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds)


def _loop_time() -> float:
    life = LIFE.get()
    loop: Any = running() if life is None else life.world.loop
    return float(loop.time())


# ---------------------------------------------------------------- the store


class SimulatedStore:
    """The store of the session that is simulated: it may be slow, fail, or take the process with it."""

    durable = True

    @property
    def passes(self) -> Passes:
        life = LIFE.get()
        if life is None:
            return _OUTSIDE
        if life.passes is None:
            life.passes = Passes()
            life.passes.watched.add(life.world.loop)  # no other process writes to an inbox: nobody needs to look
        passes: Passes = life.passes
        return passes

    @property
    def values(self) -> Values:
        values: Values = _VALUES
        return values

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Claim | None = None) -> bool:
        world = current("the store")
        waits = await _write(world, lambda: _append(world, session, records, expected, claim))
        return bool(waits)

    async def create(self, logs: Sequence[Log]) -> None:
        world = current("the store")
        await _write(world, lambda: world.store.create(logs))

    async def put(self, session: str, key: str, kind: str, data: Any) -> bool:
        world = current("the store")
        return bool(await _write(world, lambda: world.store.put(session, key, kind, data)))

    async def advance(self, session: str, reader: str, seq: int, expected: int | None = None) -> bool:
        world = current("the store")
        return bool(await _write(world, lambda: world.store.advance(session, reader, seq, expected)))

    async def put_pipeline(self, digest: str, data: bytes) -> None:
        await current("the store").store.put_pipeline(digest, data)

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        world = current("the store")
        records = await world.store.read(session, start)
        return [decode(encode(record)) for record in records] if world.crashes else records

    async def ownership(self, session: str) -> Ownership:
        return Ownership((await current("the store").store.ownership(session)).epoch)

    async def close(self) -> None:
        """It outlives the agent."""

    def __getattr__(self, name: str) -> Any:
        return getattr(current("the store").store, name)


class _SimulatedValues:
    """The values of that store."""

    async def write(self, name: str, key: str, value: StoredValue | None, *, now: float) -> None:
        world = current("the storage")
        await _write(world, lambda: world.store.values.write(name, key, value, now=now))

    async def change(self, name: str, key: str, change: Any, **options: Any) -> Any:
        world = current("the storage")
        return await _write(world, lambda: world.store.values.change(name, key, change, **options))

    async def clear(self, name: str, prefix: str = "") -> int:
        world = current("the storage")
        return int(await _write(world, lambda: world.store.values.clear(name, prefix)))

    def __getattr__(self, name: str) -> Any:
        return getattr(current("the storage").store.values, name)


_VALUES: Any = _SimulatedValues()
_OUTSIDE = Passes()


async def _append(world: Stage, session: str, records: Sequence[Record], expected: int, claim: Claim | None) -> bool:
    waits = await world.store.append(session, records, expected, claim)
    if world.watcher is not None:
        world.watcher.appended(session, records, expected)
    return waits


async def _write(world: Stage, write: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """A write, and what happens at it."""
    life = LIFE.get()
    if life is None or life.dead:
        raise ProcessDied
    chosen: Mapping[str, Any] | None = world.draw("write", world.chances.write)
    if chosen is None:
        return await write()
    if takes := chosen.get("takes"):
        await asyncio.sleep(takes)
    crash, error = (None, None) if world.calm else (chosen.get("crash"), chosen.get("error"))
    if crash == "before":
        await _die(world)
    if error == "before":
        _fail(world, "nothing was written")
    done = await write()
    if crash == "after":
        await _die(world)
    if error == "after":
        _fail(world, "the answer was lost")
    for what in ("cancel", "steer"):
        if what in chosen and not world.calm:
            world.act(what, chosen[what])
    return done


async def _die(world: Stage) -> NoReturn:
    life = LIFE.get()
    assert life is not None
    world.crash(life)
    await asyncio.get_running_loop().create_future()
    raise ProcessDied


def _fail(world: Stage, what: str) -> NoReturn:
    world.errors_injected += 1
    raise StoreError(f"simulated: the store failed, {what}")


# ---------------------------------------------------------------- models

_SPENT = Usage(input=10, output=5, requests=1, cost=0.0001)


class SimulatedModel:
    """A model whose replies the grammar draws. All else that it says of itself is what the real model says."""

    knows_cost = True

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self._model = model

    async def reply(self, request: ModelRequest) -> ModelReply:
        world = current("the model")
        token = world.enter(f"model {self.name!r}")
        try:
            return await play_whole(await _next_reply(world, request, streamed=False), None)
        finally:
            world.leave(token)

    async def stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        world = current("the model")
        token = world.enter(f"model {self.name!r}")
        try:
            async for piece in play_stream(await _next_reply(world, request, streamed=True), None):
                yield piece
        finally:
            world.leave(token)

    def __getattr__(self, name: str) -> Any:
        if name in ("check_settings", "count_tokens", "aclose") or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._model, name)


async def _next_reply(world: Stage, request: ModelRequest, *, streamed: bool) -> Scripted:
    """The next reply of the grammar, after the time that it takes. Without a choice, the first text it may say."""

    def make(random: Any) -> Reply:
        try:
            reply = world.speaker.reply(random, request, world.steps)
        except Exception as error:
            raise remembered(ConfigError(f"simulate: the grammar could not make a reply: {error!r}")) from error
        return reply if world.calm else world.chances.model(random, reply, streamed=streamed)

    chosen: Reply = world.draw("reply", make) or {}
    if takes := chosen.get("takes"):
        await asyncio.sleep(takes)
    if (error := chosen.get("error")) is not None:
        raise ERRORS[error](f"simulated: {error}")
    if "calls" in chosen:
        wanted = [(name, arguments) for name, arguments in chosen["calls"]]
        said = calls(wanted, _text=chosen.get("say", ""), _usage=_SPENT)
    else:
        said = says(chosen["say"] if "say" in chosen else _shortest(request), usage=_SPENT)
    return breaks(said, pieces=chosen["cut"]) if "cut" in chosen else said


def _shortest(request: ModelRequest) -> str:
    """What the model says if a case does not tell."""
    if request.output is None:
        return SAYS[0]
    return msgspec.json.encode(fitting(request.output)(Random(0))).decode()


# ---------------------------------------------------------------- tools


def simulated_tools(
    tools: Mapping[str, Tool[..., Any]], stand_ins: Mapping[str, Callable[..., Any]]
) -> dict[str, Tool[..., Any]]:
    """The tools, each with the latency and the faults that the seed decides, and with the stand-ins' functions."""
    return {name: _simulated_tool(tool, stand_ins.get(name)) for name, tool in tools.items()}


def _simulated_tool(tool: Tool[..., Any], stand_in: Callable[..., Any] | None) -> Tool[..., Any]:
    if tool.effect == "resumable":  # an agent, which is simulated itself
        return tool
    made = copy(tool)
    given: Any = tool.fn if stand_in is None else stand_in
    fn = _awaiting(given) if tool.is_async and stand_in is not None else given
    made.fn = _async_tool(tool, fn) if tool.is_async else _plain_tool(tool, fn)
    return made


def _awaiting(stand_in: Callable[..., Any]) -> Callable[..., Any]:
    """A stand-in of an async tool, which may be plain."""

    async def call(*args: Any, **kwargs: Any) -> Any:
        answer = stand_in(*args, **kwargs)
        return await answer if asyncio.iscoroutine(answer) else answer

    return call


def _async_tool(tool: Tool[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    name = tool.name

    async def call(*args: Any, **kwargs: Any) -> Any:
        world = current(f"tool {name!r}")
        chosen = world.draw("tool", world.chances.tool) or {}
        token = world.enter(f"tool {name!r}")
        try:
            if takes := chosen.get("before"):
                await asyncio.sleep(takes)
            _fail_at(world, chosen, "before")
            started = INVOCATION.set(_start(world, tool, args, kwargs))
            try:
                value = await fn(*args, **kwargs)
            except Exception as error:
                world.note_raised(f"tool {name!r}", type(error).__name__, str(error))
                raise
            finally:
                INVOCATION.reset(started)
            if takes := chosen.get("after"):
                await asyncio.sleep(takes)
            _fail_at(world, chosen, "after")
            return value
        finally:
            world.leave(token)

    return call


def _plain_tool(tool: Tool[..., Any], fn: Callable[..., Any]) -> Callable[..., Any]:
    """A plain tool does its work at one moment. One that runs in a thread waits for that as threads do."""
    name = tool.name

    def call(*args: Any, **kwargs: Any) -> Any:
        world = current(f"tool {name!r}")
        chosen = world.draw("tool", world.chances.tool) or {}
        _fail_at(world, chosen, "before")
        started = INVOCATION.set(_start(world, tool, args, kwargs))
        try:
            value = fn(*args, **kwargs)
        except Exception as error:
            world.note_raised(f"tool {name!r}", type(error).__name__, str(error))
            raise
        finally:
            INVOCATION.reset(started)
        _fail_at(world, chosen, "after")
        return value

    return call


def _start(world: Stage, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Invocation:
    life = LIFE.get()
    if life is None or life.dead:
        raise ProcessDied
    if world.watcher is not None:
        world.watcher.started(tool.name, tool.effect == "unsafe")
    supplied = dict(tool.supplied)
    return Invocation(tool.name, (*args, *[value for key, value in kwargs.items() if key not in supplied]))


def _fail_at(world: Stage, chosen: Mapping[str, Any], when: str) -> None:
    if chosen.get("fails") == when and not world.calm:
        done = "nothing happened" if when == "before" else "its result was lost"
        raise ConnectionError(f"simulated: the tool failed, {done}")
