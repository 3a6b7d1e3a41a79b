"""LangChain's chat models as models, its tools as tools, and its middlewares as a capability."""

from typing import TYPE_CHECKING, Any

from windlass.errors import ConfigError

if TYPE_CHECKING:
    from .middlewares import Middlewares
    from .own_model import agent_model

try:
    from .models import LangChainModel
    from .tools import langchain_tools
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "langchain_core":
        raise
    raise ConfigError("windlass.compat.langchain needs LangChain: pip install 'windlass[langchain]'") from error

_LAZY = {"agent_model": "own_model", "Middlewares": "middlewares"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f".{_LAZY[name]}", __name__), name)


__all__ = ["LangChainModel", "Middlewares", "agent_model", "langchain_tools"]
