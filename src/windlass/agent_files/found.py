"""Agent files that nobody named: they are found in a folder, and used only if the user trusts all their parts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from windlass.agent import Agent
from windlass.errors import ConfigError
from windlass.models import VENDORS
from windlass.trust import is_trusted, is_trusted_content, trust

from .documents import read_document, shown_path
from .loading import load_with, read_content
from .problems import AgentFileError, Problem
from .schema import REFERENCE

NAMES = ("windlass.toml", "agent.toml")
"""The names under which agent files are found, in this order."""


class NotTrusted(ConfigError):
    """An agent file was found in a folder, and it or a file that it uses is not trusted as it is now.

    - `path`: the agent file.
    - `changed`: the file that is not trusted.
    """

    def __init__(self, path: Path, changed: Path) -> None:
        self.path, self.changed = path, changed
        why = "" if changed == path else f": {shown_path(changed)} is new or was changed"
        super().__init__(
            f"{shown_path(path)} was found here and is not trusted{why}. Look at it with `windlass trust "
            f"{shown_path(path)}`, or name it with --agent"
        )


def find_agent_file(folder: str | os.PathLike[str] = ".") -> Path | None:
    """The agent file in `folder`: `windlass.toml` or `agent.toml`; None if there is none. It may not be trusted."""
    return next((file for name in NAMES if (file := Path(folder) / name).is_file()), None)


def load_found_agent(path: str | os.PathLike[str]) -> Agent[Any, Any]:
    """The agent of a file that was found and not named. Raises `NotTrusted` unless all its parts are trusted."""
    file = Path(path)
    for part in parts_of(file):
        if not is_trusted(part):
            raise NotTrusted(file, part)

    def read(part: Path) -> bytes:
        content = read_content(part)
        if not is_trusted_content(part, content):
            raise NotTrusted(file, part)
        return content

    return load_with(file, read)


def trust_agent_file(path: str | os.PathLike[str]) -> list[Path]:
    """Trust an agent file and all files that it uses, as they are now. Returns these files."""
    parts = parts_of(Path(path))
    for part in parts:
        trust(part)
    return parts


def parts_of(path: Path) -> list[Path]:
    """An agent file and the files in its reach: system texts, policies, files of sub-agents, modules in its folder.

    What those modules import is not among them.
    """
    found: dict[Path, None] = {}
    waiting = [path]
    while waiting:
        file = waiting.pop(0)
        if file in found:
            continue
        found[file] = None
        if file.suffix == ".toml":
            problems: list[Problem] = []
            document = read_document(file, read_content, problems)
            if file == path and document.data is None:
                raise AgentFileError(problems)
            waiting += [part for part in _named_files(document.data or {}, document.folder) if part.is_file()]
    return list(found)


def _named_files(data: dict[str, Any], folder: Path) -> Iterator[Path]:
    for key, value in texts_of(data):
        if key in ("system_file", "load", "file"):
            yield folder / value
        elif is_reference(value):
            yield from module_files(value, folder)


def texts_of(value: Any, key: str = "") -> Iterator[tuple[str, str]]:
    """All texts in a value, each with the nearest key above it."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from texts_of(item, name)
    elif isinstance(value, list):
        for item in value:
            yield from texts_of(item, key)
    elif isinstance(value, str):
        yield key, value


def is_reference(text: str) -> bool:
    """Whether a text may name something in a module, and not a model of a vendor."""
    return REFERENCE.reject(text) is None and text.partition(":")[0] not in VENDORS


def module_files(reference: str, folder: Path) -> Iterator[Path]:
    """The files of a named module in a folder: one file, or all Python files of the package that it is in."""
    first, *_ = reference.partition(":")[0].split(".")
    if (folder / f"{first}.py").is_file():
        yield folder / f"{first}.py"
    yield from sorted((folder / first).rglob("*.py"))
