"""What is asked again of an agent: its gates, its rewrites of tool calls and its criteria, sorted once."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from msgspec.structs import replace

from windlass._hooks.compiled import CompiledHooks, Point
from windlass._hooks.hooks import Hook
from windlass._kernel.child_program import program_of, unknown_child
from windlass._kernel.program import Program
from windlass._kernel.turn_start import may_serve
from windlass.context.replay import Description
from windlass.criteria import Deadline
from windlass.events import EVENTS, Delegating, Erring, Setup, SubagentStopping, ToolCalling
from windlass.stores import MemoryStore
from windlass.types import AnyEvent

from .sites import RecordedClock

CHANGED_CALLS: tuple[type[AnyEvent], ...] = (ToolCalling, Delegating)
"""The events whose rewrites are run again."""

_NOT_MEASURED = ("observe", "transform")


class Plan:
    """An agent as it is replayed. `program` has only what is asked again, a store of its own and a clock that the log
    sets; `only`, if given, are the names of recorded gates whose place its gates take: all others keep what they said.
    Hooks named in `without` are left out; shadow gates named in `counting` count.
    """

    def __init__(
        self,
        program: Program,
        only: frozenset[str] | None = None,
        clock: RecordedClock | None = None,
        *,
        without: frozenset[str] = frozenset(),
        counting: frozenset[str] = frozenset(),
    ) -> None:
        self.only = only
        self.clock = clock or RecordedClock()
        self._without, self._counting = without, counting
        asked = [
            hook
            for hook in program.hooks.all
            if is_asked_again(hook, counting)
            and hook.name not in without
            and (only is None or hook.event in CHANGED_CALLS)
        ]
        copies = [_counted(hook) for hook in asked]
        hooks = CompiledHooks(copies, (), program.hooks.slots.values())
        for hook, copy in zip(asked, copies, strict=True):
            copy.name = hook.name  # the log knows it by this name, whatever hooks of that name were left out
        criteria = [replace(one, now=self.clock.now) if isinstance(one, Deadline) else one for one in program.criteria]
        self.program = dataclasses.replace(
            program,
            hooks=hooks,
            criteria=tuple(criteria),
            store=MemoryStore(),
            clock=self.clock,
            compactors=(),
            handlers={},
            options=None,
            base=None,
        )
        self.stopping = Point(SubagentStopping, program.stopping) if program.stopping else None
        self.points = {event.__name__: point for event in EVENTS if (point := hooks.at(event)) is not None}
        self._tool_wraps = program.hooks.tool_wraps
        self.writers = frozenset([(hook.name, hook.event.__name__) for hook in hooks.all])
        self._hooks = tuple(program.hooks.all)
        self.unknown = ""
        self._below: dict[str, Plan] = {}

    @cached_property
    def setup(self) -> Setup:
        """What a session starts with."""
        return Setup(self.program.system, self.program.specs)

    def serves(self, tool: str) -> bool:
        """Whether the agent has a tool, or a wrap that may answer for it. Of an unknown agent nobody can tell."""
        return (
            bool(self.unknown) or tool in self.program.tools or any(may_serve(wrap, tool) for wrap in self._tool_wraps)
        )

    def below(self, agent: str) -> Plan:
        """The plan of an agent below this one. Of an unknown one only the hooks that it inherits are asked again."""
        plan = self._below.get(agent)
        if plan is None:
            known = self.program.subagents.get(agent)
            if known is None:
                child = unknown_child(self.program)
                inherited = frozenset([hook.name for hook in child.hooks.all])
                plan = self._like(child, inherited if self.only is None else self.only)
                plan.unknown = agent
            else:
                plan = self._like(program_of(self.program, known), self.only)
            self._below[agent] = plan
        return plan

    def _like(self, program: Program, only: frozenset[str] | None) -> Plan:
        return Plan(program, only, self.clock, without=self._without, counting=self._counting)

    def not_evaluated(self, recorded: Iterable[Description]) -> tuple[str, ...]:
        """What a replay of a log that these agents have written leaves out."""
        if self.unknown:
            return (f"the hooks of agent {self.unknown!r}, which is not known: declare it with subagents=[…]",)
        if self.only is not None:
            return ()
        return tuple(dict.fromkeys([hook for one in recorded for hook in self._new_hooks(one)]))

    def _new_hooks(self, recorded: Description) -> list[str]:
        """The hooks that are not asked again and that the agent in the log did not have: what they would change is not
        evaluated. Observers and transformers are left out."""
        known = {(row["name"], row["kind"], row["event"]) for row in recorded.hooks}
        return [
            words
            for hook in self._hooks
            if hook.kind not in _NOT_MEASURED
            and hook.event is not Erring
            and (hook.name, hook.kind, hook.event.__name__) not in known
            and (words := self._left_out(hook))
        ]

    def _left_out(self, hook: Hook) -> str:
        """What a replay does not run of a hook; nothing if it runs all of it."""
        event, where = hook.event, f"{hook.name!r} on {hook.event.__name__}"
        if not is_asked_again(hook, self._counting):
            return f"{'shadow ' if hook.shadow else ''}{hook.kind} {where}"
        if hook.kind != "hook":
            return ""
        rewrites = event.payload is not None and event not in CHANGED_CALLS
        parts = [*(["rewrites"] if rewrites else []), *(["injections"] if event.injects is not None else [])]
        return f"{' and '.join(parts)} of hook {where}" if parts else ""


def _counted(hook: Hook) -> Hook:
    """A copy of a hook. Its answers count, also those of a shadow gate."""
    copy = hook.copied(above=hook.above)
    copy.shadow = False
    return copy


def is_asked_again(hook: Hook, counting: Collection[str] = ()) -> bool:
    """Whether a replay runs this hook: gates that count, and rewrites of tool calls. Errors cannot be raised again."""
    if (hook.shadow and hook.name not in counting) or hook.event is Erring:
        return False
    if hook.kind == "rewrite":
        return hook.event in CHANGED_CALLS
    return hook.kind in ("gate", "hook")


def gates_of(recorded: Iterable[Description]) -> frozenset[tuple[str, str]]:
    """The hooks of recorded agents that a replay would ask again, by name and event: what they wrote does not count."""
    rows: Sequence[dict[str, object]] = [row for one in recorded for row in one.hooks]
    calls = [event.__name__ for event in CHANGED_CALLS]
    return frozenset(
        [
            (str(row["name"]), str(row["event"]))
            for row in rows
            if row["kind"] in ("gate", "hook") or (row["kind"] == "rewrite" and row["event"] in calls)
        ]
    )
