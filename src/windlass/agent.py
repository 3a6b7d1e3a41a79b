"""An agent: the class that users make, register hooks with and run."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from copy import copy
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, TypedDict, Unpack, cast, overload

from msgspec.structs import replace

from ._background import LazyBackground
from ._hooks.conceals import concealed_answer
from ._hooks.hooks import Band
from ._hooks.registrar import GivenModel, Registered, Registrar, refuse_compiled
from ._kernel.channel import PLACES, Channel
from ._kernel.child_program import check_edit, child_program
from ._kernel.delegation import Delegate
from ._kernel.program import BOUNDS, Options, Program, SystemClock
from ._kernel.scopes import check_scope
from ._options import as_list, check_options
from ._sync import run_sync
from ._threads import run_alone
from .assembly import OPTIONS, check_program, compile_program
from .checking import check_reason, checked_import, message_without_calls
from .composition import Composition, label_of
from .decisions import AnyResolution
from .deltas import StreamEvent
from .errors import ConfigError, StoreError
from .events import ModelReplying, TurnEnding
from .ids import check_id, check_new_id
from .masking import Mask
from .messages import AnyMessage, Message, ToolCall, as_message, user
from .outputs import Output
from .pipeline import Pipeline
from .policies import ErrorPolicy
from .protocols import Capability, Clock, Model, Store
from .randomness import random_bytes
from .records import Asked, Compacted, Record
from .results import Result, Stream
from .run_options import GivenOptions, RunOptions, read_options
from .sessions import AnyAnswers, Sessions, TurnRequest, check_answers, new_id, unknown_session
from .slots import Slot
from .states import SLICE, State, fold_in_slices
from .storage import Place
from .stores import open_store
from .tools import Tool, toolset
from .turns import BackgroundTask, SubAgent
from .types import Approver, Criterion
from .variants import variant_of

if TYPE_CHECKING:
    from typing_extensions import TypeForm, TypeVar

    from .batches import Batch, BatchProgress
    from .context.prefixes import Prefix
    from .explaining import Explanation
    from .watching import Watch
    from .why import Why

    ScopeT = TypeVar("ScopeT", default=Any)
    OutputT = TypeVar("OutputT", default=str)

    class _Given(TypedDict, total=False):
        """The parameters of an agent that do not say what it is typed with, once for both of its signatures."""

        tools: Iterable[Callable[..., Any]]
        system: str
        name: str
        settings: Mapping[str, Any] | None
        criteria: Iterable[Criterion]
        approvers: Iterable[Approver]
        errors: ErrorPolicy | None
        store: str | Store | None
        models: Iterable[Model | str]
        capabilities: Iterable[Capability | str]
        pipeline: Pipeline | None
        unmatched: Literal["allow", "ask", "deny"]
        busy: Literal["refuse", "queue", "steer"]
        window: int | None
        tokenizer: Callable[[str], int] | None
        injection_reserve: int
        max_steps: int | None
        max_regenerations: int
        max_vetoes: int
        max_idle_steps: int
        max_parallel: int
        max_depth: int
        subagents: Iterable[SubAgent[Any]]
        per_run_tools: bool
        measure_hooks: bool
        ending_timeout: float
        observer_patience: float
        secrets: Iterable[str]
        clock: Clock | None

else:
    from typing import TypeVar

    ScopeT = TypeVar("ScopeT")
    OutputT = TypeVar("OutputT")

T = TypeVar("T")
log = logging.getLogger("windlass")


class Agent(Registrar, Generic[ScopeT, OutputT]):
    """A model, its tools and its hooks.

    Hooks are registered with the verbs `observe`, `inject`, `rewrite`, `gate`, `wrap`, `transform` (and `hook`, which
    combines them) until the first run compiles the agent; registering later raises `CompiledError`. One agent serves
    any number of sessions at once.

    - `model`: the model, as an object or as a text such as `openai:gpt-5`.
    - `tools`: the tools that the model may call: functions, `@tool` functions, `agent.as_tool()`.
    - `system`: the system text. Hooks and capabilities add sections to it.
    - `output`: the type of the answer. The model is told its schema, and `result.output` is a value of this type:
      a class, `A | B`, `Literal["yes", "no"]`, `list[A]`; or a JSON schema, and `result.output` is a plain value.
    - `scope`: the type of the application's data. The agent then runs and resumes only with `scope=` an instance of it.
    - `name`: the name in logs, in `explain` and as a sub-agent.
    - `settings`: settings of the model, such as `temperature` and `max_tokens`.
    - `criteria`: limits and other functions that vote after each step on whether the turn continues.
    - `approvers`: functions in this process that answer the questions of gates.
    - `errors`: what to do about errors: retry, ignore, halt.
    - `store`: where sessions are stored: an address such as `sqlite:///agent.db`, or a store. Without it, in memory.
    - `models`: further models, to which hooks may send a request, by name.
    - `capabilities`: ready-made behaviours, installed in this order.
    - `pipeline`: replaces parts of the kernel or adds collections of hooks to it.
    - `unmatched`: what happens to a tool call that no gate answers: `allow`, `ask` a person, or `deny`.
    - `busy`: what happens to a message for a session whose turn is running: `refuse` it with `SessionBusy`, `queue` it,
      or `steer` the running turn with it.
    - `per_run_tools`: whether hooks may be limited to tools that only `run(tools=…)` brings.
    - `window`: the size of the model's context window in tokens, if the model does not say it.
    - `tokenizer`: counts the tokens of a text. By default they are estimated.
    - `injection_reserve`: how many tokens of the window all injections of one request may fill.
    - `max_steps`: after how many steps a turn stops. A `StepLimit` among the criteria replaces it; None lifts it.
    - `max_regenerations`: how often one reply may be requested again because gates reject it.
    - `max_vetoes`: how often gates may veto the stop of one turn.
    - `max_idle_steps`: how many steps in a row may pass without a tool call.
    - `max_parallel`: how many tool calls of one step run at the same time.
    - `max_depth`: how deep sub-agents may be nested.
    - `measure_hooks`: whether each turn records how long its hooks took and how its replies were streamed, summed up in
      one `HooksRan`. `windlass run`, `chat`, `serve` and `worker` switch it on.
    - `ending_timeout`: how many seconds the hooks at the end of a step, or of a turn, may take together.
    - `observer_patience`: how many seconds the end of a turn waits for observers. Slower ones continue after that.
    - `secrets`: texts that are masked before anything is hashed, stored or logged.
    - `clock`: the source of time; a `FakeClock` in tests.
    """

    @overload
    def __init__(
        self,
        model: Model | str,
        *,
        output: None = None,
        scope: type[ScopeT] | None = None,
        **given: Unpack[_Given],
    ) -> None: ...
    @overload
    def __init__(
        self: Agent[Any, Any],
        model: Model | str,
        *,
        output: Mapping[str, Any],
        scope: type[Any] | None = None,
        **given: Unpack[_Given],
    ) -> None: ...
    @overload
    def __init__(
        self,
        model: Model | str,
        *,
        output: TypeForm[OutputT],
        scope: type[ScopeT] | None = None,
        **given: Unpack[_Given],
    ) -> None: ...
    def __init__(
        self,
        model: Model | str,
        *,
        tools: Iterable[Callable[..., Any]] = (),
        system: str = "",
        output: TypeForm[OutputT] | Mapping[str, Any] | None = None,
        scope: type[ScopeT] | None = None,
        name: str = "agent",
        settings: Mapping[str, Any] | None = None,
        criteria: Iterable[Criterion] = (),
        approvers: Iterable[Approver] = (),
        errors: ErrorPolicy | None = None,
        store: str | Store | None = None,
        models: Iterable[Model | str] = (),
        subagents: Iterable[SubAgent[Any]] = (),
        capabilities: Iterable[Capability | str] = (),
        pipeline: Pipeline | None = None,
        unmatched: Literal["allow", "ask", "deny"] = "allow",
        busy: Literal["refuse", "queue", "steer"] = "refuse",
        window: int | None = None,
        tokenizer: Callable[[str], int] | None = None,
        injection_reserve: int = 8192,
        max_steps: int | None = 100,
        max_regenerations: int = 2,
        max_vetoes: int = 3,
        max_idle_steps: int = 20,
        max_parallel: int = 16,
        max_depth: int = 5,
        per_run_tools: bool = False,
        measure_hooks: bool = False,
        ending_timeout: float = 5.0,
        observer_patience: float = 0.5,
        secrets: Iterable[str] = (),
        clock: Clock | None = None,
    ) -> None:
        super().__init__()
        tools, criteria = as_list(tools), as_list(criteria)
        approvers, models, secrets = as_list(approvers), as_list(models), as_list(secrets)
        capabilities, subagents = as_list(capabilities), as_list(subagents)
        given = locals()
        check_options("Agent", OPTIONS, given)
        own, others = GivenModel.of(model), [GivenModel.of(other) for other in models]
        model = own.model
        if (check_settings := getattr(model, "check_settings", None)) is not None:
            check_settings(settings or {})
        self.name = name
        self.model = model
        self._own_model = own
        self.system = system
        self.scope = scope
        self.busy: Literal["refuse", "queue", "steer"] = busy
        self._window = window
        self._max_steps = max_steps
        self._per_run_tools = per_run_tools
        self._measure_hooks = measure_hooks
        self._toolset = toolset(tools)
        self._output: Output[OutputT] = _TEXT if output is None else Output(cast(Any, output))
        self._store = open_store(store)
        self._owns_store = isinstance(store, str)
        self._owns_parts = True
        self._pipeline = pipeline or _DEFAULT_PIPELINE
        self._composition = Composition(self._registered, self._home)
        self._registered.models.extend(others)
        self._registered.subagents.extend(subagents)
        self._registered.criteria.extend(criteria)
        self._registered.approvers.extend(approvers)
        self._options = Options(
            **{option: given[option] for option in BOUNDS},
            models={},
            settings=settings or {},
            policy=errors or _DEFAULT_POLICY,
            tokenizer=tokenizer,
            mask=Mask(secrets) if secrets else None,
            clock=clock or _CLOCK,
        )
        conceals = self._registered.conceals
        self._home.move_to(Place(self._store, self._options.clock, self._options.mask, conceals))
        self._assembled: Program | None = None
        self._program: Program | None = None
        self._sessions = Sessions(self._store, self._output, busy, self._registered, self._options.mask)
        self._background = LazyBackground(self._store, self._sessions)
        for capability in capabilities:
            self.with_capability(capability)

    @property
    def tools(self) -> Mapping[str, Tool[..., Any]]:
        """The tools by name, as models see them."""
        if self._assembled is not None:
            return self._assembled.tools
        slots = self._registered.slots
        mine = toolset([*self._toolset.values(), *self._registered.tools])
        return {name: made.bound(slots) for name, made in mine.items()} if slots else mine

    @property
    def store(self) -> Store:
        """The store of its sessions."""
        return self._store

    # ------------------------------------------------------------ assembly

    def with_store(self, store: str | Store) -> Self:
        """Keep sessions in another store: an address such as `sqlite:///agent.db`, or a store."""
        self._open("store", store if isinstance(store, str) else type(store).__name__)
        opened = open_store(store)
        place = Place(opened, self._options.clock, self._options.mask, self._registered.conceals)
        self._store = opened
        self._owns_store = isinstance(store, str)
        self._home.move_to(place)
        self._sessions = Sessions(opened, self._output, self.busy, self._registered, self._options.mask)
        self._background = LazyBackground(opened, self._sessions)
        return self

    def with_capability(
        self,
        capability: Capability | str,
        *,
        name: str | None = None,
        band: Band | None = None,
        replace: str | None = None,
    ) -> Self:
        """Let a capability install itself; the application may put it into the guard band.

        A text names an entry point of the group `windlass.capabilities`. A second capability of one name gets a number:
        `retry#2`. With `replace`, it takes the place of the capability of that name.
        """
        self._open("capability", capability if isinstance(capability, str) else label_of(capability))
        self._composition.install(capability, name=name, band=band, replace=replace)
        return self

    def without_capability(self, name: str, *, band: Band | None = None) -> Self:
        """Remove a capability with all it brought. One in the guard band is only removed with `band="guard"`."""
        self._open("removal of capability", name)
        self._composition.remove(name, band)
        return self

    def with_measured_hooks(self) -> Self:
        """Record in each turn how long its hooks took, as `Agent(measure_hooks=True)` does."""
        self._open("measuring of", "hooks")
        self._measure_hooks = True
        return self

    def slot(self, slot: Slot[T]) -> Slot[T]:
        self._composition.own_slots.append(slot)
        return super().slot(slot)

    def _merge(self, part: Registered) -> None:
        mine = self._registered
        mine.hooks += part.hooks
        mine.transforms += part.transforms
        mine.tools += [tool.bound(part.slots) for tool in part.tools]
        mine.models += part.models
        mine.error_rules += part.error_rules
        mine.reveals += part.reveals
        mine.conceals += part.conceals
        mine.outputs += part.outputs
        mine.criteria += part.criteria
        for compactor in part.compactors:
            self.compactor(compactor)
        mine.approvers += part.approvers
        mine.instructions += part.instructions
        mine.checks += part.checks
        mine.closers += part.closers
        for slot in part.slots:
            self.slot(slot)

    def _open(self, kind: str, name: str) -> None:
        if self._assembled is not None:
            raise refuse_compiled(kind, name)

    def compile(self) -> None:
        """Compile the agent. The first run does this; call it earlier to find mistakes earlier."""
        self._compile()

    def _compile(self) -> Program:
        if self._program is None:
            program = self._assemble()
            try:
                self._composition.check(program)
            except BaseException:
                self._assembled = None
                raise
            self._program = program
        return self._program

    def _assemble(self) -> Program:
        """Compile the agent without the checks of its capabilities, which depend on the agent above."""
        if self._assembled is not None:
            return self._assembled
        for registrar in self._pipeline.registrars:
            self._merge(registrar._registered)
            registrar._home.join(self._home)
            registrar._seal("after the first run had compiled the agent")
        self._pipeline = replace(self._pipeline, registrars=())
        self._assembled = compile_program(
            self._options,
            self._registered,
            self._pipeline,
            self._output,
            name=self.name,
            own=self._own_model if self._own_model.model is self.model else GivenModel(self.model),
            system=self.system,
            tools=self.tools,
            window=self._window,
            max_steps=self._max_steps,
            store=self._store,
            home=self._home,
            check=self._composition.check,
            scope=self.scope,
            background=self._background,
            measure_hooks=self._measure_hooks,
        )
        try:
            check_program(self._assembled, self.scope, per_run_tools=self._per_run_tools)
        except BaseException:
            self._assembled = None
            raise
        self._home.move_to(self._assembled.place)
        self._home.seal()
        return self._assembled

    def explain(self) -> Explanation:
        """Compile the agent and explain it like a query plan: `print(agent.explain())`."""
        from .explaining import Explanation, describe_agent

        program = self._compile()
        return Explanation(
            describe_agent(program, capabilities=self._composition.described(program), output=self._output.name)
        )

    def variant(self, **options: Unpack[RunOptions]) -> Self:
        """This agent with other options, as an agent of its own: the same hooks, guards, capabilities and store.

        The options are those of `RunOptions`: another `model`, more `settings`, `criteria` and `tools`. Calling this
        compiles the agent, so register all hooks before; the variant is compiled, too. Variants with equal options are
        compiled once. Each can resume the sessions of the others. Closing a variant closes neither the store nor what
        capabilities hold.
        """
        read = read_options("variant", options)
        program = self._compile()
        if read is not None:
            program = variant_of(program, read, for_turn=False)
        made = copy(self)
        made._program = made._assembled = program
        made.model = program.model
        made._owns_store = made._owns_parts = False
        return made

    def _compile_below(self, parent: Program, tools: tuple[str, ...] | None) -> Program:
        """Compile the agent as a child of another one, with what its parent passes on and with these of its tools."""
        program = child_program(parent, self._assemble(), tools)
        self._composition.check(program)
        return program

    def as_tool(
        self,
        name: str | None = None,
        description: str | None = None,
        *,
        share: float | None = None,
        tools: Sequence[str] | None = None,
    ) -> Tool[..., Any]:
        """Make this agent a tool of another agent: the tool takes a task and returns the agent's answer.

        Every call is a session of its own, in the store of the calling agent. Its spending counts against the calling
        agent's budgets; `share`, above 0 and up to 1, limits one call to that part of what is left. `tools` limits it
        to some of its tools. The calling agent's hooks in the guard band or with `inherit=True` apply to it, too.
        """
        below, parts, result = self._compile_below, self._parts, self._child_result
        return Delegate(self.name, below, parts, result, name, description, share, tools)

    def _child_result(self, state: State, slots: Any, failure: Any, written: Any) -> Result[OutputT]:
        """The result of a turn of this agent as a child of another one."""
        return Result(state, self._output, slots, failure, written)

    def _parts(self) -> tuple[Mask | None, Iterable[Tool[..., Any]]]:
        """What an agent above must know before it is compiled: whose secrets are masked in its log."""
        declared = [agent.as_tool() for agent in self._registered.subagents]
        return self._options.mask, (*self.tools.values(), *declared)

    # ------------------------------------------------------------ running

    def _enter(self, scope: object, options: GivenOptions | None = None) -> Program:
        """Compile the agent, with the options of a turn, and check the scope of a call."""
        program = self._compile()
        if options is not None:
            program = variant_of(program, options, for_turn=True)
        check_scope(program, scope)
        return program

    @overload
    async def run(
        self: Agent[None, OutputT],
        message: AnyMessage,
        *,
        session: str | None = None,
        scope: None = None,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]: ...
    @overload
    async def run(
        self,
        message: AnyMessage,
        *,
        session: str | None = None,
        scope: ScopeT,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]: ...
    async def run(
        self,
        message: AnyMessage,
        *,
        session: str | None = None,
        scope: ScopeT | None = None,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]:
        """Run a turn, from a user message to its outcome. Without a session id, the session ends with the turn.

        If a turn of the session is running, here or in another process, `busy` of the agent says what happens.
        `takeover=True` runs the turn all the same: the other process can write no more, and what it had begun is in
        doubt.

        `options` are those of `RunOptions`, for this turn only: `model`, `settings`, `criteria`, `tools`. They are
        recorded and also apply when the turn is resumed. No option removes a hook or a criterion of the agent.
        """
        given = user(message) if type(message) is str else user_message(message)
        if session is not None:
            check_id(session)
        program = self._program or self._compile()
        read = None
        if options and (read := read_options("run", options)) is not None:
            program = variant_of(program, read, for_turn=True)
        if program.scopes:
            check_scope(program, scope)
        request = TurnRequest(session, given, None, scope, slots, takeover=takeover, options=read)
        return await self._sessions.run(program, request)

    @overload
    async def resume(
        self: Agent[None, OutputT],
        session: str,
        *,
        answers: AnyAnswers | None = None,
        scope: None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]: ...
    @overload
    async def resume(
        self,
        session: str,
        *,
        answers: AnyAnswers | None = None,
        scope: ScopeT,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]: ...
    async def resume(
        self,
        session: str,
        *,
        answers: AnyAnswers | None = None,
        scope: ScopeT | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]:
        """Resume a suspended or interrupted turn. The keys of `answers` are the ids of the questions; a value is an
        answer, or a list with the answers of several people. If every question still needs more answers, they are
        recorded, and the turn stays suspended.

        A turn that another process is working on is `SessionBusy`, unless `takeover=True`. If that process has died,
        the turn is resumed at once. The session of an agent that works in the background is resumed here, too, by the
        agent that started it; the result is that of the background task.

        A turn that was started with options of its own keeps them. Pass again those that are code: tools, functions
        as criteria, a model object. Different options raise `ConfigError`.
        """
        check_id(session)
        program, read = self._enter(scope), read_options("resume", options)
        check_answers(answers)
        if "//" in session:
            child: Result[OutputT] | None = await self._background().resume(
                program, session, answers, scope, read, takeover=takeover
            )
            if child is not None:
                return child
        request = TurnRequest(session, None, answers, scope, takeover=takeover, options=read)
        return await self._sessions.run(program, request)

    async def resume_background(self, session: str, *, scope: ScopeT | None = None) -> tuple[BackgroundTask[Any], ...]:
        """Continue the agents that work for a session in the background, if a crash has interrupted them or people have
        answered what they ask. `run` and `resume` of the session do this, too.

        It returns at once, with all that are not done; `await task.result()` waits for one. They run in tasks of this
        event loop, under the guards of this agent. Those that another process drives are left to it.
        """
        check_id(session)
        return await self._background().go_on(self._enter(scope), session, scope)

    @overload
    def iterate(
        self: Agent[None, OutputT],
        message: AnyMessage | None = None,
        *,
        session: str | None = None,
        answers: AnyAnswers | None = None,
        scope: None = None,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[State, None]: ...
    @overload
    def iterate(
        self,
        message: AnyMessage | None = None,
        *,
        session: str | None = None,
        answers: AnyAnswers | None = None,
        scope: ScopeT,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[State, None]: ...
    def iterate(
        self,
        message: AnyMessage | None = None,
        *,
        session: str | None = None,
        answers: AnyAnswers | None = None,
        scope: ScopeT | None = None,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> AsyncGenerator[State, None]:
        """Run a turn and yield the state after every step; the last one has the outcome. Without a message, resume."""
        given = _message_or_session("iterate", message, session)
        check_answers(answers)
        read = read_options("iterate", options)
        program = self._enter(scope, read if given is not None else None)
        channel: Channel[State] = Channel()
        request = TurnRequest(session, given, answers, scope, slots, emit=channel.put, takeover=takeover, options=read)

        async def produce() -> None:
            result = await self._sessions.run(program, request)
            channel.offer(result.state)

        return channel.read(produce)

    @overload
    def stream(
        self: Agent[None, OutputT],
        message: AnyMessage | None = None,
        *,
        session: str | None = None,
        answers: AnyAnswers | None = None,
        scope: None = None,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Stream[OutputT]: ...
    @overload
    def stream(
        self,
        message: AnyMessage | None = None,
        *,
        session: str | None = None,
        answers: AnyAnswers | None = None,
        scope: ScopeT,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Stream[OutputT]: ...
    def stream(
        self,
        message: AnyMessage | None = None,
        *,
        session: str | None = None,
        answers: AnyAnswers | None = None,
        scope: ScopeT | None = None,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Stream[OutputT]:
        """Run a turn and stream its deltas and facts. Without a message, resume.

        Leaving the stream before its end cancels the turn.
        """
        given = _message_or_session("stream", message, session)
        check_answers(answers)
        read = read_options("stream", options)
        program = self._enter(scope, read if given is not None else None)
        results: list[Result[OutputT]] = []
        channel: Channel[StreamEvent] = Channel(PLACES)
        request = TurnRequest(session, given, answers, scope, slots, channel=channel, takeover=takeover, options=read)

        async def produce() -> None:
            results.append(await self._sessions.run(program, request))

        return Stream(channel.read(produce), results, self._output)

    @overload
    def map(
        self: Agent[None, OutputT],
        inputs: Iterable[AnyMessage] | AsyncIterable[AnyMessage],
        *,
        concurrency: int = 8,
        ordered: bool = True,
        progress: bool | Callable[[BatchProgress], object] = False,
        session: str | None = None,
        scope: None = None,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Batch[OutputT]: ...
    @overload
    def map(
        self,
        inputs: Iterable[AnyMessage] | AsyncIterable[AnyMessage],
        *,
        concurrency: int = 8,
        ordered: bool = True,
        progress: bool | Callable[[BatchProgress], object] = False,
        session: str | None = None,
        scope: ScopeT,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Batch[OutputT]: ...
    def map(
        self,
        inputs: Iterable[AnyMessage] | AsyncIterable[AnyMessage],
        *,
        concurrency: int = 8,
        ordered: bool = True,
        progress: bool | Callable[[BatchProgress], object] = False,
        session: str | None = None,
        scope: ScopeT | None = None,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Batch[OutputT]:
        """Run a turn for each of many inputs, at most `concurrency` at once: `async for item in agent.map(inputs)`.

        `inputs` may be endless or async; they are read only as far as there is room. Results come in the order of the
        inputs or, with `ordered=False`, as they are ready. An error of one input does not stop the others: each item
        has a `result` or an `error`. `progress=True` shows a progress bar; a function gets a `BatchProgress`.

        With `session`, the name of the batch, each input has a session of its own. Call it again with the same name and
        inputs after a crash: results that are in the store are read, interrupted turns are resumed, and the rest is
        run. Turns that were cancelled are run again. `scope`, `slots`, `takeover` and `options` are those of `run`.
        """
        from .batches import LONGEST_SUFFIX, Batch, BatchTurns

        if session is not None:
            check_id(session)
            check_new_id(session + LONGEST_SUFFIX)
        read = read_options("map", options)
        program = self._enter(scope, read)

        async def run(message: Message, session: str | None) -> Result[OutputT]:
            request = TurnRequest(session, message, None, scope, slots, takeover=takeover, options=read)
            return await self._sessions.run(program, request)

        async def resume(session: str) -> Result[OutputT]:
            request = TurnRequest(session, None, None, scope, takeover=takeover, options=read)
            return await self._sessions.run(self._compile(), request)

        async def find(session: str) -> Result[OutputT] | None:
            records = await self._store.read(session)
            found = await fold_in_slices(session, records)
            return Result(found.state, self._output, program.hooks.slots, None, records) if records else None

        turns = BatchTurns(user_message, run, resume, find)
        return Batch(inputs, turns, concurrency=concurrency, ordered=ordered, name=session, progress=progress)

    def watch(self, session: str, *, since: str | None = None) -> Watch:
        """Watch the latest turn of a session, which another task or process runs, or which is over.

        It yields records of the log, and provisional text if the turn is streamed in this process. After a lost
        connection, pass the `token` of the earlier watch as `since`. Watching runs no hooks and does not affect the
        turn. Raises `SessionUnknown` if there is no such session.
        """
        from .watching import Watch

        check_id(session)
        at = self._compile().hooks.at
        replying, ending = at(ModelReplying), at(TurnEnding)
        return Watch(
            self._store,
            session,
            lambda: self._store.passes.get(session),
            since,
            reviews_replies=replying is not None and bool(replying.holders),
            reviews_answer=ending is not None and bool(ending.holders),
        )

    @overload
    def run_sync(
        self: Agent[None, OutputT],
        message: AnyMessage,
        *,
        session: str | None = None,
        scope: None = None,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]: ...
    @overload
    def run_sync(
        self,
        message: AnyMessage,
        *,
        session: str | None = None,
        scope: ScopeT,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]: ...
    def run_sync(
        self,
        message: AnyMessage,
        *,
        session: str | None = None,
        scope: ScopeT | None = None,
        slots: Mapping[str, Any] | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]:
        """`run` for code that is not async. If an event loop is running, it uses a thread of its own.

        It returns when agents in the background are done, too: its event loop ends with it.
        """
        given: Any = scope

        async def work() -> Result[OutputT]:
            result = await self.run(message, session=session, scope=given, slots=slots, takeover=takeover, **options)
            await self._background.drain()
            return result

        return run_sync(work)

    @overload
    def resume_sync(
        self: Agent[None, OutputT],
        session: str,
        *,
        answers: AnyAnswers | None = None,
        scope: None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]: ...
    @overload
    def resume_sync(
        self,
        session: str,
        *,
        answers: AnyAnswers | None = None,
        scope: ScopeT,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]: ...
    def resume_sync(
        self,
        session: str,
        *,
        answers: AnyAnswers | None = None,
        scope: ScopeT | None = None,
        takeover: bool = False,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]:
        """`resume` for code that is not async. It returns when agents in the background are done, too."""
        given: Any = scope

        async def work() -> Result[OutputT]:
            result = await self.resume(session, answers=answers, scope=given, takeover=takeover, **options)
            await self._background.drain()
            return result

        return run_sync(work)

    @asynccontextmanager
    async def session(self, session: str) -> AsyncGenerator[Session[ScopeT, OutputT], None]:
        """A session that is closed at the end of the block."""
        check_id(session)
        opened = Session(self, session)
        try:
            yield opened
        finally:
            await opened.close()

    async def state(self, session: str) -> State:
        """The state of a session, folded from its log."""
        return (await fold_in_slices(session, await self._records(session))).state

    async def _records(self, session: str) -> Sequence[Record]:
        check_id(session)
        records = await self._store.read(session)
        if not records:
            raise unknown_session(session)
        return records

    async def why(self, session: str) -> Why:
        """Explain from the log why the latest turn of a session went as it did, or where it stands."""
        from .why import Why

        records = await self._records(session)
        return await _beside_the_loop(records, lambda: Why(session, records))

    async def prefixes(self, session: str) -> tuple[Prefix, ...]:
        """Tell from the log how stable the prefix of a session's requests was, call by call, and what broke it."""
        from .context.prefixes import prefixes
        from .context.replay import described, pipelines, requests

        records = await self._records(session)
        known = {digest: described(await self._store.pipeline(digest)) for digest in pipelines(records)}
        tokenizer = self._options.tokenizer
        return await _beside_the_loop(records, lambda: prefixes(requests(session, records, known), tokenizer))

    async def steer(self, session: str, message: AnyMessage) -> None:
        """Add a message to the running turn of a session; the model reads it at its next step.

        If no turn is running, the session's next turn reads it.
        """
        check_id(session)
        if not self._sessions.is_running(session):
            await self._records(session)
        await self._sessions.put(session, random_bytes(8).hex(), "steer", user_message(message))

    async def cancel(self, session: str, reason: str = "") -> bool:
        """Cancel the turn of a session, in whatever process it runs; return False if there is no turn to cancel.

        A turn that runs in this process ends now. A turn that is suspended or runs in another process ends when its
        owner next reads its inbox. If the session belongs to a sub-agent, the agent that called it continues. Agents
        that work for the session in the background are cancelled, too, also if its turn is over or suspended.
        """
        check_id(session)
        check_reason(reason)
        cancelled = self._sessions.cancel(session, reason)
        if cancelled or ("//" in session and await self._background().cancel_unbegun(session, reason)):
            return True
        if cancelled is None and not (state := await self.state(session)).over:
            await self._sessions.put(session, random_bytes(8).hex(), "cancel", {"turn": state.turns, "reason": reason})
            cancelled = True
        return await self._background().cancel_all(session, reason) or bool(cancelled)

    def interrupt(self, session: str) -> bool:
        """Stop the turn that runs in this process in a session, so that it can be resumed; return False if none runs.

        What runs is broken off and nothing more is written, as if the process had died: `resume` continues the turn,
        here or in another process. Use it to end a process in time; use `cancel` to end the turn. The caller of the
        turn gets `asyncio.CancelledError`.
        """
        check_id(session)
        return self._sessions.interrupt(session)

    async def resolve(self, session: str, ask_id: str, answer: AnyResolution) -> None:
        """Answer a question of a session from any process, without resuming it.

        The answer counts at the session's next `resume`, or at once if other work of its turn is still running.
        """
        check_id(session)
        program, now = self._compile(), self._options.clock.now()
        mask, answer = program.mask, concealed_answer(program.conceals, answer)
        masked = None if mask is None else mask.plain
        from .approvals import resolve

        await resolve(self._store, session, ask_id, answer, now=now, mask=masked, fits=self._check_edit)

    def _check_edit(self, call: ToolCall) -> None:
        check_edit(self._compile(), call)

    async def catch_up(self) -> int:
        """Deliver to durable observers the facts that they have missed, in every session; return how many.

        In sessions that run in this process, durable observers follow the log by themselves. This delivers the facts
        that other processes left when they ended or crashed: call it when a process starts, or from time to time. If
        several processes call it at the same time, a fact may be delivered more than once.
        """
        from ._kernel.catch_up import catch_up

        return await catch_up(self._compile())

    async def aclose(self, *, patience: float = 30.0) -> None:
        """Wait for agents in the background, and until observers have received all facts; then let capabilities release
        what they hold, and close the store if it was given as an address.

        Call it, or use `async with agent`, when the turns are over. Durable observers also catch up in all sessions
        without a running turn. After `patience` seconds it stops waiting: for observers that hang, and for agents in
        the background, which are interrupted and can be resumed.
        """
        try:
            await self._background.drain(patience)
            if self._program is not None:
                await self._drain(self._program, patience)
        finally:
            if self._owns_parts:
                await self._close_parts()
            if self._owns_store:
                await self._store.close()

    async def _close_parts(self) -> None:
        """Let capabilities release what they hold."""
        for close in reversed(self._registered.closers):
            try:
                await close()
            except Exception as error:
                log.warning("agent %r: %s failed: %s", self.name, getattr(close, "__qualname__", close), error)

    async def _drain(self, program: Program, patience: float) -> None:
        async def catch_up_at_rest() -> None:
            from ._kernel.catch_up import catch_up

            try:
                await catch_up(program, at_rest=True)
            except StoreError as error:  # they catch up when the store works again
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
        """Copy the first `at` records of a session, by default all, to a new session; return its id.

        The fork continues from its last record: with `run`, or with `resume` if a turn is open there. It asks again
        what was asked and whose answer had no effect by then. Sub-agents that are working there are forked, too, each
        up to the first answer or cancel that the fork does not have. The original sessions are not affected.
        """
        from .transfer import fork_session

        check_id(session)
        if to is not None:
            check_new_id(to)
        name = new_id() if to is None else to
        await fork_session(self._store, session, name, at, self._options.clock.now())
        return name

    async def import_history(self, session: str, messages: Iterable[Message], *, scope: ScopeT | None = None) -> State:
        """Make existing messages the history of a new session, and return its state. The next `run` continues it.

        Each tool call must have its result in the tool messages that follow it; calls get ids of this session. Hooks on
        `MessageAdding` judge each message: a rewrite may change it, a `Deny` leaves it out, a `Halt` refuses the whole
        history. Raises `ConfigError` if a message does not fit, and `SessionConflict` if the session is not new.
        """
        check_new_id(session)
        program = self._enter(scope)
        history = checked_import(session, messages)
        return await self._sessions.import_history(program, session, history, scope)

    async def compact(
        self, session: str, *, instructions: str = "", scope: ScopeT | None = None
    ) -> tuple[Compacted, ...]:
        """Compact a session now, due or not, with every strategy in order; return the compactions that were made.

        `instructions` are for the writer of a summary. The transcript does not change. If it fails, nothing changes.
        """
        check_id(session)
        program = self._enter(scope)
        self._sessions.refuse_busy(session)
        if not program.compactors:
            raise ConfigError(f"agent {self.name!r} has nothing to compact with: give it a strategy such as Summarize")
        return await self._sessions.compact(program, session, instructions, scope)


