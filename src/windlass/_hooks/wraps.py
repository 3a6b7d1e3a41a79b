"""The onion: wraps composed around an effect, the first outermost, the guard band innermost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import inspect
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn, TypeAlias

from msgspec import Struct

from windlass._threads import threads
from windlass.checking import checked_request
from windlass.decisions import Decision, Says
from windlass.errors import HookError, IllegalAnswer, SlotConflict, WindlassError, name_raiser, text_of
from windlass.messages import ModelRequest
from windlass.states import Step
from windlass.turns import Writes

from .dispatch import Site, cancelled, supply
from .hooks import Hook, source_of
from .matching import Matches

Effect: TypeAlias = Callable[[Any], Awaitable[Any]]
Guarded: TypeAlias = Callable[[Any, Any], Any]
Place: TypeAlias = Callable[[Any], tuple[str, tuple[Any, ...]]]

LEFT_BEHIND_AFTER = 60.0
"""Seconds for which a plain wrap that was cancelled waits for what is inside it to end."""


class Kind(Struct, frozen=True):
    """Of an effect: what it is given, what it gives, how other values become that, what is raised if they cannot.

    `proper` says of a result of the common shape, at once, that it needs no other check.
    """

    given: type
    legal: str
    proper: Callable[[Any], bool]
    coerce: Callable[[Any], Any]
    error: Callable[[str], Exception]


class NotPassable(TypeError):
    """A wrap called `call_next` with something that is not what the effect is given: `value`."""

    def __init__(self, message: str, value: object) -> None:
        super().__init__(message)
        self.value = value


def passable(kind: type, value: Any) -> None:
    """Raise unless a wrap may give this to `call_next`."""
    if type(value) is not kind:
        raise NotPassable(f"call_next takes a {kind.__name__}, not {type(value).__name__}", value)


def passed_request(request: Any, known: ModelRequest | None) -> ModelRequest:
    """A request that a wrap gave to `call_next`: what it changed of the known one is checked."""
    passable(ModelRequest, request)
    try:
        return request if known is None else checked_request(request, known)
    except TypeError as error:
        raise NotPassable(f"call_next got an invalid ModelRequest: {error}", request) from None


class Onion:
    """An effect inside its wraps.

    Who needs the effect awaits `first(value, inner)`, which is mostly the outermost wrap itself; what it gives goes
    through `checked`, unless it came from the inside as it is. All others are checked on the way. An error goes through
    `named`.
    """

    __slots__ = ("_kind", "_outermost", "first", "inner")

    def __init__(self, kind: Kind, inner: Effect, outermost: Hook | None = None) -> None:
        self._kind = kind
        self._outermost = outermost
        self.inner = inner
        self.first: Callable[[Any, Effect], Awaitable[Any]] = _enter if outermost is None else _async(outermost)

    def release(self) -> None:
        """The turn is over. What is inside knows the one who has this: together they would wait for the collector."""
        del self.first, self.inner

    def checked(self, result: Any) -> Any:
        """What the outermost wrap returned, in its proper type."""
        return result if self._outermost is None else _checking(self._outermost, self._kind)(result)

    def raised(self, error: BaseException) -> NoReturn:
        """Raise what came out of the outermost wrap, in the name of whoever raised it."""
        if (hook := self._outermost) is None:
            raise error
        _raise(hook.kind, hook.name, hook.event.__name__, error)


def _enter(value: Any, inner: Effect) -> Awaitable[Any]:
    return inner(value)


def compose(wraps: Sequence[Hook], effect: Effect, site: Site, kind: Kind, guarded: Guarded, place: Place) -> Onion:
    """The effect inside its wraps, composed once per segment. What a wrap returns is checked, in its name.

    `guarded` is told what leaves the guard band and gives it on: what a guard removed, nobody outside has seen. `place`
    says of a value what it is about, and on whose behalf it is asked for if it is a side call.
    """
    if any(hook.wants for hook in wraps):
        return Onion(kind, _writing(wraps, effect, site, kind, guarded, place))
    layer, checked = effect, [None]
    *within, (outermost, last) = _inside_out(wraps)
    for hook, outside in within:
        layer = _layer(hook, layer, kind, checked)
        if outside:
            layer = _boundary(layer, guarded)
    if outermost.matches is None and not last:
        return Onion(kind, layer, outermost)
    layer = _layer(outermost, layer, kind, checked)
    return Onion(kind, _boundary(layer, guarded) if last else layer)


def _inside_out(wraps: Sequence[Hook]) -> list[tuple[Hook, bool]]:
    """The wraps from the innermost, with whether one is the last of the guard band."""
    order = wraps[::-1]
    last = [hook.band for hook in order].count("guard") - 1
    return [(hook, at == last) for at, hook in enumerate(order)]


def _boundary(inner: Effect, guarded: Guarded) -> Effect:
    async def layer(value: Any) -> Any:
        return guarded(value, await inner(value))

    return layer


def _layer(hook: Hook, inner: Effect, kind: Kind, checked: list[Any]) -> Effect:
    if hook.around is None:
        hook.around = _around(hook, kind)
    layer: Effect = hook.around(inner, checked)
    return layer


def _around(hook: Hook, kind: Kind) -> Callable[[Effect, list[Any]], Effect]:
    """Puts a hook around an effect; made once, for all segments.

    The latest result that was found to be a proper one is `known` to all layers: most wraps return what they were
    given. The hook keeps the function; that of an async hook does not hold the hook in turn, so that a dropped agent is
    freed at once.
    """
    fn, given, proper, checked = _async(hook), kind.given, kind.proper, _checking(hook, kind)
    matches, named = hook.matches, partial(_raise, hook.kind, hook.name, hook.event.__name__)

    def around(inner: Effect, known: list[Any]) -> Effect:
        async def layer(value: Any) -> Any:
            if type(value) is not given:
                passable(given, value)
            try:
                result = await fn(value, inner)
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, NotPassable) and error.value is value:  # a wrap outside made that
                    raise
                named(error)
            if result is None or result is not known[0]:
                known[0] = result = result if proper(result) else checked(result)
            return result

        return layer if matches is None else _where(given, matches, named, layer, inner)

    return around


def _where(
    given: type, matches: Matches, named: Callable[[Exception], NoReturn], layer: Effect, inner: Effect
) -> Effect:
    def chosen(value: Any) -> Awaitable[Any]:
        passable(given, value)
        try:
            mine = matches(value)
        except Exception as error:
            named(error)
        return layer(value) if mine else inner(value)

    return chosen


def _raise(kind: str, name: str, event: str, error: BaseException) -> NoReturn:
    """Raise what a wrap raised, with its name unless the error comes from inside.

    A CancelledError although nobody cancelled the turn is its failure.
    """
    if isinstance(error, NotPassable):
        raise IllegalAnswer(f"{kind} {name!r} of {event}: {error}", hook=name, event=event) from None
    if isinstance(error, Exception):
        name_raiser(error, name)
    elif not cancelled():
        text = f"{kind} {name!r} of {event} raised CancelledError, but nobody cancelled the turn"
        raise HookError(text, hook=name, event=event) from error
    raise error


def _checking(hook: Hook, kind: Kind) -> Callable[[Any], Any]:
    """What makes of what a wrap returned the proper type."""
    return partial(_checked, hook.name, hook.behind or hook.fn, kind)


def _checked(name: str, written: Callable[..., Any], kind: Kind, result: Any) -> Any:
    """What a wrap returned, in its proper type; a decision, nothing at all or anything else names the wrap."""
    try:
        if result is None or isinstance(result, Decision | Says):
            raise TypeError(f"it returned {type(result).__name__}")
        return kind.coerce(result)
    except (TypeError, ValueError, RecursionError, WindlassError) as error:
        text = f"wrap {name!r} ({source_of(written)}) must return {kind.legal}: {error}"
        raise kind.error(text) from None


# ---------------------------------------------------------------- wraps that write


class _Ledger:
    """What the wraps and the effect of one call wrote: of several attempts only the last one's writes stay."""

    __slots__ = ("closed", "entries")

    def __init__(self) -> None:
        self.entries: list[Writes] = []
        self.closed = False

    def forget_below(self, depth: int) -> None:
        self.entries = [writes for writes in self.entries if writes.depth <= depth]


