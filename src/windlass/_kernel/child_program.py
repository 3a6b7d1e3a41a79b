"""What an agent is compiled to as a child of another one: its own program with what its parent
passes on."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import Any

from msgspec.structs import replace

from windlass._hooks.compiled import CompiledHooks
from windlass._hooks.hooks import Hook
from windlass.criteria import Deadline
from windlass.errors import ConfigError
from windlass.events import SubagentStopping
from windlass.masking import Mask, joined_mask
from windlass.messages import ToolCall
from windlass.slots import Slot
from windlass.tools import ArgumentsError, Tool

from .delegation import Delegate
from .program import Program, Workers

_KEPT = 256
"""How many agents below an agent it keeps compiled."""

_STRICTNESS: dict[str, int] = {"allow": 0, "ask": 1, "deny": 2}


def program_of(
    parent: Program, delegate: Delegate, tools: tuple[str, ...] | None = None
) -> Program:
    """What an agent is as a child of another one, compiled once."""
    only = delegate.only if tools is None else tools
    key, known = (delegate.compiled, only), parent.children
    if (program := known.get(key)) is None:
        if len(known) >= _KEPT:  # hooks and tools may make agents for one task each
            del known[next(iter(known))]
        program = known[key] = delegate.compiled(parent, only)
    return program


def tools_below(program: Program) -> Iterator[Tool[..., Any]]:
    """The tools of all agents below an agent."""
    met: set[Any] = set()
    found = [program]
    while found:
        above = found.pop()
        for delegate in above.below if above.max_depth > 0 else ():
            if (delegate.compiled, delegate.only) not in met:
                met.add((delegate.compiled, delegate.only))
                child = program_of(above, delegate)
                found.append(child)
                yield from child.tools.values()


def mask_of_tree(own: Mask | None, tools: Iterable[Tool[..., Any]]) -> Mask | None:
    """One mask for the secrets of an agent and of all agents below it: the logs of a tree quote each
    other."""
    masks, met, found = [own], set[Any](), [tools]
    while found:
        for tool in found.pop():
            if isinstance(tool, Delegate) and tool.compiled not in met:
                met.add(tool.compiled)
                mask, below = tool.parts()
                masks.append(mask)
                found.append(below)
    return joined_mask(masks)


def check_edit(program: Program, call: ToolCall) -> None:
    """Raise `ArgumentsError` if no tool with the name of the call takes its arguments, here or
    below.

    A name without a tool is not checked: its tool is in another process.
    """
    known = [
        tool for tool in (*program.tools.values(), *tools_below(program)) if tool.name == call.name
    ]
    problems: list[ArgumentsError] = []
    for tool in known:
        try:
            tool.complete(call.json)
        except ArgumentsError as problem:
            problems.append(problem)
    if problems and len(problems) == len(known):
        raise problems[0]


def child_program(
    parent: Program,
    own: Program,
    only: tuple[str, ...] | None,
) -> Program:
    """An agent's program with what its parent passes on: hooks and transformers, the models that
    capabilities brought, its store and its clock."""
    _check_tools(parent, own, only)
    passed = [hook.copied(above=hook.above + 1) for hook in parent.hooks.all if _passes_on(hook)]
    stopping = _stopping(parent)
    slots = _slots(parent, own, [*passed, *stopping])
    mine = [hook.copied(above=hook.above) for hook in own.hooks.all]
    transforms = [
        *own.hooks.transforms,
        *[t.inherited() for t in parent.hooks.transforms if t.inherit],
    ]
    timed, measured = parent.hooks.timed, parent.hooks.measured or own.hooks.measured
    hooks = CompiledHooks([*mine, *passed], transforms, slots, timed=timed, measured=measured)
    for kind in parent.hooks.listeners:
        hooks.listeners.setdefault(kind, ())
    tools = {name: tool for name, tool in own.tools.items() if only is None or name in only}
    mask = joined_mask([own.mask, parent.mask])
    stricter = _STRICTNESS[own.unmatched] > _STRICTNESS[parent.unmatched]
    models = {name: parent.models[name] for name in parent.brought_models if name not in own.models}
    return dataclasses.replace(
        own,
        models={**own.models, **models},
        brought_models={**parent.brought_models, **own.brought_models},
        windows={**{name: parent.windows.get(name) for name in models}, **own.windows},
        hooks=hooks,
        reveals=(*own.reveals, *[reveal for reveal in parent.reveals if reveal.inherit]),
        conceals=(*own.conceals, *[one for one in parent.conceals if one.inherit]),
        tools=tools,
        criteria=tuple([_on_clock(criterion, own, parent) for criterion in own.criteria]),
        store=parent.store,
        clock=parent.clock,
        observers=parent.observers,
        background=parent.background,
        mask=mask,
        unmatched=own.unmatched if stricter else parent.unmatched,
        max_depth=min(own.max_depth, parent.max_depth - 1),
        workers=Workers(own.max_parallel, own.name),
        stopping=tuple(stopping),
    )


def unknown_child(parent: Program) -> Program:
    """What stands for a child whose agent is not known here: the hooks that it inherits, nothing
    else."""
    passed = [hook.copied(above=hook.above + 1) for hook in parent.hooks.all if _passes_on(hook)]
    slots = parent.hooks.slots.values()
    timed, measured = parent.hooks.timed, parent.hooks.measured
    hooks = CompiledHooks(passed, (), slots, timed=timed, measured=measured)
    for kind in parent.hooks.listeners:
        hooks.listeners.setdefault(kind, ())
    child = dataclasses.replace(parent, hooks=hooks, handlers={}, read_output=None, compactors=())
    child.description, child.digest = parent.description, parent.digest
    return child


def _passes_on(hook: Hook) -> bool:
    """Observers hear of a child from its parent, but for those that read its log."""
    return hook.durable if hook.kind == "observe" else hook.inherit


def _stopping(parent: Program) -> list[Hook]:
    point = parent.hooks.at(SubagentStopping)
    return [] if point is None else [*point.changing, *point.gates, *point.costly, *point.shadows]


def _check_tools(parent: Program, own: Program, only: tuple[str, ...] | None) -> None:
    if unknown := [name for name in only or () if name not in own.tools]:
        known = ", ".join(own.tools) or "none"
        raise ConfigError(
            f"agent {parent.name!r} lets agent {own.name!r} use {', '.join(map(repr, unknown))}, which it does not "
            f"have; it has: {known}"
        )


def _slots(parent: Program, own: Program, hooks: Iterable[Hook]) -> list[Slot[Any]]:
    """The child's slots, and those of its parent for the hooks that come from there.

    Each session has its own.
    """
    mine = own.hooks.slots
    clashing = {
        name
        for name, slot in parent.hooks.slots.items()
        if name in mine and mine[name].type is not slot.type
    }
    for hook in hooks:
        if wanted := [source for _, source in hook.wants if source in clashing]:
            raise ConfigError(
                f"{hook.kind} {hook.name!r} of agent {parent.name!r} holds for agent {own.name!r} too, but wants slot "
                f"{wanted[0]!r}, which is {parent.hooks.slots[wanted[0]]!r} there and {mine[wanted[0]]!r} here"
            )
    return [
        *[slot for name, slot in parent.hooks.slots.items() if name not in mine],
        *mine.values(),
    ]


def _on_clock(criterion: Any, own: Program, parent: Program) -> Any:
    """A deadline that goes by its agent's clock goes by its parent's now."""
    if isinstance(criterion, Deadline) and criterion.now == own.clock.now:
        return replace(criterion, now=parent.clock.now)
    return criterion
