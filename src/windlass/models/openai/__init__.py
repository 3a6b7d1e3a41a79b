"""OpenAI's Chat Completions and Responses, and every server that speaks the former."""

from .client import OpenAIChat, OpenAIResponses

__all__ = ["OpenAIChat", "OpenAIResponses"]
