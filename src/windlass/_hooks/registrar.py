"""The verbs, as decorators: how the application, a capability or a stranger's plugin registers its hooks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, TypedDict, TypeVar, Unpack, cast, overload

from windlass._options import APPROVER, CRITERION, TEXT, WHOLE, check_each, check_options
from windlass.context.compaction import Compactor
from windlass.errors import CompiledError, ConfigError, RegistrationError
from windlass.events import Event
from windlass.messages import ModelCall, TextPart, ToolCall
from windlass.records import Fact
from windlass.slots import Slot
from windlass.states import Step
from windlass.tools import Tool, tool
from windlass.turns import Turn
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

from .hooks import Band, Hook, Kind, Options
from .matching import Matcher
from .streams import Channel, Transform

E = TypeVar("E")
D = TypeVar("D")
P = TypeVar("P")
T = TypeVar("T")
FactT = TypeVar("FactT", bound=Fact)
TransformerT = TypeVar("TransformerT", bound=Callable[[], Transformer])


class _Options(TypedDict, total=False):
    name: str
    tool: Matcher
    priority: int
    band: Band
    inherit: bool


class ModelWrapOptions(_Options, total=False):
    """Of a wrap of model calls: with `side_calls` it surrounds those that hooks and tools make by `turn.ask` too."""

    side_calls: bool


class _Timed(_Options, total=False):
    timeout: float
    thread: bool


class ObserveOptions(TypedDict, total=False):
    """Of an observer: awaited before the next point (`wait`), or reading the log behind a cursor (`durable`).

    A plain function that is awaited runs on the event loop unless it says `thread=True`; others run in a thread anyway.
    A durable observer that fails is told again, `tries` times in all; then the fact is skipped.
    """

    name: str
    wait: bool
    durable: bool
    tries: int
    timeout: float
    thread: bool
    inherit: bool


class InjectOptions(_Timed, total=False):
    """Of an injection: members of one `group` run in parallel, an `optional` one may fail, `reserve` bounds tokens."""

    group: str
    optional: bool
    reserve: int


class RewriteOptions(_Timed, total=False):
    """Of a rewrite: `live` does not hold back the stream."""

    live: bool


class GateOptions(_Timed, total=False):
    """Of a gate: a shadow only looks on, a costly one is asked last."""

    mode: Literal["shadow"]
    costly: bool
    on_resume: Literal["reuse", "rerun"]
    on_error: Literal["unreviewed"]
    live: bool


class Registered:
    """What a registrar has collected."""

    __slots__ = ("approvers", "compactors", "criteria", "hooks", "instructions", "slots", "tools", "transforms")

    def __init__(self) -> None:
        self.hooks: list[Hook] = []
        self.transforms: list[Transform] = []
        self.tools: list[Tool[..., Any]] = []
        self.slots: list[Slot[Any]] = []
        self.criteria: list[Criterion] = []
        self.approvers: list[Approver] = []
        self.compactors: list[Compactor] = []
        self.instructions: list[tuple[int, TextPart]] = []


class Registrar:
    """Collects hooks, tools, slots, criteria and instructions until it is compiled; later is a clear error."""

    _origin: str | None = None
    _sealed = ""

    def __init__(self) -> None:
        self.registered = Registered()

    # ------------------------------------------------------------ the six verbs, and the one that combines them

    def observe(
        self, fact: type[FactT], **options: Unpack[ObserveOptions]
    ) -> Callable[[ObserveHook[FactT]], ObserveHook[FactT]]:
        """Look at a fact. Runs beside the turn, which does not notice whatever it does, and cannot change anything.

        With `wait=True` the turn waits for it. With `durable=True` it is told what the log holds: at least once, in the
        order of the log, also what another process wrote; `turn.session_id` and `fact.seq` tell facts apart.
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
        """Decide: return a decision that the event takes, or None to stay silent. The strictest answer wins."""
        return self._verb("gate", event, options)

    @overload
    def wrap(
        self, effect: type[ModelCall], **options: Unpack[ModelWrapOptions]
    ) -> Callable[[ModelWrap], ModelWrap]: ...
    @overload
    def wrap(self, effect: type[ToolCall], **options: Unpack[_Options]) -> Callable[[ToolWrap], ToolWrap]: ...
    @overload
    def wrap(self, effect: type[Step], **options: Unpack[_Options]) -> Callable[[StepWrap], StepWrap]: ...
    @overload
    def wrap(self, effect: type[Turn[Any]], **options: Unpack[_Options]) -> Callable[[TurnWrap], TurnWrap]: ...
    def wrap(self, effect: type, **options: Unpack[ModelWrapOptions]) -> Callable[[Any], Any]:
        """Surround an effect: `call_next` may be called any number of times (of a step or turn: exactly once)."""
        return self._verb("wrap", effect, options)

    def hook(
        self, event: type[Event[E, D, P]], **options: Unpack[RewriteOptions]
    ) -> Callable[[SaysHook[E, D]], SaysHook[E, D]]:
        """Answer in several verbs at once: runs before the rewrites and returns `Says(rewrite, decision, inject)`."""
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
    ) -> Any:
        """Change the stream of a model's words: a class with `feed` and `flush`, one instance per attempt."""

        def register(factory: TransformerT) -> TransformerT:
            self._open("transform", getattr(factory, "__name__", "transform"))
            self._check_band(band, getattr(factory, "__name__", "transform"))
            if not any(known.factory is factory for known in self.registered.transforms):
                self._add_transform(Transform(factory, channels, name, priority, band, inherit))
            return factory

        return register if transformer is None else register(transformer)

    # ------------------------------------------------------------ what else can be registered

    def tool(self, fn: Callable[..., Any] | Tool[..., Any]) -> Tool[..., Any]:
        """Add a tool: one made by `@tool`, or a plain function."""
        made = fn if isinstance(fn, Tool) else tool(fn)
        self._open("tool", made.name)
        self.registered.tools.append(made)
        return made

    def slot(self, slot: Slot[T]) -> Slot[T]:
        """Declare a slot. Two slots of one name or one type are refused."""
        self._open("slot", slot.name)
        for known in self.registered.slots:
            if known.name == slot.name or (known.type is slot.type and slot.supplied):
                raise ConfigError(f"slot {slot!r} clashes with {known!r}: names and types must be unique")
        self.registered.slots.append(slot)
        return slot

    def criterion(self, criterion: Criterion) -> Criterion:
        """Let a callable vote on whether the turn goes on."""
        self._open("criterion", getattr(criterion, "__name__", type(criterion).__name__))
        check_each("criterion", CRITERION, [criterion])
        self.registered.criteria.append(criterion)
        return criterion

    def compactor(self, compactor: Compactor) -> None:
        """Let a strategy shorten what models are shown of the history, when it says that this is due."""
        self._open("compactor", compactor.name)
        if any(other.name == compactor.name for other in self.registered.compactors):
            raise RegistrationError(f"there are two compactors named {compactor.name!r}; give one another name")
        self.registered.compactors.append(compactor)

    def approver(self, approver: Approver) -> Approver:
        """Let a callable answer what is asked, in this process: it gets the question, and returns an answer or None."""
        self._open("approver", getattr(approver, "__name__", type(approver).__name__))
        check_each("approver", APPROVER, [approver])
        self.registered.approvers.append(approver)
        return approver

    def instruct(self, text: str, *, rank: int = 0) -> None:
        """Add a section to the system text. Sections stand in the order of their ranks, the most stable first.

        What changes from turn to turn does not belong there, for it would break the prefix that vendors cache: let a
        hook inject it on `TurnStarting`, or on `SessionStarting` if it is the same for a whole session.
        """
        check_options("instruct", {"text": TEXT, "rank": WHOLE}, {"text": text, "rank": rank})
        self._open("instructions", text[:40])
        self.registered.instructions.append((rank, TextPart(text, self._origin)))

    def masked(self, value: Any) -> Any:
        """A value made of what JSON has, without the secrets that the application named: for who keeps something."""
        return value

    # ------------------------------------------------------------ what a subclass may restrict

    def _verb(self, kind: Kind, event: type, options: Any) -> Callable[[Any], Any]:
        def register(fn: Callable[..., Any]) -> Callable[..., Any]:
            if not callable(fn):
                raise RegistrationError(f"{kind} on {event!r} needs a callable, got {fn!r}")
            self.add(Hook(kind, event, fn, cast(Options, dict(options))))
            return fn

        return register

    def add(self, hook: Hook) -> None:
        """Register a hook that was made elsewhere."""
        self._open(hook.kind, hook.name)
        self._check_band(hook.band, hook.name)
        self.registered.hooks.append(hook)

    def _add_transform(self, transform: Transform) -> None:
        self.registered.transforms.append(transform)

    def _open(self, kind: str, name: str) -> None:
        """Raise if nothing can be registered any more."""
        if self._sealed:
            raise CompiledError(f"{kind} {name!r} was registered {self._sealed}, and would have no effect")

    def _seal(self, since: str) -> None:
        """Refuse what comes later."""
        self._sealed = since

    def _check_band(self, band: Band, name: str) -> None:
        """Raise if this registrar may not put anything into that band."""


class Part(Registrar):
    """What a capability registers through: its hooks carry its name and cannot ask for the guard band."""

    def __init__(self, capability: str, band: Band | None, masked: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self._masked = masked
        self._capability = self._origin = capability
        self._band: Band | None = band

    def masked(self, value: Any) -> Any:
        return value if self._masked is None else self._masked(value)

    def add(self, hook: Hook) -> None:
        super().add(hook)
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

    def _check_band(self, band: Band, name: str) -> None:
        if band == "guard":
            raise RegistrationError(
                f"capability {self._capability!r} asks for the guard band for {name!r}; only the application puts "
                "something there: agent.with_capability(…, band='guard')",
                hook=name,
            )


def refuse_compiled(kind: str, name: str) -> CompiledError:
    """The error of registering too late."""
    return CompiledError(
        f"{kind} {name!r} was registered after the first run had compiled the agent; register before, or make a new one"
    )
