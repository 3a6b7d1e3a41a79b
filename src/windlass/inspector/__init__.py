"""The inspector: a local page that shows what agent sessions did, and why."""

from __future__ import annotations

from .app import Inspector

__all__ = ["Inspector"]
