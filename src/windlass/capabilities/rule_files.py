"""Policy files: permissions in TOML or YAML, in the words that the constructor of `Permissions` takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import Struct

from windlass.errors import ConfigError

from .yaml_text import EXTRA, parse_yaml


class Entry(Struct, forbid_unknown_fields=True, omit_defaults=True):
    """One rule on its own: exactly one of `allow`, `ask` and `deny`. The rest is for the people who read the file."""

    allow: str | None = None
    ask: str | None = None
    deny: str | None = None
    by: str = ""
    at: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if sum(rule is not None for rule in (self.allow, self.ask, self.deny)) != 1:
            raise ValueError("needs exactly one of allow, ask and deny")


class Policy(Struct, forbid_unknown_fields=True):
    """The content of a policy file."""

    allow: list[str] = []
    ask: list[str] = []
    deny: list[str] = []
    rules: list[Entry] = []
    unmatched: Literal["allow", "ask", "deny"] = "ask"
    folder: str | None = None
    paths: list[str] | None = None
    shells: dict[str, str] | None = None

    def listed(self, kind: Literal["allow", "ask", "deny"]) -> list[str]:
        """The rules of a kind, those of `rules` after the others."""
        single = [getattr(entry, kind) for entry in self.rules]
        return [*getattr(self, kind), *[rule for rule in single if rule is not None]]


def read_policy(path: Path) -> Policy:
    """Read a policy file. What is wrong with it raises a `ConfigError` that names the file."""
    try:
        data = _parse(path.read_bytes(), path)
        policy = msgspec.convert({} if data is None else data, Policy)
    except OSError as error:
        raise ConfigError(f"policy {str(path)!r} cannot be read: {error.strerror or error}") from error
    except (ValueError, msgspec.MsgspecError) as error:
        raise ConfigError(f"policy {str(path)!r}: {error}") from error
    if policy.folder is not None:
        policy.folder = str(path.parent / Path(policy.folder).expanduser())
    return policy


def _parse(content: bytes, path: Path) -> Any:
    if path.suffix == ".toml":
        import tomllib

        return tomllib.loads(content.decode())
    if path.suffix in (".yaml", ".yml"):
        return _parse_yaml(content)
    raise ConfigError(f"policy {str(path)!r} must be a .toml, .yaml or .yml file")


def _parse_yaml(content: bytes) -> Any:
    try:
        return parse_yaml(content)
    except ImportError:
        raise ConfigError(f"policies in YAML need the extra 'yaml': {EXTRA}") from None