class Session(Generic[ScopeT, OutputT]):
    """One conversation with an agent."""

    def __init__(self, agent: Agent[ScopeT, OutputT], id: str) -> None:
        self.agent = agent
        self.id = id

    @overload
    async def run(
        self: Session[None, OutputT], message: AnyMessage, *, scope: None = None, **options: Unpack[RunOptions]
    ) -> Result[OutputT]: ...
    @overload
    async def run(self, message: AnyMessage, *, scope: ScopeT, **options: Unpack[RunOptions]) -> Result[OutputT]: ...
    async def run(self, message: AnyMessage, *, scope: Any = None, **options: Unpack[RunOptions]) -> Result[OutputT]:
        """Run a turn in this session, with options of its own as in `Agent.run`."""
        return await self.agent.run(message, session=self.id, scope=scope, **options)

    @overload
    async def resume(
        self: Session[None, OutputT],
        answers: AnyAnswers | None = None,
        *,
        scope: None = None,
        **options: Unpack[RunOptions],
    ) -> Result[OutputT]: ...
    @overload
    async def resume(
        self, answers: AnyAnswers | None = None, *, scope: ScopeT, **options: Unpack[RunOptions]
    ) -> Result[OutputT]: ...
    async def resume(
        self, answers: AnyAnswers | None = None, *, scope: Any = None, **options: Unpack[RunOptions]
    ) -> Result[OutputT]:
        """Resume the suspended turn. Options that are code are passed again, as in `Agent.resume`."""
        return await self.agent.resume(self.id, answers=answers, scope=scope, **options)

    async def import_history(self, messages: Iterable[Message], *, scope: ScopeT | None = None) -> State:
        """Make existing messages the history of this session, which must be new; see `Agent.import_history`."""
        return await self.agent.import_history(self.id, messages, scope=scope)

    async def approvals(self) -> tuple[Asked, ...]:
        """The questions that need more answers, the highest priority first; each has those given so far (`answers`).

        Answers that wait for the next resume count. `windlass.approvals.progress` says who is still needed.
        """
        now = self.agent._options.clock.now()  # pyright: ignore[reportPrivateUsage]
        from .approvals import open_questions

        return tuple([asked for _, asked in await open_questions(self.agent.store, self.id, now=now)])

    async def close(self) -> None:
        """End the session. A suspended turn stays suspended and can be resumed."""
        agent = self.agent
        await agent._sessions.close(agent._compile(), self.id)  # pyright: ignore[reportPrivateUsage]


