"""Turns the keys of a table into arguments of a constructor, by its signature, and reports all that does not fit."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, isabstract, signature
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin

from windlass.capabilities.option_types import fits, hint_of, words_of
from windlass.errors import ConfigError

from .documents import Document, kind_of
from .positions import KeyPath
from .problems import suggestion
from .references import CannotLoad, describe_error, load_reference
from .schema import REFERENCE

MISSING: Any = object()
"""The value of an argument that could not be made; the problem is reported."""

_NAMED = re.compile(r"^\w+\((\w+)=")
_PLAIN = (str, bytes, int, float, bool, NoneType, object, type)


def construct(
    make: Callable[..., Any],
    given: Mapping[str, Any],
    path: KeyPath,
    document: Document,
    *,
    reserved: Iterable[str] = (),
    first: tuple[Any, ...] = (),
) -> Any:
    """Call `make` with the keys of a table as its arguments; `MISSING` if that is not possible.

    `reserved` are keys of the table that are not arguments. `first` are arguments that the file does not give.
    """
    before = len(document.problems)
    try:
        parameters = list(signature(make).parameters.values())[len(first) :]
    except (TypeError, ValueError):
        parameters = []
    known = {one.name: one for one in parameters if one.kind is not Parameter.VAR_KEYWORD}
    takes_all = len(known) < len(parameters) or not parameters
    module = getattr(make, "__module__", "")
    values: dict[str, Any] = {}
    for key, value in given.items():
        if key in known:
            hint = _hint(module, known[key])
            several = known[key].kind is Parameter.VAR_POSITIONAL
            values[key] = (
                _list(value, hint, (*path, key), document) if several else read(value, hint, (*path, key), document)
            )
        elif takes_all:
            values[key] = value
        elif key not in reserved:
            document.add_problem((*path, key), f"there is no such option{suggestion(key, [*reserved, *known])}")
    for one in known.values():
        if one.default is Parameter.empty and one.kind is not Parameter.VAR_POSITIONAL and one.name not in given:
            document.add_problem(path, f"the option {one.name!r} is missing")
    if len(document.problems) > before:
        return MISSING
    return _call(make, first, parameters, values, path, document)


def _hint(module: str, parameter: Parameter) -> Any:
    return Any if parameter.annotation is Parameter.empty else hint_of(module, parameter.annotation)


def _call(
    make: Callable[..., Any],
    first: tuple[Any, ...],
    parameters: list[Parameter],
    values: dict[str, Any],
    path: KeyPath,
    document: Document,
) -> Any:
    positional = list(first)
    star = next((one for one in parameters if one.kind is Parameter.VAR_POSITIONAL), None)
    if star is not None and star.name in values:
        positional += [values.pop(one.name, one.default) for one in parameters[: parameters.index(star)]]
        positional += values.pop(star.name)
    try:
        return make(*positional, **values)
    except Exception as error:
        named = _NAMED.match(str(error))
        place = (*path, named[1]) if named and named[1] in values else path
        text = str(error) if isinstance(error, ConfigError | ValueError | TypeError) else describe_error(error)
        document.add_problem(place, text)
        return MISSING


def read(value: Any, hint: Any, path: KeyPath, document: Document) -> Any:
    """The argument that a TOML value stands for where a parameter has this type; `MISSING` after a problem."""
    if isinstance(value, dict) and "use" in value:
        made = _use(value, path, document)
    elif isinstance(value, dict):
        made = _table(value, hint, path, document)
    elif isinstance(value, list):
        made = _items(value, hint, path, document)
    elif isinstance(value, str) and not fits(value, hint) and REFERENCE.reject(value) is None:
        made = _reference(value, path, document)
    else:
        made = _in_folder(value, hint, document.folder)
    if made is not MISSING and not fits(made, hint):
        document.add_problem(path, f"must be {words_of(hint)}, not {kind_of(value)}")
        return MISSING
    return made


def _use(value: Mapping[str, Any], path: KeyPath, document: Document) -> Any:
    """`{ use = "module:name" }` is what the name means; with more keys, or for a class, what calling it returns."""
    name = value["use"]
    if not isinstance(name, str):
        document.add_problem((*path, "use"), f"must be a text, not {kind_of(name)}")
        return MISSING
    found = _reference(name if ":" in name else f"windlass.capabilities:{name}", (*path, "use"), document)
    rest = {key: one for key, one in value.items() if key != "use"}
    if found is MISSING or not (rest or isinstance(found, type)):
        return found
    return construct(found, rest, path, document, reserved=("use",))


def _reference(name: str, path: KeyPath, document: Document) -> Any:
    if (wrong := REFERENCE.reject(name)) is not None:
        document.add_problem(path, wrong)
        return MISSING
    try:
        return load_reference(name, document.folder)
    except CannotLoad as error:
        document.add_problem(path, str(error))
        return MISSING


def _table(value: dict[str, Any], hint: Any, path: KeyPath, document: Document) -> Any:
    """A table is a mapping where one is legal, otherwise the options of the one class that is legal there."""
    for one in _alternatives(hint):
        kind = get_origin(one) or one
        if isinstance(kind, type) and issubclass(kind, Mapping):
            inner = get_args(one)
            made = {key: read(item, inner[1] if inner else Any, (*path, key), document) for key, item in value.items()}
            return MISSING if any(item is MISSING for item in made.values()) else made
    classes = [one for one in _alternatives(hint) if _is_made_of_options(one)]
    return construct(classes[0], value, path, document) if len(classes) == 1 else value


def _items(value: list[Any], hint: Any, path: KeyPath, document: Document) -> Any:
    for one in _alternatives(hint):
        kind, inner = get_origin(one), get_args(one)
        if kind is tuple and inner and inner[-1] is not ...:
            pairs = zip(value, [*inner, *[Any] * len(value)], strict=False)
            made = [read(item, its, (*path, at), document) for at, (item, its) in enumerate(pairs)]
            return MISSING if any(item is MISSING for item in made) else tuple(made)
        if isinstance(kind, type) and issubclass(kind, Iterable) and not issubclass(kind, Mapping):
            found = _list(value, inner[0], path, document)
            return tuple(found) if kind is tuple and found is not MISSING else found
    return value


def _list(value: Any, hint: Any, path: KeyPath, document: Document) -> Any:
    if not isinstance(value, list):
        document.add_problem(path, f"must be a list, not {kind_of(value)}")
        return MISSING
    made = [read(item, hint, (*path, at), document) for at, item in enumerate(value)]
    return MISSING if any(item is MISSING for item in made) else made


def _in_folder(value: Any, hint: Any, folder: Path) -> Any:
    """A value as it is; a relative path starts at the folder of the file."""
    kinds = [get_origin(one) or one for one in _alternatives(hint)]
    if isinstance(value, str) and (os.PathLike in kinds or Path in kinds):
        path = folder / Path(value).expanduser()
        return str(path) if str in kinds or os.PathLike in kinds else path
    return value


def _alternatives(hint: Any) -> list[Any]:
    """The members of a union, or the type alone."""
    if get_origin(hint) in (Union, UnionType):
        return [found for one in get_args(hint) for found in _alternatives(one)]
    return [hint]


def _is_made_of_options(kind: Any) -> bool:
    """Whether a table can be the options of this class."""
    usual = isinstance(kind, type) and kind not in _PLAIN and get_origin(kind) is None
    return usual and not isabstract(kind) and not getattr(kind, "_is_protocol", False)
