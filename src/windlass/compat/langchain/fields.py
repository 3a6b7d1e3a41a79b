"""The fields of `state_schema` as slots."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple, NotRequired, Required, get_args, get_origin, get_type_hints

from langchain.agents.middleware.types import OmitFromSchema
from langgraph.channels.base import BaseChannel
from langgraph.channels.ephemeral_value import EphemeralValue
from langgraph.channels.last_value import LastValue
from langgraph.channels.untracked_value import UntrackedValue
from pydantic import ConfigDict, TypeAdapter
from pydantic.errors import PydanticSchemaGenerationError, PydanticUserError

from windlass.errors import ConfigError, HookError
from windlass.slots import Slot
from windlass.turns import Turn

RESERVED = ("messages", "jump_to", "structured_response")
SESSIONS = 1000
"""The maximum number of sessions whose live objects are kept."""

_WHOLE = "langchain:whole"
_TURN = "langchain:turn"


class Field(NamedTuple):
    """A field of a state: where it is kept, how updates are merged, and the slot of one that is stored.

    `life` is `session`, `turn` (an `UntrackedValue`, which lasts for one run), or `hook` (an `EphemeralValue`). A value
    without a JSON form is a live object: it is kept in this process until the turn ends.
    """

    name: str
    owner: str
    life: str
    reducer: Callable[[Any, Any], Any] | None
    adapter: TypeAdapter[Any] | None
    empty: Callable[[], Any] | None
    slot: Slot[Any] | None


class Fields:
    """The fields of all middlewares, and the live objects of the sessions at work."""

    def __init__(self, schemas: Iterable[tuple[str, type]]) -> None:
        self.known: dict[str, Field] = {}
        for owner, schema in schemas:
            for name, annotation in get_type_hints(schema, include_extras=True).items():
                if name not in RESERVED:
                    self.known[name] = _field(name, owner, annotation)
        self._live: OrderedDict[str, dict[str, Any]] = OrderedDict()

    @property
    def slots(self) -> list[Slot[Any]]:
        """The slots of the stored fields."""
        return [field.slot for field in self.known.values() if field.slot is not None]

    @property
    def live(self) -> bool:
        """Whether some fields hold live objects."""
        return any(field.slot is None for field in self.known.values())

    # ------------------------------------------------------------ reading

    def values(self, turn: Turn[Any]) -> dict[str, Any]:
        """The values that are set."""
        stored, found = turn.state.slots, {}
        for name, field in self.known.items():
            if field.slot is not None and name in stored:
                value = turn.get(field.slot)
                if field.life == "turn":
                    if not isinstance(value, dict) or value.get(_TURN) != turn.turn_ref:
                        continue
                    value = value["value"]
                found[name] = value if field.adapter is None else _loaded(field, value)
        return {**found, **self._live.get(turn.session_id, {})}

    # ------------------------------------------------------------ writing

    def merged(self, values: Mapping[str, Any], update: Mapping[str, Any]) -> dict[str, Any]:
        """The values after an update, by the reducers of their fields. Names that no schema has are ignored, as in
        LangGraph."""
        changed = dict(values)
        for name, value in update.items():
            field = self.known.get(name)
            if field is not None:
                changed[name] = self._reduced(field, changed, value)
        return changed

    def _reduced(self, field: Field, values: Mapping[str, Any], value: Any) -> Any:
        if field.reducer is None:
            return value
        if field.name in values:
            return field.reducer(values[field.name], value)
        return value if field.empty is None else field.reducer(field.empty(), value)

    def write(self, turn: Turn[Any], values: Mapping[str, Any], update: Mapping[str, Any], *, whole: bool) -> None:
        """Set what an update changed. With `whole` the values replace those that are stored; otherwise the update is
        merged when it is recorded, after those of calls that ran beside this one."""
        for name in update:
            field = self.known.get(name)
            if field is None:
                continue
            if field.slot is None:
                self._live.setdefault(turn.session_id, {})[name] = values[name]
                if len(self._live) > SESSIONS:
                    self._live.popitem(last=False)
                continue
            stored = name in turn.state.slots
            if field.reducer is None or not stored or field.life == "turn":
                plain = _dumped(field, values[name])
                turn.set(field.slot, {_TURN: turn.turn_ref, "value": plain} if field.life == "turn" else plain)
            elif whole:
                turn.set(field.slot, {_WHOLE: _dumped(field, values[name])})
            else:
                turn.set(field.slot, _dumped(field, update[name]))

    def forget_ephemeral(self, session: str) -> None:
        """The next hook has run: what lasts for one is gone."""
        for name, field in self.known.items():
            if field.life == "hook":
                self._live.get(session, {}).pop(name, None)

    def release(self, session: str) -> None:
        """Drop the live objects of a session."""
        self._live.pop(session, None)


def _field(name: str, owner: str, annotation: Any) -> Field:
    while get_origin(annotation) in (NotRequired, Required):
        annotation = get_args(annotation)[0]
    kind: Any = annotation
    notes: tuple[Any, ...] = ()
    if get_origin(annotation) is Annotated:
        kind, *rest = get_args(annotation)
        notes = tuple(rest)
    while get_origin(kind) in (NotRequired, Required):
        kind = get_args(kind)[0]
    channels = [note for note in notes if _is_channel(note)]
    life, reducer = "session", None
    for channel in channels:
        of = channel if isinstance(channel, type) else type(channel)
        if issubclass(of, EphemeralValue):
            life = "hook"
        elif issubclass(of, UntrackedValue):
            life = "turn"
        elif not issubclass(of, LastValue):
            raise ConfigError(
                f"{owner}: field {name!r} of its state_schema is a {of.__name__}, which has no counterpart here; use a "
                "reducer function, UntrackedValue or EphemeralValue"
            )
    if notes and not channels and _is_reducer(notes[-1]):
        reducer = notes[-1]
    hidden = [note for note in notes if isinstance(note, OmitFromSchema)]
    adapter = None if life == "hook" else _adapter(kind)
    slot = None
    if adapter is not None:
        slot = Slot(
            name,
            object,
            default=_nothing,
            merge=_merge_rule(name, reducer, adapter),
            input=life == "session" and not any(note.input for note in hidden),
            output=life == "session" and not any(note.output for note in hidden),
        )
    elif life == "session":
        raise ConfigError(
            f"{owner}: field {name!r} of its state_schema holds {getattr(kind, '__name__', kind)}, which has no JSON "
            "form, so it cannot be stored; annotate it with UntrackedValue if it is an object of one run"
        )
    return Field(name, owner, life, reducer, adapter, _empty(kind), slot)


def _is_channel(note: Any) -> bool:
    return isinstance(note, BaseChannel) or (isinstance(note, type) and issubclass(note, BaseChannel))


def _is_reducer(note: Any) -> bool:
    if not callable(note) or isinstance(note, type):
        return False
    try:
        parameters = inspect.signature(note).parameters.values()
    except (TypeError, ValueError):
        return True  # a builtin, such as operator.add
    return sum(p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) == 2


def _adapter(kind: Any) -> TypeAdapter[Any] | None:
    """What converts values of a type to JSON and back, or None if the type has no JSON form."""
    try:
        return TypeAdapter(kind)
    except (PydanticSchemaGenerationError, PydanticUserError):
        pass
    try:
        TypeAdapter(kind, config=ConfigDict(arbitrary_types_allowed=True))
    except (PydanticSchemaGenerationError, PydanticUserError):
        pass
    return None


def _empty(kind: Any) -> Callable[[], Any] | None:
    """What LangGraph begins a field with a reducer with."""
    of = get_origin(kind) or kind
    try:
        of()
    except Exception:
        return None
    return of  # type: ignore[no-any-return]


def _merge_rule(name: str, reducer: Any, adapter: TypeAdapter[Any]) -> Callable[[Any, Any], Any]:
    def merge(current: Any, new: Any) -> Any:
        if isinstance(new, dict) and _WHOLE in new:
            return new[_WHOLE]
        if reducer is None:
            return new
        merged = reducer(adapter.validate_python(current), adapter.validate_python(new))
        return adapter.dump_python(merged, mode="json")

    return merge


def _nothing() -> None:
    return None


def _loaded(field: Field, value: Any) -> Any:
    assert field.adapter is not None
    try:
        return field.adapter.validate_python(value)
    except ValueError as error:
        raise HookError(
            f"slot {field.name!r} has a value that the state_schema of {field.owner} does not allow: {error}",
            hook=field.owner,
        ) from error


def _dumped(field: Field, value: Any) -> Any:
    assert field.adapter is not None
    try:
        return field.adapter.dump_python(value, mode="json", warnings="none")
    except ValueError as error:
        raise HookError(
            f"{field.owner} set field {field.name!r} to a value without a JSON form, so it cannot be stored: {error}",
            hook=field.owner,
        ) from error
