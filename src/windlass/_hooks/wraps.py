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
from windlass.errors import (
    HookError,
    IllegalAnswer,
    SlotConflict,
    WindlassError,
    name_raiser,
    text_of,
)
from windlass.messages import ModelRequest
from windlass.states import Step
from windlass.turns import HookTurn, Turn, Writes, check_not_broken_off

from .conditions import Condition
from .dispatch import Site, cancelled, supplied
from .hooks import Hook, source_of

Effect: TypeAlias = Callable[[Any], Awaitable[Any]]
Guarded: TypeAlias = Callable[[Any, Any], Any]
Place: TypeAlias = Callable[[Any], tuple[str, tuple[Any, ...]]]

LEFT_BEHIND_AFTER = 60.0
"""How many seconds a cancelled plain wrap waits for its inner calls to end."""


class Kind(Struct, frozen=True):
    """The types of an effect: `given` is its argument, `legal` describes its results in words.

    `coerce` turns other values into a result, and `error` is raised if that fails. `proper` quickly
    accepts a result of the common shape, which needs no other check.
    """

    given: type
    legal: str
    proper: Callable[[Any], bool]
    coerce: Callable[[Any], Any]
    error: Callable[[str], Exception]


class NotPassable(TypeError):
    """A wrap called `call_next` with a `value` of the wrong type."""

    def __init__(self, message: str, value: object) -> None:
        super().__init__(message)
        self.value = value


def passable(kind: type, value: Any) -> None:
    """Raise unless a wrap may pass this value to `call_next`."""
    if type(value) is not kind:
        raise NotPassable(f"call_next takes a {kind.__name__}, not {type(value).__name__}", value)


def passed_request(request: Any, known: ModelRequest | None) -> ModelRequest:
    """A request that a wrap passed to `call_next`.

    Only its changes to the known one are checked.
    """
    passable(ModelRequest, request)
    try:
        return request if known is None else checked_request(request, known)
    except TypeError as error:
        raise NotPassable(f"call_next got an invalid ModelRequest: {error}", request) from None


class Onion:
    """An effect inside its wraps.

    Await `first(value, inner)` for the effect; `first` is mostly the outermost wrap itself. Pass
    its result to `checked`, unless it is the very result of `inner`. Pass its error to `raised`.
    The results of the inner wraps are checked on the way, except for the one that `accept` was
    told of last: `known` has it.
    """

    __slots__ = ("_kind", "_known", "_outermost", "first", "inner")

    def __init__(
        self,
        kind: Kind,
        inner: Effect,
        known: list[Any],
        outermost: Hook | None = None,
        turn: Turn[Any] | None = None,
    ) -> None:
        self._kind = kind
        self._known = known
        self._outermost = outermost
        self.inner = inner
        self.first: Callable[[Any, Effect], Awaitable[Any]] = _call_inner
        if outermost is not None:
            reads = outermost.read_only and outermost.wants
            self.first = partial(_as_async(outermost), turn=turn) if reads else _as_async(outermost)

    def release(self) -> None:
        """Break the reference cycle with the owner, so that both are freed at once."""
        del self.first, self.inner

    def accept(self, result: Any) -> None:
        """The effect has this result, which needs no check."""
        self._known[0] = result

    def checked(self, result: Any) -> Any:
        """The result of the outermost wrap, in its proper type."""
        return result if self._outermost is None else _checker(self._outermost, self._kind)(result)

    def raised(self, error: BaseException) -> NoReturn:
        """Raise an error that left the outermost wrap, with the name of the hook that raised it."""
        if (hook := self._outermost) is None:
            raise error
        _raise_named(hook.kind, hook.name, hook.event.__name__, error)


def _call_inner(value: Any, inner: Effect) -> Awaitable[Any]:
    return inner(value)


