"""A compiled agent: all that a turn needs and that no turn changes."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from msgspec.structs import astuple

from windlass._hooks.compiled import CompiledHooks
from windlass._hooks.observers import Observers
from windlass._hooks.wraps import without_stop_iteration
from windlass.context.assembly import blank_request
from windlass.context.budget import Budget
from windlass.context.compaction import Compactor
from windlass.criteria import Effect, Limit, name_of, on_clock, tools_ran
from windlass.events import StepStarted
from windlass.masking import Mask
from windlass.messages import TextPart, ToolSpec, frozen
from windlass.policies import ErrorPolicy
from windlass.protocols import Clock, Model, Store
from windlass.records import Evaluated
from windlass.stores import MemoryStore
from windlass.tools import Tool
from windlass.types import Criterion

from .delegates import Compiles, Delegate
from .shielding import shielded

if TYPE_CHECKING:
    from .composites import Composites, PhaseHandler


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
        "_pool", "append_now", "begins_steps", "blank", "budget", "calls_models", "children", "clock", "compactors",
        "composites", "criteria", "delegates", "description", "digest", "durable", "ending_timeout", "ends_steps",
        "handlers", "hooks", "judges_calls", "judges_openings", "kept", "limits", "limits_before", "makers", "mask",
        "max_depth", "max_idle_steps", "max_parallel", "max_regenerations", "max_vetoes", "metered", "model",
        "model_name", "models", "monotonic", "name", "named_criteria", "now", "observed", "observers",
        "only_tools_count", "output_schema", "patience", "policy", "read_output", "reserve", "reviews_calls",
        "scopes", "sections", "settings", "specs", "store", "system", "timed", "tools", "unmatched",
        "wraps_models", "wraps_tools",
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
        self.makers = astuple(composites)
        self.handlers = handlers
        self.store = store
        self.durable = store.durable
        self.append_now = store.append_now if type(store) is MemoryStore else None
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
        self._pool: ThreadPoolExecutor | None = None
        self._look_ahead()

    def _look_ahead(self) -> None:
        """What no step has to find out: who looks at what, and where nobody does."""
        hooks, handlers = self.hooks, self.handlers
        self.begins_steps = bool(handlers) or hooks.step_starting is not None or StepStarted in hooks.listeners
        self.ends_steps = bool(handlers) or hooks.message_adding is not None or hooks.step_ending is not None
        self.ends_steps = self.ends_steps or not all(_is_ours(maker) for maker in self.makers)
        self.judges_calls = hooks.tool_calling is not None or self.unmatched != "allow" or bool(self.delegates)
        self.reviews_calls = self.judges_calls or hooks.tool_returning is not None
        self.judges_openings = bool(hooks.session_starting or hooks.turn_starting or hooks.message_adding)
        self.wraps_tools = bool(hooks.tool_wraps)
        self.wraps_models = bool(hooks.model_wraps)
        self.only_tools_count = (
            self.criteria == (tools_ran,) and hooks.continuing is None and Evaluated not in hooks.listeners
        )
        self.observed = bool(hooks.listeners)
        self.calls_models = self.wraps_models or self.observed or self.metered or bool(hooks.transforms)
        self.timed = any(type(limit).left is not Limit.left for limit in self.limits)

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
            alone = ThreadPoolExecutor(1, thread_name_prefix=name)
            try:
                return await asyncio.get_running_loop().run_in_executor(alone, run)
            finally:
                alone.shutdown(wait=False)
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.max_parallel, thread_name_prefix=name)
        return await asyncio.get_running_loop().run_in_executor(self._pool, run)


def _is_ours(maker: object) -> bool:
    """Whether a composite is of this package: such a one leaves no call open."""
    return getattr(maker, "__module__", "").startswith("windlass._kernel.")


_waiting: ContextVar[frozenset[Program]] = ContextVar("windlass_waiting", default=frozenset())
"""The programs of whose pools a thread is held while this context runs."""
