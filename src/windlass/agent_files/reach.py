"""What an agent file runs, starts, connects to and stores, for the person who decides whether to trust it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .documents import read_document, shown_path
from .found import is_reference, module_files, parts_of, texts_of
from .loading import read_content

_PASSWORD = re.compile(r"(?<=://)[^\s/@]*@")


def reach_of(path: Path) -> list[str]:
    """One line for each command, module, address and file that an agent file uses, without duplicates."""
    lines: dict[str, None] = {}
    for part in parts_of(path):
        if part.suffix == ".toml":
            document = read_document(part, read_content, [])
            lines |= dict.fromkeys(_lines(document.data or {}, document.folder))
        if part != path:
            lines[f"reads file {shown_path(part)}"] = None
    return sorted(lines)


def _lines(data: dict[str, Any], folder: Path) -> Iterator[str]:
    yield from _commands(data)
    for key, value in texts_of(data):
        if is_reference(value):
            inside = [shown_path(file) for file in module_files(value, folder)]
            where = inside[0] if inside else "an installed package"
            yield f"runs {value} from {where}"
        elif key == "store":
            yield f"stores sessions in {_PASSWORD.sub('…@', value)}"
        elif "://" in value and key not in ("system", "description"):
            yield f"connects to {_PASSWORD.sub('…@', value)}"


def _commands(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        command = value.get("command")
        if isinstance(command, list):
            yield f"starts the command {' '.join(map(str, command))}"
        for item in value.values():
            yield from _commands(item)
    elif isinstance(value, list):
        for item in value:
            yield from _commands(item)
