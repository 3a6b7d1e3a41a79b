"""The capabilities of an agent: installed in order, replaced and removed by name, and checked against each other."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias

from msgspec import Struct

from ._hooks.hooks import BANDS, Band
from ._hooks.registrar import Part, Registered, refuse_compactor_clash, refuse_slot_clash
from ._kernel.child_program import tools_below
from ._kernel.program import BOUNDS, Program
from ._options import Domain, check_options, optional
from .assembly import CAPABILITY
from .errors import ConfigError
from .protocols import Capability, Model, Store
from .slots import Slot
from .storage import Home
from .tools import Tool
from .types import Approver

GROUP = "windlass.capabilities"
"""The group of entry points in which packages offer capabilities by name."""

Data: TypeAlias = dict[str, Any]


class Assembly(Struct, frozen=True, eq=False):
    """An assembled agent, as a function of `registrar.check` sees it. Only look at it.

    `models` has all models by name, `model` is the agent's own. For a sub-agent `store` is that of the agent above.
    `bounds` are the options of the agent that are numbers or choices, such as `max_vetoes`. `approvers` are the
    functions of this process that answer questions.
    """

    name: str
    model: Model
    models: Mapping[str, Model]
    tools: Mapping[str, Tool[..., Any]]
    store: Store
    capabilities: tuple[str, ...]
    settings: Mapping[str, Any]
    bounds: Mapping[str, Any]
    approvers: tuple[Approver, ...] = ()


class _Installed(Struct, eq=False):
    """A capability of an agent. `spans` says where in the agent's lists the entries are that it brought."""

    name: str
    capability: Capability
    band: Band | None
    part: Registered
    spans: dict[str, tuple[int, int]] = {}

    @property
    def place(self) -> int:
        """The place of its band."""
        return BANDS[self.band or "normal"]

    def is_one_of(self, others: Iterable[str | type]) -> bool:
        """Whether it has one of these names or classes. The second `retry`, named `retry#2`, is a `retry`, too."""
        names = (self.name, self.name.partition("#")[0])
        return any(other in names if isinstance(other, str) else isinstance(self.capability, other) for other in others)


