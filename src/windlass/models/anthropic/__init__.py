"""Claude through Anthropic's Messages API, and any server that implements it."""

from .client import AnthropicMessages

__all__ = ["AnthropicMessages"]
