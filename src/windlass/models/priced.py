"""A model whose price you state."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from windlass.deltas import AnyDelta
from windlass.messages import Message, ModelReply, ModelRequest, as_reply
from windlass.prices import AnyPrice, Price
from windlass.protocols import Model


class PricedModel:
    """Any model, with a price that you state: a `Price`, or `(input, output)` in USD per million tokens.

    The stated price replaces any other cost of its replies. Otherwise it behaves as the original model.
    """

    knows_cost = True

    def __init__(self, model: Model, price: AnyPrice) -> None:
        self._model = model
        self.price = Price.of(price)
        if hasattr(model, "stream"):
            self.stream = self._stream

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._model.name

    def __getattr__(self, name: str) -> Any:
        if name == "_model":
            raise AttributeError(name)
        return getattr(self._model, name)

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send a request, and wait for the whole reply."""
        return self._with_cost(as_reply(await self._model.reply(request)))

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        pieces: Any = self._model.stream(request)  # type: ignore[attr-defined]
        try:
            async for piece in pieces:
                yield self._with_cost(as_reply(piece)) if isinstance(piece, ModelReply | Message) else piece
        finally:
            if (close := getattr(pieces, "aclose", None)) is not None:
                await close()

    def _with_cost(self, reply: ModelReply) -> ModelReply:
        return reply.replace(usage=reply.usage.replace(cost=self.price.cost(reply.usage)))


__all__ = ["PricedModel"]