def _writing(wraps: Sequence[Hook], effect: Effect, site: Site, kind: Kind, guarded: Guarded, place: Place) -> Effect:
    inside_out = _inside_out(wraps)

    async def run(value: Any) -> Any:
        ledger = _Ledger()
        layer = effect
        for at, (hook, outside) in enumerate(inside_out):
            layer = _writing_layer(hook, layer, site, ledger, len(wraps) - at, kind, place)
            if outside:
                layer = _boundary(layer, guarded)
        try:
            result = await layer(value)
        finally:
            ledger.closed = True
        _refuse_conflicts(ledger.entries)
        for writes in ledger.entries:
            site.keep(writes)
        return result

    return run


def _writing_layer(
    hook: Hook, inner: Effect, site: Site, ledger: _Ledger, depth: int, kind: Kind, place: Place
) -> Effect:
    fn = _async(hook)

    async def call_next(value: Any) -> Any:
        if ledger.closed:
            raise _too_late(hook)
        ledger.forget_below(depth)
        return await inner(value)

    async def layer(value: Any) -> Any:
        passable(kind.given, value)
        try:
            mine = hook.matches is None or hook.matches(value)
        except Exception as error:
            _raise(hook.kind, hook.name, hook.event.__name__, error)
        if not mine:
            return await inner(value)
        writes = Writes(hook.name, depth)
        try:
            result = await fn(value, call_next, **supply(hook, site, writes, *place(value)))
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, NotPassable) and error.value is value:
                raise
            _raise(hook.kind, hook.name, hook.event.__name__, error)
        ledger.entries.append(writes)
        return result if kind.proper(result) else _checking(hook, kind)(result)

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


