"""What an MCP server offers: its tools under safe names, described in plain text, kept in a file between processes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from windlass.folders import data_folder

from .contents import clean
from .servers import Server

_NAME = 64
_DESCRIPTION = 4_000
_SCHEMA = 64_000
_TOOLS = 1_000
_HIDDEN = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\U000e0000-\U000e0fff]")
"""Characters that a reader cannot see, and that could hide instructions from people."""


class Offer(Struct, frozen=True):
    """A tool of a server: `name` is what models call it, `tool` what the server calls it; then the server's hints."""

    name: str
    tool: str
    description: str
    schema: Mapping[str, Any]
    read_only: bool = False
    destructive: bool | None = None
    idempotent: bool = False
    open_world: bool | None = None

    @property
    def digest(self) -> str:
        """A hash of all that a model or person sees of it."""
        return blake2b(msgspec.json.encode(self, order="deterministic"), digest_size=16).hexdigest()


class Listing(Struct, frozen=True):
    """What a server offers. `problems` names tools that were left out, with the reason."""

    offers: tuple[Offer, ...] = ()
    resources: bool = False
    problems: tuple[str, ...] = ()

    def by_name(self) -> dict[str, Offer]:
        """The tools by the names that models use."""
        return {offer.name: offer for offer in self.offers}

    def difference(self, newer: Listing) -> dict[str, list[str]]:
        """The tools that a newer listing adds, drops and changes, by name; empty if it is the same."""
        old, new = self.by_name(), newer.by_name()
        found = {
            "added": sorted(new.keys() - old.keys()),
            "removed": sorted(old.keys() - new.keys()),
            "changed": sorted([name for name in old.keys() & new.keys() if old[name].digest != new[name].digest]),
        }
        return {kind: names for kind, names in found.items() if names}


def listing_of(tools: Iterable[Any], *, prefix: str, only: Iterable[str] | None, resources: bool) -> Listing:
    """The listing for the tools that a server has listed."""
    offers: dict[str, Offer] = {}
    problems: list[str] = []
    patterns = None if only is None else tuple(only)
    for at, tool in enumerate(tools):
        if at >= _TOOLS:
            problems.append(f"it lists more than {_TOOLS} tools; the others were left out")
            break
        if patterns is not None and not any(fnmatchcase(tool.name, pattern) for pattern in patterns):
            continue
        name = safe_name(prefix, tool.name)
        if name in offers:
            name = _with_digest(name, tool.name)
        schema = clean(tool.input_schema)
        if (wrong := _wrong_schema(schema)) is not None or name in offers:
            problems.append(f"tool {tool.name[:80]!r} was left out: {wrong or 'it is listed twice'}")
            continue
        offers[name] = _offer(name, tool, schema)
    return Listing(tuple(offers.values()), resources, tuple(problems))


def _offer(name: str, tool: Any, schema: dict[str, Any]) -> Offer:
    hints = tool.annotations
    return Offer(
        name,
        clean(tool.name),
        plain_text(tool.description or tool.title or ""),
        {"properties": {}, **schema, "type": "object"},
        bool(hints and hints.read_only_hint),
        hints.destructive_hint if hints else None,
        bool(hints and hints.idempotent_hint),
        hints.open_world_hint if hints else None,
    )


def _wrong_schema(schema: Any) -> str | None:
    from jsonschema import Draft202012Validator, exceptions  # type: ignore[import-untyped]

    try:
        if len(msgspec.json.encode(schema)) > _SCHEMA:
            return f"its schema has more than {_SCHEMA:,} bytes"
        Draft202012Validator.check_schema(schema)
    except exceptions.SchemaError as error:
        return f"its schema is not valid: {error.message[:200]}"
    except RecursionError:
        return "its schema is nested too deeply"
    is_object = isinstance(schema, dict) and schema.get("type", "object") == "object"
    return None if is_object else "its schema is not that of an object"


def safe_name(prefix: str, name: str) -> str:
    """A name that every vendor takes: letters, digits, `_` and `-`, at most 64 of them."""
    made = re.sub(r"[^a-zA-Z0-9_-]", "_", f"{prefix}{name}") or "_"
    return made if len(made) <= _NAME else _with_digest(made, name)


def _with_digest(made: str, name: str) -> str:
    mark = blake2b(name.encode("utf-8", "replace"), digest_size=4).hexdigest()
    return f"{made[: _NAME - 9]}_{mark}"


def plain_text(text: str, limit: int = _DESCRIPTION) -> str:
    """A text of a server without characters that a reader cannot see, cut to a limit."""
    made = _HIDDEN.sub("", clean(text))
    return made if len(made) <= limit else f"{made[:limit]}…"


# ---------------------------------------------------------------- between processes


def _file(server: Server, variant: str) -> Path:
    mark = blake2b(f"{server.digest} {variant}".encode(), digest_size=16).hexdigest()
    return data_folder() / "mcp" / f"{mark}.json"


def load_listing(server: Server, variant: str) -> Listing | None:
    """The listing that an earlier process kept; None if there is none that can be read."""
    try:
        return msgspec.json.decode(_file(server, variant).read_bytes(), type=Listing)
    except (OSError, msgspec.MsgspecError):
        return None


def keep_listing(server: Server, variant: str, listing: Listing) -> None:
    """Keep a listing for later processes."""
    file = _file(server, variant)
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = file.with_name(f"{file.name}.{os.getpid()}")
        draft.write_bytes(msgspec.json.encode(listing))
        os.replace(draft, file)
    except OSError:  # without it the next process asks the server
        pass


__all__ = ["Listing", "Offer", "keep_listing", "listing_of", "load_listing", "plain_text", "safe_name"]
