"""A compiled agent: all that a turn needs and that no turn changes."""

from __future__ import annotations

import asyncio
import contextvars
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

from msgspec.structs import replace

from windlass._hooks.compiled import CompiledHooks
from windlass._hooks.conceals import Conceal
from windlass._hooks.hooks import Hook
from windlass._hooks.observers import Observers
from windlass._hooks.reveals import Reveal
from windlass._hooks.wraps import without_stop_iteration
from windlass._options import Domain, choice, number, whole
from windlass._threads import run_alone, threads
from windlass.context.assembly import blank_request, prompt_of
from windlass.context.budget import Budget
from windlass.context.compaction import Compactor
from windlass.criteria import Effect, Limit, StepLimit, name_of, on_clock, tools_ran
from windlass.errors import ConfigError
from windlass.masking import Mask
from windlass.messages import ModelRequest, TextPart, ToolSpec, frozen
from windlass.ownership import Claim
from windlass.policies import ErrorPolicy
from windlass.protocols import Clock, Model, Store
from windlass.records import Record, TurnOptions
from windlass.states import Fold
from windlass.storage import Home, Place
from windlass.tools import Tool
from windlass.types import Criterion

from . import shields
from .arguments import Held
from .delegation import Compiles, Delegate
from .descriptions import describe
from .shields import shielded

if TYPE_CHECKING:
    from .background import Detached
    from .contracts import Composites, PhaseHandler


Scopes: TypeAlias = tuple[tuple[str, Any], ...]
"""The types of scope that an agent and those below it have declared, each with the name of its
agent."""

_EFFECTS: tuple[Effect, ...] = ("model", "tool")


class AppendsNow(Protocol):
    """A store's `append` without waiting, where it has one."""

    def __call__(
        self, session: str, records: Sequence[Record], expected: int, claim: Claim | None = None
    ) -> bool: ...


class Background(Protocol):
    """What drives the agents that work in the background, each in a task of its own."""

    def start(self, child: Detached) -> None:
        """Drive a child, unless it is being driven here."""
        ...

    async def wait(self, sessions: Iterable[str]) -> None:
        """Wait until none of these children is being driven here."""
        ...

    async def ended(self, session: str) -> Fold:
        """Wait until a child has ended or waits for a person; its log."""
        ...

    async def cancel(self, session: str, reason: str) -> None:
        """Cancel a child, in whatever process it is driven."""
        ...


