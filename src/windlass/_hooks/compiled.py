"""The hooks of an agent, sorted and grouped once: an event nobody listens to is not in it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import copy
from typing import Any

from windlass.errors import ConfigError
from windlass.events import EVENTS, HookRan, ModelReplying, TurnEnding
from windlass.messages import ModelCall, ToolCall
from windlass.slots import Slot
from windlass.states import Step
from windlass.turns import Turn
from windlass.types import AnyEvent

from .hooks import BANDS, Hook
from .streams import Transform, Transforms


class Point:
    """All hooks of one event, in the order in which they run.

    `asked` are the gates whose verdict counts, the costly ones last. `alike` says that the hooks
    which may change the payload are plain async functions that see the same `view` of it. `injects`
    says that somebody may add something; `judges` that there are gates, shadows included; `decides`
    that there are gates or hooks that combine verbs; `speaks` that somebody's verdict counts;
    `waits` that a hook may take more than a moment; `conditional` that each hook has conditions.
    """

    __slots__ = (
        "_conditions",
        "alike",
        "asked",
        "changing",
        "conditional",
        "costly",
        "decides",
        "event",
        "gates",
        "groups",
        "holders",
        "injects",
        "judges",
        "name",
        "says",
        "shadows",
        "speaks",
        "view",
        "waits",
    )

    def __init__(self, event: type[AnyEvent], hooks: Sequence[Hook]) -> None:
        self.event: Any = event
        self.name = event.__name__
        gates = [hook for hook in hooks if hook.kind == "gate"]
        says = [hook for hook in hooks if hook.kind == "hook"]
        self.changing = (*says, *[hook for hook in hooks if hook.kind == "rewrite"])
        self.gates = tuple([hook for hook in gates if not hook.shadow and not hook.costly])
        self.costly = tuple([hook for hook in gates if hook.costly and not hook.shadow])
        self.asked = (*self.gates, *self.costly)
        views = {hook.view for hook in self.changing}
        plain = all(hook.plain and hook.is_async and hook.matches is None for hook in self.changing)
        self.alike = plain and len(views) == 1
        self.view = views.pop() if self.alike else None
        self.shadows = tuple([hook for hook in gates if hook.shadow])
        self.says = bool(says)
        self.judges = bool(gates)
        self.decides = bool(gates or says)
        self.speaks = bool(says or self.gates or self.costly)
        self.waits = any(hook.is_async or hook.thread for hook in hooks)
        self.holders = tuple(
            [hook for hook in (*self.changing, *self.gates, *self.costly) if not hook.live]
        )
        conditions = [hook.matches for hook in hooks if hook.matches is not None]
        self._conditions = tuple(conditions)
        self.conditional = bool(hooks) and len(conditions) == len(hooks)
        self.groups = _groups([hook for hook in hooks if hook.kind == "inject"])
        self.injects = bool(self.groups or says)

    def is_asked_about(self, event: Any) -> bool:
        """Whether a hook may look at an event. If not, nothing has to be prepared for hooks.

        A condition that raises counts as a look, and is asked again in the name of its hook.
        """
        if not self.conditional:
            return True
        try:
            for matches in self._conditions:
                if matches(event):
                    return True
        except Exception:
            return True
        return False

    def looks_at(self, call: ToolCall) -> bool:
        """Whether a hook that can change or withhold something may look at this call."""
        return any(_matches(hook, call) for hook in (*self.changing, *self.gates, *self.costly))


class CompiledHooks:
    """The hooks of an agent. `at(event)` gives the point of an event, or None if it has no hooks.

    `listeners` has, for every fact with observers, those that are told as it happens; `durable` are
    those that read the log, and `observers` all of them. `attends` says that a turn may have to
    wait for one of them. `timed` says that an observer, here or of an agent above, wants to know how
    long hooks take; `measured` that the log keeps it, summed up.
    """

    __slots__ = (
        "_points",
        "all",
        "at",
        "attends",
        "durable",
        "listeners",
        "measured",
        "model_wraps",
        "observers",
        "slots",
        "step_wraps",
        "timed",
        "tool_wraps",
        "transforms",
        "turn_wraps",
    )  # fmt: skip

    def __init__(
        self,
        hooks: Iterable[Hook],
        transforms: Iterable[Transform],
        slots: Iterable[Slot[Any]],
        *,
        timed: bool = False,
        measured: bool = False,
    ) -> None:
        self.slots = {slot.name: slot for slot in slots}
        self.all = _ordered(hooks)
        self.transforms = Transforms(sorted(transforms, key=_place))
        _name_apart(self.all)
        self.timed = timed or any(hook.event is HookRan for hook in self.all)
        self.measured = measured
        for hook in self.all:
            on_the_way = hook.kind != "observe" and hook.event is not Turn
            hook.timed = (self.timed or measured) and on_the_way
            hook.bind(self.slots.values())
        placed: dict[type, list[Hook]] = {}
        for hook in self.all:
            placed.setdefault(hook.event, []).append(hook)
        self._place({event: Point(event, placed[event]) for event in EVENTS if event in placed})
        self.model_wraps = tuple(placed.get(ModelCall, ()))
        self.tool_wraps = tuple(placed.get(ToolCall, ()))
        self.step_wraps = tuple(placed.get(Step, ()))
        self.turn_wraps = tuple(placed.get(Turn, ()))
        self.durable = tuple([hook for hook in self.all if hook.durable])
        self.observers = {
            kind: tuple(hooks) for kind, hooks in placed.items() if hooks[0].kind == "observe"
        }
        self.attends = bool(self.durable) or any(hook.wait for hook in self.all)
        self.listeners = {
            kind: tuple([h for h in hooks if not h.durable])
            for kind, hooks in self.observers.items()
        }

    def _place(self, points: dict[type, Point]) -> None:
        self._points = points
        self.at: Callable[[type], Point | None] = points.get

    def named(self, event: str) -> Point | None:
        """The point of an event, by the event's name."""
        return next((point for point in self._points.values() if point.name == event), None)

    def slot(self, key: Slot[Any] | type | str) -> Slot[Any]:
        """A declared slot, by itself, its type or its name."""
        if isinstance(key, type):
            names = [
                slot.name for slot in self.slots.values() if slot.type is key and slot.supplied
            ]
            if len(names) > 1:
                text = f"slots {' and '.join(map(repr, names))} have the type {key.__name__}"
                raise ConfigError(f"{text}: pass the slot itself, or its name")
            name = names[0] if names else None
        else:
            name = key if isinstance(key, str) else key.name
        if name is None or name not in self.slots:
            known = ", ".join(self.slots) or "none"
            raise ConfigError(
                f"no slot {getattr(key, 'name', key)!r} is declared; known: {known}. Use agent.slot(…)"
            )
        return self.slots[name]

    def with_events(self, names: Iterable[str]) -> CompiledHooks:
        """The same hooks with a point, perhaps an empty one, for each of these events: the log has
        verdicts on them."""
        missing = {
            event: Point(event, ())
            for event in EVENTS
            if event.__name__ in names and not self.at(event)
        }
        if not missing:
            return self
        made = copy(self)
        made._place({**self._points, **missing})
        return made

    @property
    def holders(self) -> tuple[Hook, ...]:
        """Who holds back the stream: whoever can still change a whole reply, unless it says
        `live=True`."""
        points = (self.at(ModelReplying), self.at(TurnEnding))
        return tuple(hook for point in points if point is not None for hook in point.holders)