def compose(
    wraps: Sequence[Hook], effect: Effect, site: Site, kind: Kind, guarded: Guarded, place: Place
) -> Onion:
    """The effect inside its wraps, composed once per segment. The result of each wrap is checked.

    `guarded` gets each value and result that leave the guard band and returns the result: the wraps
    outside never see what a guard removed. `place` returns what a value is about and, for a side
    call, its askers.
    """
    layer, known = effect, [object()]
    if any((hook.wants and not hook.read_only) or hook.timed for hook in wraps):
        run = _compose_writing(wraps, effect, site, kind, known, guarded, place)
        return Onion(kind, run, known)
    *inner, (outermost, ends_guards) = _inside_out(wraps)
    for hook, is_last_guard in inner:
        layer = _layer(hook, layer, kind, known, site.turn)
        if is_last_guard:
            layer = _boundary(layer, guarded)
    if outermost.matches is None and not ends_guards:
        return Onion(kind, layer, known, outermost, site.turn)
    layer = _layer(outermost, layer, kind, known, site.turn)
    return Onion(kind, _boundary(layer, guarded) if ends_guards else layer, known)


def _inside_out(wraps: Sequence[Hook]) -> list[tuple[Hook, bool]]:
    """The wraps, innermost first, and for each whether it is the outermost of the guard band."""
    order = wraps[::-1]
    last = [hook.band for hook in order].count("guard") - 1
    return [(hook, at == last) for at, hook in enumerate(order)]


def _boundary(inner: Effect, guarded: Guarded) -> Effect:
    async def layer(value: Any) -> Any:
        return guarded(value, await inner(value))

    return layer


def _layer(hook: Hook, inner: Effect, kind: Kind, known: list[Any], turn: Turn[Any]) -> Effect:
    if hook.around is None:
        hook.around = _layer_factory(hook, kind)
    layer: Effect = hook.around(inner, known, turn)
    return layer


def _layer_factory(hook: Hook, kind: Kind) -> Callable[[Effect, list[Any], Turn[Any]], Effect]:
    """The function that puts a hook around an effect; made once, for all segments.

    All layers share `known`, the latest result that passed the check, because most wraps return the
    result of the layer inside. The hook keeps the function. The function of an async hook does not
    refer to the hook, so a dropped agent is freed at once.
    """
    fn, given, proper, check = _as_async(hook), kind.given, kind.proper, _checker(hook, kind)
    matches = hook.matches
    raise_named = partial(_raise_named, hook.kind, hook.name, hook.event.__name__)
    reads = hook.read_only and bool(hook.wants)

    def around(inner: Effect, known: list[Any], turn: Turn[Any]) -> Effect:
        run = partial(fn, turn=turn) if reads else fn

        async def layer(value: Any) -> Any:
            if type(value) is not given:
                passable(given, value)
            try:
                result = await run(value, inner)
            except (Exception, asyncio.CancelledError) as error:
                if isinstance(error, NotPassable) and error.value is value:  # of an outer wrap
                    raise
                raise_named(error)
            if result is not known[0]:
                known[0] = result = result if proper(result) else check(result)
            return result

        return layer if matches is None else _choice(given, matches, raise_named, layer, inner)

    return around


def _choice(
    given: type,
    matches: Condition,
    raise_named: Callable[[Exception], NoReturn],
    layer: Effect,
    inner: Effect,
) -> Effect:
    """A layer for the values that match; the others go directly to the layer inside."""

    def choose(value: Any) -> Awaitable[Any]:
        passable(given, value)
        try:
            is_match = matches(value)
        except Exception as error:
            raise_named(error)
        return layer(value) if is_match else inner(value)

    return choose


def _raise_named(kind: str, name: str, event: str, error: BaseException) -> NoReturn:
    """Raise an error of a wrap with the wrap's name, unless it already has a name from inside.

    A CancelledError is a failure of the wrap if the turn was not cancelled.
    """
    if isinstance(error, NotPassable):
        text = f"{kind} {name!r} of {event}: {error}"
        raise IllegalAnswer(text, hook=name, event=event) from None
    if isinstance(error, Exception):
        name_raiser(error, name)
    elif not cancelled():
        text = f"{kind} {name!r} of {event} raised CancelledError, but nobody cancelled the turn"
        raise HookError(text, hook=name, event=event) from error
    raise error


def _checker(hook: Hook, kind: Kind) -> Callable[[Any], Any]:
    """The function that brings a result of a wrap into its proper type."""
    return partial(_check_result, hook.name, hook.behind or hook.fn, kind)


