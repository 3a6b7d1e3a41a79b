"""The cost of a reply in USD: from a stated price, or from the price lists of `genai-prices` (extra `prices`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import cache
from math import isfinite
from typing import Any, TypeAlias

from .errors import ConfigError
from .messages import FrozenDict, ModelReply, Usage, Value

CACHE_SIZE = 1_000
"""How many models are cached; when there are more, the cache is cleared."""

TIERS = ("priority", "fast", "flex")
"""Service tiers with their own prices. `Usage.details` counts their replies, as `priority_requests` …"""
EXPENSIVE_TIERS = ("priority", "fast")

_models: dict[tuple[str, str], Any] = {}
_snapshot: Any = None


class Price(Value, frozen=True):
    """The price that you state for a model: USD per million tokens.

    Tokens read from the vendor's cache or written to it cost `cache_read` and `cache_write`, which default to `input`.
    `others` has the prices of other items, in USD per thousand, under their names in `Usage.details`:
    `{"web_searches": 10}`. If a reply counts an item without a price, its cost is unknown.
    """

    input: float
    output: float
    cache_read: float | None = None
    cache_write: float | None = None
    others: Mapping[str, float] = FrozenDict()

    def __post_init__(self) -> None:
        if not isinstance(self.others, Mapping):
            raise ConfigError(f"price: others={self.others!r}; it must be a mapping of kinds to USD per thousand")
        cached = {"cache_read": self.cache_read, "cache_write": self.cache_write}
        rates: dict[str, Any] = {"input": self.input, "output": self.output, **cached, **self.others}
        for name, rate in rates.items():
            if name in cached and rate is None:
                continue
            if type(rate) not in (int, float) or not isfinite(rate) or rate < 0:
                raise ConfigError(f"price: {name} is {rate!r}; it must be a number of USD, 0 or more")

    @classmethod
    def of(cls, stated: AnyPrice) -> Price:
        """The stated price, which may be a pair `(input, output)`."""
        if isinstance(stated, Price):
            return stated
        try:
            input, output = stated
        except (TypeError, ValueError):
            text = f"price={stated!r}: pass a Price, or (input, output) in USD per million tokens"
            raise ConfigError(text) from None
        return cls(input, output)

    def cost(self, usage: Usage) -> float | None:
        """The cost in USD; None if the usage counts nothing, contradicts itself, or has an item without a rate."""
        kinds = {kind: count for kind, count in usage.details.items() if count and billed_apart(kind)}
        if _contradictory(usage) or not usage.total or any(kind not in self.others for kind in kinds):
            return None
        read = self.input if self.cache_read is None else self.cache_read
        written = self.input if self.cache_write is None else self.cache_write
        plain = usage.input - usage.cached - usage.cache_written
        tokens = plain * self.input + usage.cached * read + usage.cache_written * written + usage.output * self.output
        return tokens / 1_000_000 + sum(count * self.others[kind] for kind, count in kinds.items()) / 1_000


AnyPrice: TypeAlias = Price | tuple[float, float]


def billed_apart(kind: str) -> bool:
    """Whether a kind in `Usage.details` is billed per item, in addition to the tokens."""
    return not kind.endswith(("_tokens", "_requests"))


def has_price_lists() -> bool:
    """Whether the price lists are installed."""
    return _price_lists() is not None


def priced(usage: Usage, vendor: str, model: str) -> Usage:
    """The usage of one reply with its cost, if that is known: for adapters, when they make a `Usage`.

    `vendor` is a name that genai-prices knows, or the address of the server, as the same model may have another price
    elsewhere. The cost is None, never zero, without genai-prices, for a model that it does not know or has no price per
    token for, for an item without a rate (a web search, a more expensive service tier), for counts that contradict each
    other, and if nothing was counted.
    """
    listed = _model(vendor, model) if usage.total else None
    return usage.replace(cost=None if listed is None else _cost(usage, listed))


def costed(reply: ModelReply, vendor: str, asked: str) -> ModelReply:
    """A reply with its cost, unless it has one: by the name of the model that replied, or else of the one requested.

    The two differ if a name stands for the latest version, and if the vendor uses another name than its clients do.
    """
    if reply.usage.cost is not None:
        return reply
    known = next((model for model in (reply.model, asked) if model and _model(vendor, model) is not None), None)
    return reply if known is None else reply.replace(usage=priced(reply.usage, vendor, known))


def is_listed(vendor: str, model: str) -> bool:
    """Whether the price lists have a price per token for a model."""
    listed = _model(vendor, model)
    return listed is not None and listed.get_prices(datetime.now(UTC)).input_mtok is not None


def context_window(vendor: str, model: str) -> int | None:
    """The size of a model's context window in tokens, if the price lists know it."""
    listed = _model(vendor, model)
    window: int | None = None if listed is None else listed.context_window
    return window


def _model(vendor: str, model: str) -> Any:
    """A model's entry in the price lists, or None; cached until newer price lists are loaded."""
    global _snapshot
    current = _price_lists()
    if current is None:
        return None
    if (snapshot := current()) is not _snapshot or len(_models) >= CACHE_SIZE:
        _models.clear()
        _snapshot = snapshot
    key = (vendor, model)
    if key not in _models:
        _models[key] = _find_model(snapshot, vendor, model)
    return _models[key]


def _find_model(snapshot: Any, vendor: str, model: str) -> Any:
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


def _cost(usage: Usage, model: Any) -> float | None:
    """The cost by the price lists. Tokens without a rate of their own are billed like the tokens they are part of."""
    details = dict(usage.details)
    tier = next((tier for tier in TIERS if details.get(f"{tier}_requests")), None)
    now = datetime.now(UTC)
    prices = model.get_prices(now, tier and {"service_tier": tier})
    if tier in EXPENSIVE_TIERS and prices == model.get_prices(now):
        return None
    apart = [kind for kind, count in details.items() if count and billed_apart(kind)]
    rates = [prices.input_mtok, *[getattr(prices, f"{kind}_kcount", None) for kind in apart]]
    if None in rates or _contradictory(usage):
        return None
    from genai_prices import Usage as Counts

    counts = Counts(
        input_tokens=usage.input,
        cache_read_tokens=usage.cached,
        cache_write_tokens=usage.cache_written,
        output_tokens=usage.output,
        output_reasoning_tokens=usage.reasoning,
        **{kind: count for kind, count in details.items() if not kind.endswith("_requests")},
    )
    try:
        return float(prices.calc_price(counts)["total_price"])
    except ValueError:  # the counts contradict each other, or it is unclear which tokens include which
        return None


def _contradictory(usage: Usage) -> bool:
    return usage.cached + usage.cache_written > usage.input or usage.reasoning > usage.output


__all__ = ["AnyPrice", "Price", "costed", "priced"]