def _matches(hook: Hook, call: ToolCall) -> bool:
    try:
        return hook.matches_call is None or hook.matches_call(call)
    except Exception:
        return True


def _ordered(hooks: Iterable[Hook]) -> tuple[Hook, ...]:
    """Band, then priority (high first), then registration."""
    return tuple(sorted(hooks, key=_place))


def _place(hook: Hook | Transform) -> tuple[int, int, int]:
    """Where a hook stands.

    In the guard band those of the agents above come last, the root's last of all.
    """
    return BANDS[hook.band], hook.above if hook.band == "guard" else 0, -hook.priority


def _name_apart(hooks: Sequence[Hook]) -> None:
    """Names are labels, but a decision must name one hook: the second `redact` is `redact#2`."""
    seen: dict[str, int] = {}
    for hook in hooks:
        base = hook.options.get("name") or hook.name.split("#")[0]
        seen[base] = seen.get(base, 0) + 1
        hook.name = base if seen[base] == 1 else f"{base}#{seen[base]}"


def _groups(hooks: Sequence[Hook]) -> tuple[tuple[Hook, ...], ...]:
    """Injections in order; the members of a parallel group stand together where the first of them
    stands."""
    groups: dict[object, list[Hook]] = {}
    for hook in hooks:
        groups.setdefault(hook.group or hook, []).append(hook)
    return tuple(tuple(group) for group in groups.values())


NO_HOOKS = CompiledHooks((), (), ())
"""Those of an agent that has none."""
