"""Hooks that an agent file names: their functions and events are found, then they are registered."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from windlass.agent import Agent
from windlass.errors import ConfigError
from windlass.events import EVENTS, FACTS
from windlass.messages import ModelCall, ToolCall
from windlass.records import Record
from windlass.states import Step
from windlass.turns import Turn

from .documents import Document
from .positions import KeyPath
from .problems import suggestion
from .references import CannotLoad, load_reference

_EVENTS = {kind.__name__: kind for kind in EVENTS}
_FACTS = {**{kind.__name__: kind for kind in FACTS}, "Record": Record}
_EFFECTS = {"ModelCall": ModelCall, "ToolCall": ToolCall, "Step": Step, "Turn": Turn}
_FUNCTIONS = ("when", "enabled")


class NamedHook(Struct):
    """A hook whose function and event were found; it is not registered yet."""

    verb: str
    event: tuple[Any, ...]
    function: Any
    options: dict[str, Any]
    path: KeyPath

    def register(self, agent: Agent[Any, Any], document: Document) -> None:
        """Register the hook. What is wrong with its options is reported."""
        try:
            getattr(agent, self.verb)(*self.event, **self.options)(self.function)
        except ConfigError as error:
            document.add_problem(self.path, str(error))
        except TypeError as error:  # `transform` has few options, and Python says which one it does not know
            document.add_problem(self.path, f"{self.verb}: {error}")


def read_hook(given: Mapping[str, Any], path: KeyPath, document: Document) -> NamedHook | None:
    """Find the function and the event of a hook; None after a problem."""
    verb: str = given["verb"]
    options = {key: value for key, value in given.items() if key not in ("verb", "event", "run")}
    event = () if verb == "transform" else _event(verb, given, path, document)
    functions: dict[str, Any] = {}
    for key in ("run", *[name for name in _FUNCTIONS if name in options]):
        try:
            functions[key] = load_reference(given[key], document.folder)
        except CannotLoad as error:
            document.add_problem((*path, key), str(error))
            return None
    if event is None:
        return None
    if "channels" in options:
        options["channels"] = tuple(options["channels"])
    return NamedHook(verb, event, functions.pop("run"), {**options, **functions}, path)


def _event(verb: str, given: Mapping[str, Any], path: KeyPath, document: Document) -> tuple[Any] | None:
    special: Mapping[str, Mapping[str, Any]] = {"observe": _FACTS, "wrap": _EFFECTS}
    legal = special.get(verb, _EVENTS)
    if "event" not in given:
        document.add_problem(path, "the key 'event' is missing")
    elif given["event"] not in legal:
        text = f"{verb} does not take {given['event']!r}{suggestion(given['event'], sorted(legal))}"
        document.add_problem((*path, "event"), text)
    else:
        return (legal[given["event"]],)
    return None
