"""An agent: assembled in the open, compiled at its first run, then only run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import copy_context
from functools import partial
from secrets import token_hex
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, overload

from msgspec.structs import replace

from ._hooks.hooks import Band
from ._hooks.registrar import Part, Registered, Registrar, refuse_compiled
from ._kernel.catch_up import catch_up
from ._kernel.channel import Channel
from ._kernel.child_program import check_edit, child_program
from ._kernel.delegation import Delegate
from ._kernel.program import BOUNDS, Options, Program, SystemClock
from ._kernel.scopes import check_scope
from ._kernel.voice import PLACES
from ._options import as_list, check_options
from ._threads import threads
from .approvals import resolve
from .assembly import OPTIONS, check_program, compile_program, windows_of
from .checking import check_reason, message_without_calls
from .decisions import AnyResolution
from .deltas import StreamEvent
from .errors import ConfigError, StoreError
from .lifecycle import install_lifecycle
from .masking import Mask
from .messages import Message, ToolCall, as_message, user
from .models import open_model
from .outputs import Output
from .pipeline import Pipeline, describe
from .policies import ErrorPolicy
from .protocols import Capability, Clock, Model, Store
from .records import Asked, Compacted
from .results import Result, Stream
from .sessions import Sessions, TurnRequest, check_answers, new_id, unknown_session
from .states import State, fold
from .stores import open_store
from .tools import Tool, toolset
from .types import Approver, Criterion

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    from .context.prefixes import Prefix
    from .explaining import Explanation
    from .why import Why

    T = TypeVar("T")

    ScopeT = TypeVar("ScopeT", default=Any)
    OutputT = TypeVar("OutputT", default=str)
else:
    from typing import TypeVar

    T = TypeVar("T")
    ScopeT = TypeVar("ScopeT")
    OutputT = TypeVar("OutputT")

log = logging.getLogger("windlass")


class Agent(Registrar, Generic[ScopeT, OutputT]):
    """A model, its tools and its hooks.

    Hooks are registered with the verbs `observe`, `inject`, `rewrite`, `gate`, `wrap`, `transform` (and `hook`, which
    combines them) until the first run compiles the agent; registering later is a clear error. One agent serves any
    number of sessions at once. With `scope=Desk` it neither runs nor resumes without `scope=` an instance of `Desk`.
    """

    def __init__(
        self,
        model: Model | str,
        *,
        tools: Iterable[Callable[..., Any]] = (),
        system: str = "",
        output: type[OutputT] | None = None,
        scope: type[ScopeT] | None = None,
        name: str = "agent",
        settings: Mapping[str, Any] | None = None,
        criteria: Iterable[Criterion] = (),
        approvers: Iterable[Approver] = (),
        errors: ErrorPolicy | None = None,
        store: str | Store | None = None,
        models: Iterable[Model | str] = (),
        pipeline: Pipeline | None = None,
        unmatched: Literal["allow", "ask", "deny"] = "allow",
        busy: Literal["refuse", "queue", "steer"] = "refuse",
        window: int | None = None,
        tokenizer: Callable[[str], int] | None = None,
        injection_reserve: int = 8192,
        max_regenerations: int = 2,
        max_vetoes: int = 3,
        max_idle_steps: int = 20,
        max_parallel: int = 16,
        max_depth: int = 5,
        ending_timeout: float = 5.0,
        observer_patience: float = 0.5,
        secrets: Iterable[str] = (),
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        tools, criteria = as_list(tools), as_list(criteria)
        approvers, models, secrets = as_list(approvers), as_list(models), as_list(secrets)
        given = locals()
        check_options("Agent", OPTIONS, given)
        model = open_model(model) if isinstance(model, str) else model
        others = [open_model(other) if isinstance(other, str) else other for other in models]
        if (check_settings := getattr(model, "check_settings", None)) is not None:
            check_settings(settings or {})
        self.name = name
        self.model = model
        self.system = system
        self.scope = scope
        self.busy = busy
        self._window = window
        self._toolset = toolset(tools)
        self._output: Output[OutputT] = _TEXT if output is None else Output(output)
        self._store = open_store(store)
        self._owns_store = isinstance(store, str)
        self._pipeline = pipeline or _DEFAULT_PIPELINE
        self._capabilities: list[str] = []
        self.registered.criteria.extend(criteria)
        self.registered.approvers.extend(approvers)
        self._options = Options(
            **{name: given[name] for name in BOUNDS},
            models={other.name: other for other in others},
            settings=settings or {},
            policy=errors or _DEFAULT_POLICY,
            tokenizer=tokenizer,
            mask=Mask(secrets) if secrets else None,
            clock=clock or _CLOCK,
        )
        self._program: Program | None = None
        self._sessions = Sessions(self._store, self._output, busy, self.registered, self._options.mask)

    @property
    def tools(self) -> Mapping[str, Tool[..., Any]]:
        """The tools by name, as a model is told of them."""
        if self._program is not None:
            return self._program.tools
        slots = {slot.type: slot.name for slot in self.registered.slots if slot.supplied}
        mine = toolset([*self._toolset.values(), *self.registered.tools])
        return {name: made.bound(slots) for name, made in mine.items()} if slots else mine

    @property
    def store(self) -> Store:
        """Where its sessions are kept."""
        return self._store

    # ------------------------------------------------------------ assembly

    def with_capability(self, capability: Capability, *, band: Band | None = None) -> Self:
        """Let a capability install itself; the application may put it into the guard band."""
        label = getattr(capability, "name", None) or type(capability).__name__
        self._open("capability", label)
        part = Part(label, band, self.masked)
        capability.install(part)
        self._merge(part.registered)
        part._seal(f"after capability {label!r} was installed")
        self._capabilities.append(label)
        return self

    def masked(self, value: Any) -> Any:
        mask = self._options.mask
        return value if mask is None else mask.plain(value)

    def with_lifecycle(self, lifecycle: Any) -> Self:
        """Register what a `Lifecycle` or `LifecycleHook` overrides."""
        self._open("lifecycle", type(lifecycle).__name__)
        install_lifecycle(self, lifecycle)
        return self

    def _merge(self, part: Registered) -> None:
        mine = self.registered
        mine.hooks += part.hooks
        mine.transforms += part.transforms
        mine.tools += part.tools
        mine.criteria += part.criteria
        for compactor in part.compactors:
            self.compactor(compactor)
        mine.approvers += part.approvers
        mine.instructions += part.instructions
        for slot in part.slots:
            self.slot(slot)

    def _open(self, kind: str, name: str) -> None:
        if self._program is not None:
            raise refuse_compiled(kind, name)

    def compile(self) -> Program:
        """Seal the agent. The first run does it; calling it earlier finds mistakes earlier."""
        if self._program is not None:
            return self._program
        for registrar in self._pipeline.registrars:
            self._merge(registrar.registered)
            registrar._seal("after the first run had compiled the agent")
        self._pipeline = replace(self._pipeline, registrars=())
        self._program = compile_program(
            self._options,
            self.registered,
            self._pipeline,
            self._output,
            name=self.name,
            model=self.model,
            system=self.system,
            tools=self.tools,
            windows=windows_of(self.model, self._window, self._options.models),
            store=self._store,
            scope=self.scope,
        )
        try:
            check_program(self._program, self.scope)
        except BaseException:
            self._program = None
            raise
        return self._program

    def explain(self) -> Explanation:
        """The compiled agent like a query plan: `print(agent.explain())`. It is compiled if it was not."""
        from .explaining import Explanation, describe_agent

        program = self.compile()
        return Explanation(describe_agent(program, capabilities=self._capabilities, output=self._output.type))

    def _compile_below(self, parent: Program, tools: tuple[str, ...] | None) -> Program:
        """Seal the agent as a child of another one: with what that one passes on, and with these of its tools."""
        return child_program(parent, self.compile(), tools, describe)

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        share: float | None = None,
        tools: Sequence[str] | None = None,
    ) -> Tool[..., Any]:
        """This agent as a tool of another one: it is given a task and answers with what it has to say.

        Every call is a session of its own, in the store of the agent that calls. What it spends counts against the
        budgets of that agent; `share` is the part of what is left of them, above 0 and up to 1, that one call may
        spend. `tools` names those of its tools that it may use there. Hooks of the guard band of the other agent, and
        those with `inherit=True`, hold for this one too.
        """
        return Delegate(self.name, self._compile_below, name, description, share, tools)

    # ------------------------------------------------------------ running

    @overload
    async def run(
        self: Agent[None, OutputT],
        message: str | Message,
        *,
        session: str | None = None,
        scope: None = None,
        slots: Mapping[str, Any] | None = None,
    ) -> Result[OutputT]: ...
    @overload
    async def run(
        self,
        message: str | Message,
        *,
        session: str | None = None,
        scope: ScopeT,
        slots: Mapping[str, Any] | None = None,
    ) -> Result[OutputT]: ...
    async def run(
        self,
        message: str | Message,
        *,
        session: str | None = None,
        scope: ScopeT | None = None,
        slots: Mapping[str, Any] | None = None,
    ) -> Result[OutputT]:
        """A turn from a user message to its outcome. Without a session id the session ends with the turn."""
        given = user(message) if type(message) is str else _user_message(message)
        program = self._program or self.compile()
        if program.scopes:
            check_scope(program, scope)
        return await self._sessions.run(program, TurnRequest(session, given, None, scope, slots))

    @overload
    async def resume(
        self: Agent[None, OutputT],
        session: str,
        *,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: None = None,
    ) -> Result[OutputT]: ...
    @overload
    async def resume(
        self,
        session: str,
        *,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: ScopeT,
    ) -> Result[OutputT]: ...
    async def resume(
        self, session: str, *, answers: Mapping[str, AnyResolution] | None = None, scope: ScopeT | None = None
    ) -> Result[OutputT]:
        """Go on with a suspended or interrupted turn. Answers are keyed by the id of what was asked about."""
        program = self.compile()
        check_scope(program, scope)
        self._sessions.refuse_busy(session)
        check_answers(answers)
        return await self._sessions.run(program, TurnRequest(session, None, answers, scope))

    @overload
    def iterate(
        self: Agent[None, OutputT],
        message: str | Message | None = None,
        *,
        session: str | None = None,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: None = None,
        slots: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[State, None]: ...
    @overload
    def iterate(
        self,
        message: str | Message | None = None,
        *,
        session: str | None = None,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: ScopeT,
        slots: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[State, None]: ...
    def iterate(
        self,
        message: str | Message | None = None,
        *,
        session: str | None = None,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: ScopeT | None = None,
        slots: Mapping[str, Any] | None = None,
    ) -> AsyncGenerator[State, None]:
        """The state after every step; the last one carries the outcome. Without a message it resumes."""
        given = None if message is None else _user_message(message)
        if given is None and session is None:
            raise ConfigError("iterate needs a message, or a session to resume")
        check_answers(answers)
        program = self.compile()
        check_scope(program, scope)
        channel: Channel[State] = Channel()
        request = TurnRequest(session, given, answers, scope, slots, emit=channel.put)

        async def produce() -> None:
            result = await self._sessions.run(program, request)
            channel.offer(result.state)

        return channel.read(produce)

    @overload
    def stream(
        self: Agent[None, OutputT],
        message: str | Message | None = None,
        *,
        session: str | None = None,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: None = None,
        slots: Mapping[str, Any] | None = None,
    ) -> Stream[OutputT]: ...
    @overload
    def stream(
        self,
        message: str | Message | None = None,
        *,
        session: str | None = None,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: ScopeT,
        slots: Mapping[str, Any] | None = None,
    ) -> Stream[OutputT]: ...
    def stream(
        self,
        message: str | Message | None = None,
        *,
        session: str | None = None,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: ScopeT | None = None,
        slots: Mapping[str, Any] | None = None,
    ) -> Stream[OutputT]:
        """A turn as it happens: deltas and facts in one stream. Without a message it resumes.

        Leaving the stream before its end cancels the turn.
        """
        given = None if message is None else _user_message(message)
        if given is None and session is None:
            raise ConfigError("stream needs a message, or a session to resume")
        check_answers(answers)
        program = self.compile()
        check_scope(program, scope)
        results: list[Result[OutputT]] = []
        channel: Channel[StreamEvent] = Channel(PLACES)
        request = TurnRequest(session, given, answers, scope, slots, channel=channel)

        async def produce() -> None:
            results.append(await self._sessions.run(program, request))

        return Stream(channel.read(produce), results)

    @overload
    def run_sync(
        self: Agent[None, OutputT],
        message: str | Message,
        *,
        session: str | None = None,
        scope: None = None,
        slots: Mapping[str, Any] | None = None,
    ) -> Result[OutputT]: ...
    @overload
    def run_sync(
        self,
        message: str | Message,
        *,
        session: str | None = None,
        scope: ScopeT,
        slots: Mapping[str, Any] | None = None,
    ) -> Result[OutputT]: ...
    def run_sync(
        self,
        message: str | Message,
        *,
        session: str | None = None,
        scope: ScopeT | None = None,
        slots: Mapping[str, Any] | None = None,
    ) -> Result[OutputT]:
        """`run` for code that is not async. Inside a running loop it works in a thread of its own."""
        given: Any = scope
        return _sync(lambda: self.run(message, session=session, scope=given, slots=slots))

    @overload
    def resume_sync(
        self: Agent[None, OutputT],
        session: str,
        *,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: None = None,
    ) -> Result[OutputT]: ...
    @overload
    def resume_sync(
        self,
        session: str,
        *,
        answers: Mapping[str, AnyResolution] | None = None,
        scope: ScopeT,
    ) -> Result[OutputT]: ...
    def resume_sync(
        self, session: str, *, answers: Mapping[str, AnyResolution] | None = None, scope: ScopeT | None = None
    ) -> Result[OutputT]:
        """`resume` for code that is not async."""
        given: Any = scope
        return _sync(lambda: self.resume(session, answers=answers, scope=given))

    @asynccontextmanager
    async def session(self, session: str) -> AsyncGenerator[Session[ScopeT, OutputT], None]:
        """A session that is closed at the end of the block."""
        opened = Session(self, session)
        try:
            yield opened
        finally:
            await opened.close()

    async def state(self, session: str) -> State:
        """A session as its log tells it."""
        records = await self._store.read(session)
        if not records:
            raise unknown_session(session)
        return fold(session, records)

    async def why(self, session: str) -> Why:
        """Why the latest turn of a session went as it did, or where it stands, as the log tells it."""
        from .why import Why

        records = await self._store.read(session)
        if not records:
            raise unknown_session(session)
        return Why(session, records)

    async def prefixes(self, session: str) -> tuple[Prefix, ...]:
        """How stable the prefix of a session's requests was, call by call, and who broke it, as the log tells it."""
        from .context.prefixes import prefixes
        from .context.replay import described, pipelines, requests

        records = await self._store.read(session)
        if not records:
            raise unknown_session(session)
        known = {digest: described(await self._store.pipeline(digest)) for digest in pipelines(records)}
        return prefixes(requests(session, records, known), self._options.tokenizer)

    async def steer(self, session: str, message: str | Message) -> None:
        """Put a message into the turn that is running in a session; the model reads it at its next step.

        If none is running, the session's next turn reads it.
        """
        if not self._sessions.is_running(session) and not await self._store.read(session):
            raise unknown_session(session)
        await self._sessions.put(session, token_hex(8), "steer", _user_message(message))

    async def cancel(self, session: str, reason: str = "") -> bool:
        """End the turn of a session, wherever it runs; False if there is none that could be ended.

        One that runs here ends now, one that is suspended or runs elsewhere when its owner next looks at its inbox. The
        session may be that of a sub-agent: then the agent that called it goes on.
        """
        check_reason(reason)
        if (cancelled := self._sessions.cancel(session, reason)) is not None:
            return cancelled
        records = await self._store.read(session)
        if not records:
            raise unknown_session(session)
        state = fold(session, records)
        if state.over:
            return False
        await self._sessions.put(session, token_hex(8), "cancel", {"turn": state.turns, "reason": reason})
        return True

    async def resolve(self, session: str, ask_id: str, answer: AnyResolution) -> None:
        """Answer a question of a session without going on with it, from any process.

        It counts at the session's next `resume`, or at once if its turn is still at work beside the question.
        """
        mask, now = self._options.mask, self._options.clock.now()
        masked = None if mask is None else mask.plain
        await resolve(self._store, session, ask_id, answer, now=now, mask=masked, fits=self._check_edit)

    def _check_edit(self, call: ToolCall) -> None:
        check_edit(self.compile(), call)

    async def catch_up(self) -> int:
        """Tell durable observers all that nobody has told them, in every session of this agent: how many facts.

        Durable observers read on by themselves in sessions that run here. This tells them what other processes have
        left, because they ended or crashed: call it when a process starts, or from time to time. If several processes
        call it at the same moment, a fact may be told more than once.
        """
        return await catch_up(self.compile())

    async def aclose(self, *, patience: float = 30.0) -> None:
        """Wait until observers have been told everything, then close the store if it was given as an address.

        Call it, or use `async with agent`, when the turns are over. Durable observers also catch up in all sessions in
        which no turn is under way. After `patience` seconds it goes on without those who hang.
        """
        try:
            if self._program is not None:
                await self._drain(self._program, patience)
        finally:
            if self._owns_store:
                await self._store.close()

    async def _drain(self, program: Program, patience: float) -> None:
        async def catch_up_at_rest() -> None:
            try:
                await catch_up(program, at_rest=True)
            except StoreError as error:  # they are told when there is a store again
                log.warning("the durable observers of agent %r could not catch up: %s", self.name, error)

        program.observers.start(catch_up_at_rest())
        if not await program.observers.drain(patience):
            log.warning("agent %r was closed before its observers had been told everything", self.name)
            await program.observers.give_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    async def fork(self, session: str, *, at: int | None = None, to: str | None = None) -> str:
        """A new session with the first `at` records of another one; all of them if it is not given. Its id.

        It goes on like any other, from where it was cut: by `run`, or by `resume` if a turn is open there. What was
        asked and not done by then is asked again. Sub-agents that are at work there are forked with it, each as far as
        it came without an answer or a cancel that the fork does not have. The other sessions do not notice.
        """
        from .transfer import fork_session

        if "/" in session:
            await self._sessions.refuse_child(session)
        name = to or new_id()
        await fork_session(self._store, session, name, at, self._options.clock.now())
        return name

    async def compact(
        self, session: str, *, instructions: str = "", scope: ScopeT | None = None
    ) -> tuple[Compacted, ...]:
        """Compact a session now, due or not: every strategy is asked, in their order. What was replaced.

        `instructions` are for whoever writes a summary. The transcript stays as it is, and so does all if it fails.
        """
        program = self.compile()
        check_scope(program, scope)
        self.refuse_busy(session)
        if not program.compactors:
            raise ConfigError(f"agent {self.name!r} has nothing to compact with: give it a strategy such as Summarize")
        return await self._sessions.compact(program, session, instructions, scope)

    def refuse_busy(self, session: str) -> None:
        """Raise if a turn is running in the session."""
        self._sessions.refuse_busy(session)


