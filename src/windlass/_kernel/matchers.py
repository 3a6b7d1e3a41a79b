"""Hooks whose `tool=` matches no tool: refused when the agent is compiled, or told by `explain`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from windlass._hooks.hooks import Hook
from windlass._hooks.matching import Mismatch, Parameters, mismatches
from windlass.errors import RegistrationError
from windlass.events import ModelCalling, SessionStarting
from windlass.tools import Tool

from .child_program import tools_below
from .program import Program

_INHERIT = "A sub-agent has it: give the hook inherit=True"


def check_matchers(program: Program) -> None:
    """Raise for a matcher that matches no tool, or no parameter of its tool, unless that may come from elsewhere.

    A list may name tools that other agents have, as long as one of its members matches.
    """
    for hook, problems, idle in _problems(program):
        why = next((problem.why for problem in problems if idle or problem.tool_exists), None)
        if why is not None and not _may_match_elsewhere(program, hook):
            text = (
                f"{hook.kind} {hook.name!r} ({hook.source}) on {hook.event.__name__} would never be asked: tool={why}"
            )
            raise RegistrationError(text, hook=hook.name, event=hook.event.__name__)


def matcher_warnings(program: Program) -> list[str]:
    """The matchers of hooks that match no tool known here."""
    return [
        f"{hook.kind} {hook.name!r} may never be asked: tool={problem.why}"
        for hook, problems, _ in _problems(program)
        for problem in problems
    ]


def _problems(program: Program) -> Iterator[tuple[Hook, list[Mismatch], bool]]:
    """The hooks that match no tool of the agent or, if sub-agents inherit them, of those below; and why."""
    matching = [hook for hook in program.hooks.all if hook.tool is not None and not hook.inherited]
    if not matching:
        return
    own = _parameters(program.tools.values())
    everywhere = _parameters((*program.tools.values(), *tools_below(program))) if program.delegates else own
    for hook in matching:
        assert hook.tool is not None
        found, idle = mismatches(hook.tool, everywhere if hook.inherit else own)
        if found and not hook.inherit and not mismatches(hook.tool, everywhere)[0]:
            found = [problem._replace(why=f"{problem.why}. {_INHERIT}") for problem in found]
        if found:
            yield hook, found, idle


def _parameters(tools: Iterable[Tool[..., Any]]) -> Parameters:
    found: dict[str, set[str]] = {}
    for tool in tools:
        found.setdefault(tool.name, set()).update(tool.spec.schema["properties"])
    return found


def _may_match_elsewhere(program: Program, hook: Hook) -> bool:
    """Whether its tool may be unknown here: it comes with a capability, holds for sub-agents, or hooks offer tools."""
    return hook.capability is not None or (hook.inherit and bool(program.delegates)) or _offers_tools(program)


def _offers_tools(program: Program) -> bool:
    """Whether a hook may tell the model of tools that the agent does not have, which other hooks then answer for."""
    hooks = program.hooks
    changing = [point.changing for point in (hooks.at(SessionStarting), hooks.at(ModelCalling)) if point is not None]
    return bool(hooks.model_wraps) or any(hook.view is None for listed in changing for hook in listed)
