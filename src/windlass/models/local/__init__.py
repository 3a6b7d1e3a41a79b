"""Models that run in this process with llama.cpp: no key, no network. They need the extra `local` and weights."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import LocalModel

__all__ = ["LocalModel"]


def __getattr__(name: str) -> Any:
    """Import the model on first use: installing weights needs no engine."""
    if name == "LocalModel":
        from .client import LocalModel

        return LocalModel
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
