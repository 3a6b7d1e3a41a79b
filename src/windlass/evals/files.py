"""Reads cases from YAML, JSON and JSONL files."""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from windlass.capabilities.yaml_text import EXTRA, parse_yaml
from windlass.errors import ConfigError

from . import checks
from .trials import Case, Check, CheckFunction

CASE_KEYS = ("name", "input", "session", "follow_ups", "expect", "checks", "tags", "data")
FILE_KEYS = ("cases", "defaults")
DEFAULT_KEYS = ("expect", "checks", "tags")

EXPECTATIONS: dict[str, Callable[..., Check]] = {
    "contains": checks.contains,
    "equals": checks.equals,
    "matches": checks.matches,
    "output": checks.output_equals,
    "outcome": checks.outcome,
    "stop_reason": checks.stop_reason,
    "called": checks.called,
    "not_called": checks.not_called,
    "not_proposed": checks.not_proposed,
    "order": checks.order,
    "decided": checks.decided,
    "not_decided": checks.not_decided,
    "denied": checks.denied,
    "no_tool_errors": checks.no_tool_errors,
    "max_steps": checks.max_steps,
    "max_tokens": checks.max_tokens,
    "max_usd": checks.max_usd,
    "max_seconds": checks.max_seconds,
    "judge": checks.judged,
}
"""What `expect` may say, and the check that it stands for."""


def load_cases(path: str | Path) -> list[Case]:
    """Read the cases of a file: YAML, JSON, or JSONL with one case per line.

    A file is a list of cases, or a mapping with `cases` and `defaults`, which apply to every case. Raises `ConfigError`
    with the file, the case and the key if something is wrong.
    """
    file = Path(path)
    try:
        text = file.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the cases in {str(file)!r} cannot be read: {error}") from error
    if file.suffix == ".jsonl":
        return _cases(
            file, [_line(file, number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
        )
    given = _parse(file, text)
    if isinstance(given, Mapping):
        _check_keys(str(file), given, FILE_KEYS)
        defaults = given.get("defaults") or {}
        _mapping(f"{file}: defaults", defaults)
        _check_keys(f"{file}: defaults", defaults, DEFAULT_KEYS)
        return _cases(file, given.get("cases"), defaults)
    return _cases(file, given)


def _parse(file: Path, text: str) -> Any:
    if file.suffix == ".json":
        try:
            return json.loads(text, object_pairs_hook=_unique)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{file} is not valid JSON: {error}") from error
    if file.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{file}: cases are read from .yaml, .yml, .json and .jsonl files")
    try:
        return parse_yaml(text)
    except ImportError as error:
        raise ConfigError(f"reading {file} needs the extra 'yaml': {EXTRA}") from error
    except ValueError as error:
        raise ConfigError(f"{file}: {error}") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. A key that is there twice is a mistake: one of two checks would silently be lost."""
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"the key {next(name for name in names if names.count(name) > 1)!r} is there twice")
    return made


def _line(file: Path, number: int, line: str) -> Any:
    try:
        return json.loads(line, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{file}, line {number} is not valid JSON: {error}") from error


def _cases(file: Path, given: Any, defaults: Mapping[str, Any] | None = None) -> list[Case]:
    if not isinstance(given, list) or not given:
        raise ConfigError(f"{file}: there are no cases; write a list of cases, each with an input")
    cases = [_case(f"{file}, case {number}", entry, defaults or {}) for number, entry in enumerate(given, 1)]
    names: dict[str, int] = {}
    for number, case in enumerate(cases, 1):
        if case.name and names.setdefault(case.name, number) != number:
            raise ConfigError(f"{file}: cases {names[case.name]} and {number} have the same name {case.name!r}")
    return cases


def _case(where: str, given: Any, defaults: Mapping[str, Any]) -> Case:
    if isinstance(given, str):
        given = {"input": given}
    _mapping(where, given)
    where = f"{where} ({given['name']!r})" if isinstance(given.get("name"), str) else where
    _check_keys(where, given, CASE_KEYS)
    session, message = given.get("session"), given.get("input")
    if (message is None) == (session is None):
        raise ConfigError(f"{where}: give either an input or a session")
    for key in ("input", "session", "name"):
        if given.get(key) is not None and (not isinstance(given[key], str) or not given[key]):
            raise ConfigError(f"{where}: {key} must be a text, not {given[key]!r}")
    return Case(
        message,
        given.get("name") or "",
        tuple([check for part in (defaults, given) for check in _all_checks(where, part)]),
        _texts(where, "follow_ups", given),
        (*_texts(where, "tags", defaults), *_texts(where, "tags", given)),
        given.get("data"),
        session or "",
    )


def _all_checks(where: str, given: Mapping[str, Any]) -> Iterable[Check | CheckFunction]:
    expect = given.get("expect") or {}
    for part in expect if isinstance(expect, list) else [expect]:
        _mapping(f"{where}: expect", part)
        for key, value in part.items():
            yield _expectation(where, key, value)
    for target in _texts(where, "checks", given):
        yield _function(where, target)


def _expectation(where: str, key: str, value: Any) -> Check:
    make = EXPECTATIONS.get(key)
    if make is None:
        raise ConfigError(f"{where}: expect has no {key!r}{_hint(key, EXPECTATIONS)}")
    try:
        if make is checks.no_tool_errors:
            if value is not True:
                raise ConfigError(f"no_tool_errors: write true, or leave it out, not {value!r}")
            return make()
        if isinstance(value, Mapping) and make is not checks.output_equals:
            return make(**value)
        return make(value)
    except (TypeError, ConfigError) as error:
        raise ConfigError(f"{where}: expect {key}: {error}") from error


def _function(where: str, target: str) -> CheckFunction:
    module, _, name = target.partition(":")
    try:
        found: CheckFunction = getattr(import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(f"{where}: the check {target!r} cannot be loaded as module:function: {error}") from error
    return found


def _texts(where: str, key: str, given: Mapping[str, Any]) -> tuple[str, ...]:
    value = given.get(key) or []
    value = [value] if isinstance(value, str) else value
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise ConfigError(f"{where}: {key} must be a list of texts, not {value!r}")
    return tuple(value)


def _mapping(where: str, given: Any) -> None:
    if not isinstance(given, Mapping):
        raise ConfigError(f"{where}: write keys and values, not {given!r:.60}")


def _check_keys(where: str, given: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in given:
        if key not in known:
            raise ConfigError(f"{where}: there is no {key!r}{_hint(str(key), known)}")


def _hint(key: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(key, list(known), 1, 0.6)
    return f"; did you mean {close[0]!r}?" if close else f"; use {', '.join(known)}"
