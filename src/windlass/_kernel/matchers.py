"""Hooks whose `tool=` matches no tool: compiling refuses them, or `explain` warns of them."""

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

_INHERIT = "A sub-agent has it: pass inherit=True to the hook"
_PER_RUN = "If run(tools=…) brings it, make the agent with per_run_tools=True"


def check_matchers(program: Program) -> None:
    """Raise for a matcher that matches no tool here, or no parameter, and cannot match elsewhere.

    A list may name tools of other agents, as long as one of its members matches.
    """
    for hook, problems, matches_nothing in _problems(program):
        refused = [one for one in problems if matches_nothing or one.tool_exists]
        if refused and not _may_match_elsewhere(program, hook):
            event = hook.event.__name__
            text = f"{hook.kind} {hook.name!r} ({hook.source}) on {event} would never be asked"
            hint = "" if refused[0].tool_exists or _INHERIT in refused[0].why else f". {_PER_RUN}"
            raise RegistrationError(
                f"{text}: tool={refused[0].why}{hint}", hook=hook.name, event=event
            )


def matcher_warnings(program: Program) -> list[str]:
    """A warning for each matcher that matches no known tool."""
    return [
        f"{hook.kind} {hook.name!r} may never be asked: tool={problem.why}"
        for hook, problems, _ in _problems(program)
        for problem in problems
    ]


def _problems(program: Program) -> Iterator[tuple[Hook, list[Mismatch], bool]]:
    """Each hook with a mismatch, the mismatches, and whether the hook matches nothing at all.

    A hook that sub-agents inherit may also match their tools.
    """
    hooks = [hook for hook in program.hooks.all if hook.tool is not None and not hook.inherited]
    if not hooks:
        return
    own = everywhere = _parameters(program.tools.values())
    if program.below:
        everywhere = _parameters((*program.tools.values(), *tools_below(program)))
    for hook in hooks:
        assert hook.tool is not None
        reaches_below = hook.inherit or hook.kind == "observe"  # observers hear of sub-agents
        problems, matches_nothing = mismatches(hook.tool, everywhere if reaches_below else own)
        if problems and not reaches_below and not mismatches(hook.tool, everywhere)[0]:
            problems = [problem._replace(why=f"{problem.why}. {_INHERIT}") for problem in problems]
        if problems:
            yield hook, problems, matches_nothing


def _parameters(tools: Iterable[Tool[..., Any]]) -> Parameters:
    parameters: dict[str, set[str]] = {}
    for tool in tools:
        parameters.setdefault(tool.name, set()).update(tool.spec.schema["properties"])
    return parameters


def _may_match_elsewhere(program: Program, hook: Hook) -> bool:
    """Whether its tool may be unknown here.

    The hook comes from a capability, sub-agents inherit it, or other hooks may offer tools.
    """
    is_inherited = hook.inherit and (bool(program.below) or _may_delegate(program))
    return hook.capability is not None or is_inherited or _hooks_may_offer_tools(program)


def _may_delegate(program: Program) -> bool:
    """Whether a tool or hook takes the turn, and so may give tasks to any agent."""
    tools = any(source == "turn" for tool in program.tools.values() for _, source in tool.supplied)
    return tools or any(source == "turn" for hook in program.hooks.all for _, source in hook.wants)


def _hooks_may_offer_tools(program: Program) -> bool:
    """Whether a hook may offer the model tools that the agent lacks and other hooks answer."""
    hooks = program.hooks
    points = [hooks.at(SessionStarting), hooks.at(ModelCalling)]
    changing = [hook for point in points if point is not None for hook in point.changing]
    return bool(hooks.model_wraps) or any(hook.view is None for hook in changing)
