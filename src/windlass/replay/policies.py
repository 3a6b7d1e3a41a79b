"""An agent that has nothing but the rules of a policy file, to try them on recorded calls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from windlass.agent import Agent
from windlass.capabilities import Permissions
from windlass.errors import ModelError
from windlass.messages import ModelReply, ModelRequest

RULES = "permissions"
"""The gate whose place the rules take, unless another one is named: that of `Permissions`."""


class NoModel:
    """A model that is never asked."""

    name = "none"

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Refuse: nothing here may ask a model."""
        raise ModelError("a replay asks no model")


def agent_of_policy(path: Path, *, name: str = RULES) -> Agent[Any, Any]:
    """An agent with the rules of a policy file as its only hook. A file with mistakes raises `ConfigError`."""
    return Agent(NoModel(), name="policy", capabilities=[Permissions.load(path, name=name, log_problems=False)])
