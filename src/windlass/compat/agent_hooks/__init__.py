"""A conforming host of Agent Hooks 0.1: its interceptors judge and change what an agent does."""

from windlass.errors import ConfigError

try:
    from .capability import AgentHooks, host_surface
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "agent_hooks":
        raise
    raise ConfigError("AgentHooks needs agent-hooks-sdk: pip install 'windlass[agent-hooks]'") from error

__all__ = ["AgentHooks", "host_surface"]
