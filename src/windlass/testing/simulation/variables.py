"""The variables of the user's modules: the memory of a process, which a simulated crash resets."""

from __future__ import annotations

import functools
import itertools
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from copy import copy
from functools import partial
from random import Random
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

from msgspec import Struct

from windlass.tools import Tool

from .refusals import is_library, is_users

LARGEST = 10_000
"""Containers with more members are tables that nobody changes."""

_CODE = (ModuleType, type, FunctionType, BuiltinFunctionType)
_DATA = (type(None), bool, int, float, str, bytes, tuple, frozenset, dict, list, set, deque, itertools.count)
_CACHE = type(functools.lru_cache(lambda: None))


class _Place(Struct, eq=False):
    """Something that can change: whether it has, and how to make it what it was."""

    of_world: bool
    changed: Callable[[], bool]
    reset: Callable[[], None]


class Variables:
    """The variables of the user's modules as they are now, with the containers and objects in them.

    Most agents change none, and their sessions may share an event loop. If one does, its sessions run `alone`, and each
    simulated process begins with the variables as they were.

    Those that `observers` use, which are invariants and stand-ins, belong to the world: they outlive crashes, and only
    a new session resets them.
    """

    def __init__(self, observers: Iterable[Any], namespaces: Iterable[dict[str, Any]]) -> None:
        self.alone = False
        self._places: list[_Place] = []
        self._seen: set[int] = set()
        modules = [vars(module) for module in list(sys.modules.values()) if _is_own(getattr(module, "__file__", None))]
        known = {id(namespace): namespace for namespace in (*modules, *namespaces)}
        used = [(id(fn.__globals__), name) for fn in _functions(observers) for name in _names_in(fn.__code__)]
        world = [(known[place], name) for place, name in used if place in known and name in known[place]]
        for namespace, name in world:  # first, so that it is not taken for memory of the agent
            self._add(namespace[name], of_world=True)
        for namespace in known.values():
            names = {name for space, name in world if space is namespace}
            self._places.append(_names(namespace, names.__contains__, of_world=True))
            self._places.append(_names(namespace, lambda name, names=names: name not in names, of_world=False))  # type: ignore[misc]
            for name, value in list(namespace.items()):
                if not name.startswith("__"):
                    self._add(value, of_world=False)

    def changed(self) -> bool:
        """Whether anything is other than it was."""
        return any(place.changed() for place in self._places)

    def reset(self, *, crash: bool = False) -> None:
        """Make everything what it was; after a crash, all but what belongs to the world."""
        for place in self._places:
            if not (crash and place.of_world):
                place.reset()

    def _add(self, value: Any, *, of_world: bool) -> None:
        """What can change in a value, and in all that is reached from it."""
        queue = [value]
        while queue:
            value = queue.pop()
            if id(value) in self._seen or len(self._seen) > 20 * LARGEST:
                continue
            made, inside = _look_at(value)
            if made is not None:
                self._places.append(_Place(of_world, *made))
            if made is not None or inside:
                self._seen.add(id(value))
                queue += inside


_Made = tuple[Callable[[], bool], Callable[[], None]]


def _look_at(value: Any) -> tuple[_Made | None, list[Any]]:
    """How a value changes, if it can, and what is inside."""
    if _is(value, dict | list | set | deque | bytearray):
        if len(value) > LARGEST:
            return None, []
        return _container(value), list(value.values() if _is(value, dict) else value)
    if _is(value, Random):
        state = value.getstate()
        return (lambda: value.getstate() != state, lambda: value.setstate(state)), []
    if _is(value, _CACHE):
        filled = value.cache_info()
        return (lambda: value.cache_info() != filled, value.cache_clear), [value.__wrapped__]
    if _is(value, FunctionType):
        return (None, _kept_by(value)) if _is_own(value.__code__.co_filename) else (None, [])
    if _is(value, Tool):
        return None, [value.fn]
    if _has_memory(value):
        names = vars(value)
        return _attributes(value), [of for name, of in names.items() if not name.startswith("__")]
    return None, []


