"""The verbs as decorators: applications, capabilities and plugins register hooks with them."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import (
    Any,
    Literal,
    Self,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

from msgspec import Struct

from windlass._options import (
    APPROVER,
    CRITERION,
    FLAG,
    MODEL,
    SUBAGENT,
    TEXT,
    WHOLE,
    Domain,
    check_each,
    check_options,
    choice,
    each,
    instance,
    optional,
    whole,
)
from windlass.context.compaction import Compactor
from windlass.decisions import AnyResolution
from windlass.errors import CompiledError, ConfigError, RegistrationError
from windlass.events import Event
from windlass.messages import ModelCall, ModelRequest, TextPart, ToolCall
from windlass.models import open_model
from windlass.outputs import FEEDBACK, OutputMode, OutputRule
from windlass.policies import ErrorRule
from windlass.protocols import Model
from windlass.records import Fact
from windlass.slots import Slot
from windlass.states import Step
from windlass.storage import Home, Storage
from windlass.tools import Tool, tool
from windlass.turns import SubAgent, Turn
from windlass.types import (
    Approver,
    Criterion,
    GateHook,
    InjectHook,
    ModelWrap,
    ObserveHook,
    RewriteHook,
    SaysHook,
    StepWrap,
    ToolWrap,
    Transformer,
    TurnWrap,
)

from .conceals import Conceal, concealed_answer
from .conditions import Condition, Errors, Names
from .hooks import Band, Hook, Kind, Options, is_async
from .lifecycles import hooks_of
from .matching import Matcher
from .reveals import Reveal
from .shared import Shared
from .streams import Channel, Transform

E = TypeVar("E")
D = TypeVar("D")
P = TypeVar("P")
T = TypeVar("T")
FactT = TypeVar("FactT", bound=Fact)
TransformerT = TypeVar("TransformerT", bound=Callable[[], Transformer])


FACTORY = Domain(
    "a function without parameters, not async",
    lambda given: callable(given) and not is_async(given),
)


Others: TypeAlias = str | type | Sequence[str | type]
"""Other capabilities: the name or class of one, or a list of them."""

OTHERS = each(
    "names or classes of capabilities: a list, each", instance("a str or a class", str, type)
)


class _Options(TypedDict, total=False):
    name: str
    """The name of the hook in records, in `explain` and in errors. By default that of the function."""
    tool: Matcher
    """Only calls that match: a name, a glob, a rule such as `bash(rm *)`, a list, a compiled regular expression, or a
    function of the call."""
    when: Condition
    """Only if this function returns true. It gets the event; for a wrap the request, call, state or turn. It must not
    be async."""
    priority: int
    """Hooks with a higher number run earlier in their band. 0 by default."""
    band: Band
    """`early`, `normal` (the default) or `guard`. The guard band is nearest to what it protects: last rewrite,
    innermost wrap, last transformer. Only the application may use it."""
    inherit: bool
    """Whether sub-agents get the hook, too. They always get those of the guard band."""
    enabled: Callable[[], Any]
    """A function that is called when the agent is compiled. If it returns false, the hook is left out and costs
    nothing."""


class ToolWrapOptions(_Options, total=False):
    """Options of a wrap of tool calls."""

    read_only: bool
    """Whether `turn` only reads: it sleeps, limits the time and shows the state, but cannot write, note, ask or
    delegate. Such a wrap costs less."""


class ModelWrapOptions(ToolWrapOptions, total=False):
    """Options of a wrap of model calls."""

    model: Names
    """Only requests to these models: a name, a glob, a compiled regular expression, or a list of them."""
    side_calls: bool
    """Whether it also surrounds the calls that hooks and tools make with `turn.ask`. Wraps of the guard band always
    do."""


class _Timed(_Options, total=False):
    agent: Names
    """Only sub-agents of these names, on `Delegating` and `SubagentStopping`."""
    model: Names
    """Only requests to these models, on `ModelCalling`."""
    error: Errors
    """Only these errors, on `Erring`: a class, a category of the error policy, or a list of them."""
    timeout: float
    """After how many seconds the hook has failed. A plain function also needs `thread=True`."""
    thread: bool
    """Run a plain function in a thread. By default it runs on the event loop."""


class ObserveOptions(TypedDict, total=False):
    """Options of an observer."""

    name: str
    """The name of the observer in records, in `explain` and in errors. The cursor of a durable observer has it, too."""
    tool: Matcher
    """Only facts about these tools: names, globs, compiled regular expressions, or a list of them."""
    agent: Names
    """Only facts about sub-agents of these names: `Delegated`."""
    when: Condition
    """Only facts for which this function returns true. It must not be async."""
    wait: bool
    """Whether the turn waits for it. A plain function then runs on the event loop, unless `thread=True` is set."""
    durable: bool
    """Whether it reads the log behind a cursor in the store: every fact at least once, also after a crash."""
    tries: int
    """How often a durable observer gets a fact on which it fails, before it skips the fact. 3 by default."""
    timeout: float
    """After how many seconds it has failed. A plain function with `wait` also needs `thread=True`."""
    thread: bool
    """Run a plain function with `wait` in a thread. Without `wait` a plain function always runs in a thread."""
    inherit: bool
    """Whether sub-agents get the observer, too, with facts of their own sessions."""
    enabled: Callable[[], Any]
    """A function that is called when the agent is compiled. If it returns false, the hook is left out and costs
    nothing."""


class InjectOptions(_Timed, total=False):
    """Options of an injection."""

    group: str
    """Injections of one group at one event run in parallel. They only add, and are merged in order of declaration."""
    optional: bool
    """Whether the turn continues without it if it fails. `HookFailed` records that."""
    reserve: int
    """How many tokens it may add. More is an error that names the hook."""


class RewriteOptions(_Timed, total=False):
    """Options of a rewrite, and of a `hook`."""

    live: bool
    """Whether text is streamed before the hook has seen the whole reply or answer. If it changes something, what was
    streamed is retracted."""


class GateOptions(_Timed, total=False):
    """Options of a gate."""

    mode: Literal["shadow"]
    """With `shadow` it runs beside the action and never delays it; its answer is recorded and has no effect."""
    costly: bool
    """Ask it last, and only if no other gate refused: for gates that call a model."""
    on_resume: Literal["reuse", "rerun"]
    """Whether a recorded answer counts on resume (`reuse`, which needs a `name`), or the gate is asked again (`rerun`,
    the default)."""
    on_error: Literal["unreviewed"]
    """On `ModelReplying`: if the gate fails, let the reply pass, and list the gate in `outcome.unreviewed`."""
    live: bool
    """Whether text is streamed before the gate has seen the whole reply or answer. If it refuses, what was streamed is
    retracted."""


class Check(Struct, frozen=True):
    """A function that looks at the assembled agent and returns what is wrong, or None; and whose it is."""

    fn: Callable[[Any], str | None]
    capability: str | None = None


class Constraints(Struct, frozen=True):
    """What a capability says about others, by name or class, and about the store."""

    before: tuple[str | type, ...]
    after: tuple[str | type, ...]
    conflicts: tuple[str | type, ...]
    requires: tuple[str | type, ...]
    durable: bool


class GivenModel(Struct, frozen=True):
    """A model that an agent has: the text that it was opened from, if any, and the capability that brought it."""

    model: Model
    text: str | None = None
    capability: str | None = None

    @classmethod
    def of(cls, given: Model | str, capability: str | None = None) -> GivenModel:
        """A model, or the model that a text such as `openai:gpt-5` names."""
        if isinstance(given, str):
            return cls(open_model(given), given, capability)
        return cls(given, None, capability)


class Registered:
    """Everything that a registrar has collected."""

    __slots__ = (
        "approvers", "checks", "closers", "compactors", "conceals", "constraints", "criteria", "error_rules",
        "hooks", "instructions", "models", "outputs", "reveals", "slots", "subagents", "tools", "transforms",
    )  # fmt: skip

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.transforms: list[Transform] = []
        self.tools: list[Tool[..., Any]] = []
        self.slots: list[Slot[Any]] = []
        self.models: list[GivenModel] = []
        self.error_rules: list[ErrorRule] = []
        self.reveals: list[Reveal] = []
        self.conceals: list[Conceal] = []
        self.subagents: list[SubAgent[Any]] = []
        self.criteria: list[Criterion] = []
        self.approvers: list[Approver] = []
        self.compactors: list[Compactor] = []
        self.outputs: list[tuple[str, OutputRule]] = []
        self.instructions: list[tuple[int, TextPart]] = []
        self.checks: list[Check] = []
        self.constraints: list[Constraints] = []
        self.closers: list[Callable[[], Awaitable[None]]] = []


class Registrar:
    """Collects hooks, tools, slots, criteria and instructions. After compiling it refuses more."""

    _origin: str | None = None
    _sealed = ""

    def __init__(self, home: Home | None = None) -> None:
        self._registered = Registered()
        self._home = Home() if home is None else home

    # ------------------------------------------------------------ the verbs

    def observe(
        self, fact: type[FactT], **options: Unpack[ObserveOptions]
    ) -> Callable[[ObserveHook[FactT]], ObserveHook[FactT]]:
        """Observe a fact. The observer runs beside the turn, cannot change it and cannot break it.

        With `wait=True` the turn waits for it. With `durable=True` it gets the facts of the log: at
        least once, in the order of the log, also those that another process wrote;
        `turn.session_id` and `fact.seq` identify a fact, and a parameter named `link` says where it is
        in the hash chain.
        """
        return self._verb("observe", fact, options)

    def inject(
        self, event: type[Event[E, D, P]], **options: Unpack[InjectOptions]
    ) -> Callable[[InjectHook[E]], InjectHook[E]]:
        """Add context: text, parts, or `Injected(parts, durable=True)`."""
        return self._verb("inject", event, options)

    def rewrite(
        self, event: type[Event[E, D, P]], **options: Unpack[RewriteOptions]
    ) -> Callable[[RewriteHook[E, P]], RewriteHook[E, P]]:
        """Change the payload: return a new one, or None to leave it."""
        return self._verb("rewrite", event, options)

    def gate(
        self, event: type[Event[E, D, P]], **options: Unpack[GateOptions]
    ) -> Callable[[GateHook[E, D]], GateHook[E, D]]:
        """Decide: return a decision that the event takes, or None. The strictest answer wins."""
        return self._verb("gate", event, options)

    @overload
    def wrap(
        self, effect: type[ModelCall], **options: Unpack[ModelWrapOptions]
    ) -> Callable[[ModelWrap], ModelWrap]: ...
    @overload
    def wrap(
        self, effect: type[ToolCall], **options: Unpack[ToolWrapOptions]
    ) -> Callable[[ToolWrap], ToolWrap]: ...
    @overload
    def wrap(
        self, effect: type[Step], **options: Unpack[_Options]
    ) -> Callable[[StepWrap], StepWrap]: ...
    @overload
    def wrap(
        self, effect: type[Turn[Any]], **options: Unpack[_Options]
    ) -> Callable[[TurnWrap], TurnWrap]: ...
    def wrap(self, effect: type, **options: Unpack[ModelWrapOptions]) -> Callable[[Any], Any]:
        """Surround an effect.

        `call_next` may be called repeatedly; for a step or turn exactly once.
        """
        return self._verb("wrap", effect, options)

    def hook(
        self, event: type[Event[E, D, P]], **options: Unpack[RewriteOptions]
    ) -> Callable[[SaysHook[E, D]], SaysHook[E, D]]:
        """Combine verbs: return `Says(rewrite, decision, inject)`. It runs before the rewrites."""
        return self._verb("hook", event, options)

    @overload
    def transform(self, transformer: TransformerT, /) -> TransformerT: ...
    @overload
    def transform(
        self,
        /,
        *,
        channels: tuple[Channel, ...] = ...,
        name: str | None = ...,
        priority: int = ...,
        band: Band = ...,
        inherit: bool = ...,
        when: Callable[[ModelRequest], Any] | None = ...,
    ) -> Callable[[TransformerT], TransformerT]: ...
    def transform(
        self,
        transformer: Any = None,
        /,
        *,
        channels: tuple[Channel, ...] = ("text",),
        name: str | None = None,
        priority: int = 0,
        band: Band = "normal",
        inherit: bool = False,
        when: Callable[[ModelRequest], Any] | None = None,
    ) -> Any:
        """Change a model's reply as it streams: a class with `feed` and `flush`, made for each
        attempt.

        `when` limits it to replies to requests for which a function returns true.
        """

        def register(factory: TransformerT) -> TransformerT:
            self._open("transform", getattr(factory, "__name__", "transform"))
            self._check_band(band, getattr(factory, "__name__", "transform"))
            registered = self._registered.transforms
            if not any(known.factory is factory and known.when is when for known in registered):
                made = Transform(factory, channels, name, priority, band, inherit, when)
                self._add_transform(made)
            return factory

        return register if transformer is None else register(transformer)

    def with_lifecycle(
        self,
        lifecycle: Any,
        *,
        band: Band | None = None,
        priority: int | None = None,
        inherit: bool | None = None,
        live: bool | None = None,
    ) -> Self:
        """Register the methods that a `Lifecycle` or `LifecycleHook` overrides.

        `band`, `priority` and `inherit` are those of its hooks. With `live`, the stream does not wait for `after_model`
        and `after_agent`.
        """
        self._open("lifecycle", type(lifecycle).__name__)
        given = {"band": band, "priority": priority, "inherit": inherit, "live": live}
        options = {name: value for name, value in given.items() if value is not None}
        for hook in hooks_of(lifecycle, cast(Options, options)):
            self._add(hook)
        return self

    # ------------------------------------------------------------ tools, slots and the rest

    def tool(self, fn: Callable[..., Any] | Tool[..., Any]) -> Tool[..., Any]:
        """Add a tool: one made by `@tool`, or a plain function."""
        made = fn if isinstance(fn, Tool) else tool(fn)
        self._open("tool", made.name)
        made = made if self._origin is None else made.brought_by(self._origin)
        self._registered.tools.append(made)
        return made

    def subagent(self, agent: SubAgent[Any]) -> None:
        """Declare an agent that hooks and tools give tasks to in the background, with `turn.delegate`.

        Another process finds it by its name and continues its work after a crash. An agent that is a
        tool of this one need not be declared.
        """
        check_each("subagent", SUBAGENT, [agent])
        self._open("sub-agent", str(getattr(agent, "name", agent)))
        self._registered.subagents.append(agent)

    def slot(self, slot: Slot[T]) -> Slot[T]:
        """Declare a slot. Names of slots must be unique in an agent.

        A parameter annotated with the type of a slot gets its value. If several slots have that type, it gets the one
        that was declared together with its hook or tool, then the one that has the parameter's name.
        """
        self._open("slot", slot.name)
        refuse_slot_clash(slot, self._registered.slots, self._origin)
        if all(known is not slot for known in self._registered.slots):
            self._registered.slots.append(slot)
        return slot

    def criterion(self, criterion: Criterion) -> Criterion:
        """Let a function vote on whether the turn continues."""
        self._open("criterion", getattr(criterion, "__name__", type(criterion).__name__))
        check_each("criterion", CRITERION, [criterion])
        self._registered.criteria.append(criterion)
        return criterion

    def compactor(self, compactor: Compactor) -> None:
        """Let a strategy shorten the history that models see, whenever it is due."""
        self._open("compactor", compactor.name)
        refuse_compactor_clash(compactor, self._registered.compactors)
        self._registered.compactors.append(compactor)

    def output(
        self,
        *,
        mode: OutputMode | None = None,
        repairs: int | None = None,
        feedback: str = FEEDBACK,
    ) -> None:
        """Say how the typed answer of `Agent(output=…)` is obtained. Only one capability of an agent may do so.

        `mode` is the setting `output_mode` of its requests: `native` gives the schema to the vendor, `tool` lets the
        model call a tool with the answer, `prompt` puts the schema into the system text, and `auto` is `native` where
        the model has it, otherwise `tool`. An answer that does not fit is asked for again at most `repairs` times, by
        default as often as `Agent(max_regenerations=…)` allows; the model reads `feedback`, with what is wrong in the
        place of `{error}`.
        """
        domains = {
            "mode": optional(choice(*get_args(OutputMode))),
            "repairs": optional(whole(0)),
            "feedback": TEXT,
        }
        check_options("output", domains, {"mode": mode, "repairs": repairs, "feedback": feedback})
        self._open("output rule", str(mode))
        self._registered.outputs.append(
            (self._origin or "the application", OutputRule(mode, repairs, feedback))
        )

    def errors(self, *rules: ErrorRule) -> None:
        """Add rules for errors: `registrar.errors(ErrorRule(TimeoutError, "retry", tool="fetch"))`.

        The first rule that matches an error decides, those of the agent's own `ErrorPolicy` before these. Gates on
        `Erring` may answer something else, and the bounds of the policy always hold.
        """
        check_each("errors", instance("an ErrorRule", ErrorRule), rules)
        self._open("error rule", ", ".join([rule.words for rule in rules]))
        self._registered.error_rules.extend(rules)

    def reveal(
        self,
        fn: Callable[..., str] | None = None,
        /,
        *,
        tool: Matcher | None = None,
        name: str | None = None,
        inherit: bool = False,
    ) -> Any:
        """Let a function replace placeholders in the arguments of a call right before the tool gets them.

        The function gets every text of the decoded arguments, at any depth, and may take `turn`, too. It runs after the
        call was decided and its digest taken, so gates, wraps, people and the log see the placeholder. `tool` limits it
        to calls of some tools; a task for a sub-agent is never changed. If it fails, the tool does not run.

        Only arguments are protected: if the tool returns the revealed text, the result has it. Remove it there with a
        rewrite on `ToolReturning`, or name it in `Agent(secrets=…)`.
        """

        def register(function: Callable[..., str]) -> Callable[..., str]:
            made = Reveal(function, tool, name, inherit=inherit)
            self._open("reveal", made.name)
            self._add_reveal(made)
            return function

        return register if fn is None else register(fn)

    def conceal(
        self,
        fn: Callable[[str], str] | None = None,
        /,
        *,
        errors: bool = True,
        answers: bool = True,
        name: str | None = None,
        inherit: bool = False,
    ) -> Any:
        """Let a function clean texts that pass no hook: of errors, and of what people write in their answers.

        The function gets a text and returns the text to record. Texts of errors are cleaned in records, in observers,
        in the stream and in the error that the caller gets. Of answers these are cleaned before they are stored or
        used: the arguments of an `Edit`, the message of a `Reject`, the text of a `Respond`. With `errors=False` or
        `answers=False` the others are left as they are. If the function fails, an error's text is withheld, and an
        answer is refused. An answer that `approvals.resolve` puts into the store without an agent is cleaned when the
        session reads it.
        """
        check_options(
            "conceal", {"errors": FLAG, "answers": FLAG}, {"errors": errors, "answers": answers}
        )

        def register(function: Callable[[str], str]) -> Callable[[str], str]:
            made = Conceal(function, name, errors=errors, answers=answers, inherit=inherit)
            self._open("conceal", made.name)
            self._add_conceal(made)
            return function

        return register if fn is None else register(fn)

    def shared(self, factory: Callable[[], T], *, name: str | None = None) -> Shared[T]:
        """An object that all agents of this process share; calling the result returns it.

        Agents that pass the same factory, or the same `name`, get the same object. `factory` is called once, on first
        use. Slots are per session; use this for what must be common, such as a rate limiter or a pool of connections.
        """
        domains = {"factory": FACTORY, "name": optional(TEXT)}
        check_options("shared", domains, {"factory": factory, "name": name})
        self._open("shared object", name or str(getattr(factory, "__name__", factory)))
        return Shared(factory, name)

    def storage(self, name: str) -> Storage:
        """Durable values in the agent's store, which all processes that use the store share: `storage("budget")`.

        Every storage of that name has the same values, whoever opens it. Use the result in hooks and tools; keep it in
        a local variable of `install`, not on the capability, which may serve several agents. An application may call
        `agent.storage(name)` at any time, for example to read a quota or to clear a cache.
        """
        return Storage(name, self._home, self._origin)

    def approver(self, approver: Approver) -> Approver:
        """Let a function answer questions in this process: it returns an answer or None."""
        self._open("approver", getattr(approver, "__name__", type(approver).__name__))
        check_each("approver", APPROVER, [approver])
        self._registered.approvers.append(approver)
        return approver

    def at_close(self, fn: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Let an async function release what belongs to the agent, such as connections, in `agent.aclose()`.

        It is called when turns, background agents and observers are done, and before the store is closed; the last one
        that was registered comes first. If it fails, the Python log says so, and the others are still called.
        """
        check_each("at_close", Domain("an async function", is_async), [fn])
        self._open("function for the end", str(getattr(fn, "__name__", fn)))
        self._registered.closers.append(fn)
        return fn

    def instruct(self, text: str, *, rank: int = 0) -> None:
        """Add a section to the system text. Sections stand in the order of their ranks.

        Give the most stable section the lowest rank. Text that changes from turn to turn does not
        belong there, because it would break the prefix that vendors cache: inject it on
        `TurnStarting`, or on `SessionStarting` if it stays the same for a whole session.
        """
        check_options("instruct", {"text": TEXT, "rank": WHOLE}, {"text": text, "rank": rank})
        self._open("instructions", text[:40])
        self._registered.instructions.append((rank, TextPart(text, self._origin)))

    # ------------------------------------------------------------ what a subclass may restrict

    def _verb(self, kind: Kind, event: type, options: Any) -> Callable[[Any], Any]:
        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            if not callable(fn):
                raise RegistrationError(f"{kind} on {event!r} needs a callable, got {fn!r}")
            self._add(Hook(kind, event, fn, cast(Options, dict(options))))
            return fn

        return register

    def _add(self, hook: Hook) -> None:
        self._open(hook.kind, hook.name)
        self._check_band(hook.band, hook.name)
        hook.declared = self._registered.slots
        self._registered.hooks.append(hook)

    def _add_transform(self, transform: Transform) -> None:
        self._registered.transforms.append(transform)

    def _add_reveal(self, reveal: Reveal) -> None:
        self._registered.reveals.append(reveal)

    def _add_conceal(self, conceal: Conceal) -> None:
        self._registered.conceals.append(conceal)

    def _open(self, kind: str, name: str) -> None:
        """Raise if the registrar is sealed."""
        if self._sealed:
            text = f"{kind} {name!r} was registered {self._sealed}, so it would have no effect"
            raise CompiledError(text)

    def _seal(self, since: str) -> None:
        """Refuse later registrations. `since` says when they became too late."""
        self._sealed = since

    def _check_band(self, band: Band, name: str) -> None:
        """Raise if this registrar may not use the band."""


