"""Every model of Amazon Bedrock, by its Converse API."""

from .client import BedrockConverse

__all__ = ["BedrockConverse"]
