"""Claude by Anthropic's Messages API, and every server that speaks it."""

from .client import AnthropicMessages

__all__ = ["AnthropicMessages"]
