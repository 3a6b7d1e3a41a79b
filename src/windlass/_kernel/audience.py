"""Who hears of a pass: its observers, the consumer of its stream, and the agents above it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Coroutine, Mapping
from typing import TYPE_CHECKING, Any, cast

from windlass._hooks.compiled import CompiledHooks
from windlass._hooks.hooks import Hook
from windlass._hooks.observers import Backlog, Observers, is_wanted
from windlass._hooks.runs import AnyTurn, SessionOnly
from windlass.deltas import StreamEvent
from windlass.events import FACTS, ToolReturning
from windlass.masking import Mask
from windlass.records import Answered, Fact
from windlass.slots import Slot
from windlass.states import Fold, State
from windlass.tools import Tool
from windlass.turns import Host, Turn

from .active_time import ActiveTime
from .channel import Channel

if TYPE_CHECKING:
    from windlass._hooks.readers import Source

    from .measured_voice import MeasuredVoice
    from .voice import Voice

_EVERYTHING = frozenset(FACTS)


class Bystander:
    """What stands behind the turn of an observer, whose state is that of its fact: the caller's
    scope, the slots, and the tools of the agent that the fact is about."""

    __slots__ = ("_hooks", "now", "scope", "tools")

    closed = False

    def __init__(
        self,
        hooks: CompiledHooks,
        scope: Any,
        now: Callable[[], float],
        tools: Mapping[str, Tool[..., Any]],
    ) -> None:
        self._hooks = hooks
        self.scope = scope
        self.now = now
        self.tools = tools

    def slot(self, key: Slot[Any] | type | str) -> Slot[Any]:
        return self._hooks.slot(key)


def observer_turn(
    hooks: CompiledHooks,
    scope: Any,
    now: Callable[[], float],
    tools: Mapping[str, Tool[..., Any]],
    state: State,
) -> Turn[Any]:
    """The turn as an observer or approver sees it: it can look, but not act."""
    return Turn(cast(Host, Bystander(hooks, scope, now, tools)), state=state)


def _nobody(kind: type[Fact]) -> None:
    """Nobody listens to any kind of facts."""


class Audience:
    """Tells facts to everyone who listens. A child's facts are told above it, too, with the child's
    path.

    `listens` is False if nobody does: then nothing is told. `kinds` are the kinds of facts that
    somebody listens to. `attends` says that the turn may have to wait for a listener. `known_above`
    are answers that came from above. `holds` says that a person may have to judge a reply that the
    log has.
    """

    __slots__ = (
        "_above", "_fold", "_now", "_observers", "_scope", "_session_only", "_time", "_tools", "attends", "backlog",
        "hides_attempts", "hooks",
        "kinds", "known_above", "listens", "measured_voice", "voice",
    )  # fmt: skip

    def __init__(
        self,
        hooks: CompiledHooks,
        observers: Observers,
        fold: Fold,
        scope: Any,
        time: ActiveTime,
        now: Callable[[], float],
        tools: Mapping[str, Tool[..., Any]],
        *,
        channel: Channel[StreamEvent] | None = None,
        mask: Mask | None = None,
        above: Audience | None = None,
        known_above: tuple[Answered, ...] = (),
        holds: bool = False,
    ) -> None:
        self.hooks = hooks
        self.voice: Voice | None = None
        self.measured_voice: MeasuredVoice | None = None
        if channel is not None:  # a turn that is not streamed does without
            voice = channel, hooks, fold.session, self.observe, mask
            if hooks.measured:
                from .measured_voice import MeasuredVoice

                self.voice = self.measured_voice = MeasuredVoice(*voice)
            else:
                from .voice import Voice

                self.voice = Voice(*voice)
        self._above = above if above is not None and above.listens else None
        self.listens: bool = bool(hooks.listeners) or channel is not None or self._above is not None
        self.known_above = known_above
        everything = channel is not None or self._above is not None
        self.kinds: Container[type[Fact]] = _EVERYTHING if everything else hooks.listeners
        self.attends = everything or hooks.attends
        if holds and self.voice is not None:
            self.voice.mute_replies()
        if self.listens:
            self.backlog = Backlog()
            self.hides_attempts = hooks.at(ToolReturning) is not None
            self._observers = observers
            self._fold = fold
            self._session_only = SessionOnly(fold.session)
            self._scope = scope
            self._time = time
            self._now = now
            self._tools = tools

    def detached(self) -> Audience | None:
        """The same observers, here and above, for an agent in the background, which may outlive this
        pass. None if there are none."""
        if not self.listens:
            return None
        above = None if self._above is None else self._above.detached()
        copy = Audience(
            self.hooks,
            self._observers,
            Fold(self._fold.session),
            self._scope,
            self._time,
            self._now,
            self._tools,
            above=above,
        )
        return copy if copy.listens else None

    def join(self, child: Audience) -> None:
        """The pass of an agent in the background waits for the observers of those above, and records
        what fails there."""
        self.backlog = child.backlog
        if self._above is not None:
            self._above.join(child)

    def hears(self, kind: type[Fact]) -> bool:
        """Whether anybody wants to know of facts of this kind."""
        return kind in self.kinds

    def has_work(self) -> bool:
        """Whether listeners must be waited for before the turn goes on, or have failures to be
        recorded."""
        if self.backlog.failures:
            return True
        if not self.attends:
            return False
        full = self.voice is not None and self.voice.channel.full
        return bool(self.backlog.awaited or full or self._above is not None)

    # ------------------------------------------------------------ telling

    def teller(self) -> Callable[[type[Fact]], Callable[[Any], None] | None]:
        """A function that gives what tells a kind of facts to all who listen; None for kinds that nobody listens to."""
        if not self.listens:
            return _nobody
        if self.voice is not None or self._above is not None:
            return self._everybody
        return {
            kind: self._queue_of(hooks) or self.tell for kind, hooks in self.hooks.listeners.items()
        }.get

    def _everybody(self, kind: type[Fact]) -> Callable[[Any], None]:
        return self.tell

    def _queue_of(self, hooks: tuple[Hook, ...]) -> Callable[[Fact], None] | None:
        """What tells a fact to a single observer that need only be queued."""
        if len(hooks) != 1 or not hooks[0].queued or hooks[0].wants or hooks[0].matches is not None:
            return None
        hook, backlog = hooks[0], self.backlog
        put = (hook.lane or self._observers.lane(hook)).put
        return lambda fact: put(hook, fact, None, backlog)

    def tell(self, fact: Fact) -> None:
        """Tell a fact of this session."""
        if self.voice is not None:
            self.voice.send_fact(fact)
        if hooks := self.hooks.listeners.get(type(fact)):
            self._tell(hooks, fact, self)
        if self._above is not None and not any(fact is answered for answered in self.known_above):
            self._above._hear(fact.replace(path=self._fold.session), self)

    def observe(self, fact: Fact) -> None:
        """Tell a fact to the observers alone."""
        if hooks := self.hooks.listeners.get(type(fact)):
            self._tell(hooks, fact, self)

    def _hear(self, fact: Fact, child: Audience) -> None:
        """A fact of an agent below this one, whose session is the fact's path."""
        if self.voice is not None:
            self.voice.send_fact_below(fact, hides=bool(child.hooks.holders))
        if hooks := self.hooks.listeners.get(type(fact)):
            self._tell(hooks, fact, child)
        if self._above is not None:
            self._above._hear(fact, child)

    def _tell(self, hooks: tuple[Hook, ...], fact: Fact, source: Audience) -> None:
        """Queue a fact for observers; the state of the fact's moment is made for those that ask for
        the turn. `source` belongs to the session of the fact."""
        turn: Turn[Any] | None = None
        for hook in hooks:
            if hook.matches is not None and not is_wanted(hook, fact, self.backlog):
                continue
            if hook.queued:
                only = source._session_only if hook.wants else None
                (hook.lane or self._observers.lane(hook)).put(hook, fact, only, self.backlog)
                continue
            given: AnyTurn = turn
            if not hook.wants_state:
                given = source._session_only if hook.wants else None
            elif turn is None:
                state = source._fold.glimpse()
                given = turn = observer_turn(
                    self.hooks, self._scope, self._now, source._tools, state
                )
            if hook.wait:
                self.backlog.awaited.append((hook, fact, given))
            else:
                self._observers.queue(hook, fact, given, self.backlog)

    # ------------------------------------------------------------ waiting

    async def flush(self) -> None:
        """Await the observers that must be told before the next point, and a slow consumer of the
        stream."""
        awaited = self.backlog.awaited
        while awaited:
            hook, fact, turn = awaited.pop(0)
            await self._observers.wait_for(hook, fact, turn, self.backlog)
        await self.wait_for_consumer()
        if self._above is not None:
            await self._above.flush()

    async def wait_for_consumer(self) -> None:
        """Wait for a slow consumer of the stream."""
        if self.voice is not None and self.voice.channel.full:
            await self._time.wait_for_consumer(self.voice.channel.room())

    def follow(self, session: str, source: Source) -> None:
        """The log has grown: durable observers read on."""
        self._observers.readers.follow(session, source, self.backlog)


class SideTasks:
    """Tasks that run beside the turn, such as shadow gates; they are awaited, for a while, when it
    ends."""

    __slots__ = ("running",)

    def __init__(self) -> None:
        self.running: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run something beside the turn."""
        task = asyncio.get_running_loop().create_task(work)
        self.running.add(task)
        task.add_done_callback(self.running.discard)

    async def wait(self, patience: float) -> None:
        """Wait for the tasks, but no longer than `patience` seconds; then they are cancelled."""
        if self.running:
            _, late = await asyncio.wait(self.running, timeout=patience)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
