"""The Model Context Protocol: servers as sources of tools."""

from .capability import MCP
from .prompts import Prompt
from .servers import MCPError

__all__ = ["MCP", "MCPError", "Prompt"]
