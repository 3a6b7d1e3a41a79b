"""Models that run in this process, by llama.cpp: no key, no network. Needs the extra `local`, and weights."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import LocalModel

__all__ = ["LocalModel"]


def __getattr__(name: str) -> Any:
    """The model is imported when it is used: whoever only fetches weights needs no engine."""
    if name == "LocalModel":
        from .client import LocalModel

        return LocalModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
