"""One call on its way through a rate limit: it waits in line, takes its share, runs, and is settled."""

from __future__ import annotations

from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any, Literal

from windlass.context.budget import Budget, Meter
from windlass.errors import RateLimited
from windlass.messages import ModelReply, ModelRequest, ToolCall, ToolResult
from windlass.randomness import random_bytes
from windlass.turns import Turn
from windlass.types import CallModel, CallTool

from .rate_lines import NO_PERMIT, Line, Lines, Permit, Place, current_permit
from .rate_patience import INSTANT, Patience
from .rate_shares import Share
from .vendor_limits import VendorLimits

if TYPE_CHECKING:
    from windlass import Storage

    from .rate_limit import RateLimit


class LimitedCall:
    """A call of a model or tool that is made within the limits of a `RateLimit`.

    Mostly nothing waits, and the limits have room: then the call passes at once. Otherwise it stands in line.
    """

    __slots__ = ("_kind", "_limit", "_line", "_name", "_request", "_share", "_storage", "_taken", "_turn",
                 "_vendor")  # fmt: skip

    def __init__(
        self,
        limit: RateLimit,
        turn: Turn[Any],
        lines: Lines,
        storage: Storage | None,
        kind: Literal["model", "tool"],
        name: str,
        request: ModelRequest | None = None,
    ) -> None:
        self._limit = limit
        self._turn = turn
        self._storage = storage
        self._kind: Literal["model", "tool"] = kind
        self._name = name
        self._request = request
        self._taken: dict[str, float] | None = None
        self._vendor: VendorLimits | None = None
        if limit.vendor and kind == "model":
            self._vendor = lines.vendor(limit.name, name)
        self._line: Line | None = None
        self._share: Share | None = None
        if limit.limited and (keys := limit.keys_of(turn, kind, name)) is not None:
            self._line = lines.line(keys.line, turn.now())
            self._share = None if storage is None else Share(storage, keys.share)

    # ------------------------------------------------------------ models

    async def ask(self, request: ModelRequest, call_next: CallModel) -> ModelReply:
        """The reply of a model, once it may be asked."""
        permit = self._pass_at_once() or await self._enter("" if request.side else f"step {self._turn.steps}")
        try:
            try:
                reply = await call_next(request)
            except Exception as error:
                await self._correct(0)
                if isinstance(error, RateLimited) and error.retry_after:
                    await self._pause(error.retry_after)
                raise
            if self._vendor is not None and reply.limits is not None:
                self._vendor.note_reply(reply.limits, self._turn.now())
            if self._taken is not None:
                await self._correct(reply.usage.total)
            return reply
        finally:
            if permit.holder:
                await self._leave(permit)

    async def _correct(self, tokens: int) -> None:
        """Count the tokens that were used instead of those that were estimated."""
        taken = None if self._taken is None else self._taken.get("tokens")
        if taken is not None and tokens != taken:
            await self._borrow("tokens", tokens - taken)

    async def _pause(self, seconds: float) -> None:
        """The vendor asked for a pause."""
        if self._vendor is not None:
            now = self._turn.now()
            self._vendor.pause(seconds, now)
            if self._storage is not None:
                await self._storage.put(f"pause/{self._name}", now + seconds, ttl=seconds)

    def _tokens(self) -> int:
        """The estimated tokens of a model call, if a limit needs them."""
        request, vendor = self._request, self._vendor
        if request is None or (self._limit.tokens is None and (vendor is None or not vendor.counts_tokens)):
            return 0
        return self._turn.memo(_meter, _meter).ours(request.system, request.tools, request.messages)

    # ------------------------------------------------------------ tools

    async def run(self, call: ToolCall, call_next: CallTool) -> ToolResult:
        """The result of a tool, once it may be called."""
        permit = self._pass_at_once() or await self._enter(call.id)
        try:
            return await call_next(call)
        finally:
            if permit.holder:
                await self._leave(permit)

    # ------------------------------------------------------------ the way through the line

    def _pass_at_once(self) -> Permit | None:
        """Take the call's share of the limits if nothing has to be waited for; otherwise take nothing."""
        if self._storage is not None:
            return None
        limit, line, vendor, now = self._limit, self._line, self._vendor, self._turn.now()
        tokens = self._tokens()
        if vendor is not None and vendor.wait(tokens, now) > INSTANT:
            return None
        permit = NO_PERMIT
        if line is not None:
            holder = "" if limit.concurrency is None else f"here {next(_numbers)}"
            outer = current_permit.get() if holder else None
            if outer is not None and outer.covers(line):
                return None
            amounts = self._amounts(tokens)
            if not line.pass_at_once(holder, limit.concurrency, amounts, limit.window, now):
                return None
            if limit.tokens is not None:
                self._taken = {kind: amount for kind, amount, _ in amounts}
            if holder:
                permit = Permit(line, outer, holder)
                current_permit.set(permit)
        if vendor is not None:
            vendor.take(tokens)
        return permit

    async def _enter(self, about: str) -> Permit:
        """Wait until the call may be made. `about` tells it from others of its turn."""
        line, outer = self._line, current_permit.get()
        patience = Patience(self._limit, self._turn, self._kind, self._name)
        if line is None or (outer is not None and outer.covers(line)):
            await self._take(patience)
            return NO_PERMIT
        place = line.join()
        try:
            while not line.is_first(place):
                await patience.wait_for(place.woken())
            await self._take(patience)
            holder = await self._start(line, place, about, patience)
        except BaseException:
            taken, self._taken = self._taken, None
            for kind, amount in (taken or {}).items():
                await self._borrow(kind, -amount)
            raise
        finally:
            line.leave(place)
        permit = Permit(line, outer, holder)
        current_permit.set(permit)
        return permit

    async def _leave(self, permit: Permit) -> None:
        """The call is over."""
        permit.active = False
        current_permit.set(permit.outer)
        if permit.line is not None:
            permit.line.end(permit.holder)
            if self._share is not None and self._limit.concurrency is not None:
                await self._share.release(permit.holder)

    async def _start(self, line: Line, place: Place, about: str, patience: Patience) -> str:
        """Wait until fewer calls run than may run at once; returns the name under which the call runs."""
        most, holder = self._limit.concurrency, _digest(f"{self._turn.turn_ref} {about}")
        if not about or holder in line.running:
            holder = random_bytes(16).hex()
        if self._share is None:
            while not line.start(holder, most):
                await patience.wait_for(place.woken())
            return holder
        if most is not None:
            await self._share.hold(holder, most, self._limit.lease, patience.sleep)
        line.start(holder, None)
        return holder

    async def _take(self, patience: Patience) -> None:
        """Take a request and its tokens from the limits, and wait until they are covered."""
        wait = 0.0
        tokens = self._tokens()
        for kind, amount, _ in self._amounts(tokens):
            wait = max(wait, await self._borrow(kind, amount))
            self._taken = {**(self._taken or {}), kind: amount}
        if wait > INSTANT:
            await patience.sleep(wait)
        if self._vendor is not None:
            while (wait := await self._vendor_wait(self._vendor, tokens)) > INSTANT:
                await patience.sleep(wait)
                tokens = self._tokens()
            self._vendor.take(tokens)

    def _amounts(self, tokens: int) -> list[tuple[str, int, int]]:
        """What the call takes from each limit, and the limit. A larger call waits until the limit is free."""
        limit = self._limit
        if self._line is None:
            return []
        found = [] if limit.requests is None else [("requests", 1, limit.requests)]
        if limit.tokens is not None and tokens:
            found.append(("tokens", min(tokens, limit.tokens), limit.tokens))
        return found

    async def _vendor_wait(self, vendor: VendorLimits, tokens: int) -> float:
        until = 0.0 if self._storage is None else await self._storage.get(f"pause/{self._name}", 0.0)
        now = self._turn.now()
        return max(vendor.wait(tokens, now), until - now)

    async def _borrow(self, kind: str, amount: float) -> float:
        """Take an amount, or give it back; returns in how many seconds it is covered."""
        limit, line = self._limit, self._line
        most = limit.requests if kind == "requests" else limit.tokens
        assert line is not None
        assert most is not None
        if self._share is not None:
            return await self._share.borrow(kind, amount, most, limit.window)
        return line.borrow(kind, amount, most, limit.window, self._turn.now())


_numbers = count()


def _meter() -> Meter:
    """Counts the tokens of the requests of a turn, each message once."""
    return Meter(Budget({}))


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
