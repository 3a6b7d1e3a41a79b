"""Cache: repeats earlier replies of models and results of pure tools instead of asking again."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from windlass.errors import ConfigError, StoreError
from windlass.messages import Fingerprints, ModelCall, ModelReply, ModelRequest, ToolCall, ToolResult, Usage
from windlass.outcomes import Completed
from windlass.records import TurnEnded
from windlass.tools import Tool
from windlass.turns import Turn
from windlass.types import CallModel, CallTool

from .option_types import check_types
from .options import require_name, require_seconds

if TYPE_CHECKING:
    from windlass import Assembly, Hooks
    from windlass.storage import Storage

T = TypeVar("T")
GivenT = TypeVar("GivenT")
WHOLE = ("stop", "tool_calls")
"""How a reply must have finished to be kept."""

_SESSIONS = 10_000
"""Of how many sessions the key of the latest reply is remembered, to forget it if hooks refuse it."""


class Cache:
    """Keep replies of models, and results of pure tools, in the agent's store, and use them for equal requests.

    Requests are equal if the model would read the same: ids and origins do not matter. A kept reply costs nothing. A
    reply that hooks reject, stop or withhold is not kept, nor is the last one of a turn that does not complete.
    `models=False` keeps no replies. `tools=True` keeps the results of all pure tools that take nothing but arguments;
    names or patterns say which, and then a tool may also take the turn. After `ttl` seconds an entry is gone. All
    sessions share the entries; `vary`, a function of the turn, returns a text for which they are kept apart, such as
    the user.
    """

    @check_types
    def __init__(
        self,
        *,
        models: bool = True,
        tools: bool | str | Sequence[str] = False,
        ttl: float | None = None,
        vary: Callable[[Turn[Any]], str] | None = None,
        name: str = "cache",
    ) -> None:
        require_name("Cache", name)
        if ttl is not None:
            require_seconds("Cache", "ttl", ttl)
        if not models and not tools:
            raise ConfigError("Cache(models=False) keeps nothing: pass tools=")
        self.name = name
        self.models = models
        self.tools = tools
        self.ttl = ttl
        self.vary = vary

    def install(self, registrar: Hooks) -> None:
        """Register the wraps."""
        storage = registrar.storage(self.name)
        replies = _Entries(storage, self.ttl, ModelReply, _kept_reply)
        results = _Entries(storage, self.ttl, ToolResult, _kept_result)

        latest: OrderedDict[str, tuple[str, int, str]] = OrderedDict()

        async def reuse_reply(request: ModelRequest, call_next: CallModel, turn: Turn[Any]) -> ModelReply:
            fingerprint = turn.memo(replies, Fingerprints).of(request)
            key = f"reply/{fingerprint}" if self.vary is None else _key("reply", self._varied(turn), fingerprint)
            session, ref, step = turn.session_id, turn.turn_ref, turn.steps
            before = latest.pop(session, None)
            if before is not None and before[:2] == (ref, step):  # asked again, so the earlier reply was rejected
                await storage.delete(before[2])
            latest[session] = (ref, step, key)
            if len(latest) > _SESSIONS:
                latest.popitem(last=False)
            return await replies.get(key, request, call_next)

        async def forget_reply(fact: TurnEnded, session_id: str) -> None:
            """The last reply of a turn that did not complete may be why: it is not used again."""
            *_, key = latest.pop(session_id, ("",))
            if key and not isinstance(fact.outcome, Completed):
                await storage.delete(key)

        async def reuse_result(call: ToolCall, call_next: CallTool, turn: Turn[Any]) -> ToolResult:
            tool = turn.tools.get(call.name)
            if tool is None or not self._keeps(tool):
                return await call_next(call)
            key = _key("result", self._varied(turn), tool.digest, call.digest)
            return await results.get(key, call, call_next)

        if self.models:
            registrar.wrap(ModelCall, name=f"{self.name}.model", read_only=True)(reuse_reply)
            registrar.observe(TurnEnded, wait=True, name=f"{self.name}.ended")(forget_reply)
        if self.tools:
            only: Any = {} if self.tools is True else {"tool": self.tools}
            registrar.wrap(ToolCall, name=f"{self.name}.tool", read_only=True, **only)(reuse_result)
            registrar.check(self._impure)

    def summary(self) -> str:
        """What is kept, and for how long, for `explain`."""
        tools = "pure tools" if self.tools is True else f"tools {self.tools}" if self.tools else ""
        what = [*(["replies"] if self.models else []), *([tools] if tools else [])]
        return f"{' and '.join(what)}{f', for {self.ttl:g} s' if self.ttl else ''}"

    def _varied(self, turn: Turn[Any]) -> str:
        return "" if self.vary is None else str(self.vary(turn))

    def _keeps(self, tool: Tool[..., Any]) -> bool:
        return tool.effect == "pure" and (self.tools is not True or not tool.supplied)

    def _impure(self, assembly: Assembly) -> str | None:
        named = [self.tools] if isinstance(self.tools, str) else [] if isinstance(self.tools, bool) else self.tools
        impure = [name for name in named if name in assembly.tools and assembly.tools[name].effect != "pure"]
        return f"only pure tools can be cached, and {', '.join(map(repr, impure))} is not" if impure else None


class _Entries(Generic[T]):
    """The entries of one type. Equal requests that are made at the same time in this process are made once."""

    def __init__(self, storage: Storage, ttl: float | None, kind: type[T], kept: Callable[[T], T | None]) -> None:
        self._storage = storage
        self._ttl = ttl
        self._kind = kind
        self._kept = kept
        self._pending: dict[tuple[int, str], asyncio.Future[None]] = {}

    async def get(self, key: str, given: GivenT, make: Callable[[GivenT], Awaitable[T]]) -> T:
        """The entry of a key; otherwise one is made and kept."""
        place = (id(asyncio.get_running_loop()), key)
        if (pending := self._pending.get(place)) is not None:
            await asyncio.wait([pending])
            found = await self._read(key)
            return found if found is not None else await make(given)
        done = self._pending[place] = asyncio.get_running_loop().create_future()
        try:  # the entry is looked for in here, too: a store may answer a second reader after the first has written
            if (found := await self._read(key)) is not None:
                return found
            made = await make(given)
            await self._write(key, made)
            return made
        finally:
            del self._pending[place]
            done.set_result(None)

    async def _read(self, key: str) -> T | None:
        try:
            found = await self._storage.get(key)
            return None if found is None else msgspec.convert(found, self._kind)
        except (StoreError, msgspec.ValidationError):  # the turn does not depend on the cache
            return None

    async def _write(self, key: str, made: T) -> None:
        if (kept := self._kept(made)) is not None:
            try:
                await self._storage.put(key, kept, ttl=self._ttl)
            except (StoreError, ConfigError):  # the store is down, or the value is too large
                pass


def _kept_reply(reply: ModelReply) -> ModelReply | None:
    """A whole reply, as it is used again: it costs nothing."""
    if reply.finish not in WHOLE:
        return None
    return reply.replace(usage=Usage(requests=0), response_id=None, limits=None)


def _kept_result(result: ToolResult) -> ToolResult | None:
    return None if result.is_error else result


def _key(*texts: str) -> str:
    return blake2b("\0".join(texts).encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
