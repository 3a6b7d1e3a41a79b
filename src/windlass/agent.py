"""An agent: assembled in the open, compiled at its first run, then only run."""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar, copy_context
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, overload

import msgspec
from msgspec.structs import replace

from ._hooks.compiled import NO_HOOKS, CompiledHooks
from ._hooks.hooks import Band, Hook
from ._hooks.observers import Observers
from ._hooks.registrar import Part, Registered, Registrar, refuse_compiled
from ._hooks.streams import CHANNELS, LAST, Transform
from ._kernel.catching_up import catch_up
from ._kernel.compacting import compact_now
from ._kernel.composites import Emit
from ._kernel.delegates import Delegate
from ._kernel.delegating import below, check_edit, program_of
from ._kernel.handover import Handover
from ._kernel.loop import drive_wrapped as _drive
from ._kernel.matchers import check_matchers
from ._kernel.program import Program, SystemClock
from ._kernel.scoping import check_scope, require_scopes
from ._kernel.segment import Segment
from ._kernel.speaking import PLACES
from ._options import (
    APPROVER,
    CRITERION,
    TEXT,
    Domain,
    check_options,
    choice,
    each,
    having,
    instance,
    listed,
    number,
    optional,
    whole,
)
from .approvals import CHILD, ask_approver, child_refused, resolve
from .checking import check_reason, said_message
from .context.assembly import prompt_of
from .criteria import name_of
from .decisions import AnyResolution
from .deltas import StreamEvent
from .errors import (
    ConfigError,
    NotSuspended,
    SessionBusy,
    SessionError,
    SessionUnknown,
    StaleAnswer,
    StoreError,
)
from .events import ModelReplying
from .lifecycle import install_lifecycle
from .masking import Mask, Masking
from .messages import Message, TextPart, ToolCall, as_message, user
from .models import open_model
from .outcomes import error_value
from .outputs import Output
from .pipeline import Pipeline, describe
from .policies import ErrorPolicy
from .protocols import Capability, Clock, Model, Store
from .records import Asked, Compacted, Delegated, HookFailed, Record, SessionEnded
from .results import Result, Stream, times_asked
from .states import Fold, State, fold, fold_log
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
        tools, criteria = listed(tools), listed(criteria)
        approvers, models, secrets = listed(approvers), listed(models), listed(secrets)
        check_options("Agent", _OPTIONS, locals())
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
        self._given: dict[str, Any] = {
            "models": {other.name: other for other in others},
            "settings": settings or {},
            "policy": errors or _DEFAULT_POLICY,
            "unmatched": unmatched,
            "reserve": injection_reserve,
            "count": tokenizer,
            "max_regenerations": max_regenerations,
            "max_vetoes": max_vetoes,
            "max_idle_steps": max_idle_steps,
            "max_parallel": max_parallel,
            "max_depth": max_depth,
            "mask": Mask(secrets) if secrets else None,
            "ending_timeout": ending_timeout,
            "patience": observer_patience,
            "clock": clock or _CLOCK,
        }
        self._program: Program | None = None
        self._running: dict[str, _Running | Segment] = {}
        self._steering: dict[str, Result[OutputT] | None] = {}
        self._kept: OrderedDict[str, Fold] = OrderedDict()

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
        mask: Mask | None = self._given["mask"]
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
        hooks = [*self.registered.hooks, *self._pipeline.observing()]
        if self._output.schema is not None:
            check = Hook("gate", ModelReplying, self._output.check, {"name": "output", "band": "guard"})
            check.inherit = False
            hooks.append(check)
        transforms, slots = [*self.registered.transforms, *self._masking()], self.registered.slots
        compiled = CompiledHooks(hooks, transforms, slots) if hooks or transforms or slots else NO_HOOKS
        tools, sections, windows = self.tools, self._sections(), self._windows()
        criteria = [*self._pipeline.criteria, *self.registered.criteria]
        self._program = Program(
            name=self.name,
            model=self.model,
            sections=sections,
            tools=tools,
            output_schema=self._output.schema,
            read_output=None if self._output.schema is None else self._output.parse,
            hooks=compiled,
            compactors=self.registered.compactors,
            windows=windows,
            criteria=criteria,
            composites=self._pipeline.composites,
            handlers=self._pipeline.handlers,
            store=self._store,
            observers=Observers(),
            scopes=() if self.scope is None else ((self.name, self.scope),),
            description=describe(
                compiled.all,
                tools.values(),
                [name_of(criterion) for criterion in criteria],
                prompt_of(sections, self.model.name, windows, self._given["settings"], self._output.schema),
                [self._given["mask"]],
            ),
            **self._given,
        )
        try:
            for delegate in self._program.delegates.values():
                require_scopes(self._program, self.scope, program_of(self._program, delegate))
            check_matchers(self._program)
        except BaseException:
            self._program = None
            raise
        return self._program

    def _masking(self) -> list[Transform]:
        """The last of all transformers takes the secrets out, if the application has named any."""
        mask: Mask | None = self._given["mask"]
        if mask is None:
            return []
        return [Transform(lambda: Masking(mask), CHANNELS, "secrets", LAST, "guard", inherit=True)]

    def _windows(self) -> dict[str, int | None]:
        """How much each model can have before it: what was given, or what the model says itself."""
        known = {name: getattr(model, "context_window", None) for name, model in self._given["models"].items()}
        own = getattr(self.model, "context_window", None) if self._window is None else self._window
        return {**known, self.model.name: own}

    def _sections(self) -> list[TextPart]:
        """What the system text is put together from, the most stable first."""
        own = (0, TextPart(self.system))
        ranked = sorted([own, *self.registered.instructions], key=lambda ranked: ranked[0])
        return [section for _, section in ranked if section.text]

    def explain(self) -> Explanation:
        """The compiled agent like a query plan: `print(agent.explain())`. It is compiled if it was not."""
        from .explaining import Explanation, explained

        program = self.compile()
        return Explanation(
            explained(program, capabilities=self._capabilities, output=self._output.type, busy=self.busy)
        )

    def _compile_below(self, parent: Program, tools: tuple[str, ...] | None) -> Program:
        """Seal the agent as a child of another one: with what that one passes on, and with these of its tools."""
        return below(parent, self.compile(), tools, describe)

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
        if session is not None and session in self._running:
            return await self._while_busy(session, given, scope, slots)
        if session is None:
            segment = self._enter_unnamed(given, scope, slots)
        else:
            segment = await self._enter(session, given, None, scope, slots)
        try:
            if session is None:
                result = self._result(segment, await _drive(segment))
            else:
                result = await self._finish(segment)
        finally:
            self._leave(segment)
        if self.registered.approvers and result.waiting_for:
            return await self._approved(result, scope)
        return result

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
        check_scope(self.compile(), scope)
        self.refuse_busy(session)
        _check_answers(answers)
        return await self._produce(session, None, answers, scope, None)

    async def _approved(
        self,
        result: Result[OutputT],
        scope: Any,
        emit: Emit | None = None,
        handover: Handover[StreamEvent] | None = None,
    ) -> Result[OutputT]:
        """Go on for as long as approvers answer what is asked."""
        heard: set[tuple[Any, ...]] = set()
        while result.waiting_for:
            answers, failures = await self._ask_approvers(result, heard)
            if failures:
                result = await self._note(result, failures, scope)
            further = await self._answer(result.session_id, answers, scope, emit, handover) if answers else None
            if further is None:
                break
            result = further
        return result

    async def _ask_approvers(
        self, result: Result[OutputT], heard: set[tuple[Any, ...]]
    ) -> tuple[dict[str, AnyResolution], list[HookFailed]]:
        """What the approvers of this process answer, and how some failed, which leaves their question open.

        Each approver is asked once whenever a question is put; the first who answers it has answered it.
        """
        answers: dict[str, AnyResolution] = {}
        failures: list[HookFailed] = []
        for asked in result.waiting_for:
            put = (asked.id, asked.digest, times_asked(result, asked))
            for place, approver in enumerate(self.registered.approvers):
                if asked.id in answers or (*put, place) in heard:
                    continue
                heard.add((*put, place))
                try:
                    answer = await ask_approver(
                        result.session_id, approver, asked, self._given["clock"].now, self._check_edit
                    )
                except Exception as error:
                    failures.append(HookFailed(name_of(approver), asked.event, error_value(error), "left open"))
                else:
                    if answer is not None:
                        answers[asked.id] = answer
        return answers, failures

    async def _answer(
        self,
        session: str,
        answers: dict[str, AnyResolution],
        scope: Any,
        emit: Emit | None,
        handover: Handover[StreamEvent] | None,
    ) -> Result[OutputT] | None:
        """Resume with the answers of approvers. None if the session goes on, or went on, without them."""
        while session not in self._running:
            try:
                return await self._produce_once(session, None, answers, scope, None, emit, handover)
            except NotSuspended:
                break
            except StaleAnswer as stale:  # a person answered it meanwhile, or it has expired
                if answers.pop(stale.ask_id, None) is None:
                    raise
        return None

    async def _note(self, result: Result[OutputT], facts: Sequence[Record], scope: Any) -> Result[OutputT]:
        """Add facts to the log of a suspended session. What cannot be written there is in the Python log only."""
        session = result.session_id
        for fact in facts:
            log.warning("session %r: %r", session, fact)
        if session in self._running:
            return result
        self._running[session] = running = _Running()
        try:
            segment = running.segment = Segment(self.compile(), await self._log(session), scope=scope, resumed=True)
            for fact in facts:
                segment.record(fact)
            return self._result(segment, await segment.settle())
        except (SessionError, StoreError):
            return result
        finally:
            del self._running[session]
            running.end()

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
        _check_answers(answers)
        check_scope(self.compile(), scope)
        handover: Handover[State] = Handover()

        async def produce() -> None:
            result = await self._produce(session, given, answers, scope, slots, emit=handover.put)
            handover.offer(result.state)

        return handover.read(produce)

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
        """A turn as it happens: words and facts in one stream. Without a message it resumes.

        Whoever leaves the stream before its end cancels the turn.
        """
        given = None if message is None else _user_message(message)
        if given is None and session is None:
            raise ConfigError("stream needs a message, or a session to resume")
        _check_answers(answers)
        check_scope(self.compile(), scope)
        results: list[Result[OutputT]] = []
        handover: Handover[StreamEvent] = Handover(PLACES)

        async def produce() -> None:
            results.append(await self._produce(session, given, answers, scope, slots, handover=handover))

        return Stream(handover.read(produce), results)

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
            raise _unknown(session)
        return fold(session, records)

    async def why(self, session: str) -> Why:
        """Why the latest turn of a session went as it did, or where it stands, as the log tells it."""
        from .why import Why

        records = await self._store.read(session)
        if not records:
            raise _unknown(session)
        return Why(session, records)

    async def prefixes(self, session: str) -> tuple[Prefix, ...]:
        """How stable the prefix of a session's requests was, call by call, and who broke it, as the log tells it."""
        from .context.prefixes import prefixes
        from .context.replay import described, pipelines, requests

        records = await self._store.read(session)
        if not records:
            raise _unknown(session)
        known = {digest: described(await self._store.pipeline(digest)) for digest in pipelines(records)}
        return prefixes(requests(session, records, known), self._given["count"])

    async def steer(self, session: str, message: str | Message) -> None:
        """Put a message into the turn that is running in a session; the model reads it at its next step.

        If none is running, the session's next turn reads it.
        """
        if session not in self._running and not await self._store.read(session):
            raise _unknown(session)
        await self._put(session, secrets.token_hex(8), "steer", _user_message(message))

    async def cancel(self, session: str, reason: str = "") -> bool:
        """End the turn of a session, wherever it runs; False if there is none that could be ended.

        One that runs here ends now, one that is suspended or runs elsewhere when its owner next looks at its inbox. The
        session may be that of a sub-agent: then the agent that called it goes on.
        """
        check_reason(reason)
        if (segment := self._segment(session)) is not None:
            return segment.cancel(reason)
        records = await self._store.read(session)
        if not records:
            raise _unknown(session)
        state = fold(session, records)
        if state.over:
            return False
        await self._put(session, secrets.token_hex(8), "cancel", {"turn": state.turns, "reason": reason})
        return True

    async def resolve(self, session: str, ask_id: str, answer: AnyResolution) -> None:
        """Answer a question of a session without going on with it, from any process.

        It counts at the session's next `resume`, or at once if its turn is still at work beside the question.
        """
        mask, now = self._given["mask"], self._given["clock"].now()
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
            await self._refuse_child(session)
        name = to or new_id()
        await fork_session(self._store, session, name, at, self._given["clock"].now())
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
        if "/" in session:
            await self._refuse_child(session)
        if not program.compactors:
            raise ConfigError(f"agent {self.name!r} has nothing to compact with: give it a strategy such as Summarize")
        self._running[session] = running = _Running()
        try:
            log = await self._log(session)
            if log.turn is None:
                raise _unknown(session)
            _refuse_parented(log)
            segment = running.segment = Segment(program, log, scope=scope)
            segment.resumed, segment.recorded = False, ()  # what was decided and asked before is not this
            done = await compact_now(segment, instructions)
            await segment.settle()
            self._keep(segment)
            return done
        finally:
            del self._running[session]
            running.end()

    async def _put(self, session: str, key: str, kind: str, data: Any) -> None:
        """Into the inbox of a session, without secrets."""
        mask: Mask | None = self._given["mask"]
        await self._store.put(session, key, kind, data if mask is None else mask.plain(msgspec.to_builtins(data)))

    def _segment(self, session: str) -> Segment | None:
        """The turn that runs here in a session, or in one below it."""
        running = self._running.get(session)
        if running is not None:
            return _segment_of(running)
        roots = [_segment_of(running) for running in list(self._running.values())]
        found: list[Segment] = [root for root in roots if root is not None]
        while found:
            segment = found.pop()
            if segment.fold.session == session:
                return segment
            if session.startswith(f"{segment.fold.session}/"):
                found += segment.children
        return None

    # ------------------------------------------------------------ how a turn is entered and left

    def _enter_unnamed(
        self,
        message: Message,
        scope: Any,
        slots: Mapping[str, Any] | None,
        handover: Handover[StreamEvent] | None = None,
    ) -> Segment:
        """A segment over the log of a session that ends with the turn."""
        program = self._program or self.compile()
        name = new_id()
        self._running[name] = segment = Segment(program, Fold(name), message, None, scope, slots, True, handover)
        return segment

    async def _enter(
        self,
        session: str,
        message: Message | None,
        answers: Mapping[str, AnyResolution] | None,
        scope: Any,
        slots: Mapping[str, Any] | None,
        handover: Handover[StreamEvent] | None = None,
    ) -> Segment:
        """A segment over the session's log. The session is busy until `_leave`."""
        program = self._program or self.compile()
        self._running[session] = running = _Running()
        try:
            if "/" in session:
                await self._refuse_child(session)
            log = await self._log(session)
            _refuse_parented(log)
            if message is None:
                _check_resumable(log.state)
            running.segment = segment = Segment(program, log, message, answers, scope, slots, False, handover)
            segment.inbox = bool(await self._store.take(session, log.inbox))
            return segment
        except BaseException:
            del self._running[session]
            running.end()
            raise

    def _leave(self, segment: Segment) -> None:
        segment.release()
        running = self._running.pop(segment.fold.session)
        if isinstance(running, _Running):
            running.end()

    async def _finish(self, segment: Segment, emit: Emit | None = None) -> Result[OutputT]:
        token = _inside.set((*_inside.get(), self._running[segment.fold.session]))
        try:
            state = await _drive(segment, emit)
        finally:
            _inside.reset(token)
        return self._ended(segment, state)

    async def _produce(
        self,
        session: str | None,
        message: Message | None,
        answers: Mapping[str, AnyResolution] | None,
        scope: Any,
        slots: Mapping[str, Any] | None,
        emit: Emit | None = None,
        handover: Handover[StreamEvent] | None = None,
    ) -> Result[OutputT]:
        """The turn of `resume`, `iterate` and `stream`."""
        if session is not None and session in self._running:
            await self._wait_for_turn(session, message)
        result = await self._produce_once(session, message, answers, scope, slots, emit, handover)
        if self.registered.approvers and result.waiting_for:
            return await self._approved(result, scope, emit, handover)
        return result

    async def _produce_once(
        self,
        session: str | None,
        message: Message | None,
        answers: Mapping[str, AnyResolution] | None,
        scope: Any,
        slots: Mapping[str, Any] | None,
        emit: Emit | None,
        handover: Handover[StreamEvent] | None,
    ) -> Result[OutputT]:
        if session is None:
            assert message is not None
            segment = self._enter_unnamed(message, scope, slots, handover)
        else:
            segment = await self._enter(session, message, answers, scope, slots, handover)
        try:
            paced = None if emit is None else lambda state: segment.wait_for_consumer(emit(state))
            return await self._finish(segment, paced)
        finally:
            if segment.voice is not None:
                segment.voice.close()
            self._leave(segment)

    def _result(self, segment: Segment, state: State) -> Result[OutputT]:
        mask: Mask | None = self._given["mask"]
        failure = segment.failure if mask is None else mask.error(segment.failure)
        return Result(state, self._output, segment.hooks.slots, failure, segment.fold.written)

    def _ended(self, segment: Segment, state: State) -> Result[OutputT]:
        """The result, also for those whose steering the turn has heard."""
        result = self._result(segment, state)
        if not segment.ephemeral:
            self._keep(segment)
            for key in list(self._steering):
                if key in state.inbox and self._steering.get(key, result) is None:
                    self._steering[key] = result
        return result

    async def _log(self, session: str) -> Fold:
        """A session's log, folded: what was kept of it and what came since, or else all of it.

        Whoever gets it owns it. A kept one counts only if the store still has the record it ends with.
        """
        kept = self._kept.pop(session, None)
        if kept is not None:
            since = await self._store.read(session, kept.stored - 1)
            if since and since[0] == kept.written[-1]:
                kept.extend(since[1:])
                return kept
        return fold_log(session, await self._store.read(session))

    def _keep(self, segment: Segment) -> None:
        """Keep the log of a turn that is over for the next one. Who still works for this turn cannot write to it."""
        log = segment.fold
        if log.written and not log.pending and log.state.over:
            segment.seal()
            self._kept[log.session] = log
            if len(self._kept) > _KEPT_SESSIONS:
                self._kept.popitem(last=False)

    async def _wait_for_turn(self, session: str, message: Message | None) -> None:
        """A message to a busy session that is to be streamed or iterated over waits if messages are queued."""
        if message is None or self.busy != "queue":
            self.refuse_busy(session)
        self._refuse_waiting(session)
        while isinstance(running := self._running.get(session), _Running):
            await running.ended()

    async def _refuse_child(self, session: str) -> None:
        """Raise if the session is that of a sub-agent: outside of its call the hooks above would not hold for it."""
        named = CHILD.fullmatch(session)
        above = await self._store.read(named[1]) if named is not None else ()
        if named is not None and any(isinstance(record, Delegated) and record.session == session for record in above):
            raise child_refused(session, named[1])

    async def _while_busy(self, session: str, message: Message, scope: Any, slots: Any) -> Result[OutputT]:
        """What a message to a busy session means: refused, queued, or steering the turn that runs."""
        if self.busy == "refuse":
            self.refuse_busy(session)
        self._refuse_waiting(session)
        if self.busy == "queue":
            await self._wait_for_turn(session, message)
            return await self.run(message, session=session, scope=scope, slots=slots)
        key = secrets.token_hex(8)
        self._steering[key] = None
        try:
            await self._put(session, key, "steer", message)
            while isinstance(running := self._running.get(session), _Running):
                await running.ended()
                if (heard := self._steering[key]) is not None:
                    return heard
            return self._steering[key] or await self._run_steering(session, key, message, scope, slots)
        finally:
            del self._steering[key]

    async def _run_steering(self, session: str, key: str, message: Message, scope: Any, slots: Any) -> Result[OutputT]:
        """A turn for steering that no turn has heard. One that heard it and was cancelled is its result, too."""
        segment = await self._enter(session, message, None, scope, slots)
        try:
            if key in segment.fold.inbox and segment.state.outcome is not None:
                return self._result(segment, segment.state)
            segment.taken = key
            result = await self._finish(segment)
        finally:
            self._leave(segment)
        return await self._approved(result, scope)

    def _refuse_waiting(self, session: str) -> None:
        """Raise if the turn that runs in the session cannot be waited for: the caller is part of it, or it is the last.

        A session without a name of its own ends with its turn.
        """
        running = self._running.get(session)
        if isinstance(running, Segment):
            raise SessionBusy(
                f"a turn is running in session {session!r}, which was given no name and ends with it; use agent.steer",
                session=session,
            )
        if running in _inside.get():
            raise SessionBusy(
                f"session {session!r} was given a message from inside its own turn, which would wait for itself; "
                "use turn.add or agent.steer to say something in it, or another session",
                session=session,
            )

    def refuse_busy(self, session: str) -> None:
        """Raise if a turn is running in the session."""
        if session in self._running:
            raise SessionBusy(f"a turn is running in session {session!r}; {_WHILE_BUSY[self.busy]}", session=session)


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
        self.agent.refuse_busy(self.id)
        log = fold_log(self.id, await self.agent.store.read(self.id))
        state = log.state
        if state.seq and state.over and not state.ended:
            segment = Segment(self.agent.compile(), log, resumed=True)
            segment.record(SessionEnded())
            await segment.settle()


