"""Ready-made behaviours, one per file, built only on the public API that any plugin can use."""

from __future__ import annotations

from .audit import Audit
from .clear_results import ClearResults
from .offload import Offload
from .summarize import Summarize
from .triggers import AtFraction, AtMessages, AtTokens, Trigger
from .trim import Trim

__all__ = ["AtFraction", "AtMessages", "AtTokens", "Audit", "ClearResults", "Offload", "Summarize", "Trigger", "Trim"]