def _async(hook: Hook) -> Callable[..., Awaitable[Any]]:
    return hook.fn if hook.is_async else partial(_in_thread, hook)


async def _in_thread(hook: Hook, value: Any, inner: Effect, **supplied: Any) -> Any:
    """A wrap written as a plain function runs in a thread of its own, which cannot be stopped.

    But once its call is over, cancelled or returned, nothing goes on inside it and its `call_next` is refused.
    """
    crossing = _Crossing(hook, inner)
    why: tuple[Any, ...] = ()
    try:
        result = await crossing.start(value, supplied)
        return await result if inspect.isawaitable(result) else result
    except asyncio.CancelledError as cancelled:
        why = cancelled.args
        raise
    finally:
        await crossing.close(*why)


class _Crossing:
    """Between the loop and the thread of one call of a plain wrap. All but `call_next` and `_work` is the loop's."""

    __slots__ = ("closed", "done", "hook", "inner", "inside", "loop")

    def __init__(self, hook: Hook, inner: Effect) -> None:
        self.hook = hook
        self.inner = inner
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Any] = self.loop.create_future()
        self.inside: set[asyncio.Task[Any]] = set()
        self.closed = False

    def start(self, value: Any, supplied: dict[str, Any]) -> asyncio.Future[Any]:
        run = partial(contextvars.copy_context().run, self.hook.fn, value, self.call_next, **supplied)
        threads().start(partial(self._work, run), "windlass-wrap")
        return self.done

    def _work(self, run: Callable[[], Any]) -> None:
        result = error = None
        try:
            result = without_stop_iteration(run)
        except BaseException as caught:
            error = caught
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(self._finish, result, error)

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(result)

    def call_next(self, *given: Any) -> Any:
        """What a plain wrap calls: it waits for the loop's answer."""
        if self.closed:
            raise _too_late(self.hook)
        if asyncio._get_running_loop() is self.loop:
            raise _on_the_loop(self.hook)
        entering = self._enter(given)
        try:
            answer = asyncio.run_coroutine_threadsafe(entering, self.loop)
        except RuntimeError:  # the loop is closed
            entering.close()
            raise _too_late(self.hook) from None
        try:
            return answer.result()
        except concurrent.futures.CancelledError:  # an Exception, unlike asyncio's: a wrap that retries would go on
            raise asyncio.CancelledError from None

    async def _enter(self, given: tuple[Any, ...]) -> Any:
        if self.closed:
            raise _too_late(self.hook)
        task = asyncio.current_task()
        assert task is not None
        self.inside.add(task)
        try:
            return await self.inner(*given)
        finally:
            self.inside.discard(task)

    async def close(self, *why: Any) -> None:
        """Cancel what is inside and wait for its end. A second cancel goes inside as well."""
        self.closed = True
        again: asyncio.CancelledError | None = None
        until = self.loop.time() + LEFT_BEHIND_AFTER
        while self.inside and (left := until - self.loop.time()) > 0:
            for task in self.inside:
                task.cancel(*why)
            try:
                await asyncio.wait(self.inside, timeout=left)
            except asyncio.CancelledError as cancelled:
                again = cancelled
        if again is not None:
            raise again


