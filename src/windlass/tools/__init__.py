"""Tools: functions that a model may call, and a ready-made pack of them for a folder of files."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .definitions import (
    ArgumentsError,
    DoubtRule,
    EffectClass,
    Tool,
    ToolAnnotations,
    completed_arguments,
    tool,
    toolset,
)

if TYPE_CHECKING:
    from .isolation import Isolation
    from .workspace import Workspace

__all__ = [
    "ArgumentsError",
    "DoubtRule",
    "EffectClass",
    "Isolation",
    "Tool",
    "ToolAnnotations",
    "Workspace",
    "completed_arguments",
    "tool",
    "toolset",
]

_LAZY = {"Isolation": ".isolation", "Workspace": ".workspace"}


def __getattr__(name: str) -> Any:
    """Import the tool pack on first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LAZY[name], __name__), name)
