"""Events: a typed emitter that listeners can join and leave while agents run."""

from __future__ import annotations

import inspect
import logging
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from windlass.errors import ConfigError
from windlass.events import FACTS, ModelCalled, Progressed, Retracted, StepStarted, TurnFailed
from windlass.records import (
    Answered,
    Asked,
    Compacted,
    Delegated,
    ErrorHandled,
    Fact,
    HookFailed,
    ModelReplied,
    Resumed,
    SessionEnded,
    SessionOpened,
    StepEnded,
    Suspended,
    ToolCalled,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    TurnStarted,
)

from .option_types import check_types
from .options import require_name

if TYPE_CHECKING:
    from windlass import Hooks

FactT = TypeVar("FactT", bound=Fact)
Listener: TypeAlias = Callable[..., object]
Preset = Literal["minimal", "standard", "debug"]

MINIMAL: tuple[type[Fact], ...] = (SessionOpened, TurnStarted, TurnEnded, TurnFailed, Suspended, Resumed, SessionEnded)
STANDARD: tuple[type[Fact], ...] = (
    *MINIMAL, StepStarted, StepEnded, ModelCalled, ModelReplied, ToolDecided, ToolCalled, ToolReturned, Progressed,
    Delegated, Asked, Answered, Compacted, Retracted, ErrorHandled, HookFailed,
)  # fmt: skip
PRESETS: dict[str, tuple[type[Fact], ...]] = {"minimal": MINIMAL, "standard": STANDARD, "debug": FACTS}

log = logging.getLogger("windlass")


class Events:
    """Emit facts to listeners: `events.on(ToolReturned, listener)`, or `events.wiretap(listener)` for all of them.

    A listener is a plain function of the fact, and of `session_id` if it has that parameter. It runs in a thread beside
    the turn, in the order of the facts of a session. If it fails, that is logged, and the others are still called. One
    emitter may serve many agents. `preset` says which facts are emitted; more can be named.
    """

    @check_types
    def __init__(self, preset: Preset = "standard", *facts: type[Fact], name: str = "events") -> None:
        if unknown := [fact for fact in facts if fact not in FACTS]:
            raise ConfigError(f"Events(facts={unknown}): these are not facts")
        require_name("Events", name)
        self.name = name
        self.facts = tuple(dict.fromkeys([*PRESETS[preset], *facts]))
        self._listeners: dict[type[Fact] | None, tuple[tuple[Listener, bool], ...]] = {}
        self._lock = threading.Lock()

    def on(self, fact: type[FactT], listener: Callable[..., object]) -> Callable[[], None]:
        """Call a listener for each fact of this type. Returns a function that ends it."""
        if fact not in self.facts:
            known = ", ".join(sorted(one.__name__ for one in self.facts))
            raise ConfigError(f"Events: {fact.__name__} is not emitted; emitted are {known}. Use another preset")
        return self._add(fact, listener)

    def wiretap(self, listener: Callable[..., object]) -> Callable[[], None]:
        """Call a listener for every fact. Returns a function that ends it."""
        return self._add(None, listener)

    def _add(self, fact: type[Fact] | None, listener: Listener) -> Callable[[], None]:
        entry = (listener, _takes_session(listener))
        with self._lock:
            self._listeners[fact] = (*self._listeners.get(fact, ()), entry)

        def leave() -> None:
            with self._lock:
                left = tuple([one for one in self._listeners.get(fact, ()) if one is not entry])
                if left:
                    self._listeners[fact] = left
                else:
                    self._listeners.pop(fact, None)

        return leave

    def install(self, registrar: Hooks) -> None:
        """Observe the facts to emit."""

        def emit(fact: Fact, session_id: str) -> None:
            self.emit(fact, session_id)

        for fact in self.facts:
            registrar.observe(fact, name=f"{self.name}_{fact.__name__}", when=self._has_listeners)(emit)

    def emit(self, fact: Fact, session_id: str) -> None:
        """Call the listeners of a fact."""
        for listener, takes_session in self._of(type(fact)):
            try:
                if takes_session:
                    listener(fact, session_id=session_id)
                else:
                    listener(fact)
            except Exception:
                log.exception("listener %r failed on %s", listener, type(fact).__name__)

    def _has_listeners(self, fact: Fact) -> bool:
        listeners = self._listeners
        return type(fact) in listeners or None in listeners

    def _of(self, fact: type[Fact]) -> Iterable[tuple[Listener, bool]]:
        return (*self._listeners.get(fact, ()), *self._listeners.get(None, ()))


def _takes_session(listener: Any) -> bool:
    if not callable(listener):
        raise ConfigError(f"Events: {listener!r} is not a function")
    if inspect.iscoroutinefunction(listener) or inspect.iscoroutinefunction(type(listener).__call__):
        raise ConfigError(f"Events: listener {listener!r} is async; use a plain function, or agent.observe")
    try:
        return "session_id" in inspect.signature(listener).parameters
    except (TypeError, ValueError):
        return False