def _check_result(name: str, fn: Callable[..., Any], kind: Kind, result: Any) -> Any:
    """The result of a wrap in its proper type, or an error that names the wrap."""
    try:
        if result is None or isinstance(result, Decision | Says):
            raise TypeError(f"it returned {type(result).__name__}")
        return kind.coerce(result)
    except (TypeError, ValueError, RecursionError, WindlassError) as error:
        text = f"wrap {name!r} ({source_of(fn)}) must return {kind.legal}: {error}"
        raise kind.error(text) from None


# ---------------------------------------------------------------- wraps that write


class _Ledger:
    """The writes of the wraps around one call. Only those of the last attempt remain."""

    __slots__ = ("closed", "entries")

    def __init__(self) -> None:
        self.entries: list[Writes] = []
        self.closed = False

    def forget_below(self, depth: int) -> None:
        self.entries = [writes for writes in self.entries if writes.depth <= depth]


Recorded: TypeAlias = Callable[[Any, _Ledger], Awaitable[Any]]
"""A layer of wraps that write: it gets the ledger of the call with each value."""


def _compose_writing(
    wraps: Sequence[Hook],
    effect: Effect,
    site: Site,
    kind: Kind,
    known: list[Any],
    guarded: Guarded,
    place: Place,
) -> Effect:
    """The effect inside wraps of which some write. The layers are made once; each call has its own ledger."""
    layer: Recorded = _without_ledger(effect)
    for at, (hook, is_last_guard) in enumerate(_inside_out(wraps)):
        layer = _writing_layer(hook, layer, site, len(wraps) - at, kind, known, place)
        if is_last_guard:
            layer = _recorded_boundary(layer, guarded)

    async def run(value: Any) -> Any:
        ledger = _Ledger()
        try:
            result = await layer(value, ledger)
        finally:
            ledger.closed = True
        if ledger.entries:
            _refuse_conflicts(ledger.entries)
            for writes in ledger.entries:
                site.keep(writes)
        return result

    return run


def _without_ledger(effect: Effect) -> Recorded:
    def layer(value: Any, ledger: _Ledger) -> Awaitable[Any]:
        return effect(value)

    return layer


def _recorded_boundary(inner: Recorded, guarded: Guarded) -> Recorded:
    async def layer(value: Any, ledger: _Ledger) -> Any:
        return guarded(value, await inner(value, ledger))

    return layer


def _writing_layer(
    hook: Hook, inner: Recorded, site: Site, depth: int, kind: Kind, known: list[Any], place: Place
) -> Recorded:
    fn, given, matches = _as_async(hook), kind.given, hook.matches
    name, event, proper = hook.name, hook.event.__name__, kind.proper
    writes_turn, reads_turn = bool(hook.wants) and not hook.read_only, bool(hook.wants)

    def call_next(ledger: _Ledger, value: Any) -> Awaitable[Any]:
        if ledger.closed:
            raise _too_late(hook)
        if ledger.entries:
            ledger.forget_below(depth)
        return inner(value, ledger)

    async def layer(value: Any, ledger: _Ledger) -> Any:
        if type(value) is not given:
            passable(given, value)
        try:
            is_match = matches is None or matches(value)
        except Exception as error:
            _raise_named(hook.kind, name, event, error)
        if not is_match:
            return await inner(value, ledger)
        turn: HookTurn[Any] | None = None
        if writes_turn:
            turn = HookTurn(site, hook, *place(value), True, depth)
        began, verdict = site.monotonic() if hook.timed else 0.0, "failed"
        go_on: Effect = partial(call_next, ledger)
        inside: _Inside | None = None
        if hook.timed:
            inside = _Inside(site.monotonic)
            go_on = partial(inside.call, go_on)
        try:
            try:
                if turn is not None:
                    result = await fn(value, go_on, **supplied(hook, site, turn))
                elif reads_turn:
                    result = await fn(value, go_on, turn=site.turn)
                else:
                    result = await fn(value, go_on)
                verdict = ""
            finally:
                if inside is not None:
                    site.tell_time(hook, began, place(value)[0], verdict, inside.until_now())
                if turn is not None:
                    check_not_broken_off(turn)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, NotPassable) and error.value is value:
                raise
            _raise_named(hook.kind, name, event, error)
        if turn is not None and (writes := turn.end_run()) is not None:
            ledger.entries.append(writes)
        if result is not known[0]:
            known[0] = result = result if proper(result) else _checker(hook, kind)(result)
        return result

    return layer


