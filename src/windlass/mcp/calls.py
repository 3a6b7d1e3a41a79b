"""Which call a server means when it asks something back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any

from mcp_types import INVALID_REQUEST, ErrorData

from .conversations import Conversation

_current: ContextVar[Conversation | None] = ContextVar("windlass_mcp_call", default=None)


class CallsInProgress:
    """The calls to one server. `asks` are what the server may ask back: `elicitation`, `sampling`.

    By the protocol of 2026 a question belongs to the answer of its call. Before that a question did not name its call:
    to such a server, calls that it may ask back about are made one at a time. It is used on the worker only.
    """

    def __init__(self, asks: tuple[str, ...]) -> None:
        self._asks = asks
        self._one_at_a_time = asyncio.Lock()
        self._only: Conversation | None = None

    def handlers(self) -> dict[str, Any]:
        """The functions for a client that answer what the server asks back."""
        known = {"elicitation": self._elicit, "sampling": self._sample}
        return {f"{name}_callback": known[name] for name in self._asks}

    @asynccontextmanager
    async def hold(self, client: Any, conversation: Conversation) -> AsyncGenerator[None, None]:
        """Make a call the one that the server means."""
        if not self._asks or client.protocol_version >= "2026":
            token = _current.set(conversation)
            try:
                yield
            finally:
                _current.reset(token)
            return
        async with self._one_at_a_time:
            self._only = conversation
            try:
                yield
            finally:
                self._only = None

    async def _elicit(self, context: Any, params: Any) -> Any:
        call = _current.get() or self._only
        return _NO_CALL if call is None else await call.elicit(params)

    async def _sample(self, context: Any, params: Any) -> Any:
        call = _current.get() or self._only
        return _NO_CALL if call is None else await call.sample(params)


_NO_CALL = ErrorData(code=INVALID_REQUEST, message="the client answers questions only while a tool of the server runs")

__all__ = ["CallsInProgress"]