def _kept_by(function: FunctionType) -> list[Any]:
    """What a function keeps between its calls."""
    kept = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values(), vars(function)]
    for cell in function.__closure__ or ():
        try:
            kept.append(cell.cell_contents)
        except ValueError:  # it has no value yet
            continue
    return kept


def _has_memory(value: Any) -> bool:
    """Whether this is a class of the user, an object of one, or a lock or queue of asyncio."""
    is_class = _is(value, type)
    module: Any = (value if is_class else type(value)).__module__
    if not _is(module, str):
        return False
    own = _is_own(getattr(sys.modules.get(module), "__file__", None))
    return own if is_class else (own or module.startswith("asyncio.")) and hasattr(value, "__dict__")


# ---------------------------------------------------------------- what can change


def _container(value: Any) -> _Made:
    saved: Any
    if _is(value, dict):
        saved = dict(value)

        def changed() -> bool:
            return len(value) != len(saved) or any(
                name is not known or of is not kept
                for (name, of), (known, kept) in zip(value.items(), saved.items(), strict=True)
            )

        def reset() -> None:
            value.clear()
            value.update(saved)

    elif _is(value, set):
        saved = set(value)

        def changed() -> bool:
            return bool(value != saved)

        def reset() -> None:
            value.clear()
            value.update(saved)

    else:
        saved = list(value)

        def changed() -> bool:
            return len(value) != len(saved) or any(map(_is_not, value, saved))

        def reset() -> None:
            value.clear()
            value.extend(saved)

    return changed, lambda: reset() if changed() else None


def _names(namespace: dict[str, Any], wanted: Callable[[str], bool], *, of_world: bool) -> _Place:
    """The names of a module. A counter of itertools is copied: it has no way back."""

    def values() -> dict[str, Any]:
        return {n: v for n, v in namespace.items() if not n.startswith("__") and wanted(n) and not _is(v, _CODE)}

    return _Place(of_world, *_named(values, namespace.__setitem__, namespace.__delitem__))


def _attributes(owner: Any) -> _Made:
    """The attributes of an object; of a class only data, since frameworks add descriptors of their own to it."""
    names = vars(owner)
    if not _is(owner, type):
        return _named(
            lambda: {n: v for n, v in names.items() if not n.startswith("__")}, names.__setitem__, names.__delitem__
        )
    known = {name for name, value in names.items() if _is(value, _DATA)}

    def values() -> dict[str, Any]:
        mine = {n: v for n, v in vars(owner).items() if n in known or _is(v, _DATA)}
        return {n: v for n, v in mine.items() if not n.startswith("__")}

    return _named(values, partial(type.__setattr__, owner), partial(type.__delattr__, owner))


def _named(values: Callable[[], dict[str, Any]], put: Callable[[str, Any], Any], drop: Callable[[str], Any]) -> _Made:
    saved = {name: copy(value) if _is(value, itertools.count) else value for name, value in values().items()}

    def changed() -> bool:
        now = values()
        return now.keys() != saved.keys() or any(_differs(now[name], value) for name, value in saved.items())

    def reset() -> None:
        now = values()
        for name in now.keys() - saved.keys():
            drop(name)
        for name, value in saved.items():
            if name not in now or _differs(now[name], value):
                put(name, copy(value) if _is(value, itertools.count) else value)

    return changed, reset


def _differs(now: Any, saved: Any) -> bool:
    return repr(now) != repr(saved) if _is(saved, itertools.count) else now is not saved


def _is(value: Any, kinds: Any) -> bool:
    """Like isinstance, without asking the value: a lazy proxy may raise."""
    return issubclass(type(value), kinds)


def _is_not(one: Any, other: Any) -> bool:
    return one is not other


# ---------------------------------------------------------------- whose it is


def _is_own(file: Any) -> bool:
    """Whether a file belongs to the user: not to Windlass, Python or an installed package."""
    return _is(file, str) and is_users(file) and not is_library(file)


def _functions(values: Iterable[Any]) -> list[FunctionType]:
    return [value for value in values if _is(value, FunctionType)]


def _names_in(code: CodeType) -> Iterator[str]:
    """The global names that code uses."""
    yield from code.co_names
    for constant in code.co_consts:
        if _is(constant, CodeType):
            yield from _names_in(constant)