class _Inside:
    """How long a wrap waited for what it surrounds. Calls at the same time count once."""

    __slots__ = ("_began", "_monotonic", "_open", "_seconds")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._open = 0
        self._began = self._seconds = 0.0

    def call(self, inner: Effect, *arguments: Any) -> Awaitable[Any]:
        """Call what is inside, and measure it."""
        return self._wait(inner(*arguments))

    async def _wait(self, running: Awaitable[Any]) -> Any:
        if not self._open:
            self._began = self._monotonic()
        self._open += 1
        try:
            return await running
        finally:
            self._open -= 1
            if not self._open:
                self._seconds += self._monotonic() - self._began

    def until_now(self) -> float:
        """The seconds so far, with those of a call that has not ended."""
        return self._seconds + (self._monotonic() - self._began if self._open else 0.0)


def _refuse_conflicts(entries: Sequence[Writes]) -> None:
    writers: dict[str, str] = {}
    for writes in entries:
        for name, (slot, _) in writes.slots.items():
            if name in writers and slot.merge is None:
                text = f"{writers[name]!r} and {writes.by!r} both set slot {name!r} around one call"
                raise SlotConflict(f"{text}; give it a merge rule", hook=writes.by)
            writers[name] = writes.by


# ---------------------------------------------------------------- plain functions as wraps


def _as_async(hook: Hook) -> Callable[..., Awaitable[Any]]:
    return hook.fn if hook.is_async else partial(_in_thread, hook)