class Composition:
    """The capabilities of an agent, in the order in which they were installed.

    What they bring is spliced into the lists of the agent. A replacement stands where the replaced one stood.
    `own_slots` are the slots that the application declared itself: they stay.
    """

    def __init__(self, registered: Registered, home: Home) -> None:
        self._registered = registered
        self._home = home
        self._installed: list[_Installed] = []
        self.own_slots: list[Slot[Any]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the capabilities."""
        return tuple([one.name for one in self._installed])

    def described(self, program: Program) -> list[Data]:
        """The capabilities for `explain`: each with its band and what its `summary()` and `warnings(tools)` say.

        The tools are those of the agent and of its sub-agents, by name.
        """
        tools = {tool.name: tool for tool in (*tools_below(program), *program.tools.values())}
        return [
            {
                "name": one.name,
                "type": type(one.capability).__name__,
                "band": one.band or "normal",
                "summary": str(summary()) if (summary := getattr(one.capability, "summary", None)) else "",
                "warnings": list(found(tools)) if (found := getattr(one.capability, "warnings", None)) else [],
            }
            for one in self._installed
        ]

    def install(self, given: Capability | str, *, name: str | None, band: Band | None, replace: str | None) -> None:
        """Install a capability at the end, or in the place of another one. If that fails, nothing has changed."""
        domains = {"capability": CAPABILITY, "name": optional(_NAME), "replace": optional(_NAME)}
        check_options("with_capability", domains, {"capability": given, "name": name, "replace": replace})
        at = len(self._installed) if replace is None else self._index(replace, band, "replace")
        capability = load_capability(given) if isinstance(given, str) else given
        others = [one for index, one in enumerate(self._installed) if index != at]
        label = _free_name(name or label_of(capability), {one.name for one in others})
        part = Part(label, band, self._home)
        capability.install(part)
        brought = part._registered  # pyright: ignore[reportPrivateUsage]
        self._refuse_clashes(label, brought, at)
        part._seal(f"after capability {label!r} was installed")  # pyright: ignore[reportPrivateUsage]
        self._splice(at, _Installed(label, capability, band, brought))

    def remove(self, name: str, band: Band | None) -> None:
        """Remove a capability with all it brought."""
        check_options("without_capability", {"name": _NAME}, {"name": name})
        self._splice(self._index(name, band, "remove"), None)

    def _index(self, name: str, band: Band | None, verb: str) -> int:
        if name not in self.names:
            known = ", ".join(map(repr, self.names)) or "none"
            raise ConfigError(f"cannot {verb} capability {name!r}: the agent has {known}")
        at = self.names.index(name)
        if self._installed[at].band == "guard" != band:
            raise ConfigError(f"capability {name!r} is in the guard band: pass band='guard' to {verb} it")
        return at

    def _refuse_clashes(self, label: str, brought: Registered, at: int) -> None:
        """Raise if slots or compactors have names that the agent's others have."""
        mine, old = self._registered, self._installed[at].part if at < len(self._installed) else None
        slots = self._slots_without(old) if old is not None else mine.slots
        for slot in brought.slots:
            refuse_slot_clash(slot, slots, label)
        for compactor in brought.compactors:
            refuse_compactor_clash(
                compactor, [one for one in mine.compactors if old is None or one not in old.compactors]
            )

    def _slots_without(self, part: Registered) -> list[Slot[Any]]:
        """The agent's slots, but those that only this part declares."""
        others = [slot for one in self._installed if one.part is not part for slot in one.part.slots]
        kept = [*self.own_slots, *others]
        return [
            slot
            for slot in self._registered.slots
            if not any(slot is its for its in part.slots) or any(slot is other for other in kept)
        ]

    def _splice(self, at: int, new: _Installed | None) -> None:
        """Put what a capability brought into the agent's lists, in the place of the one that was there."""
        mine, old = self._registered, self._installed[at] if at < len(self._installed) else None
        if old is not None:
            mine.slots[:] = self._slots_without(old.part)
        for field in Registered.__slots__:
            if field != "slots":
                entries: list[Any] = getattr(mine, field)
                start, end = (len(entries), len(entries)) if old is None else old.spans[field]
                brought = [] if new is None else _brought(new.part, field)
                entries[start:end] = brought
                if new is not None:
                    new.spans[field] = (start, start + len(brought))
                self._shift(self._installed[at + 1 :], field, len(brought) - (end - start))
        if new is not None:
            known = [id(slot) for slot in mine.slots]
            mine.slots += [slot for slot in new.part.slots if id(slot) not in known]
        self._installed[at : at + 1] = [] if new is None else [new]

    @staticmethod
    def _shift(later: Iterable[_Installed], field: str, by: int) -> None:
        for one in later:
            start, end = one.spans[field]
            one.spans[field] = (start + by, end + by)

    # ------------------------------------------------------------ checks

    def check(self, program: Any) -> None:
        """Raise `ConfigError` if the capabilities do not go together, or if one finds something wrong."""
        problems = [*self._contradictions(), *self._unmet(program.store)]
        if self._registered.checks:
            assembly = Assembly(
                program.name,
                program.model,
                program.models,
                program.tools,
                program.store,
                self.names,
                program.settings,
                {name: getattr(program, name) for name in BOUNDS},
                tuple(self._registered.approvers),
            )
            for check in self._registered.checks:
                if (problem := check.fn(assembly)) is not None:
                    whose = "" if check.capability is None else f"capability {check.capability!r}: "
                    problems.append(f"{whose}{problem}")
        if problems:
            raise ConfigError(f"agent {program.name!r} cannot be assembled: {'; '.join(problems)}")

    def _contradictions(self) -> Iterator[str]:
        """Pairs of capabilities that stand in the wrong order, each with who says so."""
        for at, first in enumerate(self._installed):
            for second in self._installed[at + 1 :]:
                early, late = (second, first) if second.place < first.place else (first, second)
                wrong = [*_says(early, "after", late), *_says(late, "before", early)]
                right = [*_says(early, "before", late), *_says(late, "after", early)]
                if wrong and right:
                    yield f"{wrong[0]}, but {right[0]}: they cannot be installed together"
                elif wrong:
                    yield f"{wrong[0]}, but {early.name!r} comes before {late.name!r}"
                for one, other in ((first, second), (second, first)):
                    yield from _says(one, "conflicts", other)

    def _unmet(self, store: Store) -> Iterator[str]:
        """What capabilities require and the agent does not have."""
        for one in self._installed:
            for said in one.part.constraints:
                for needed in said.requires:
                    if not any(other is not one and other.is_one_of([needed]) for other in self._installed):
                        wanted = repr(needed if isinstance(needed, str) else needed.__name__)
                        known = ", ".join(map(repr, self.names))
                        yield f"capability {one.name!r} requires capability {wanted}, but the agent has only {known}"
                if said.durable and not store.durable:
                    yield (
                        f"capability {one.name!r} needs a store that outlives the process: "
                        "pass Agent(store='sqlite:///agent.db') or another durable store"
                    )


_NAME = Domain("the name of a capability", lambda given: isinstance(given, str) and given != "")

_WORDS = {"before": "must come before", "after": "must come after", "conflicts": "conflicts with"}


def _says(one: _Installed, relation: str, other: _Installed) -> list[str]:
    """What one capability says about another in some relation, in words."""
    said = any(other.is_one_of(getattr(constraints, relation)) for constraints in one.part.constraints)
    return [f"{one.name!r} {_WORDS[relation]} {other.name!r}"] if said else []


def _brought(part: Registered, field: str) -> list[Any]:
    """The entries of a capability for one of the agent's lists. Its tools know its slots."""
    if field == "tools":
        return [tool.bound(part.slots) for tool in part.tools]
    entries: list[Any] = getattr(part, field)
    return list(entries)


def label_of(capability: object) -> str:
    """The name of a capability: its own, or that of its class."""
    name = getattr(capability, "name", None)
    return name if isinstance(name, str) and name else type(capability).__name__


def _free_name(name: str, taken: set[str]) -> str:
    """A name that no other capability has: the second `retry` is `retry#2`."""
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}#{number}"
    return free


def load_capability(name: str, options: Mapping[str, Any] | None = None) -> Capability:
    """The capability that an installed package offers under this name, made with these options."""
    from importlib.metadata import entry_points

    found = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not found:
        known = ", ".join(sorted({point.name for point in entry_points(group=GROUP)})) or "none"
        raise ConfigError(f"no installed package offers a capability {name!r}; known: {known}")
    places = [f"{value} ({point.dist.name if point.dist else 'unknown'})" for value, point in found.items()]
    if len(found) > 1:
        raise ConfigError(f"several packages offer a capability {name!r}: {', '.join(places)}; pass an object instead")
    (point,) = found.values()
    try:
        loaded: Any = point.load()
        is_made = not isinstance(loaded, type) and hasattr(loaded, "install")
        made: Any = loaded if is_made and not options else loaded(**options or {})
    except Exception as error:
        text = f"capability {name!r} from {places[0]} cannot be made: {type(error).__name__}: {error}"
        raise ConfigError(f"{text}. If it needs arguments, pass an object instead of its name") from error
    if not CAPABILITY.holds(made) or isinstance(made, str):
        raise ConfigError(f"capability {name!r} from {places[0]} has no install(registrar): {made!r}")
    capability: Capability = made
    return capability