class Hooks(Registrar):
    """A collection of hooks and what belongs to them, for a pipeline: `Pipeline.minimal().with_hooks(hooks)`."""

    def model(self, model: Model | str) -> str:
        """Add a model that requests may be sent to, and return its name: `request.replace(model=name)`.

        The model is an object, or a text such as `openai:gpt-5`. A request that a hook sends to it passes the gates on
        `ModelCalling`, like any other. Two different models of one name are an error when the agent is compiled. Hooks
        that sub-agents inherit may use it there, too.
        """
        check_each("model", MODEL, [model])
        given = GivenModel.of(model, self._origin)
        self._open("model", given.model.name)
        self._registered.models.append(given)
        return given.model.name

    def mask(self, value: Any) -> Any:
        """A JSON value without the secrets that the application named, ready to be stored."""
        return self._home.mask(value)

    async def resolve(self, session: str, ask_id: str, answer: AnyResolution) -> None:
        """Answer a question of a session in the agent's store, as `agent.resolve` does: for an approver that answers
        later than it is asked. A stale answer raises `StaleAnswer`."""
        place = self._home.place()
        if place is None:
            raise ConfigError(
                "a collection of hooks cannot answer questions before it is part of an agent"
            )
        from windlass.approvals import resolve

        mask = None if place.mask is None else place.mask.plain
        answer = concealed_answer(place.conceals, answer)
        await resolve(place.store, session, ask_id, answer, now=place.clock.now(), mask=mask)

    def check(self, fn: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
        """Let a function check the assembled agent: it gets an `Assembly` and returns what is wrong, or None.

        It is asked once, when the agent is compiled, and what it returns is raised as a `ConfigError`. For a sub-agent
        it sees the store of the agent above.
        """
        check_each("check", Domain("a function, not async", FACTORY.holds), [fn])
        self._open("check", str(getattr(fn, "__name__", fn)))
        self._registered.checks.append(Check(fn, self._origin))
        return fn

    def constrain(
        self,
        *,
        before: Others = (),
        after: Others = (),
        conflicts: Others = (),
        requires: Others = (),
        durable: bool = False,
    ) -> None:
        """Say how this capability goes together with others, by name or class; it is checked when the agent is
        compiled, and nothing is reordered.

        It must be installed `before` or `after` some, cannot be combined with those it `conflicts` with, and `requires`
        others to be there. `before` and `after` do not require them. With `durable` it needs a store that outlives the
        process.
        """
        if self._origin is None:
            raise ConfigError("only a capability can be constrained: call it in install(registrar)")
        given = {"before": before, "after": after, "conflicts": conflicts, "requires": requires}
        others = {
            name: (value,) if isinstance(value, str | type) else value
            for name, value in given.items()
        }
        check_options(
            "constrain",
            {**dict.fromkeys(given, OTHERS), "durable": FLAG},
            {**others, "durable": durable},
        )
        self._open("constraint", self._origin)
        self._registered.constraints.append(
            Constraints(**{name: tuple(value) for name, value in others.items()}, durable=durable)
        )


class Part(Hooks):
    """The registrar of a capability. Its hooks carry its name and cannot ask for the guard band."""

    def __init__(self, capability: str, band: Band | None, home: Home | None = None) -> None:
        super().__init__(home)
        self._capability = self._origin = capability
        self._band: Band | None = band

    def _add(self, hook: Hook) -> None:
        super()._add(hook)
        hook.capability = self._capability
        if self._band is not None:
            hook.band = self._band
            hook.inherit = hook.inherit or self._band == "guard"

    def _add_transform(self, transform: Transform) -> None:
        super()._add_transform(transform)
        transform.capability = self._capability
        if self._band is not None:
            transform.band = self._band
            transform.inherit = transform.inherit or self._band == "guard"

    def _add_reveal(self, reveal: Reveal) -> None:
        super()._add_reveal(reveal)
        reveal.capability = self._capability
        reveal.inherit = reveal.inherit or self._band == "guard"

    def _add_conceal(self, conceal: Conceal) -> None:
        super()._add_conceal(conceal)
        conceal.capability = self._capability
        conceal.inherit = conceal.inherit or self._band == "guard"

    def _check_band(self, band: Band, name: str) -> None:
        if band == "guard":
            raise RegistrationError(
                f"capability {self._capability!r} asks for the guard band for {name!r}; "
                "only the application can assign it: agent.with_capability(…, band='guard')",
                hook=name,
            )


def refuse_slot_clash(slot: Slot[Any], known: Iterable[Slot[Any]], capability: str | None) -> None:
    """Raise if another slot has the name of this one."""
    for other in known:
        if other is not slot and other.name == slot.name:
            whose = "" if capability is None else f" of capability {capability!r}"
            text = f"slot {slot!r}{whose} clashes with {other!r}: names must be unique, so rename one of them"
            raise ConfigError(text)


def refuse_compactor_clash(compactor: Compactor, known: Iterable[Compactor]) -> None:
    """Raise if another compactor has the name of this one."""
    if any(other.name == compactor.name for other in known):
        raise RegistrationError(
            f"there are two compactors named {compactor.name!r}: rename one of them"
        )


def refuse_compiled(kind: str, name: str) -> CompiledError:
    """The error for a registration that comes too late."""
    return CompiledError(
        f"{kind} {name!r} was registered after the first run had compiled the agent: "
        "register it earlier, or make a new agent"
    )
