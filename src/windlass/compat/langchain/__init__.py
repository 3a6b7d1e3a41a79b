"""LangChain's chat models as models, and its tools as tools."""

from windlass.errors import ConfigError

try:
    from .models import LangChainModel
    from .tools import langchain_tools
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "langchain_core":
        raise
    raise ConfigError("windlass.compat.langchain needs LangChain: pip install 'windlass[langchain]'") from error

__all__ = ["LangChainModel", "langchain_tools"]
