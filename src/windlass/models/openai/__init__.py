"""OpenAI's Chat Completions and Responses, and any server that implements them."""

from .client import OpenAIChat, OpenAIResponses

__all__ = ["OpenAIChat", "OpenAIResponses"]