def without_stop_iteration(run: Callable[[], Any]) -> Any:
    """Call a function in a thread. A future cannot carry a StopIteration: whoever awaits it would wait for ever."""
    try:
        return run()
    except StopIteration as error:
        raise RuntimeError("a plain function raised StopIteration") from error


def _too_late(hook: Hook) -> HookError:
    event = hook.event.__name__
    text = f"wrap {hook.name!r} ({hook.source}) of {event} called call_next, but the call is over"
    return HookError(text, hook=hook.name, event=event)


def _on_the_loop(hook: Hook) -> HookError:
    event = hook.event.__name__
    text = f"wrap {hook.name!r} ({hook.source}) of {event} is a plain function that returned an awaitable"
    return HookError(f"{text}; to call call_next from there make it `async def`", hook=hook.name, event=event)


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
    closed = False
    from_inside: list[BaseException] = []

    async def call_next(_: Any = None) -> Any:
        nonlocal entered
        if closed:
            raise _too_late(hook)
        entered += 1
        if entered > 1:
            raise _not_once(hook, "twice")
        try:
            results.append(await inner(value))
        except (Exception, asyncio.CancelledError) as error:
            from_inside.append(error)
            raise
        return results[0]

    writes = Writes(hook.name)
    supplied = supply(hook, site, writes, str(site.state.steps + 1) if hook.event is Step else "")
    try:
        await _async(hook)(value, call_next, **supplied)
    except asyncio.CancelledError as error:
        if cancelled() or error in from_inside:
            raise
        _raise(hook.kind, hook.name, hook.event.__name__, error)
    except Exception as error:
        if error in from_inside or (isinstance(error, HookError) and error.hook == hook.name):
            raise
        raise _failed(hook, error) from error
    finally:
        closed = True
    if not results:
        raise _not_once(hook, "not at all") if not entered else _not_once(hook, "and swallowed what it raised")
    site.keep(writes)
    return results[0]


def _failed(hook: Hook, error: Exception) -> HookError:
    event = hook.event.__name__
    text = f"wrap {hook.name!r} ({hook.source}) of {event} failed: {type(error).__name__}: {text_of(error)}"
    return HookError(text, hook=hook.name, event=event)


def _not_once(hook: Hook, how: str) -> HookError:
    event = hook.event.__name__
    text = f"wrap {hook.name!r} ({hook.source}) of {event} called call_next {how}"
    return HookError(f"{text}; a wrap of a {event.lower()} calls it once", hook=hook.name, event=event)
