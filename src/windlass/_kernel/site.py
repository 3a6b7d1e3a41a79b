"""Where hooks run: what dispatching, wraps and the turn object need of a pass, and nothing else of
it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Hashable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from windlass._hooks.compiled import CompiledHooks, Point
from windlass._hooks.dispatch import Passage
from windlass._hooks.hooks import Hook
from windlass._hooks.wraps import Effect, Guarded, Kind, Onion, Place, compose
from windlass.checking import checked_parts
from windlass.context.assembly import assemble
from windlass.context.budget import Meter
from windlass.events import HookRan, Progressed, ToolReturning
from windlass.messages import Messages, ToolCall
from windlass.records import Injected, Record
from windlass.slots import Slot
from windlass.states import State, TurnFold, place_of
from windlass.tools import Tool
from windlass.turns import Asker, ContextWindow, Invocation, Left, Turn, Writes

from .arguments import Arguments
from .audience import SideTasks
from .cancellation import Cancellation
from .injections import InjectionLedger
from .journal import Journal
from .limits import Limits
from .program import Program
from .writes import WriteBuffer

if TYPE_CHECKING:
    from .background import InBackground
    from .children import Children
    from .notes import Notes
    from .side_calls import SideCalls


class Delegates(Protocol):
    """A pass that can give tasks to agents below it."""

    def below(self) -> Children: ...
    def in_background(self) -> InBackground: ...


class Site:
    """The place in a pass where hooks are asked. `turn` is the turn as hooks see it that write
    nothing. Parts that only some turns need are created on first use.

    `hooks` are the agent's, with a point for every event that the log has a verdict on. Once the
    turn is over the site is `closed`, and what still holds its turn is told so.
    """

    __slots__ = (
        "_cancellation", "_delegates", "_limits", "_memos", "_notes", "_onions", "_resumed", "_side_calls", "_writes",
        "arguments", "closed", "hooks", "in_background", "injected", "injecting", "journal", "monotonic", "program",
        "scope", "tasks", "turn", "write_standing",
    )  # fmt: skip

    def __init__(
        self,
        hooks: CompiledHooks,
        journal: Journal,
        cancellation: Cancellation,
        limits: Limits,
        scope: Any,
        *,
        resumed: bool,
        in_background: bool = False,
    ) -> None:
        self.program: Program = journal.program
        self.hooks = hooks
        self.journal = journal
        self.scope = scope
        self.in_background = in_background
        self.monotonic = self.program.clock.monotonic
        self.arguments = Arguments(
            self.program.tools,
            self.program.turn_tools,
            journal.fold,
            journal.mask,
            self.program.held,
        )
        self.injected: InjectionLedger = InjectionLedger(journal.fold, self.program.budget.counter)
        self.injecting: tuple[list[tuple[Hook, Any, float]], ...] = ()
        self.tasks: SideTasks | None = None
        self.closed = False
        self._cancellation = cancellation
        self._limits = limits
        self._resumed = resumed
        self._writes: WriteBuffer | None = None
        self._side_calls: SideCalls | None = None
        self._notes: Notes | None = None
        self._memos: dict[Hashable, Any] | None = None
        self._onions: tuple[Onion, ...] = ()
        self._delegates: Delegates | None = None
        self.write_standing: Callable[[], None] | None = None
        self.turn: Turn[Any] = Turn(self)

    def connect(self, delegates: Delegates) -> None:
        """What gives the agents below their tasks: it needs this part, so it comes later."""
        self._delegates = delegates

    def close(self) -> None:
        """The turn is over.

        Breaks the reference cycles with the turn and the wraps, so that all is freed at once.
        """
        self.closed = True
        self._delegates = self.write_standing = self._memos = None
        del self.turn
        for onion in self._onions:
            onion.release()

    def passage(self, point: Point, event: Any, about: str) -> Passage:
        """The way of an event through the hooks of its point."""
        return Passage(point, event, self, about)

    def wrapped(
        self, wraps: Sequence[Hook], effect: Effect, kind: Kind, guarded: Guarded, place: Place
    ) -> Onion:
        """An effect of this turn inside its wraps."""
        onion = compose(wraps, effect, self, kind, guarded, place)
        self._onions += (onion,)
        return onion

    def turn_of(self, by: str, event: str, about: str) -> Turn[Any]:
        """The turn for an asker that asks models in its own name."""
        return Turn(self, Writes(by), None, Asker(event, about, by, (by,)))

    # ------------------------------------------------------------ what dispatching needs

    @property
    def reserve(self) -> int:
        """How many tokens may be injected."""
        return self.program.injection_reserve

    def record(self, record: Record) -> None:
        """Add a record to the log."""
        self.journal.record(record)

    @property
    def writes(self) -> WriteBuffer:
        """What turns the slots and messages that hooks leave into records."""
        if self._writes is None:
            self._writes = WriteBuffer(self.journal)
        return self._writes

    def keep(self, writes: Writes, stage: str = "") -> None:
        """Record what a hook wrote."""
        self.writes.keep(writes, stage)

    def tell_time(
        self, hook: Hook, began: float, about: str = "", verdict: str = "", inside: float = 0.0
    ) -> None:
        """Count how long a hook took and what it answered, and tell those who want to know.

        `inside` is how many of these seconds belong to what a wrap surrounds.
        """
        seconds = self.monotonic() - began
        if self.journal.times is not None:
            self.journal.times.add(hook, seconds - inside, verdict)
        if self.hooks.timed:
            event, capability = hook.event.__name__, hook.capability or ""
            values = hook.name, event, round(seconds, 6), hook.kind, capability, about, verdict
            self.journal.fact(HookRan, *values)

    def beside(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        """Run something beside the turn."""
        if self.tasks is None:
            self.tasks = SideTasks()
        self.tasks.start(coroutine)

    @property
    def was_cancelled(self) -> bool:
        """Whether somebody wanted to cancel the turn, also if its last hooks run already."""
        return self._cancellation.stop is not None or self._cancellation.came_late

    def completed(self, call: ToolCall) -> ToolCall:
        """A call with its arguments validated and complete; `ArgumentsError` if they do not fit the
        tool."""
        return self.arguments.complete(call).call

    def tokens(self, parts: Any) -> int:
        """About how many tokens some parts are, by the agent's tokenizer if it has one."""
        return self.program.budget.counter.parts(parts)

    def injected_tokens(self) -> int:
        """About how many injected tokens the turn carries."""
        return self.injected.size()

    def reserve_left(self) -> int:
        """How many tokens may still be injected, also after what hooks of this event have answered so far."""
        waiting = [answer for answers in self.injecting for _, answer, _ in answers]
        size = sum([self.tokens(parts) for parts in map(_parts_of, waiting)])
        return max(self.reserve - self.injected_tokens() - size, 0)

    def has_injected(self, item: Injected, beside: Sequence[Injected]) -> bool:
        """Whether models are shown the same already, for as long as this would be."""
        return self.injected.contains(item, beside)

    async def in_thread(self, fn: Callable[[], Any]) -> Any:
        """Run a plain function in a thread of the agent's pool."""
        return await self.program.in_thread(fn)

    # ------------------------------------------------------------ what the turn object needs

    @property
    def state(self) -> State:
        """The current state."""
        return self.journal.state

    @property
    def messages(self) -> Messages:
        """The conversation so far."""
        return self.journal.visible.messages

    @property
    def session(self) -> str:
        """The id of the session."""
        return self.journal.fold.session

    @property
    def agent(self) -> str:
        """The name of the agent."""
        return self.program.name

    @property
    def latest(self) -> TurnFold | None:
        """The latest turn, as far as it is; while a turn is opened, that turn."""
        return self.journal.visible.turn

    @property
    def tools(self) -> Mapping[str, Tool[..., Any]]:
        """The tools of the agent, by name."""
        return self.program.tools

    def slot(self, key: Slot[Any] | type | str) -> Slot[Any]:
        """A declared slot, by itself, its type or its name."""
        return self.hooks.slot(key)

    def cancel(self, reason: str = "") -> bool:
        """End the turn now."""
        return self._cancellation.cancel(reason)

    def now(self) -> float:
        """The time by the agent's clock."""
        return self.program.now()

    async def sleep(self, seconds: float) -> None:
        """Pause by the agent's clock."""
        await self.program.clock.sleep(seconds)

    async def alarm(self, seconds: float) -> None:
        """Wait beside running work by the agent's clock."""
        await self.program.clock.alarm(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout | None:
        """A time-out by the agent's clock, if the clock offers one."""
        make: Callable[[float], asyncio.Timeout] | None = getattr(
            self.program.clock, "timeout", None
        )
        return None if make is None else make(seconds)

    def left(self) -> Left:
        """What the turn may still spend."""
        return self._limits.left()

    @property
    def model(self) -> str:
        """The name of the turn's model."""
        return self.program.model.name

    def knows_cost(self, model: str) -> bool | None:
        """Whether the cost of a model's replies is known; a model of your own may say so with `knows_cost`."""
        return getattr(self.program.models.get(model), "knows_cost", None)

    def window(self) -> ContextWindow:
        """How full the context window is."""
        program = self.program
        request = assemble(self.state, program, self.injected.unlogged)
        meter = Meter(program.budget)
        used = meter.theirs(
            meter.ours(request.system, request.tools, request.messages), request.model
        )
        size = program.budget.limit(request.model, request.settings)
        free = None if size is None else max(size - used, 0)
        return ContextWindow(used, size, free, meter.breakdown(request))

    def memo(self, key: Hashable, make: Callable[[], Any]) -> Any:
        """A value that hooks remember during this pass."""
        if self._memos is None:
            self._memos = {}
        if key not in self._memos:
            self._memos[key] = make()
        return self._memos[key]

    def note(self, asker: Asker, kind: str, data: Any) -> None:
        """A fact of a hook or tool."""
        if self._notes is None:
            from .notes import Notes

            self._notes = Notes(self.journal, self._resumed)
        self._notes.add(asker, self.place_of(asker.about), kind, data)

    def place_of(self, about: str) -> str:
        """What something is about, without the session."""
        return place_of(self.journal.fold, about)

    async def delegate(
        self, asker: Asker, run: Invocation, agent: Any, task: str, options: dict[str, Any]
    ) -> Any:
        """A task for another agent."""
        assert self._delegates is not None
        self._keep_standing(asker)
        return await self._delegates.below().delegate(asker, run, agent, task, options)

    async def delegate_in_background(
        self, asker: Asker, run: Invocation, agent: Any, task: str, options: dict[str, Any]
    ) -> Any:
        """A task for another agent, which works on it beside the turn."""
        return await self.background.start(asker, run, agent, task, options)

    @property
    def background(self) -> InBackground:
        """The agents that work in the background."""
        assert self._delegates is not None
        return self._delegates.in_background()

    def progress(self, asker: Asker, done: float, total: float | None, text: str) -> None:
        """How far a tool or hook is, from any thread; text of a tool whose results hooks look at is
        left out."""
        if not self.journal.audience.hears(Progressed):
            return
        if asker.event == "ToolCall" and (point := self.hooks.at(ToolReturning)) is not None:
            step = self.journal.fold.open
            state = None if step is None else step.calls.get(asker.about)
            if state is None or point.looks_at(state.call):
                text = ""
        task = self._cancellation.task
        values = (
            asker.about,
            asker.by,
            float(done),
            total if total is None else float(total),
            text,
        )
        if task is None or asyncio._get_running_loop() is task.get_loop():
            self.journal.fact(Progressed, *values)
        else:
            task.get_loop().call_soon_threadsafe(self.journal.fact, Progressed, *values)

    def _keep_standing(self, asker: Asker) -> None:
        """Record the reply that a wrap asks about: after a crash, the answer is worth nothing without it."""
        if asker.event == "ModelCall" and self.write_standing is not None:
            self.write_standing()

    async def ask(self, asker: Asker, model: Any, messages: Any, options: dict[str, Any]) -> Any:
        """A side call."""
        self._keep_standing(asker)
        if self._side_calls is None:
            from .side_calls import SideCalls

            self._side_calls = SideCalls(self.journal, self._limits, self.hooks, self._resumed)
        return await self._side_calls.ask(self, asker, model, messages, options)


def _parts_of(answer: Any) -> tuple[Any, ...]:
    """What a hook is about to inject; nothing if it is not valid, or becomes a message."""
    given = answer if isinstance(answer, Injected) else Injected(answer)
    try:
        return () if given.durable else checked_parts(given.parts)
    except TypeError:  # it is refused, in the name of its hook, once all of them have answered
        return ()
