"""The onion: wraps composed around an effect, the first outermost, the guard band innermost."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct

from windlass.decisions import Decision, Says
from windlass.errors import HookError, SlotConflict, WindlassError
from windlass.turns import Writes

from .dispatch import Site, supply
from .hooks import Hook

Effect: TypeAlias = Callable[[Any], Awaitable[Any]]


class Kind(Struct, frozen=True):
    """Of an effect: what it gives, how other values become that, what is raised if they cannot.

    `guarded` is told what leaves the guard band and gives it on: what a guard removed, nobody outside has seen.
    """

    type: type
    legal: str
    coerce: Callable[[Any], Any]
    error: Callable[[str], Exception]
    guarded: Callable[[Any, Any], Any]


def compose(wraps: Sequence[Hook], effect: Effect, site: Site, kind: Kind) -> Effect:
    """The effect inside its wraps, composed once per segment. What a wrap returns is checked, in its name."""
    if any(hook.wants for hook in wraps):
        return _writing(wraps, effect, site, kind)
    layer = effect
    for hook, outside in _inside_out(wraps):
        layer = _layer(hook, layer, kind)
        if outside:
            layer = _boundary(layer, kind)
    return layer


def _inside_out(wraps: Sequence[Hook]) -> list[tuple[Hook, bool]]:
    """The wraps from the innermost, with whether one is the last of the guard band."""
    order = list(reversed(wraps))
    last = max((at for at, hook in enumerate(order) if hook.band == "guard"), default=-1)
    return [(hook, at == last) for at, hook in enumerate(order)]


def _boundary(inner: Effect, kind: Kind) -> Effect:
    async def layer(value: Any) -> Any:
        return kind.guarded(value, await inner(value))

    return layer


def _layer(hook: Hook, inner: Effect, kind: Kind) -> Effect:
    fn, matches, proper = hook.fn, hook.matches, kind.type
    if not hook.is_async:
        fn = partial(_in_thread, fn)

    async def layer(value: Any) -> Any:
        result = await fn(value, inner)
        return result if type(result) is proper else checked(hook, kind, result)

    return layer if matches is None else lambda value: layer(value) if matches(value) else inner(value)


def checked(hook: Hook, kind: Kind, result: Any) -> Any:
    """What a wrap returned, in its proper type; a decision, nothing at all or anything else names the wrap."""
    try:
        if result is None or isinstance(result, Decision | Says):
            raise TypeError(f"it returned {type(result).__name__}")
        return kind.coerce(result)
    except (TypeError, WindlassError) as error:
        text = f"wrap {hook.name!r} ({hook.source}) must return {kind.legal}: {error}"
        raise kind.error(text) from None


# ---------------------------------------------------------------- wraps that write


class _Ledger:
    """What the wraps and the effect of one onion wrote: of several attempts only the last one's writes stay."""

    __slots__ = ("entries",)

    def __init__(self) -> None:
        self.entries: list[Writes] = []

    def forget_below(self, depth: int) -> None:
        self.entries = [writes for writes in self.entries if writes.depth <= depth]


def _writing(wraps: Sequence[Hook], effect: Effect, site: Site, kind: Kind) -> Effect:
    inside_out = _inside_out(wraps)

    async def run(value: Any) -> Any:
        ledger = _Ledger()
        layer = effect
        for at, (hook, outside) in enumerate(inside_out):
            layer = _writing_layer(hook, layer, site, ledger, len(wraps) - at, kind)
            if outside:
                layer = _boundary(layer, kind)
        result = await layer(value)
        _refuse_conflicts(ledger.entries)
        for writes in ledger.entries:
            site.keep(writes)
        return result

    return run


def _writing_layer(hook: Hook, inner: Effect, site: Site, ledger: _Ledger, depth: int, kind: Kind) -> Effect:
    fn = hook.fn if hook.is_async else partial(_in_thread, hook.fn)

    async def call_next(value: Any) -> Any:
        ledger.forget_below(depth)
        return await inner(value)

    async def layer(value: Any) -> Any:
        if hook.matches is not None and not hook.matches(value):
            return await inner(value)
        writes = Writes(hook.name, depth)
        result = await fn(value, call_next, **supply(hook, site, writes))
        ledger.entries.append(writes)
        return result if type(result) is kind.type else checked(hook, kind, result)

    return layer


def _refuse_conflicts(entries: Sequence[Writes]) -> None:
    writers: dict[str, str] = {}
    for writes in entries:
        for name, (slot, _) in writes.slots.items():
            if name in writers and slot.merge is None:
                raise SlotConflict(
                    f"{writers[name]!r} and {writes.by!r} both set slot {name!r} around one call; give it a merge rule",
                    hook=writes.by,
                )
            writers[name] = writes.by


# ---------------------------------------------------------------- plain functions as wraps


async def _in_thread(fn: Callable[..., Any], value: Any, inner: Effect, **supplied: Any) -> Any:
    """A wrap written as a plain function runs in a thread of its own; its `call_next` waits for the loop's answer."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Any] = loop.create_future()
    context = contextvars.copy_context()

    def call_next(given: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(_awaited(inner(given)), loop).result()

    def finish(result: Any, error: BaseException | None) -> None:
        if done.cancelled():
            return
        if error is not None:
            done.set_exception(error)
        else:
            done.set_result(result)

    def work() -> None:
        try:
            result, error = context.run(fn, value, call_next, **supplied), None
        except BaseException as caught:
            result, error = None, caught
        if not loop.is_closed():
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=work, name="windlass-wrap", daemon=True).start()
    result = await done
    return await result if inspect.isawaitable(result) else result


async def _awaited(awaitable: Awaitable[Any]) -> Any:
    return await awaitable


# ---------------------------------------------------------------- wraps of a step or a turn


def surround(wraps: Sequence[Hook], effect: Effect, site: Site) -> Effect:
    """Wraps of a step or turn: each calls `call_next` exactly once, and cannot change what comes back."""
    layer = effect
    for hook in reversed(wraps):
        layer = partial(_surrounding, hook, layer, site)
    return layer


async def _surrounding(hook: Hook, inner: Effect, site: Site, value: Any) -> Any:
    results: list[Any] = []
    entered = 0

    async def call_next(_: Any = None) -> Any:
        nonlocal entered
        entered += 1
        if entered > 1:
            raise _not_once(hook, "twice")
        results.append(await inner(value))
        return results[0]

    writes = Writes(hook.name)
    supplied = supply(hook, site, writes)
    if hook.is_async:
        await hook.fn(value, call_next, **supplied)
    else:
        await _in_thread(hook.fn, value, call_next, **supplied)
    if not results:
        raise _not_once(hook, "not at all") if not entered else _not_once(hook, "and swallowed what it raised")
    site.keep(writes)
    return results[0]


def _not_once(hook: Hook, how: str) -> HookError:
    event = hook.event.__name__
    text = f"wrap {hook.name!r} ({hook.source}) of {event} called call_next {how}"
    return HookError(f"{text}; a wrap of a {event.lower()} calls it once", hook=hook.name, event=event)
