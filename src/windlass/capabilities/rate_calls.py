"""One call on its way through a rate limit: it waits in line, takes its share, runs, and is settled."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

from windlass.context.budget import Counter
from windlass.errors import RateLimited
from windlass.messages import ModelReply, ModelRequest
from windlass.turns import Turn
from windlass.types import CallModel

from .rate_lines import Line, Lines, Permit, Place, current_permit
from .rate_patience import INSTANT, Patience
from .rate_shares import Share
from .vendor_limits import VendorLimits

if TYPE_CHECKING:
    from windlass import Storage

    from .rate_limit import RateLimit


class LimitedCall:
    """A call of a model or tool that is made within the limits of a `RateLimit`."""

    def __init__(
        self,
        limit: RateLimit,
        turn: Turn[Any],
        lines: Lines,
        storage: Storage | None,
        kind: Literal["model", "tool"],
        name: str,
    ) -> None:
        self._limit = limit
        self._turn = turn
        self._storage = storage
        self._name = name
        self._patience = Patience(limit, turn, kind, name)
        self._taken: dict[str, float] = {}
        self._vendor: VendorLimits | None = None
        if limit.vendor and kind == "model":
            self._vendor = lines.vendor(f"{limit.name}/{name}")
        key = limit.key_of(turn, kind, name)
        limited = limit.requests or limit.tokens or limit.concurrency
        self._line: Line | None = None
        self._share: Share | None = None
        if key is not None and limited:
            key = f"{key}/{limit.requests}-{limit.tokens}-{limit.concurrency}-{limit.window:g}"
            self._line = lines.line(f"{limit.name}/{limit.shared}/{key}", turn.now())
            self._share = None if storage is None else Share(storage, key)

    # ------------------------------------------------------------ models

    async def ask(self, request: ModelRequest, call_next: CallModel) -> ModelReply:
        """The reply of a model, once it may be asked."""
        counts = self._vendor is not None or self._limit.tokens is not None
        tokens = _estimate(request) if counts else 0
        async with self.admitted("" if request.side else f"step {self._turn.steps}", tokens):
            try:
                reply = await call_next(request)
            except Exception as error:
                await self._correct(0)
                if isinstance(error, RateLimited) and error.retry_after:
                    await self._pause(error.retry_after)
                raise
            if self._vendor is not None and reply.limits is not None:
                self._vendor.note_reply(reply.limits, self._turn.now())
            await self._correct(reply.usage.total)
            return reply

    async def _correct(self, tokens: int) -> None:
        """Count the tokens that were used instead of those that were estimated."""
        if "tokens" in self._taken and tokens != self._taken["tokens"]:
            await self._borrow("tokens", tokens - self._taken["tokens"])

    async def _pause(self, seconds: float) -> None:
        """The vendor asked for a pause."""
        if self._vendor is not None:
            now = self._turn.now()
            self._vendor.pause(seconds, now)
            if self._storage is not None:
                await self._storage.put(f"pause/{self._name}", now + seconds, ttl=seconds)

    # ------------------------------------------------------------ the way through the line

    @asynccontextmanager
    async def admitted(self, about: str, tokens: int = 0) -> AsyncGenerator[None, None]:
        """Wait until the call may be made, and count it while it runs. `about` tells it from others of its turn."""
        line, outer = self._line, current_permit.get()
        if line is None or (outer is not None and outer.covers(line)):
            await self._take(tokens)
            yield
            return
        holder = await self._enter(line, about, tokens)
        permit = Permit(line, outer)
        current_permit.set(permit)
        try:
            yield
        finally:
            permit.active = False
            current_permit.set(outer)
            line.end(holder)
            if self._share is not None and self._limit.concurrency is not None:
                await self._share.release(holder)

    async def _enter(self, line: Line, about: str, tokens: int) -> str:
        """Wait in line until the call may start; returns the name under which it runs."""
        place = line.join()
        try:
            while not line.is_first(place):
                await self._patience.wait_for(place.woken())
            await self._take(tokens)
            return await self._start(line, place, about)
        except BaseException:
            taken, self._taken = self._taken, {}
            for kind, amount in taken.items():
                await self._borrow(kind, -amount)
            raise
        finally:
            line.leave(place)

    async def _start(self, line: Line, place: Place, about: str) -> str:
        """Wait until fewer calls run than may run at once."""
        most, holder = self._limit.concurrency, _digest(f"{self._turn.turn_ref} {about}")
        if not about or holder in line.running:
            holder = os.urandom(16).hex()
        if self._share is None:
            while not line.start(holder, most):
                await self._patience.wait_for(place.woken())
            return holder
        if most is not None:
            await self._share.hold(holder, most, self._limit.lease, self._patience.sleep)
        line.start(holder, None)
        return holder

    async def _take(self, tokens: int) -> None:
        """Take a request and its tokens from the limits, and wait until they are covered."""
        wait = 0.0
        for kind, n, most in (("requests", 1, self._limit.requests), ("tokens", tokens, self._limit.tokens)):
            if most is not None and n and self._line is not None:
                amount = min(n, most)  # a larger call waits until the limit is free
                wait = max(wait, await self._borrow(kind, amount))
                self._taken[kind] = amount
        if wait > INSTANT:
            await self._patience.sleep(wait)
        if self._vendor is not None:
            while (wait := await self._vendor_wait(self._vendor, tokens)) > INSTANT:
                await self._patience.sleep(wait)
            self._vendor.take(tokens)

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


def _estimate(request: ModelRequest) -> int:
    """The estimated tokens of a request."""
    counter = Counter()
    return counter.fixed(request.system, request.tools) + sum([counter.message(one) for one in request.messages])


def _digest(text: str) -> str:
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
