"""Ready-made behaviours, one per file, built only on the public API that any plugin can use; imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .clear_results import ClearResults
    from .detectors import Detector, Found, Pattern, Scanner, datafog_detector, presidio_detector
    from .dry_run import DryRun
    from .events import Events
    from .logging import Logging
    from .loop_guard import LoopGuard
    from .metrics import Metrics
    from .notify import Notify
    from .offload import Offload
    from .permissions import Permissions, Verdict
    from .redact import MemoryVault, Redact, Vault
    from .request_archive import RequestArchive
    from .retry import Retry
    from .summarize import Summarize
    from .timeout import Timeout
    from .triggers import AtFraction, AtMessages, AtTokens, Trigger
    from .trim import Trim

__all__ = [
    "AtFraction",
    "AtMessages",
    "AtTokens",
    "ClearResults",
    "Detector",
    "DryRun",
    "Events",
    "Found",
    "Logging",
    "LoopGuard",
    "MemoryVault",
    "Metrics",
    "Notify",
    "Offload",
    "Pattern",
    "Permissions",
    "Redact",
    "RequestArchive",
    "Retry",
    "Scanner",
    "Summarize",
    "Timeout",
    "Trigger",
    "Trim",
    "Vault",
    "Verdict",
    "datafog_detector",
    "presidio_detector",
]

_HOMES = {
    "AtFraction": "triggers",
    "AtMessages": "triggers",
    "AtTokens": "triggers",
    "ClearResults": "clear_results",
    "Detector": "detectors",
    "DryRun": "dry_run",
    "Events": "events",
    "Found": "detectors",
    "Logging": "logging",
    "LoopGuard": "loop_guard",
    "MemoryVault": "redact",
    "Metrics": "metrics",
    "Notify": "notify",
    "Offload": "offload",
    "Pattern": "detectors",
    "Permissions": "permissions",
    "Redact": "redact",
    "RequestArchive": "request_archive",
    "Retry": "retry",
    "Scanner": "detectors",
    "Summarize": "summarize",
    "Timeout": "timeout",
    "Trigger": "triggers",
    "Trim": "trim",
    "Vault": "redact",
    "Verdict": "permissions",
    "datafog_detector": "detectors",
    "presidio_detector": "detectors",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
