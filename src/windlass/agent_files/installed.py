"""Finds capabilities that installed packages offer by name, or that a file names as `module:Class`."""

from __future__ import annotations

from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from windlass.composition import GROUP

from .problems import suggestion
from .references import CannotLoad, describe_error, load_reference


def capability_names() -> list[str]:
    """The names under which installed packages offer capabilities."""
    return sorted({point.name for point in entry_points(group=GROUP)})


def find_capability(name: str, folder: Path) -> Any:
    """The class or factory of a capability; it is not made yet."""
    if ":" in name:
        return load_reference(name, folder)
    found = {point.value: point for point in entry_points(group=GROUP, name=name)}
    if not found:
        raise CannotLoad(f"no installed package offers a capability {name!r}{suggestion(name, capability_names())}")
    if len(found) > 1:
        raise CannotLoad(
            f"several packages offer a capability {name!r}: {', '.join(found)}; write use = 'module:Class'"
        )
    (point,) = found.values()
    try:
        return point.load()
    except Exception as error:
        raise CannotLoad(f"capability {name!r} cannot be loaded: {describe_error(error)}") from error
