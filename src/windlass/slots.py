"""Typed values that hooks and tools store per session, with a merge rule if several may write at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Generic, TypeVar, cast

import msgspec

from .errors import HookError
from .messages import plain, thawed

T = TypeVar("T")


def slot_for(
    kind: Any, parameter: str, slots: Iterable[Slot[Any]], declared: Iterable[Slot[Any]] = ()
) -> Slot[Any] | None:
    """The slot whose value a parameter of this type gets, or None if no slot has the type.

    Of several it is the one among those `declared` together with its hook or tool, then the one with the parameter's
    name. If that leaves several, `LookupError` names them.
    """
    found = [slot for slot in slots if slot.type is kind and slot.supplied]
    for narrow in (lambda slot: any(slot is own for own in declared), lambda slot: slot.name == parameter):
        if len(found) > 1:
            found = [slot for slot in found if narrow(slot)] or found
    if len(found) > 1:
        names = " and ".join([repr(slot.name) for slot in found])
        raise LookupError(f"parameter {parameter!r} could be slot {names}; rename it after the slot that it needs")
    return found[0] if found else None


class Slot(Generic[T]):
    """A named value of one type, per session, stored in the log.

    `merge(current, new)` is needed if parallel calls may write it; without it, two writers at once raise an error that
    names both. `input=False` drops values that a caller passes to `run`, `output=False` keeps the slot out of the
    result. A hook or tool parameter annotated with `type` gets the current value; of several slots with that type, it
    gets the one declared by the same capability, or the one with the parameter's name. This does not hold for builtin
    types such as `int`, which many parameters have: read and write those slots through `turn`.
    """

    __slots__ = ("default", "input", "merge", "name", "output", "type")

    def __init__(
        self,
        name: str,
        type: type[T],
        *,
        default: Callable[[], T] | None = None,
        merge: Callable[[T, T], T] | None = None,
        input: bool = True,
        output: bool = True,
    ) -> None:
        self.name = name
        self.type = type
        self.default = default
        self.merge = merge
        self.input = input
        self.output = output

    @property
    def supplied(self) -> bool:
        """Whether parameters annotated with the slot's type get its value."""
        return self.type.__module__ != "builtins"

    def __repr__(self) -> str:
        return f"Slot({self.name!r}, {self.type.__name__})"

    def load(self, slots: Any) -> T:
        """The value in a state's slots, or the default."""
        if self.name in slots:
            return msgspec.convert(thawed(slots[self.name]), self.type)
        if self.default is not None:
            return self.default()
        try:
            return self.type()
        except TypeError:
            return cast(T, None)

    def dump(self, value: object, by: str) -> Any:
        """The plain form of a value; raises an error that names the slot and the writer if it does not fit."""
        try:
            stored = plain(msgspec.to_builtins(value, str_keys=True))
            msgspec.convert(thawed(stored), self.type)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            message = f"{by!r} set slot {self.name!r} to a value that is not a valid {self.type.__name__}: {error}"
            raise HookError(message, hook=by) from error
        return stored
