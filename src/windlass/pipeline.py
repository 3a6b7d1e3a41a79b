"""The assembly of an agent, explicit and immutable: criteria, composites, phase handlers, observers, hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from ._hooks.registrar import Registrar
from ._kernel import segment as kernel
from ._kernel.contracts import PHASES, Composites, Phase, PhaseHandler
from ._options import CRITERION, check_each
from .criteria import tools_ran
from .errors import ConfigError
from .events import FACTS
from .records import Fact
from .types import Criterion

DEFAULT = Composites(
    lifecycle=kernel.make_lifecycle,
    runner=kernel.make_runner,
    applier=kernel.make_applier,
    evaluator=kernel.make_evaluator,
    resolver=kernel.make_resolver,
    errors=kernel.make_errors,
    executor=kernel.make_executor,
)


class Pipeline(Struct, frozen=True):
    """What an agent is assembled from. Every `with_…` gives a new one; an event nobody listens to is not in it.

    Core phases cannot be left out, only replaced: `with_composite("executor", MyExecutor)`, where a composite is made
    anew for each segment of a turn from that segment.
    """

    criteria: tuple[Criterion, ...] = (tools_ran,)
    composites: Composites = DEFAULT
    handlers: Mapping[str, tuple[PhaseHandler, ...]] = {}
    registrars: tuple[Registrar, ...] = ()
    observers: tuple[tuple[type[Fact], Callable[..., Any]], ...] = ()

    @classmethod
    def minimal(cls, criteria: Iterable[Criterion] = ()) -> Pipeline:
        """The core alone: go on as long as tools are called. These criteria are added; `Pipeline(criteria)` has only
        those that it is given."""
        return cls().with_criteria(*[criterion for criterion in criteria if criterion is not tools_ran])

    def with_criteria(self, *criteria: Criterion) -> Pipeline:
        """More criteria."""
        check_each("with_criteria", CRITERION, criteria)
        return replace(self, criteria=(*self.criteria, *criteria))

    def with_events(self, emitter: Callable[[Fact], Any], *facts: type[Fact]) -> Pipeline:
        """An observer of some facts, or of all of them."""
        if unknown := [fact for fact in facts if fact not in FACTS]:
            raise ConfigError(f"with_events: {unknown} are not facts")
        return replace(self, observers=(*self.observers, *[(fact, emitter) for fact in facts or FACTS]))

    def with_hooks(self, hooks: Registrar) -> Pipeline:
        """All that was registered with a `Hooks` collection."""
        return replace(self, registrars=(*self.registrars, hooks))

    def with_handler(self, phase: Phase, handler: PhaseHandler) -> Pipeline:
        """Something of yours after a phase."""
        if phase not in PHASES:
            raise ConfigError(f"no phase {phase!r}; phases are {', '.join(PHASES)}")
        if not callable(getattr(handler, "handle", None)):
            raise ConfigError(f"{handler!r} is not a phase handler: it needs handle(state, turn)")
        return replace(self, handlers={**self.handlers, phase: (*self.handlers.get(phase, ()), handler)})

    def with_composite(self, name: str, factory: Callable[[Any], Any]) -> Pipeline:
        """Another implementation of one of the seven composites."""
        if name not in Composites.__struct_fields__:
            raise ConfigError(f"no composite {name!r}; they are {', '.join(Composites.__struct_fields__)}")
        if not callable(factory):
            raise ConfigError(f"composite {name!r} cannot be left out, only replaced: {factory!r} is not a factory")
        return replace(self, composites=replace(self.composites, **{name: factory}))

    def build(self) -> Pipeline:
        """The finished pipeline. It is immutable all along; this names the moment."""
        return self