async def _in_thread(hook: Hook, value: Any, inner: Effect, **supplied: Any) -> Any:
    """Run a wrap that is a plain function in its own thread, which cannot be stopped.

    Once its call has returned or was cancelled, its inner calls have ended and `call_next` raises.
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
    """Connects the loop with the thread of one plain wrap.

    Only `call_next` and `_work` run in the thread; the other methods run on the loop.
    """

    __slots__ = ("closed", "done", "hook", "inner", "loop", "tasks")

    def __init__(self, hook: Hook, inner: Effect) -> None:
        self.hook = hook
        self.inner = inner
        self.loop = asyncio.get_running_loop()
        self.done: asyncio.Future[Any] = self.loop.create_future()
        self.tasks: set[asyncio.Task[Any]] = set()
        self.closed = False

    def start(self, value: Any, supplied: dict[str, Any]) -> asyncio.Future[Any]:
        context = contextvars.copy_context()
        run = partial(context.run, self.hook.fn, value, self.call_next, **supplied)
        threads().start(partial(self._work, run), "windlass-wrap")
        return self.done

    def _work(self, run: Callable[[], Any]) -> None:
        result = error = None
        try:
            result = without_stop_iteration(run)
        except BaseException as caught:
            error = caught
        with suppress(RuntimeError):  # the loop is closed: nothing waits for the result
            self.loop.call_soon_threadsafe(self._finish, result, error)

    def _finish(self, result: Any, error: BaseException | None) -> None:
        if self.done.done():
            return
        if error is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(result)

    def call_next(self, *arguments: Any) -> Any:
        """Run the inner effect on the loop and wait for its result."""
        if self.closed:
            raise _too_late(self.hook)
        if asyncio._get_running_loop() is self.loop:
            raise _called_on_loop(self.hook)
        coroutine = self._call_inner(arguments)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        except RuntimeError:  # the loop is closed
            coroutine.close()
            raise _too_late(self.hook) from None
        try:
            return future.result()
        except concurrent.futures.CancelledError:
            # It is an Exception, unlike asyncio's, so a wrap that retries would catch it.
            raise asyncio.CancelledError from None

    async def _call_inner(self, arguments: tuple[Any, ...]) -> Any:
        if self.closed:
            raise _too_late(self.hook)
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            return await self.inner(*arguments)
        finally:
            self.tasks.discard(task)

    async def close(self, *why: Any) -> None:
        """Cancel the inner calls and wait for them. A second cancellation cancels them again."""
        self.closed = True
        again: asyncio.CancelledError | None = None
        deadline = self.loop.time() + LEFT_BEHIND_AFTER
        while self.tasks and (left := deadline - self.loop.time()) > 0:
            for task in self.tasks:
                task.cancel(*why)
            try:
                await asyncio.wait(self.tasks, timeout=left)
            except asyncio.CancelledError as cancelled:
                again = cancelled
        if again is not None:
            raise again


def without_stop_iteration(run: Callable[[], Any]) -> Any:
    """Call a function in a thread. A future cannot carry a StopIteration: its waiter would hang."""
    try:
        return run()
    except StopIteration as error:
        raise RuntimeError("a plain function raised StopIteration") from error


def _wrap_error(hook: Hook, problem: str) -> HookError:
    event = hook.event.__name__
    text = f"wrap {hook.name!r} ({hook.source}) of {event} {problem}"
    return HookError(text, hook=hook.name, event=event)


def _too_late(hook: Hook) -> HookError:
    return _wrap_error(hook, "called call_next after its call had ended")


def _called_on_loop(hook: Hook) -> HookError:
    problem = "is a plain function that returned an awaitable"
    return _wrap_error(hook, f"{problem}; to call call_next from there make it `async def`")


# ---------------------------------------------------------------- wraps of a step or a turn


def surround(wraps: Sequence[Hook], effect: Effect, site: Site) -> Effect:
    """The effect inside wraps of a step or turn: each calls it once and cannot change its
    result."""
    layer = effect
    for hook in reversed(wraps):
        layer = partial(_run_surrounding, hook, layer, site)
    return layer


async def _run_surrounding(hook: Hook, inner: Effect, site: Site, value: Any) -> Any:
    results: list[Any] = []
    calls = 0
    closed = False
    from_inside: list[BaseException] = []
    if hook.matches is not None and not _surrounds(hook, value):
        return await inner(value)

    async def call_next(_: Any = None) -> Any:
        nonlocal calls
        if closed:
            raise _too_late(hook)
        calls += 1
        if calls > 1:
            raise _not_once(hook, "called call_next twice")
        try:
            if inside is None:
                results.append(await inner(value))
            else:
                results.append(await inside.call(inner, value))
        except (Exception, asyncio.CancelledError) as error:
            from_inside.append(error)
            raise
        return results[0]

    about = str(site.state.steps + 1) if hook.event is Step else ""
    turn: HookTurn[Any] = HookTurn(site, hook, about)
    began, verdict = site.monotonic(), "failed"
    inside = _Inside(site.monotonic) if hook.timed else None
    try:
        parameters = supplied(hook, site, turn) if hook.wants else {}
        await _as_async(hook)(value, call_next, **parameters)
        verdict = ""
    except asyncio.CancelledError as error:
        if cancelled() or error in from_inside:
            raise
        _raise_named(hook.kind, hook.name, hook.event.__name__, error)
    except Exception as error:
        if error in from_inside or (isinstance(error, HookError) and error.hook == hook.name):
            raise
        problem = f"failed: {type(error).__name__}: {text_of(error)}"
        raise _wrap_error(hook, problem) from error
    finally:
        closed = True
        if inside is not None:
            site.tell_time(hook, began, about, verdict, inside.until_now())
    if not results:
        how = "called call_next and swallowed its error" if calls else "did not call call_next"
        raise _not_once(hook, how)
    if (writes := turn.end_run()) is not None:
        site.keep(writes)
    return results[0]


def _surrounds(hook: Hook, value: Any) -> bool:
    """Whether the conditions of a wrap of a step or turn hold."""
    try:
        return hook.matches is None or bool(hook.matches(value))
    except Exception as error:
        problem = f"failed: {type(error).__name__}: {text_of(error)}"
        raise _wrap_error(hook, problem) from error


def _not_once(hook: Hook, problem: str) -> HookError:
    rule = f"a wrap of a {hook.event.__name__.lower()} must call it exactly once"
    return _wrap_error(hook, f"{problem}; {rule}")
