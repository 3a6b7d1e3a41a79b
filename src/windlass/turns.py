"""The turn as hooks and tools may use it: narrow on purpose."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar, overload

from msgspec import Struct

from .checking import message_without_calls
from .errors import ConfigError, HookError
from .messages import ContentPart, Message, Messages, ModelReply, TextPart, ToolCall, Usage, Value
from .slots import Slot
from .states import State, TurnFold, usage_by

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from .tools import Tool

T = TypeVar("T")
ScopeT = TypeVar("ScopeT")
ResultT = TypeVar("ResultT", covariant=True)


class Host(Protocol):
    """What a turn object needs from the kernel."""

    @property
    def state(self) -> State: ...
    @property
    def messages(self) -> Messages: ...
    @property
    def session(self) -> str: ...
    @property
    def agent(self) -> str: ...
    @property
    def in_background(self) -> bool: ...
    @property
    def latest(self) -> TurnFold | None: ...
    @property
    def model(self) -> str: ...
    @property
    def scope(self) -> Any: ...
    @property
    def closed(self) -> bool: ...
    @property
    def tools(self) -> Mapping[str, Tool[..., Any]]: ...
    def slot(self, key: Slot[Any] | type | str) -> Slot[Any]: ...
    def cancel(self, reason: str = "") -> bool: ...
    def now(self) -> float: ...
    async def sleep(self, seconds: float) -> None: ...
    async def alarm(self, seconds: float) -> None: ...
    def timeout(self, seconds: float) -> asyncio.Timeout | None: ...
    def left(self) -> Left: ...
    def knows_cost(self, model: str) -> bool | None: ...
    def window(self) -> ContextWindow: ...
    def reserve_left(self) -> int: ...
    def tokens(self, parts: Any) -> int: ...
    def memo(self, key: Hashable, make: Callable[[], Any]) -> Any: ...
    def note(self, asker: Asker, kind: str, data: Any) -> None: ...
    async def delegate(self, asker: Asker, run: Invocation, agent: Any, task: str, options: dict[str, Any]) -> Any: ...
    async def delegate_in_background(
        self, asker: Asker, run: Invocation, agent: Any, task: str, options: dict[str, Any]
    ) -> Any: ...
    def progress(self, asker: Asker, done: float, total: float | None, text: str) -> None: ...
    async def ask(self, asker: Asker, model: Any, messages: Any, options: dict[str, Any]) -> Any: ...


class Left(Value, frozen=True):
    """What a turn may still spend before one of its limits stops it; None where there is no such limit.

    Limits of the agents above count, too. `usd` is None as well if the cost so far is not known.
    """

    steps: int | None = None
    tokens: int | None = None
    usd: float | None = None
    seconds: float | None = None


class ContextWindow(Value, frozen=True, gc=True):
    """How full the context window of the model is, in tokens, estimated for the next request.

    `size` is what a request may have, and `free` what is left of it; both are None if the window is not known.
    `origins` says where the tokens come from: the system text, tools, users, hooks; the largest first.
    """

    used: int
    size: int | None = None
    free: int | None = None
    origins: Mapping[str, int] = {}


class Asker(Struct, frozen=True):
    """Who asks a model with `turn.ask`: at which event or effect, about what, and under what name.

    `chain` lists the hooks and names on whose behalf it is asked, the asker last. `recorded` is false for something
    that is prepared after the turn is over, which the log does not get. `tool` is the tool, if it is one.
    """

    event: str
    about: str
    by: str
    chain: tuple[Any, ...]
    recorded: bool = True
    tool: Any = None


def name_in_chain(link: Any) -> str:
    """The display name of a link in a chain of askers."""
    return str(getattr(link, "name", link))


class ChildWaits(BaseException):
    """A child agent waits for a person, and with it the hook or tool that gave it its task.

    It ends the run of the hook or tool and the wraps around a call, none of which may catch it; resume enters them
    anew.
    """


class Invocation:
    """One run of a hook or tool, and the child agents that it has given tasks to.

    A child that waits for a person neither returns nor raises. Once all children at work wait, the run is broken off.
    """

    __slots__ = ("_cancels", "_task", "counts", "waiting", "working")

    def __init__(self, task: asyncio.Task[Any] | None = None) -> None:
        self._task = asyncio.current_task() if task is None else task
        self._cancels: int | None = None
        self.counts: dict[str, int] = {}
        self.working = self.waiting = 0

    def note_waiting(self) -> None:
        """A child waits. If no other one works, break off the run."""
        self.waiting += 1
        self.break_off_if_idle()

    def break_off_if_idle(self) -> None:
        """Break off the run if it only waits for children that wait for people."""
        if self.waiting and self.waiting == self.working and self._cancels is None and self._task is not None:
            self._cancels = self._task.cancelling()
            self._task.cancel("a child agent waits for a person")

    @property
    def is_broken_off(self) -> bool:
        """Whether it was broken off, and has not ended yet: what it still does must not begin anything."""
        return self._cancels is not None

    def was_broken_off(self) -> bool:
        """Whether it was, and the turn was not cancelled. Ask once, when the run has ended."""
        if self._cancels is None or self._task is None:
            return False
        cancels, self._cancels = self._cancels, None
        return self._task.uncancel() <= cancels


class SubAgent(Protocol[ResultT]):
    """An agent that a hook or tool can give a task to."""

    def as_tool(self, *, share: float | None = None, tools: Sequence[str] | None = None) -> Any: ...
    def _child_result(self, state: State, slots: Any, failure: Any, written: Any) -> ResultT: ...


class BackgroundTask(Generic[ResultT]):
    """A task that another agent works on in the background. `session` is the session of that agent."""

    def __init__(self, session: str, agent: str, task: str, wait: Callable[[], Awaitable[ResultT]]) -> None:
        self.session = session
        self.agent = agent
        self.task = task
        self._wait = wait

    async def result(self) -> ResultT:
        """Wait until the agent is done, or waits for a person, in whatever process it works; its result.

        Raises `SessionError` if it was interrupted and nobody continues it. Waiting changes nothing: the parent's
        conversation gets the result, too.
        """
        return await self._wait()

    def __repr__(self) -> str:
        return f"BackgroundTask(session={self.session!r}, agent={self.agent!r}, task={self.task!r})"


class Writes:
    """What a hook writes: it becomes records when the hook returns, and is dropped if the hook raises.

    `kept` is true once it has become records: later writes would be lost.
    """

    __slots__ = ("by", "depth", "kept", "messages", "slots")

    def __init__(self, by: str, depth: int = 0) -> None:
        self.by = by
        self.kept = False
        self.depth = depth
        self.slots: dict[str, tuple[Slot[Any], Any]] = {}
        self.messages: list[Message] = []

    def close(self) -> None:
        """They are recorded: a later write would be lost."""
        self.kept = True


class Turn(Generic[ScopeT]):
    """The turn as hooks and tools see it."""

    __slots__ = ("_asker", "_host", "_run", "_state", "_writes")

    def __init__(
        self,
        host: Host,
        writes: Writes | None = None,
        state: State | None = None,
        asker: Asker | None = None,
        run: Invocation | None = None,
    ) -> None:
        self._run = run
        self._host = host
        self._writes = writes
        self._state = state
        self._asker = asker

    @property
    def state(self) -> State:
        """The state: the current one for a hook or tool, the one at the time of the fact for an observer."""
        return self._state if self._state is not None else self._host.state

    @property
    def context(self) -> Messages:
        """The conversation so far."""
        return self._host.messages if self._state is None else self._state.messages

    @property
    def user_message(self) -> Message:
        """The message that opened the turn."""
        turn = self._latest
        if turn is None:
            raise LookupError("no turn has started yet")
        return turn.message

    @property
    def turn_ref(self) -> str:
        """The reference of the turn, which is the same live and in the log."""
        turn = self._latest
        return turn.ref if turn is not None else ""

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self._host.session if self._state is None else self._state.session

    @property
    def agent(self) -> str:
        """The name of the agent. In a hook that sub-agents inherit, it is the name of the sub-agent at work."""
        if self._state is None:
            return self._host.agent
        return self._state.opened.agent if self._state.opened is not None else ""

    @property
    def in_background(self) -> bool:
        """Whether another agent started this one in the background and does not wait for it."""
        self._refuse_observer("ask whether the agent works in the background")
        return self._host.in_background

    @property
    def scope(self) -> ScopeT:
        """What the application passed to this call of `run`; never stored."""
        scope: ScopeT = self._host.scope
        return scope

    @property
    def tools(self) -> Mapping[str, Tool[..., Any]]:
        """The tools of the agent, by name. A call may name a tool that is not there: hooks can answer for it."""
        return self._host.tools

    @property
    def usage(self) -> Usage:
        """What the turn has spent so far."""
        turn = self._latest
        return turn.usage if turn is not None else Usage()

    @property
    def usage_by(self) -> Mapping[str, Usage]:
        """What hooks and tools have spent in this turn with `ask` and `delegate`, by their names. It is part of
        `usage`."""
        return usage_by(self._latest)

    @property
    def by(self) -> str:
        """The name of the hook or tool that this object was given to, as records and `usage_by` have it. Empty for
        observers."""
        return "" if self._asker is None else self._asker.by

    @property
    def model(self) -> str:
        """The name of the turn's model. A hook may send single requests to another one."""
        return self._host.model

    @property
    def steps(self) -> int:
        """How many steps of this turn are done."""
        turn = self._latest
        return turn.steps if turn is not None else 0

    @property
    def active(self) -> float:
        """For how many seconds the turn has worked, up to the end of its last step. Waiting for people is not work."""
        turn = self._latest
        return turn.active if turn is not None else 0.0

    @property
    def _latest(self) -> TurnFold | None:
        """The latest turn, for reading: no state is made for a hook that wants no more than this."""
        return self._host.latest if self._state is None else self._state.turn

    def call(self, call_id: str) -> ToolCall:
        """The call with this id, of the current or the latest step, with its arguments as hooks and people left them.

        An observer of `ToolCalled` or `ToolReturned` gets the call of its fact with `turn.call(fact.call)`.
        """
        state = self.state
        for candidate in state.open.calls if state.open is not None else ():
            if candidate.proposed.id == call_id:
                return candidate.call
        last = state.turn.last if state.turn is not None else None
        for call in last.calls if last is not None else ():
            if call.id == call_id:
                return call
        raise LookupError(f"call {call_id!r} does not belong to the current or the latest step")

    def get(self, slot: Slot[T] | type[T]) -> T:
        """The value of a slot, named by the slot or by its type. A hook sees the values it has just set."""
        known = self._host.slot(slot)
        if self._writes is not None and known.name in self._writes.slots:
            written: T = self._writes.slots[known.name][1]
            return written
        value: T = known.load(self.state.slots)
        return value

    def set(self, slot: Slot[T] | type[T], value: T) -> None:
        """Set a slot. The value is recorded when the hook returns, and dropped if the hook raises."""
        writes = self._writable(f"set slot {getattr(slot, 'name', slot)!r}")
        known = self._host.slot(slot)
        known.dump(value, writes.by)
        writes.slots[known.name] = (known, value)

    def add(self, message: Message | str) -> None:
        """Add a message to the transcript, once the hook has returned: after the messages of the step.

        A message that is added when no step is open is in the next request already: at `TurnStarting`, at `StepEnding`,
        or at `Stopping` if the stop is vetoed.
        """
        writes = self._writable("add a message")
        if type(message) is str:
            message = Message("user", (TextPart(message),), writes.by)
        writes.messages.append(message_without_calls(message))

    def cancel(self, reason: str = "") -> None:
        """End the turn now, from any thread: running work is cancelled, open calls are closed, the ending hooks run."""
        if self._state is not None:
            raise HookError("an observer cannot cancel the turn; use a gate, or agent.cancel", hook="")
        if not self._host.cancel(reason) and self._host.closed:
            raise _turn_over("cancel it")

    # ------------------------------------------------------------ time, money, window

    def now(self) -> float:
        """The time by the agent's clock, in seconds since the epoch."""
        return self._host.now()

    async def sleep(self, seconds: float) -> None:
        """Pause by the agent's clock. A cancel of the turn ends the pause."""
        self._refuse_observer("sleep")
        await self._host.sleep(_duration("sleep", seconds))

    def timeout(self, seconds: float) -> AbstractAsyncContextManager[asyncio.Timeout]:
        """Limit what is inside to some seconds by the agent's clock: `async with turn.timeout(5) as limit: …`.

        After that it is cancelled, and `TimeoutError` is raised. `limit.expired()` tells it from a `TimeoutError` of
        the code inside.
        """
        self._refuse_observer("set a time-out")
        duration = _duration("timeout", seconds)
        limit = self._host.timeout(duration)
        return self._timeout_by_alarm(duration) if limit is None else limit

    @asynccontextmanager
    async def _timeout_by_alarm(self, seconds: float) -> AsyncGenerator[asyncio.Timeout, None]:
        alarm = asyncio.ensure_future(self._host.alarm(seconds))
        try:
            async with asyncio.timeout(None) as limit:
                now = asyncio.get_running_loop().time
                alarm.add_done_callback(lambda done: None if done.cancelled() else limit.reschedule(now()))
                yield limit
        finally:
            alarm.cancel()

    @property
    def left(self) -> Left:
        """What the turn may still spend: steps, tokens, money and time, over the whole tree of agents."""
        self._refuse_observer("ask what is left")
        return self._host.left()

    def knows_cost(self, model: str) -> bool | None:
        """Whether the cost of a model's replies is known, by the name of the model; None if the model does not say."""
        self._refuse_observer("ask about costs")
        return self._host.knows_cost(model)

    @property
    def window(self) -> ContextWindow:
        """How full the model's context window is, and with what. It is counted when you ask, so ask rarely."""
        self._refuse_observer("look at the context window")
        return self._host.window()

    @property
    def reserve(self) -> int:
        """How many tokens hooks may still inject into the next request: `injection_reserve`, less what is there.

        Members of a parallel group do not see what the others of the group inject.
        """
        self._refuse_observer("ask what may be injected")
        return self._host.reserve_left()

    def tokens(self, content: str | Iterable[ContentPart]) -> int:
        """About how many tokens a text or some parts are, by the agent's tokenizer if it has one."""
        self._refuse_observer("count tokens")
        return self._host.tokens((TextPart(content),) if isinstance(content, str) else content)

    def _refuse_observer(self, what: str) -> None:
        if self._state is not None:
            raise HookError(f"an observer cannot {what}: it runs beside the turn", hook="")

    def memo(self, key: Hashable, make: Callable[[], T]) -> T:
        """What `make` returned when this key was first asked for: `turn.memo(self, Counter)`.

        Use it for what a hook would otherwise compute anew at every step. It is kept in memory and forgotten when the
        turn ends or waits, so it must be something that can be made again. Hooks with the same key share it.
        """
        self._refuse_observer("remember something")
        value: T = self._host.memo(key, make)
        return value

    # ------------------------------------------------------------ facts of its own

    def note(self, kind: str, data: Any = None) -> None:
        """Record a fact of your own: `turn.note("budget.warning", {"left": 120})`. Observers receive it as `Noted`.

        It is written at once and stays, even if the hook then fails. A hook that runs again after a crash does not
        write it again. `data` is anything that has a JSON form, at most 8 KB.
        """
        self._refuse_observer("make a note")
        if (asker := self._who_asks()) is None:
            raise HookError(
                "cannot make a note here: a hook or tool notes through its own parameter named `turn`", hook=""
            )
        if self._host.closed:
            raise _turn_over("make a note in it")
        self._host.note(asker, kind, data)

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Tell how far a tool or hook is: `turn.progress(3, 10, "reading page 3")`. It may be called from any thread.

        Streams and observers get a `Progressed` fact. It is not recorded, and a slow consumer may miss some.
        """
        self._refuse_observer("tell progress")
        if (asker := self._who_asks()) is None:
            raise HookError(
                "cannot tell progress here: a hook or tool tells it through its own parameter named `turn`", hook=""
            )
        numbers: tuple[tuple[str, object], ...] = (("done", done), ("total", 0 if total is None else total))
        for name, number in numbers:
            if isinstance(number, bool) or not isinstance(number, int | float) or not 0 <= number < float("inf"):
                raise ConfigError(f"turn.progress({name}={number!r}): give a number, 0 or more")
        if type(text) is not str:
            raise ConfigError(f"turn.progress(text={text!r}): give a str")
        if self._host.closed:
            raise _turn_over("tell progress in it")
        self._host.progress(asker, done, total, text)

    # ------------------------------------------------------------ side calls

    @overload
    async def ask(
        self,
        model: Any,
        messages: Message | str | Sequence[Message],
        *,
        output: Mapping[str, Any] | None = None,
        system: str = "",
        settings: Mapping[str, Any] | None = None,
        **common: Any,
    ) -> ModelReply: ...
    @overload
    async def ask(
        self,
        model: Any,
        messages: Message | str | Sequence[Message],
        *,
        output: TypeForm[T],
        repairs: int = 2,
        system: str = "",
        settings: Mapping[str, Any] | None = None,
        **common: Any,
    ) -> T: ...
    async def ask(
        self,
        model: Any,
        messages: Message | str | Sequence[Message],
        *,
        output: Any = None,
        repairs: int = 2,
        system: str = "",
        settings: Mapping[str, Any] | None = None,
        **common: Any,
    ) -> Any:
        """Ask a model beside the turn: recorded, charged, never in the answer's stream, read from the log on resume.

        With a type as `output`, the answer is a value of that type: the model is told its schema and asked again, at
        most `repairs` times, if its reply does not fit; then `OutputError` is raised. Without one, or with a JSON
        schema, the answer is the whole reply.

        Rewrites, gates, wraps and transformers of the guard band apply to it, except the hook that asks; so do wraps
        with `side_calls=True`. `common` are settings that all vendors know, such as `temperature`; pass any other in
        `settings`.
        """
        self._refuse_observer("ask a model; use a hook, or a gate with mode='shadow'")
        asker = self._who_asks()
        if asker is None:
            asker = Asker("", str(self.state.steps + 1), "turn", ("turn",))
        if self._host.closed and asker.recorded:
            raise _turn_over("ask a model in it")
        options = {"system": system, "settings": settings, "output": output, "repairs": repairs, **common}
        return await self._host.ask(asker, model, messages, options)

    # ------------------------------------------------------------ child agents

    @overload
    async def delegate(
        self,
        agent: SubAgent[ResultT],
        task: str,
        *,
        share: float | None = None,
        tools: Sequence[str] | None = None,
        background: Literal[False] = False,
    ) -> ResultT: ...
    @overload
    async def delegate(
        self,
        agent: SubAgent[ResultT],
        task: str,
        *,
        share: float | None = None,
        tools: Sequence[str] | None = None,
        background: Literal[True],
    ) -> BackgroundTask[ResultT]: ...
    async def delegate(
        self,
        agent: SubAgent[ResultT],
        task: str,
        *,
        share: float | None = None,
        tools: Sequence[str] | None = None,
        background: bool = False,
    ) -> ResultT | BackgroundTask[ResultT]:
        """Give a task to another agent and wait for its result, as if the model had called it as a tool.

        The child has its own session below this one. Guards of this agent apply to it, `Delegating` judges the task,
        and what it spends is charged to this turn; `share` and `tools` limit it, as in `as_tool`. If the hook or tool
        runs again after a crash or a suspension, a child that has finished is not run again.

        A child may wait for a person if it was started in a pure or idempotent tool, in a wrap of a model or tool call,
        or in a gate on an event that can `Ask`. Then the turn suspends, and on resume the hook or tool is run again
        from its start. Elsewhere a question of the child is denied.

        With `background=True` it returns at once, with a `BackgroundTask`. The child works beside the turn and may
        outlive it, and its result comes in as a message: at the next step, or in the next turn. It is granted `share`
        of the tokens and money that are left, by default half. The agent must be declared: `Agent(subagents=[…])`.
        """
        self._refuse_observer("delegate a task")
        asker, run = self._who_asks(), self._invocation()
        if asker is None or run is None:
            raise HookError(
                "cannot delegate a task here: a hook or tool delegates through its own parameter named `turn`", hook=""
            )
        if self._host.closed:
            raise _turn_over("delegate a task in it")
        given: object = task
        if not isinstance(given, str) or not given:
            raise ConfigError(f"turn.delegate(…, {task!r}): the task is a text")
        if not hasattr(agent, "as_tool") or not hasattr(agent, "_child_result"):
            raise ConfigError(f"turn.delegate({agent!r}, …): give an Agent")
        options = {"share": share, "tools": tools}
        start = self._host.delegate_in_background if background else self._host.delegate
        result: ResultT = await start(asker, run, agent, task, options)
        return result

    # ------------------------------------------------------------ what a run of a hook or tool has of its own

    def _who_asks(self) -> Asker | None:
        return self._asker

    def _invocation(self) -> Invocation | None:
        return self._run

    def _buffer(self) -> Writes | None:
        return self._writes

    def _writable(self, what: str) -> Writes:
        writes = self._buffer()
        if writes is None:
            raise HookError(
                f"cannot {what} here: this turn is read-only. A hook or tool writes through its own parameter named "
                "`turn`; observers and members of a parallel group cannot write at all",
                hook="",
            )
        if self._host.closed:
            raise _turn_over(what)
        if writes.kept:
            raise HookError(
                f"cannot {what} here: {writes.by!r} has returned, and what it wrote is recorded. Write before it "
                "returns, and await the tasks that it starts",
                hook=writes.by,
            )
        return writes


class AskingHook(Protocol):
    """A hook, as far as its turn has to know it."""

    @property
    def name(self) -> str: ...
    @property
    def event(self) -> type: ...


class HookTurn(Turn[ScopeT]):
    """The turn for one run of a hook.

    Most runs only read. So what the run writes, the asker of its side calls and notes, and the children that it gives
    tasks to are made when they are first needed. `chain` has the askers of the side call that the hook is asked about.
    """

    __slots__ = ("_about", "_chain", "_depth", "_hook", "_may_write", "_returned", "_task")

    def __init__(
        self,
        host: Host,
        hook: AskingHook,
        about: str,
        chain: tuple[Any, ...] = (),
        may_write: bool = True,
        depth: int = 0,
    ) -> None:
        self._host = host
        self._state = self._writes = self._asker = self._run = None
        self._hook = hook
        self._about = about
        self._chain = chain
        self._may_write = may_write
        self._depth = depth
        self._returned = False
        self._task = asyncio.current_task()

    def _who_asks(self) -> Asker:
        if self._asker is None:
            hook = self._hook
            self._asker = Asker(hook.event.__name__, self._about, hook.name, (*self._chain, hook))
        return self._asker

    def _invocation(self) -> Invocation:
        if self._run is None:
            self._run = Invocation(self._task)
        return self._run

    def _buffer(self) -> Writes | None:
        if self._writes is None and self._may_write:
            self._writes = Writes(self._hook.name, self._depth)
            self._writes.kept = self._returned
        return self._writes

    def end_run(self) -> Writes | None:
        """The hook has returned: what it wrote, None if it wrote nothing. It cannot write any more."""
        self._returned = True
        if (writes := self._writes) is not None:
            writes.close()
        return writes


def check_not_broken_off(turn: Turn[Any]) -> None:
    """Raise `ChildWaits` if the run of a hook or tool that got this turn was broken off.

    What it did with that does not count: ask when it has returned, and when it has raised.
    """
    run = turn._run  # pyright: ignore[reportPrivateUsage]
    if run is not None and run.was_broken_off():
        raise ChildWaits


def askers(turn: Turn[Any]) -> tuple[Any, ...]:
    """On whose behalf a side call is made, read from the turn that its guards get; the asker comes last."""
    asker = turn._who_asks()  # pyright: ignore[reportPrivateUsage]
    return () if asker is None else asker.chain


def _duration(what: str, seconds: object) -> float:
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < float("inf"):
        raise ConfigError(f"turn.{what}({seconds!r}): give a number of seconds, 0 or more")
    return float(seconds)


def _turn_over(what: str) -> HookError:
    return HookError(f"cannot {what}: the turn is over, and this object is valid only in that turn", hook="")