class _Running:
    """A turn that runs in a session, for those who wait for its end, be it in other threads."""

    __slots__ = ("_over", "_waiters", "segment")

    def __init__(self) -> None:
        self.segment: Segment | None = None
        self._over = False
        self._waiters: list[asyncio.Future[None]] = []

    async def ended(self) -> None:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        if not self._over:  # asked after the waiter is listed: one of the two sees the other
            await waiter

    def end(self) -> None:
        self._over = True
        for waiter in self._waiters:
            if not waiter.done():
                waiter.get_loop().call_soon_threadsafe(_set, waiter)


def _segment_of(running: _Running | Segment) -> Segment | None:
    """The segment of a turn that runs: that of a session without a name stands for itself, nobody waits for its end."""
    return running if isinstance(running, Segment) else running.segment


_inside: ContextVar[tuple[object, ...]] = ContextVar("windlass_inside", default=())
"""The turns of named sessions that the current task is part of."""


def _set(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


_WHILE_BUSY = {
    "refuse": "wait, or make the agent with busy='queue' or 'steer'",
    "queue": "wait: only a message is queued",
    "steer": "wait: only a message that is given to run, or to agent.steer, goes into it",
}
"""What can be done about a turn that is running."""


def _unknown(session: str) -> SessionUnknown:
    return SessionUnknown(f"there is no session {session!r}", session=session)


def _refuse_parented(log: Fold) -> None:
    """Raise if a log is that of a sub-agent, wherever it was copied to: the guards of its parent hold only there."""
    if log.opened is not None and log.opened.parent:
        raise child_refused(log.session, log.opened.parent)


def _check_resumable(state: State) -> None:
    if state.seq == 0:
        raise _unknown(state.session)
    if state.over:
        raise NotSuspended(
            f"session {state.session!r} has no turn to resume: the last one ended with {state.outcome!r}",
            session=state.session,
        )


def _check_answers(answers: object) -> None:
    if answers is not None and not isinstance(answers, Mapping):
        raise ConfigError(f"answers={answers!r}: give a mapping from the id of a question to its answer")


def _user_message(message: str | Message) -> Message:
    if type(message) is not Message:
        return as_message(message)
    try:
        given = said_message(message)
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

    thread = threading.Thread(target=copy_context().run, args=(work,), name="windlass-run-sync")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return results[0]


_prefix = secrets.token_hex(5)
_numbers = itertools.count(1)


def new_id() -> str:
    """An id for a session that was given none: unique over processes, and cheap."""
    return f"s{_prefix}{next(_numbers):x}"


def _reseed() -> None:
    global _prefix
    _prefix = secrets.token_hex(5)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_reseed)


