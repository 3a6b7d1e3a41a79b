"""What an agent is made of, as the store keeps it: for drift between processes, for replays and for people."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from windlass._hooks.conditions import Errors, Names
from windlass._hooks.hooks import Hook
from windlass._hooks.matching import Matcher, Under
from windlass._hooks.streams import Transform
from windlass.context.assembly import Prompt
from windlass.criteria import name_of
from windlass.masking import Mask
from windlass.tools import Tool


def describe(
    hooks: Iterable[Hook],
    tools: Iterable[Tool[..., Any]],
    criteria: Iterable[str],
    prompt: Prompt,
    mask: Mask | None,
    *,
    transforms: Iterable[Transform] = (),
    compactors: Iterable[str] = (),
    agents: Iterable[str] = (),
    unmatched: str = "allow",
) -> bytes:
    """The parts of an agent as plain data without secrets: stored once, under its hash.

    `agents` are the names of the tools that are agents. Whatever is as it mostly is has no entry.
    """
    tools, hooks, agents = list(tools), list(hooks), set(agents)
    shown = [
        {
            "name": tool.name,
            "digest": tool.digest,
            "effect": tool.effect,
            "agent": tool.name in agents,
        }
        for tool in tools
    ]
    described: Any = replace(prompt, tools=tuple([tool.spec for tool in tools]))
    conditions = [_conditions(hook) for hook in hooks]
    if mask is not None:
        described = mask.plain(msgspec.to_builtins(described, enc_hook=str))
        conditions = [mask.plain(one) for one in conditions]
    rows = [
        {
            "kind": hook.kind,
            "event": hook.event.__name__,
            "name": hook.name,
            "band": hook.band,
            "priority": hook.priority,
            **_terms(hook),
            **whose,
        }
        for hook, whose in zip(hooks, conditions, strict=True)
    ]
    encoded = msgspec.Raw(msgspec.json.encode(described, enc_hook=str))
    streams = [
        {
            "name": one.name,
            "band": one.band,
            "channels": one.channels,
            "capability": one.capability or "",
        }
        for one in transforms
    ]
    return msgspec.json.encode(
        {
            "hooks": rows,
            "tools": shown,
            "criteria": list(criteria),
            "prompt": encoded,
            "transforms": streams,
            "compactors": list(compactors),
            "unmatched": unmatched,
        }
    )


_TERMS = (
    "capability", "shadow", "costly", "live", "optional", "group", "timeout", "thread", "durable", "tries", "wait",
    "inherit", "side_calls", "on_error", "on_resume",
)  # fmt: skip
"""What else a hook was registered with."""

_MOSTLY = {"tries": 3}
"""The values that most hooks have, where they are not empty."""


def _terms(hook: Hook) -> dict[str, Any]:
    values = {name: getattr(hook, name) for name in _TERMS}
    return {name: value for name, value in values.items() if value and value != _MOSTLY.get(name)}


def _conditions(hook: Hook) -> dict[str, str]:
    """What a hook is asked about, if that is not everything. Folders differ between machines and are left out."""
    given = {name: getattr(hook, name) for name in ("tool", "agent", "model")}
    said = {
        name: matcher_text(value, folders=False)
        for name, value in given.items()
        if value is not None
    }
    if hook.error is not None:
        said["error"] = errors_text(hook.error)
    return said if hook.when is None else {**said, "when": name_of(hook.when)}


def matcher_text(matcher: Matcher | Names, *, folders: bool = True) -> str:
    """A matcher as people write it."""
    if isinstance(matcher, str):
        return matcher
    if isinstance(matcher, re.Pattern):
        return f"/{matcher.pattern}/"
    if isinstance(matcher, Under):
        return repr(matcher) if folders else f"{matcher.name}(…)"
    if callable(matcher):
        return f"{name_of(matcher)}()"
    return " or ".join([matcher_text(one, folders=folders) for one in matcher])


def errors_text(errors: Errors) -> str:
    """The errors that a hook is asked about."""
    if isinstance(errors, list | tuple):
        return " or ".join(map(errors_text, errors))
    return errors.__name__ if isinstance(errors, type) else str(errors)
