"""Ready-made behaviours, one per file, built only on the public API that any plugin can use; imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .audit import Audit
    from .clear_results import ClearResults
    from .offload import Offload
    from .summarize import Summarize
    from .triggers import AtFraction, AtMessages, AtTokens, Trigger
    from .trim import Trim

__all__ = [
    "AtFraction",
    "AtMessages",
    "AtTokens",
    "Audit",
    "ClearResults",
    "Offload",
    "Summarize",
    "Trigger",
    "Trim",
]

_HOMES = {
    "AtFraction": "triggers",
    "AtMessages": "triggers",
    "AtTokens": "triggers",
    "Audit": "audit",
    "ClearResults": "clear_results",
    "Offload": "offload",
    "Summarize": "summarize",
    "Trigger": "triggers",
    "Trim": "trim",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
