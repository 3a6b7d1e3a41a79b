"""The stores: where sessions and their logs are kept."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING, Any

from windlass.errors import ConfigError

from .memory import MemoryStore

if TYPE_CHECKING:
    from windlass.protocols import Store

    from .links import linked_records
    from .postgres import PostgresStore
    from .sqlite import SQLiteStore

__all__ = ["MemoryStore", "SQLiteStore", "PostgresStore", "linked_records", "open_store"]

_LAZY = {"SQLiteStore": ".sqlite", "PostgresStore": ".postgres", "linked_records": ".links"}


def __getattr__(name: str) -> Any:
    """Import what most programs do without on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)


def open_store(where: str | Store | None) -> Store:
    """Open a store by its address — `memory:`, `sqlite:///file.db`, `postgresql://…`. A store is returned as it is.

    The key of a store with an address is read from the environment variable WINDLASS_STORE_KEY.
    """
    if where is None or where == "memory:":
        return MemoryStore()
    if not isinstance(where, str):
        methods = ("append", "read", "put_pipeline", "ownership")
        if isinstance(where, type) or not all(hasattr(where, name) for name in methods):
            raise ConfigError(f"store=… is not a store but of type {type(where).__name__}; {_VALID}")
        return where
    scheme, _, rest = where.partition(":")
    if scheme == "sqlite" and rest.startswith("///"):
        from .sqlite import SQLiteStore

        return SQLiteStore(_file(where, rest[3:]), key=_key())
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        from .postgres import PostgresStore

        return PostgresStore(where, key=_key())
    shown, guess = _masked(where), _guess(where)
    raise ConfigError(f"{shown!r} is not the address of a store{f'; did you mean {guess}?' if guess else ''}; {_VALID}")


def _key() -> str | None:
    return os.environ.get("WINDLASS_STORE_KEY") or None


def _masked(address: str) -> str:
    """An address without what may be a password: user, options and connection strings are replaced by `…`.

    The address may be invalid, so it is not parsed: only a part that cannot belong to a password is kept.
    """
    known = re.match(r"[a-zA-Z][\w+.-]*:?//", address)
    scheme = "" if known is None else known[0]
    user, at, place = address.rpartition("@")
    if at:
        plain = re.fullmatch(r"[\w.,:/-]*", place) and not re.search(r"[?=]", user)
        return f"{scheme}…@{place}" if plain else f"{scheme}…"
    from urllib.parse import unquote

    if scheme == "sqlite://" and not re.search(_SECRET, unquote(address), re.IGNORECASE):
        return address
    if "=" in address.partition("?")[0] or re.search(r"//[^/?]*:(?!\d*(?:[/?]|$))", address):
        return f"{scheme}…"
    return re.sub(r"\?.+", "?…", address, flags=re.DOTALL)


_SECRET = "pass|pwd|secret|token|key"
"""Words in the names of options that hold secrets."""


_VALID = (
    "use 'memory:', 'sqlite:///file.db' (four slashes for an absolute path), 'postgresql://user@host/database', "
    "or pass a Store"
)


def _file(where: str, path: str) -> str:
    """The path in the address of an SQLite file."""
    if not path:
        raise ConfigError(f"{where!r} does not name a file; {_VALID}")
    shown = _masked(where)
    if "?" in path:
        raise ConfigError(f"{shown!r} has options, but an address cannot have any: pass SQLiteStore(path, …)")
    if path.endswith("/"):
        raise ConfigError(f"{shown!r} names a folder; name a file in it")
    return path


def _guess(where: str) -> str:
    """The address that an invalid one was probably meant to be; "" without a good guess."""
    from difflib import get_close_matches

    scheme, colon, rest = where.partition(":")
    if _masked(where) != where:  # it may contain a password
        kind = re.split(r"[^a-zA-Z]", where)[0].lower()
        close = get_close_matches(kind, ["sqlite", "postgresql", "postgres"], 1)
        connection = re.match(r"\w+\s*=", where) is not None
        return "PostgresStore('…')" if connection else f"'{close[0]}://…'" if close else ""
    if not colon:
        return "'memory:'" if scheme == "memory" else f"'sqlite:///{scheme}'" if "." in scheme else ""
    if scheme.lower() == "memory" or rest == "memory:":
        return "'memory:'"
    if scheme.lower() == "sqlite":
        path = rest.lstrip("/")
        return f"'sqlite:///{path}'" if path and path != ":memory:" else "'memory:'" if path else "'sqlite:///file.db'"
    close = get_close_matches(scheme.lower().split("+")[0], ["sqlite", "postgresql", "postgres", "memory"], 1)
    return "" if not close else "'memory:'" if close[0] == "memory" else f"'{close[0]}://…'"
