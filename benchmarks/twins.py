"""An agent with the hooks of another one, each of which does nothing: what hooks cost before they do any work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from silent import pass_on, stay_silent, stay_silent_async

import windlass
from windlass import Agent, ModelCall, ToolCall
from windlass import events as events_module
from windlass import records as records_module

WRAPPED = {"wrap(ModelCall)": ModelCall, "wrap(ToolCall)": ToolCall}


class Unchanged:
    """A transformer that changes nothing."""

    def __init__(self) -> None:
        self._text = ""

    def feed(self, text: str) -> tuple[str, ...]:
        return (text,)

    def flush(self) -> tuple[str, ...]:
        return ()


def never(about: Any) -> bool:
    return False


def register_silent(agent: Agent[Any, str], explained: dict[str, Any]) -> int:
    """Register hooks of the same verbs on the same events; returns how many. A condition is one that never holds."""
    count = 0
    for point in explained["points"]:
        for stage in point["stages"]:
            for hook in stage["hooks"]:
                count += _register(agent, point["point"], stage["stage"], hook)
    for observed in explained["observers"]:
        for hook in observed["hooks"]:
            durable = {"durable": True} if hook["durable"] else {"wait": True} if hook["wait"] else {}
            agent.observe(_fact(observed["fact"]), name=hook["name"], **durable, **_condition(hook))(stay_silent)
            count += 1
    return count


def _register(agent: Agent[Any, str], point: str, stage: str, hook: dict[str, Any]) -> bool:
    if stage == "transform":
        agent.transform(channels=tuple(hook["channels"]), name=hook["name"])(Unchanged)
    elif stage == "wrap":
        if point not in WRAPPED:
            return False
        agent.wrap(WRAPPED[point], name=hook["name"], **_condition(hook))(pass_on)
    else:
        register: Callable[..., Any] = getattr(agent, stage)
        fn = stay_silent_async if hook["runs"] == "async" else stay_silent
        register(getattr(windlass, point), name=hook["name"], **_condition(hook))(fn)
    return True


def _condition(hook: dict[str, Any]) -> dict[str, Any]:
    return {"when": never} if hook["when"] or hook["tool"] else {}


def _fact(name: str) -> type[Any]:
    found: type[Any] = getattr(records_module, name, None) or getattr(events_module, name)
    return found
