"""The inspector: a local page that shows what agent sessions did, and why.

The page needs the extra `ui`; the modules that read a log into rows and words do not, and the terminal uses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .app import Inspector

__all__ = ["Inspector"]


def __getattr__(name: str) -> Any:
    if name != "Inspector":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from .app import Inspector

    return Inspector