async def _beside_the_loop(records: Sequence[Record], work: Callable[[], T]) -> T:
    """Do some work on a log. For a long log it is done in a thread, so that the event loop stays responsive."""
    return work() if len(records) <= SLICE else await run_alone(work, "windlass-log")


def user_message(message: AnyMessage) -> Message:
    """A message of a user that opens a turn; raises `ConfigError` if it is not one."""
    if type(message) is not Message:
        message = as_message(message)
    try:
        given = message_without_calls(message)
    except TypeError as error:
        raise ConfigError(f"the message is invalid: {error}") from None
    if given.role != "user":
        raise ConfigError(f"a turn is opened by a user message, not by one of role {given.role!r}")
    return given


def _message_or_session(verb: str, message: AnyMessage | None, session: str | None) -> Message | None:
    """The message that opens a turn, or None if a session is resumed."""
    if message is None and session is None:
        raise ConfigError(f"{verb} needs a message, or a session to resume")
    if session is not None:
        check_id(session)
    return None if message is None else user_message(message)


_TEXT: Output[Any] = Output(str)
_DEFAULT_PIPELINE = Pipeline.minimal()
_DEFAULT_POLICY = ErrorPolicy()
_CLOCK = SystemClock()

__all__ = ["Agent", "Result", "Session"]
