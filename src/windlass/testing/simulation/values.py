"""Values for the arguments of tools: drawn by a function, one of a few, or any that fits a JSON schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil, floor
from random import Random
from typing import Any, TypeAlias

from .patterns import matching

Drawn: TypeAlias = Callable[[Random], Any]
"""Draws a value. It must use nothing but the generator that it is given."""

_TEXTS = ("a", "b", "c", "")
_FORMATS = {
    "date-time": ("2026-01-02T03:04:05Z", "2026-03-04T05:06:07+02:00"),
    "date": ("2026-01-02", "2026-03-04"),
    "time": ("03:04:05Z", "05:06:07Z"),
    "duration": ("PT1S", "P1D"),
    "uuid": ("11111111-1111-4111-8111-111111111111", "22222222-2222-4222-8222-222222222222"),
    "decimal": ("1.5", "20"),
    "email": ("ann@example.org", "bob@example.org"),
    "uri": ("https://example.org/a", "https://example.org/b"),
}
"""Texts for the formats that a schema may ask for."""
_DEEP = 6


def one_of(*values: Any) -> Drawn:
    """One of these values. A value may itself draw, as `between(1, 3)` does."""
    return lambda random: drawn(random.choice(values), random)


def between(low: int, high: int) -> Drawn:
    """A whole number from `low` to `high`."""
    return lambda random: random.randint(low, high)


def lists_of(value: Any, *, least: int = 0, most: int = 3) -> Drawn:
    """A list of values."""
    return lambda random: [drawn(value, random) for _ in range(random.randint(least, most))]


def drawn(value: Any, random: Random) -> Any:
    """The value itself, or what it draws."""
    return value(random) if callable(value) else value


def fitting(schema: Mapping[str, Any]) -> Drawn:
    """Any value that fits a JSON schema. There are few of a kind, so that calls meet on the same ones."""
    return lambda random: _value(schema, random, schema, 0)


def _value(schema: Mapping[str, Any] | bool, random: Random, root: Mapping[str, Any], depth: int) -> Any:
    if isinstance(schema, bool):
        schema = {}
    if (target := schema.get("$ref")) is not None:
        return _value(_referred(root, target), random, root, depth + 1)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return random.choice(list(schema["enum"]))
    for several in ("anyOf", "oneOf"):
        if several in schema:
            return _value(_choice(schema[several], random, depth), random, root, depth + 1)
    if schema.get("allOf"):
        return _value({**schema, "allOf": (), **schema["allOf"][0]}, random, root, depth + 1)
    kind = schema.get("type", "object" if "properties" in schema else "string")
    if not isinstance(kind, str):
        kind = random.choice(list(kind))
    match kind:
        case "integer":
            return _integer(schema, random)
        case "number":
            return _number(schema, random)
        case "boolean":
            return random.random() < 0.5
        case "null":
            return None
        case "array":
            return _array(schema, random, root, depth)
        case "object":
            return _object(schema, random, root, depth)
        case _:
            return _text(schema, random)


def _referred(root: Mapping[str, Any], target: str) -> Mapping[str, Any]:
    found: Any = root
    for name in target.removeprefix("#/").split("/"):
        found = found[name.replace("~1", "/").replace("~0", "~")]
    return found  # type: ignore[no-any-return]


def _choice(members: Sequence[Mapping[str, Any]], random: Random, depth: int) -> Mapping[str, Any]:
    """Deep down, a member that does not go deeper."""
    flat = [member for member in members if member.get("type") not in ("array", "object") and "$ref" not in member]
    return random.choice(flat if flat and depth > _DEEP else list(members))


def _integer(schema: Mapping[str, Any], random: Random) -> int:
    low, high = schema.get("minimum"), schema.get("maximum")
    low = schema["exclusiveMinimum"] + 1 if "exclusiveMinimum" in schema else low
    high = schema["exclusiveMaximum"] - 1 if "exclusiveMaximum" in schema else high
    if low is None:
        low = 0 if high is None or high >= 0 else high - 3
    low, step = ceil(low), int(schema.get("multipleOf", 1)) or 1
    top = low + 3 * step if high is None else min(floor(high), low + 3 * step)
    if high is not None and random.random() < 0.1:
        top = floor(high)
        low = max(low, top - 1)
    low = -(-low // step) * step
    return random.randrange(low, max(top, low) + 1, step)


def _number(schema: Mapping[str, Any], random: Random) -> float:
    low = schema.get("minimum", schema.get("exclusiveMinimum"))
    high = schema.get("maximum", schema.get("exclusiveMaximum"))
    if low is not None and high is not None and high - low <= 1:
        return float(low + high) / 2
    return float(_integer(schema, random))


def _text(schema: Mapping[str, Any], random: Random) -> str:
    if texts := _FORMATS.get(schema.get("format", "")):
        return random.choice(texts)
    if schema.get("contentEncoding") == "base64":
        return random.choice(("", "YQ==", "YmM="))
    if (pattern := schema.get("pattern")) and (text := _matching(pattern, schema, random)) is not None:
        return text
    text = random.choice(_TEXTS[:-1] if schema.get("minLength") else _TEXTS)
    text = text * max(1, int(schema.get("minLength", 1)))
    return text[: schema.get("maxLength")]


def _matching(pattern: str, schema: Mapping[str, Any], random: Random) -> str | None:
    for _ in range(10):
        text = matching(pattern, random)
        if text is None or schema.get("minLength", 0) <= len(text) <= schema.get("maxLength", len(text)):
            return text
    return None


def _array(schema: Mapping[str, Any], random: Random, root: Mapping[str, Any], depth: int) -> list[Any]:
    first = schema.get("prefixItems", ())
    found = [_value(member, random, root, depth + 1) for member in first]
    least = max(0, int(schema.get("minItems", 0)) - len(found))
    most = least if depth > _DEEP else max(least, min(int(schema.get("maxItems", 2)) - len(found), least + 2))
    members = schema.get("items", {})
    if members is False:
        return found
    for _ in range(random.randint(least, most)):
        value = _value(members, random, root, depth + 1)
        if not schema.get("uniqueItems") or value not in found:
            found.append(value)
    return found


def _object(schema: Mapping[str, Any], random: Random, root: Mapping[str, Any], depth: int) -> dict[str, Any]:
    required = schema.get("required", ())
    found = {
        name: _value(member, random, root, depth + 1)
        for name, member in schema.get("properties", {}).items()
        if name in required or (depth <= _DEEP and random.random() < 0.5)
    }
    others = schema.get("additionalProperties")
    if isinstance(others, Mapping) and depth <= _DEEP:
        names = {"minLength": 1, **schema.get("propertyNames", {})}
        least = int(schema.get("minProperties", 0))
        for _ in range(random.randint(least, least + 2)):
            name = str(_value(names, random, root, depth + 1))
            found.setdefault(name if name not in found else f"{name}{len(found)}", None)
        for name in [name for name in found if name not in schema.get("properties", {})]:
            found[name] = _value(others, random, root, depth + 1)
    return found
