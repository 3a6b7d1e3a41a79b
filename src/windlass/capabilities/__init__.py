"""Ready-made behaviours, one per file, built only on the public API that any plugin can use."""

from __future__ import annotations

from .audit import Audit
from .clear_results import ClearResults
from .offload import Offload
from .summarize import Summarize
from .triggers import Fraction, Messages, Tokens, Trigger
from .trim import Trim

__all__ = ["Audit", "ClearResults", "Fraction", "Messages", "Offload", "Summarize", "Tokens", "Trigger", "Trim"]