class Session(Generic[ScopeT, OutputT]):
    """One conversation with an agent."""

    def __init__(self, agent: Agent[ScopeT, OutputT], id: str) -> None:
        self.agent = agent
        self.id = id

    @overload
    async def run(
        self: Session[None, OutputT],
        message: str | Message,
        *,
        scope: None = None,
    ) -> Result[OutputT]: ...
    @overload
    async def run(
        self,
        message: str | Message,
        *,
        scope: ScopeT,
    ) -> Result[OutputT]: ...
    async def run(self, message: str | Message, *, scope: Any = None) -> Result[OutputT]:
        """A turn in this session."""
        return await self.agent.run(message, session=self.id, scope=scope)

    @overload
    async def resume(
        self: Session[None, OutputT],
        answers: Mapping[str, AnyResolution] | None = None,
        *,
        scope: None = None,
    ) -> Result[OutputT]: ...
    @overload
    async def resume(
        self,
        answers: Mapping[str, AnyResolution] | None = None,
        *,
        scope: ScopeT,
    ) -> Result[OutputT]: ...
    async def resume(self, answers: Mapping[str, AnyResolution] | None = None, *, scope: Any = None) -> Result[OutputT]:
        """Go on with the turn that is suspended."""
        return await self.agent.resume(self.id, answers=answers, scope=scope)

    async def approvals(self) -> tuple[Asked, ...]:
        """The questions that wait for an answer."""
        return (await self.agent.state(self.id)).waiting

    async def close(self) -> None:
        """End the session. A suspended turn stays suspended and can be resumed."""
        agent = self.agent
        await agent._sessions.close(agent.compile(), self.id)  # pyright: ignore[reportPrivateUsage]


def _user_message(message: str | Message) -> Message:
    if type(message) is not Message:
        return as_message(message)
    try:
        given = message_without_calls(message)
    except TypeError as error:
        raise ConfigError(f"the message is invalid: {error}") from None
    if given.role != "user":
        raise ConfigError(f"a turn is opened by a user message, not by one of role {given.role!r}")
    return given


def _sync(run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    if asyncio._get_running_loop() is None:  # unlike get_running_loop, it does not raise
        return asyncio.run(run())
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(asyncio.run(run()))
        except BaseException as error:
            errors.append(error)

    threads().start(partial(copy_context().run, work), "windlass-run-sync", daemon=None).join()
    if errors:
        raise errors[0]
    return results[0]


_TEXT: Output[Any] = Output(str)
_DEFAULT_PIPELINE = Pipeline.minimal()
_DEFAULT_POLICY = ErrorPolicy()
_CLOCK = SystemClock()

__all__ = ["Agent", "Result", "Session"]
