"""Loads an agent file: reads it, checks it, and makes the agent."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from windlass.agent import Agent

from .building import Builder
from .documents import MAX_BYTES, Read, read_document
from .problems import AgentFileError, Problem


def load_agent_file(path: str | os.PathLike[str]) -> Agent[Any, Any]:
    """The agent that a TOML file describes. All mistakes in the file are in one `AgentFileError`, each with its line.

    Relative paths in the file start at its folder. Modules that it names are looked for among installed ones first,
    then in its folder; they are imported, so their code runs.
    """
    return load_with(Path(path), read_content)


def load_with(path: Path, read: Read) -> Agent[Any, Any]:
    """Load an agent file, reading it and the files that it names with this function."""
    problems: list[Problem] = []
    document = read_document(path, read, problems)
    agent = None
    if document.data is not None:
        agent = Builder(document, read).build(document.data, path.stem)
    if agent is None or problems:
        raise AgentFileError(problems)
    return agent


def read_content(path: Path) -> bytes:
    """The content of a file, up to a little more than may be parsed."""
    with path.open("rb") as file:
        return file.read(MAX_BYTES + 1)
