"""Metadata: typed values of a session that tools, hooks and the model read and write."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, overload

import msgspec

from windlass.errors import ConfigError, HookError, ToolError
from windlass.slots import Slot
from windlass.states import State
from windlass.tools import tool
from windlass.turns import Turn

from .options import require, require_name

if TYPE_CHECKING:
    from typing_extensions import TypeForm

    from windlass import Hooks, Result

T = TypeVar("T")
UNSET: Any = msgspec.UNSET


class Key(Generic[T]):
    """A value that a session may have: its `name` and `type`, and what it is for (`description`).

    `default` is its value before it is set. `model` says what the model may do with it: `"none"`, `"read"`, or
    `"write"`, which includes reading. Parallel calls may write the key only with a rule: `merge(current, new)` returns
    the value to keep. It applies to every write but the first, which sets the value.
    """

    def __init__(
        self,
        name: str,
        type: TypeForm[T],
        *,
        default: T = UNSET,
        description: str = "",
        model: Literal["none", "read", "write"] = "read",
        merge: Callable[[T, T], T] | None = None,
    ) -> None:
        require("Key", "name", name, _is_name(name), "a name such as 'order_id'")
        require(f"Key {name!r}", "model", model, model in ("none", "read", "write"), "'none', 'read' or 'write'")
        require(f"Key {name!r}", "merge", merge, merge is None or callable(merge), "a function of two values")
        try:
            self.schema: Mapping[str, Any] = msgspec.json.schema(type)
        except TypeError as error:
            raise ConfigError(f"Key({name!r}, {type!r}): the type cannot be stored: {error}") from error
        self.name, self.type, self.default = name, type, default
        self.description, self.model, self.merge = description, model, merge

    def __repr__(self) -> str:
        return f"Key({self.name!r}, {self.type!r})"


class Metadata:
    """Keep the values of these `keys` in the session: `Metadata(Key("visits", int), Key("city", str, model="write"))`.

    Tools and hooks use `metadata.get(turn, key)` and `metadata.set(turn, key, value)`, the application
    `metadata.of(result)`. A key is the `Key` or its name. The model has the tools `get_metadata`, `list_metadata` and,
    if it may write a key, `set_metadata`. Each value is a slot of its own, `metadata.visits`: it is stored in the log,
    and two calls that write one key at the same time are an error unless the key has a merge rule.
    """

    def __init__(self, *keys: Key[Any], name: str = "metadata") -> None:
        require_name("Metadata", name)
        require("Metadata", "keys", keys, bool(keys) and all(isinstance(key, Key) for key in keys), "one or more Key")
        self.name = name
        self.keys: Mapping[str, Key[Any]] = {key.name: key for key in keys}
        if len(self.keys) < len(keys):
            raise ConfigError(f"Metadata has two keys of one name: {', '.join([key.name for key in keys])}")
        self._slots = {key.name: _slot_of(key, name) for key in keys}

    def install(self, registrar: Hooks) -> None:
        """Register a slot for each key, and the tools for those that the model may read or write."""
        for slot in self._slots.values():
            registrar.slot(slot)
        if shown := self._shown():
            known = f"The keys are {', '.join([key.name for key in shown])}."
            registrar.tool(_tool("get_metadata", f"Read a stored value. {known}", read_only=True)(self._get_for_model))
            registrar.tool(_tool("list_metadata", "List the stored values.", read_only=True)(self._list_for_model))
        if writable := [key for key in shown if key.model == "write"]:
            text = "; ".join([_described(key) for key in writable])
            registrar.tool(_tool("set_metadata", f"Store a value. You may write: {text}.")(self._set_for_model))

    def summary(self) -> str:
        """The keys, for `explain`."""
        return ", ".join([f"{key.name} (model: {key.model})" for key in self.keys.values()])

    # ------------------------------------------------------------ tools, hooks and the application

    @overload
    def get(self, turn: Turn[Any], key: Key[T]) -> T: ...
    @overload
    def get(self, turn: Turn[Any], key: str) -> Any: ...
    def get(self, turn: Turn[Any], key: Key[Any] | str) -> Any:
        """The value of a key. Raises `LookupError` if it is not set and has no default."""
        entry = turn.get(self._slot(key))
        if entry is None:
            raise LookupError(f"metadata {getattr(key, 'name', key)!r} is not set and has no default")
        return entry.value

    @overload
    def set(self, turn: Turn[Any], key: Key[T], value: T) -> None: ...
    @overload
    def set(self, turn: Turn[Any], key: str, value: Any) -> None: ...
    def set(self, turn: Turn[Any], key: Key[Any] | str, value: Any) -> None:
        """Set a key. It is recorded when the hook or tool returns; a value of another type raises `HookError`."""
        slot = self._slot(key)
        turn.set(slot, slot.type(value))

    def of(self, source: Result[Any] | State) -> dict[str, Any]:
        """The values in `source`, a result or a state, by key; without keys that are not set and have no default."""
        state = source if isinstance(source, State) else source.state
        entries = {name: slot.load(state.slots) for name, slot in self._slots.items()}
        return {name: entry.value for name, entry in entries.items() if entry is not None}

    def slots(self, **values: Any) -> dict[str, Any]:
        """These `values`, by key, for a run: `agent.run("Hi", slots=metadata.slots(city="Oslo"))`."""
        slots = {self._slot(key): value for key, value in values.items()}
        return {slot.name: slot.dump(slot.type(value), "Metadata.slots") for slot, value in slots.items()}

    def _slot(self, key: Key[Any] | str) -> Slot[Any]:
        name = key.name if isinstance(key, Key) else key
        if name not in self._slots or (isinstance(key, Key) and self.keys[name] is not key):
            raise ConfigError(f"{self.name!r} has no key {name!r}; its keys are {', '.join(self.keys)}")
        return self._slots[name]

    # ------------------------------------------------------------ the model

    def _shown(self) -> list[Key[Any]]:
        return [key for key in self.keys.values() if key.model != "none"]

    def _get_for_model(self, key: str, turn: Turn[Any]) -> Any:
        return self._value(turn, self._key(key, [one.name for one in self._shown()]))

    def _list_for_model(self, turn: Turn[Any]) -> list[dict[str, Any]]:
        return [
            {"key": key.name, "type": key.schema, "may_write": key.model == "write", "value": self._value(turn, key)}
            | ({"description": key.description} if key.description else {})
            for key in self._shown()
        ]

    def _set_for_model(self, key: str, value: Any, turn: Turn[Any]) -> str:
        known = self._key(key, [one.name for one in self._shown() if one.model == "write"])
        slot, new = self._slot(known), _converted(known, value)
        try:
            slot.dump(slot.type(new), self.name)
        except HookError as error:
            raise ToolError(f"the value of {key!r} cannot be stored: {error.__cause__}") from error
        self.set(turn, known, new)
        return f"{key} is stored."

    def _key(self, name: str, allowed: list[str]) -> Key[Any]:
        if name not in allowed:
            raise ToolError(f"there is no such key {name!r} for this; the keys are {', '.join(allowed)}")
        return self.keys[name]

    def _value(self, turn: Turn[Any], key: Key[Any]) -> Any:
        entry = turn.get(self._slot(key))
        return None if entry is None else msgspec.to_builtins(entry.value, str_keys=True)


def _tool(name: str, description: str, *, read_only: bool = False) -> Callable[[Callable[..., Any]], Any]:
    """A decorator that makes a tool of this name. It is not pure, or a cache would return values that have changed."""
    return tool(effect="idempotent", inline=True, name=name, description=description, read_only=read_only)


def _slot_of(key: Key[Any], name: str) -> Slot[Any]:
    """A slot of a type of its own: parameters of tools that have the type of the key are not filled in from it."""
    kind = msgspec.defstruct(key.name, [("value", key.type)], frozen=True)
    merge = key.merge
    combine = None if merge is None else (lambda old, new: kind(merge(old.value, new.value)))
    default = None if key.default is UNSET else kind(key.default)
    slot: Slot[Any] = Slot(f"{name}.{key.name}", kind, default=lambda: default, merge=combine, output=False)
    if default is not None:
        try:
            slot.dump(default, "default")
        except HookError as error:
            raise ConfigError(f"{key!r}: default={key.default!r} is not of that type") from error
    return slot


def _is_name(name: object) -> bool:
    return isinstance(name, str) and name.isidentifier()


def _described(key: Key[Any]) -> str:
    text = f"{key.name}, of type {msgspec.json.encode(key.schema).decode()}"
    return f"{text} ({key.description})" if key.description else text


def _converted(key: Key[Any], value: Any) -> Any:
    """A value that the model wrote, as the type of the key. Models also write JSON in a text."""
    try:
        return msgspec.convert(value, key.type)
    except msgspec.ValidationError as error:
        if isinstance(value, str):
            try:
                return msgspec.json.decode(value, type=key.type)
            except msgspec.MsgspecError:
                pass
        raise ToolError(f"the value does not fit {key.name!r}: {error}. Its type is {dict(key.schema)}.") from error