def _is_scope(given: object) -> bool:
    """Whether `isinstance` takes it: a class or a union does, a TypedDict and `dict[str, int]` do not."""
    try:
        isinstance(None, given)  # type: ignore[arg-type]
    except TypeError:
        return False
    return not isinstance(given, tuple)


_MODEL = Domain(
    "a model, with `name` and `async reply(request)`, or a name such as 'openai:gpt-5'",
    lambda given: (
        isinstance(given, str)
        or (hasattr(given, "reply") and isinstance(getattr(given, "name", None), str) and not isinstance(given, type))
    ),
)
_OPTIONS: dict[str, Domain] = {
    "model": _MODEL,
    "tools": each("a list of tools, each", Domain("a function or a Tool", callable)),
    "system": TEXT,
    "scope": optional(Domain("a class that isinstance takes", _is_scope)),
    "name": TEXT,
    "settings": optional(instance("a mapping", Mapping)),
    "criteria": each("a list of criteria, each", CRITERION),
    "approvers": each("a list of approvers, each", APPROVER),
    "errors": optional(instance("an ErrorPolicy", ErrorPolicy)),
    "models": each("a list of models, each", _MODEL),
    "pipeline": optional(instance("a Pipeline", Pipeline)),
    "unmatched": choice("allow", "ask", "deny"),
    "busy": choice("refuse", "queue", "steer"),
    "window": optional(whole(1)),
    "tokenizer": optional(Domain("a function from a text to its number of tokens", callable)),
    "injection_reserve": whole(0),
    "max_regenerations": whole(0),
    "max_vetoes": whole(0),
    "max_idle_steps": whole(0),
    "max_parallel": whole(1),
    "max_depth": whole(0),
    "ending_timeout": number(above=0),
    "observer_patience": number(least=0),
    "clock": optional(having("a clock with now, monotonic, sleep and alarm", "now", "monotonic", "sleep", "alarm")),
}
"""What the arguments of an agent may be. The others are checked where they are read: `output`, `store`, `secrets`."""

_TEXT: Output[Any] = Output(str)
_DEFAULT_PIPELINE = Pipeline.minimal()
_DEFAULT_POLICY = ErrorPolicy()
_CLOCK = SystemClock()
_KEPT_SESSIONS = 256

__all__ = ["Agent", "Result", "Session"]
