"""A compiled agent: all that a turn needs and that no turn changes."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from contextvars import ContextVar
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from windlass._hooks.compiled import CompiledHooks
from windlass._hooks.observers import Observers
from windlass._hooks.wraps import without_stop_iteration
from windlass._threads import run_alone, threads
from windlass.context.assembly import blank_request
from windlass.context.budget import Budget
from windlass.context.compaction import Compactor
from windlass.criteria import Effect, Limit, name_of, on_clock
from windlass.errors import ConfigError
from windlass.masking import Mask
from windlass.messages import ModelRequest, TextPart, ToolSpec, frozen
from windlass.policies import ErrorPolicy
from windlass.protocols import Clock, Model, Store
from windlass.tools import Tool
from windlass.types import Criterion

from .delegation import Compiles, Delegate
from .shields import shielded

if TYPE_CHECKING:
    from .contracts import Composites, PhaseHandler


Scopes: TypeAlias = tuple[tuple[str, Any], ...]
"""The types of scope that an agent and those below it have declared, each with the name of its agent."""


class SystemClock:
    """The machine's clock."""

    now = staticmethod(time.time)
    monotonic = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    async def alarm(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class Program:
    """What an agent was compiled to. Immutable from then on."""

    __slots__ = (
        "_pool", "append_now", "blank", "budget", "children", "clock", "compactors", "composites", "criteria",
        "delegates", "description", "digest", "durable", "ending_timeout", "handlers", "hooks", "kept", "limits",
        "limits_before", "mask", "max_depth", "max_idle_steps", "max_parallel", "max_regenerations", "max_vetoes",
        "metered", "model", "model_name", "models", "monotonic", "name", "named_criteria", "now", "observers",
        "output_schema", "patience", "policy", "read_output", "reserve", "scopes", "sections", "settings", "specs",
        "store", "system", "timed", "tools", "unmatched",
    )  # fmt: skip

    def __init__(
        self,
        *,
        name: str,
        model: Model,
        models: Mapping[str, Model],
        sections: Sequence[TextPart],
        tools: Mapping[str, Tool[..., Any]],
        settings: Mapping[str, Any],
        output_schema: Mapping[str, Any] | None,
        read_output: Callable[[str], Any] | None,
        hooks: CompiledHooks,
        compactors: Sequence[Compactor],
        windows: Mapping[str, int | None],
        count: Callable[[str], int] | None,
        criteria: Sequence[Criterion],
        policy: ErrorPolicy,
        composites: Composites,
        handlers: Mapping[str, tuple[PhaseHandler, ...]],
        store: Store,
        clock: Clock,
        observers: Observers,
        scopes: Scopes,
        description: bytes,
        unmatched: Literal["allow", "ask", "deny"],
        reserve: int,
        max_regenerations: int,
        max_vetoes: int,
        max_idle_steps: int,
        max_parallel: int,
        mask: Mask | None,
        max_depth: int,
        ending_timeout: float,
        patience: float,
    ) -> None:
        self.name = name
        self.model = model
        self.model_name = model.name
        self.models = {model.name: model, **models} | {model.name: model}  # the first, whoever else has its name
        self.sections = tuple(sections)
        self.tools = dict(tools)
        self.specs: tuple[ToolSpec, ...] = tuple([tool.shown for tool in self.tools.values()])
        self.settings: Mapping[str, Any] = frozen(settings)
        self.output_schema = output_schema
        self.read_output = read_output
        self.blank = blank_request(self.sections, self.specs, model.name, self.settings, output_schema)
        self.system = self.blank.system
        self.hooks = hooks
        self.compactors = tuple(compactors)
        self.budget = Budget(windows, count)
        self.metered = self.budget.known or bool(self.compactors)
        self.criteria = tuple([on_clock(criterion, clock.now) for criterion in criteria])
        self.limits = tuple([criterion for criterion in self.criteria if isinstance(criterion, Limit)])
        effects: tuple[Effect, ...] = ("model", "tool")
        self.limits_before = {
            effect: tuple([limit for limit in self.limits if effect in limit.holds_before]) for effect in effects
        }
        self.named_criteria = [(name_of(criterion), criterion) for criterion in self.criteria]
        self.policy = policy
        self.composites = composites
        self.handlers = handlers
        self.store = store
        self.durable = store.durable
        self.append_now = getattr(store, "append_now", None) if "append_now" in vars(type(store)) else None
        self.clock = clock
        self.now = clock.now
        self.monotonic = clock.monotonic
        self.observers = observers
        self.scopes = scopes
        self.description = description
        self.digest = blake2b(description, digest_size=8).hexdigest()
        self.unmatched: Literal["allow", "ask", "deny"] = unmatched
        self.reserve = reserve
        self.max_regenerations = max_regenerations
        self.max_vetoes = max_vetoes
        self.max_idle_steps = max_idle_steps
        self.max_parallel = max_parallel
        self.mask = mask
        self.max_depth = max_depth
        self.ending_timeout = ending_timeout
        self.patience = patience
        self.delegates = {name: tool for name, tool in self.tools.items() if isinstance(tool, Delegate)}
        self.children: dict[tuple[Compiles, tuple[str, ...] | None], Program] = {}
        self.kept = False
        self.timed = any(type(limit).left is not Limit.left for limit in self.limits)
        self._pool: Executor | None = None

    def model_for(self, request: ModelRequest) -> Model:
        """The model that a request is for."""
        try:
            return self.models[request.model]
        except KeyError:
            known = ", ".join(self.models)
            text = f"the request asks for model {request.model!r}, which the agent does not have; known: {known}"
            raise ConfigError(text) from None

    async def keep(self) -> None:
        """The store has, once, what sessions say they run on, also if somebody cancels the turn meanwhile."""
        if not self.kept:
            keeping = self.store.put_pipeline(self.digest, self.description)
            await (shielded(keeping, self.ending_timeout) if self.durable else keeping)
            self.kept = True

    async def in_thread(self, fn: Callable[[], Any]) -> Any:
        """Run a plain function in the agent's own pool, with the caller's context variables.

        What a thread of the pool waits for gets a thread of its own: all of them could be waiting.
        """
        waiting = _waiting.get()
        context = contextvars.copy_context()
        context.run(_waiting.set, waiting | {self})

        def run() -> Any:
            return context.run(without_stop_iteration, fn)

        name = f"windlass-{self.name}"
        if self in waiting:
            return await run_alone(run, name)
        if self._pool is None:
            self._pool = threads().pool(self.max_parallel, name)
        return await asyncio.wrap_future(self._pool.submit(run))


_waiting: ContextVar[frozenset[Program]] = ContextVar("windlass_waiting", default=frozenset())
"""The programs of whose pools a thread is held while this context runs."""