class SystemClock:
    """The machine's clock."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def alarm(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def timeout(self, seconds: float) -> asyncio.Timeout:
        return asyncio.timeout(seconds)


_DOMAIN = "domain"


def _within(domain: Domain) -> dict[str, Domain]:
    """The metadata of an option that has legal values."""
    return {_DOMAIN: domain}


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Options:
    """What an agent was given and its program has as it is: an option is declared here, and nowhere
    else below `Agent`.

    An option with a `Domain` of legal values is a parameter of `Agent` of the same name, and
    `explain` shows it. `Agent` makes the others from its parameters.
    """

    max_regenerations: int = field(metadata=_within(whole(0)))
    max_vetoes: int = field(metadata=_within(whole(0)))
    max_idle_steps: int = field(metadata=_within(whole(0)))
    max_parallel: int = field(metadata=_within(whole(1)))
    max_depth: int = field(metadata=_within(whole(0)))
    ending_timeout: float = field(metadata=_within(number(above=0)))
    observer_patience: float = field(metadata=_within(number(least=0)))
    injection_reserve: int = field(metadata=_within(whole(0)))
    unmatched: Literal["allow", "ask", "deny"] = field(
        metadata=_within(choice("allow", "ask", "deny"))
    )
    busy: Literal["refuse", "queue", "steer"] = field(
        metadata=_within(choice("refuse", "queue", "steer"))
    )
    models: Mapping[str, Model]
    settings: Mapping[str, Any]
    policy: ErrorPolicy
    tokenizer: Callable[[str], int] | None
    mask: Mask | None
    clock: Clock

    def given(self) -> dict[str, Any]:
        """The options by name."""
        return {option.name: getattr(self, option.name) for option in fields(Options)}


BOUNDS: dict[str, Domain] = {
    option.name: option.metadata[_DOMAIN]
    for option in fields(Options)
    if _DOMAIN in option.metadata
}
"""The options with a domain."""


@dataclass(slots=True, kw_only=True, eq=False, repr=False)
class Program(Options):
    """What an agent was compiled to. Immutable from then on.

    A field that is not an argument is derived from the others: `dataclasses.replace` derives it
    anew. `below` are the agents that are its tools or that it has declared, `subagents` has
    them by name.

    `check` raises if the capabilities of the agent find something wrong with a program of it.
    `model_texts` has, for models that were opened from a text, the name of each by its text.
    `options` are what a variant differs in. If they are those of one turn, `base` is the agent
    without them, and the last `run_tools` of its tools are those of the turn. `stopping` are hooks
    of its parent that may hold up its stop. `description` is what the store keeps of it.
    """

    name: str
    model: Model
    brought_models: Mapping[str, str]
    model_texts: Mapping[str, str]
    reveals: tuple[Reveal, ...]
    conceals: tuple[Conceal, ...]
    sections: tuple[TextPart, ...]
    tools: Mapping[str, Tool[..., Any]]
    declared: tuple[Delegate, ...]
    background: Callable[[], Background]
    output_schema: Mapping[str, Any] | None
    read_output: Callable[[str], Any] | None
    hooks: CompiledHooks
    compactors: tuple[Compactor, ...]
    windows: Mapping[str, int | None]
    criteria: tuple[Criterion, ...]
    default_limit: Limit | None
    composites: Composites
    handlers: Mapping[str, tuple[PhaseHandler, ...]]
    store: Store
    home: Home
    observers: Observers
    scopes: Scopes
    workers: Workers
    check: Callable[[Program], None]
    base: Program | None = None
    options: TurnOptions | None = None
    run_tools: int = 0
    stopping: tuple[Hook, ...] = ()

    model_name: str = field(init=False)
    specs: tuple[ToolSpec, ...] = field(init=False)
    turn_tools: tuple[str, ...] = field(init=False)
    blank: ModelRequest = field(init=False)
    system: str = field(init=False)
    budget: Budget = field(init=False)
    metered: bool = field(init=False)
    limits: tuple[Limit, ...] = field(init=False)
    limits_before: dict[Effect, tuple[Limit, ...]] = field(init=False)
    timed: bool = field(init=False)
    named_criteria: list[tuple[str, Criterion]] = field(init=False)
    steps_without_votes: int = field(init=False)
    delegates: dict[str, Delegate] = field(init=False)
    below: tuple[Delegate, ...] = field(init=False)
    subagents: dict[str, Delegate] = field(init=False)
    children: dict[tuple[Compiles, tuple[str, ...] | None], Program] = field(
        init=False, default_factory=dict
    )
    variants: dict[Any, Program] = field(init=False, default_factory=dict)
    held: Held = field(init=False, default_factory=dict)
    description: bytes = field(init=False)
    digest: str = field(init=False)
    durable: bool = field(init=False)
    append_now: AppendsNow | None = field(init=False)
    kept: bool = field(init=False, default=False)
    now: Callable[[], float] = field(init=False)
    monotonic: Callable[[], float] = field(init=False)

    def __post_init__(self) -> None:
        model, store, clock = self.model, self.store, self.clock
        self.model_name = model.name
        self.models = {
            model.name: model,
            **self.models,
            model.name: model,
        }  # the first, whatever has its name
        self.settings = frozen(self.settings)
        self.specs = tuple([tool.shown for tool in self.tools.values()])
        self.turn_tools = tuple(self.tools)[len(self.tools) - self.run_tools :]
        self.blank = blank_request(
            self.sections, self.specs, model.name, self.settings, self.output_schema
        )
        self.system = self.blank.system
        self.budget = Budget(self.windows, self.tokenizer)
        self.metered = self.budget.known or bool(self.compactors)
        self.criteria = tuple([on_clock(criterion, clock.now) for criterion in self.criteria])
        self.named_criteria = [(name_of(criterion), criterion) for criterion in self.criteria]
        self.steps_without_votes = _steps_without_other_votes(self.criteria)
        self.limits = tuple(
            [criterion for criterion in self.criteria if isinstance(criterion, Limit)]
        )
        self.limits_before = {
            effect: tuple([limit for limit in self.limits if effect in limit.holds_before])
            for effect in _EFFECTS
        }
        self.timed = any(type(limit).left is not Limit.left for limit in self.limits)
        self.delegates = {
            name: tool for name, tool in self.tools.items() if isinstance(tool, Delegate)
        }
        self.below = (*self.delegates.values(), *self.declared)
        self.subagents = {delegate.agent: delegate for delegate in reversed(self.below)}
        prompt = prompt_of(
            self.sections, model.name, self.windows, self.settings, self.output_schema
        )
        self.description = describe(
            [*self.hooks.all, *self.stopping],
            self.tools.values(),
            [name for name, _ in self.named_criteria],
            replace(prompt, run_tools=self.run_tools),
            self.mask,
            transforms=self.hooks.transforms,
            compactors=[compactor.name for compactor in self.compactors],
            agents=self.delegates,
            unmatched=self.unmatched,
        )
        self.digest = _digest(self.description)
        self.durable = store.durable
        self.append_now = (
            getattr(store, "append_now", None) if "append_now" in vars(type(store)) else None
        )
        self.now = clock.now
        self.monotonic = clock.monotonic

    @property
    def place(self) -> Place:
        """Where its storages keep their values."""
        return Place(self.store, self.clock, self.mask, self.conceals)

    def model_for(self, request: ModelRequest) -> Model:
        """The model that a request is for."""
        try:
            return self.models[request.model]
        except KeyError:
            known = ", ".join(self.models)
            text = f"the request asks for model {request.model!r}, which the agent does not have; known: {known}"
            text = f"{text}. Add it with Agent(models=…) or registrar.model(…)"
            raise ConfigError(text) from None

    async def keep(self) -> None:
        """The store has, once, what sessions say they run on, also if somebody cancels the turn
        meanwhile."""
        if not self.kept:
            keeping = self.store.put_pipeline(self.digest, self.description)
            await (shielded(keeping, shields.STORE_PATIENCE) if self.durable else keeping)
            self.kept = True

    async def in_thread(self, fn: Callable[[], Any]) -> Any:
        """Run a plain function in the agent's own pool, with the caller's context variables."""
        return await self.workers.run(fn)


class Workers:
    """The threads of an agent and its variants, started when they are first needed."""

    __slots__ = ("_count", "_name", "_pool")

    def __init__(self, count: int, agent: str) -> None:
        self._count = count
        self._name = f"windlass-{agent}"
        self._pool: Executor | None = None

    async def run(self, fn: Callable[[], Any]) -> Any:
        """Run a plain function in the agent's own pool, with the caller's context variables.

        What a thread of the pool waits for gets a thread of its own: all of them could be waiting.
        """
        waiting = _waiting.get()
        context = contextvars.copy_context()
        context.run(_waiting.set, waiting | {self})

        def run() -> Any:
            return context.run(without_stop_iteration, fn)

        if self in waiting:
            return await run_alone(run, self._name)
        if self._pool is None:
            self._pool = threads().pool(self._count, self._name)
        return await asyncio.wrap_future(self._pool.submit(run))


_waiting: ContextVar[frozenset[Workers]] = ContextVar("windlass_waiting", default=frozenset())
"""The workers of which a thread is held while this context runs."""


def _steps_without_other_votes(criteria: Sequence[Criterion]) -> int:
    """How many steps a turn has before any criterion but `tools_ran` may vote; 0 if that is unknown."""
    if criteria == (tools_ran,):
        return sys.maxsize
    limit: object = criteria[1] if len(criteria) == 2 and criteria[0] is tools_ran else None
    return limit.steps if isinstance(limit, StepLimit) and type(limit) is StepLimit else 0


def _digest(description: bytes) -> str:
    from hashlib import blake2b  # an import of OpenSSL, which `import windlass` does without

    return blake2b(description, digest_size=8).hexdigest()
