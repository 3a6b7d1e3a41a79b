"""Claude Code's hooks in the lifecycle of Windlass: `ClaudeCodeHooks.load(folder)` is a capability."""

from .aliases import ToolAlias
from .capability import ClaudeCodeHooks

__all__ = ["ClaudeCodeHooks", "ToolAlias"]
