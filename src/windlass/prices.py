"""What a reply costs, in USD, by the price lists of `genai-prices` (extra `prices`)."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from decimal import Decimal
from functools import cache
from typing import Any

from .messages import ModelReply, Usage

KEPT = 1_000
"""Of how many models the price lists are kept; when there are more, all are looked up again."""

_models: dict[tuple[str, str], Any] = {}
_snapshot: Any = None


def priced(usage: Usage, vendor: str, model: str) -> Usage:
    """The usage of one reply with its cost, where that is known: for adapters, when they make a `Usage`.

    `vendor` is a name that genai-prices knows, or the address of the server: the same model has another price
    elsewhere. The cost is None, never zero, without genai-prices, for a model that it does not know or has no price per
    token for, for counts that contradict each other, and where nothing was counted.
    """
    found = _model(vendor, model) if usage.total else None
    cost = None if found is None else _cost(usage, found.get_prices(datetime.now(UTC)))
    return usage.replace(cost=cost)


def costed(reply: ModelReply, vendor: str, asked: str) -> ModelReply:
    """A reply with its cost, unless it says one itself: by the model that gave it, or else by the one that was asked.

    The two differ where a name stands for the latest version, and where the vendor calls it otherwise than its clients.
    """
    usage = reply.usage
    for model in (reply.model, asked):
        if usage.cost is None and model:
            usage = priced(usage, vendor, model)
    return reply if usage is reply.usage else reply.replace(usage=usage)


def context_window(vendor: str, model: str) -> int | None:
    """How many tokens a model can have before it, where the price lists know that."""
    found = _model(vendor, model)
    window: int | None = None if found is None else found.context_window
    return window


def _model(vendor: str, model: str) -> Any:
    """The entry of a model, or None. It is looked up once, and again when newer price lists were loaded."""
    global _snapshot
    current = _price_lists()
    if current is None:
        return None
    if (snapshot := current()) is not _snapshot or len(_models) >= KEPT:
        _models.clear()
        _snapshot = snapshot
    key = (vendor, model)
    if key not in _models:
        _models[key] = _looked_up(snapshot, vendor, model)
    return _models[key]


def _looked_up(snapshot: Any, vendor: str, model: str) -> Any:
    name, address = (None, vendor) if "://" in vendor else (vendor, None)
    try:
        return snapshot.find_provider_model(model, None, name, address)[1]
    except LookupError:
        return None


@cache
def _price_lists() -> Callable[[], Any] | None:
    try:
        from genai_prices.data_snapshot import get_snapshot
    except ModuleNotFoundError:
        return None
    return get_snapshot


def _cost(usage: Usage, prices: Any) -> float | None:
    """Tokens times rates. A kind of token that has no rate of its own is billed as what it is part of."""
    uncached = usage.input - usage.cached - usage.cache_written
    spoken = usage.output - usage.reasoning
    if prices.input_mtok is None or uncached < 0 or spoken < 0:
        return None

    def rate(*names: str) -> Decimal:
        price = next((found for name in names if (found := getattr(prices, name)) is not None), Decimal(0))
        return price if isinstance(price, Decimal) else _tier(price, usage.input)

    tokens = (
        uncached * rate("input_mtok")
        + usage.cached * rate("cache_read_mtok", "input_mtok")
        + usage.cache_written * rate("cache_write_mtok", "input_mtok")
        + spoken * rate("output_mtok")
        + usage.reasoning * rate("output_reasoning_mtok", "output_mtok")
    )
    return float(tokens / 1_000_000 + usage.requests * rate("requests_kcount") / 1_000)


def _tier(price: Any, tokens: int) -> Decimal:
    """The rate for a request with so many input tokens: the last one whose threshold it crosses."""
    rate: Decimal = price.base
    for tier in price.tiers:
        if tokens > tier.start:
            rate = tier.price
    return rate


__all__ = ["costed", "priced"]
