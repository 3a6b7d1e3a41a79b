"""RateLimit: limits how often, how much and how many at once models and tools are called; calls wait their turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from urllib.parse import quote

from windlass.errors import ConfigError
from windlass.messages import ModelCall, ModelReply, ModelRequest, ToolCall, ToolResult
from windlass.turns import Turn
from windlass.types import CallModel, CallTool

from .option_types import check_types
from .options import require_count, require_name, require_seconds
from .rate_calls import LimitedCall
from .rate_lines import Lines

if TYPE_CHECKING:
    from windlass import Hooks


_NAMES = 1_000
"""Of how many models and tools the keys are remembered."""


class Keys(NamedTuple):
    """Under which names calls are counted: in this process, and in the store."""

    line: str
    share: str


class RateLimit:
    """Limit the calls of models: `RateLimit(requests=60)`, `RateLimit(tokens=100_000, concurrency=4)`.

    `requests` and `tokens` are how many there may be within `window` seconds, `concurrency` how many calls may run at
    once. Calls that must wait are made in the order of arrival. `models` names models, all by default; `tools` names
    tools instead, by names or patterns. Each model and each tool has a limit of its own. With `per`, a function of the
    scope of a run, each key that it returns has one limit, for example each user; None means no limit.

    Tokens are estimated before a call and corrected by what the reply reports. The vendor's own limits count, too: with
    `vendor=True`, calls wait while the last reply says that nothing is left, or if the vendor asked for a pause. A call
    that would wait longer than `max_wait` seconds fails at once, a model call with `RateLimited`; None lifts that.

    Agents of this process whose `RateLimit` has the same `name` and limits share it, and their sub-agents with them.
    With `shared="store"` all processes that use the store do. `lease` is after how many seconds a process that died
    loses its permits for concurrency there; choose it longer than a call takes.
    """

    @check_types
    def __init__(
        self,
        *,
        requests: int | None = None,
        tokens: int | None = None,
        concurrency: int | None = None,
        window: float = 60.0,
        models: bool | str | Sequence[str] | None = None,
        tools: str | Sequence[str] = (),
        per: Callable[[Any], str | None] | None = None,
        vendor: bool = True,
        max_wait: float | None = 300.0,
        shared: Literal["process", "store"] = "process",
        lease: float = 600.0,
        name: str = "rate_limit",
    ) -> None:
        require_name("RateLimit", name)
        for option, count in (("requests", requests), ("tokens", tokens), ("concurrency", concurrency)):
            if count is not None:
                require_count("RateLimit", option, count)
        for option, seconds in (("window", window), ("lease", lease)):
            require_seconds("RateLimit", option, seconds)
        if max_wait is not None:
            require_seconds("RateLimit", "max_wait", max_wait)
        self.tools = [tools] if isinstance(tools, str) else list(tools)
        self.models = not self.tools if models is None else models
        if not self.models and not self.tools:
            raise ConfigError("RateLimit(models=False) limits nothing: name tools with tools=…")
        if not self.models and requests is None and concurrency is None:
            raise ConfigError("RateLimit(tools=…) limits nothing: give requests or concurrency; tools use no tokens")
        if not (requests or tokens or concurrency or vendor):
            raise ConfigError("RateLimit(vendor=False) limits nothing: give requests, tokens or concurrency")
        self.requests, self.tokens, self.concurrency, self.window = requests, tokens, concurrency, window
        self.per, self.vendor, self.max_wait, self.shared, self.lease = per, vendor, max_wait, shared, lease
        self.name = name
        self._keys: dict[tuple[str, str], Keys] = {}

    def install(self, registrar: Hooks) -> None:
        """Register the wraps around the calls, which sub-agents inherit."""
        lines = registrar.shared(Lines, name="windlass.rate_lines")
        storage = registrar.storage(self.name) if self.shared == "store" else None

        async def limit_model(request: ModelRequest, call_next: CallModel, turn: Turn[Any]) -> ModelReply:
            call = LimitedCall(self, turn, lines(), storage, "model", request.model, request)
            return await call.ask(request, call_next)

        async def limit_tool(call: ToolCall, call_next: CallTool, turn: Turn[Any]) -> ToolResult:
            return await LimitedCall(self, turn, lines(), storage, "tool", call.name).run(call, call_next)

        if self.models:
            only: Any = {} if self.models is True else {"model": self.models}
            registrar.wrap(ModelCall, side_calls=True, inherit=True, read_only=True, name=self.name, **only)(
                limit_model
            )
        if self.tools:
            registrar.wrap(ToolCall, inherit=True, read_only=True, name=f"{self.name}.tools", tool=self.tools)(
                limit_tool
            )

    def summary(self) -> str:
        """The limits, for `explain`."""
        rates = {"requests": self.requests, "tokens": self.tokens}
        limits = [f"{most:,} {what} in {self.window:g} s" for what, most in rates.items() if most is not None]
        at_once = [] if self.concurrency is None else [f"{self.concurrency} at once"]
        return ", ".join([*limits, *at_once]) or "the vendor's limits"

    @property
    def limited(self) -> bool:
        """Whether it has limits of its own, beside the vendor's."""
        return bool(self.requests or self.tokens or self.concurrency)

    def keys_of(self, turn: Turn[Any], kind: str, name: str) -> Keys | None:
        """Under which keys a call of a model or tool is counted; None if there is no limit for it."""
        if self.per is not None:
            key: object = self.per(turn.scope)
            if key is not None and (not isinstance(key, str) or not key):
                raise ConfigError(f"RateLimit(per=…) returned {key!r}; it must return a text, or None for no limit")
            return None if key is None else self._keys_for(f"key/{quote(key, safe='')}")
        found = self._keys.get((kind, name))
        if found is None:
            if len(self._keys) >= _NAMES:  # a model may invent any number of names
                self._keys.clear()
            found = self._keys[kind, name] = self._keys_for(f"{kind}/{quote(name, safe='')}")
        return found

    def _keys_for(self, key: str) -> Keys:
        share = f"{key}/{self.requests}-{self.tokens}-{self.concurrency}-{self.window:g}"
        return Keys(f"{self.name}/{self.shared}/{share}", share)
