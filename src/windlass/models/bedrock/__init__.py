"""All models of Amazon Bedrock, through its Converse API."""

from .client import BedrockConverse

__all__ = ["BedrockConverse"]
