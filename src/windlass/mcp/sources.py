"""The tools of one MCP server for all agents that use it: connected on the worker, listed, kept, called."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from windlass.messages import ContentPart, ToolResult
from windlass.turns import Turn

from .calls import CallsInProgress
from .connections import Connection
from .contents import Limits, resource_parts, tool_result
from .conversations import Conversation
from .listings import Listing, Offer, keep_listing, listing_of, load_listing
from .schemas import checker
from .servers import Server
from .workers import Worker, worker

T = TypeVar("T")

log = logging.getLogger("windlass.mcp")

Check = Callable[[Mapping[str, Any]], "str | None"]


class Source:
    """A server as a source of tools. One connection serves all sessions of the process."""

    def __init__(
        self,
        server: Server,
        *,
        prefix: str,
        only: tuple[str, ...] | None,
        limits: Limits,
        asks: tuple[str, ...] = (),
    ) -> None:
        self.server = server
        self.limits = limits
        self.listing = Listing()
        self._prefix, self._only = prefix, only
        self._variant = f"{prefix} {only} {asks}"
        self._checks: dict[str, tuple[str, Check]] = {}
        self._connection: Connection | None = None
        self._worker: Worker | None = None
        self._listed_life: object = None
        self._keeps = False
        self._calls = CallsInProgress(asks)

    # ------------------------------------------------------------ on any thread

    def first_listing(self, *, cached: bool) -> Listing:
        """The listing with which an agent is assembled: what an earlier process kept, or what the server says now."""
        self._keeps = cached
        kept = load_listing(self.server, self._variant) if cached else None
        if kept is not None:
            self.listing = kept
            return kept
        return self._place().run_blocking(self._fetch())

    async def refresh(self) -> Listing:
        """The listing now. The server is asked if it was started since, or if it may have changed its tools."""
        return await self._place().run(self._refreshed())

    def offer(self, name: str) -> Offer | None:
        """The tool that models know by this name, as the server lists it now."""
        return self.listing.by_name().get(name)

    def check(self, name: str, arguments: Mapping[str, Any]) -> str | None:
        """What is wrong with the arguments of a call, by the schema that the server has now."""
        offer = self.offer(name)
        if offer is None:
            return None
        known = self._checks.get(name)
        if known is None or known[0] != offer.digest:
            known = self._checks[name] = (offer.digest, checker(offer.schema))
        return known[1](arguments)

    async def call(self, tool: str, arguments: dict[str, Any], conversation: Conversation) -> ToolResult:
        """Call a tool of the server. If the caller is cancelled, the server is told so."""
        progress = _progress(conversation.turn)

        async def work(client: Any) -> Any:
            async with self._calls.hold(client, conversation):
                return await client.call_tool(tool, arguments, progress_callback=progress)

        try:
            return tool_result(await self.request(work), self.limits)
        finally:
            conversation.end()

    async def resources(self) -> list[dict[str, Any]]:
        """The resources that the server lists."""
        from .requests import list_resources

        return await self.request(list_resources)

    async def read(self, uri: str) -> tuple[ContentPart, ...]:
        """The content of a resource."""

        async def work(client: Any) -> Any:
            return (await client.read_resource(uri)).contents

        return resource_parts(await self.request(work), self.limits)

    @property
    def announced(self) -> bool:
        """Whether the server has announced other tools than it listed last."""
        life = None if self._connection is None else self._connection.life
        return life is not None and life.announced

    async def close(self) -> None:
        """End the server. The next use starts it again."""
        place = self._worker
        if self._connection is not None and place is not None and place is worker():
            await place.run(self._connection.close())
            place.forget(self)

    def _place(self) -> Worker:
        """The worker of this process, with a connection there."""
        place = worker()
        if place is not self._worker:

            async def connect() -> Connection:
                return Connection(self.server, self._calls.handlers())

            self._connection, self._worker = place.run_blocking(connect()), place
        assert self._connection is not None
        place.keep(self, self._connection.close)
        return place

    async def request(self, work: Callable[[Any], Awaitable[T]]) -> T:
        """Ask the server something through its client."""
        place = self._place()
        assert self._connection is not None
        return await place.run(self._connection.request(work))

    # ------------------------------------------------------------ on the worker

    async def _refreshed(self) -> Listing:
        assert self._connection is not None
        life = await self._connection.live()
        client = life.client
        assert client is not None
        offered = client.server_capabilities.tools
        announces = bool(offered and offered.list_changed) and client.protocol_version < "2026"
        if life is self._listed_life and announces and not life.announced:
            return self.listing
        return await self._fetch()

    async def _fetch(self) -> Listing:
        assert self._connection is not None
        tools, resources = await self._connection.tools()
        listing = listing_of(tools, prefix=self._prefix, only=self._only, resources=resources)
        for problem in listing.problems:
            log.warning("MCP server %r: %s", self.server.name, problem)
        if self._keeps and listing != self.listing:
            await asyncio.to_thread(keep_listing, self.server, self._variant, listing)
        self.listing, self._listed_life = listing, self._connection.life
        return listing


def _progress(turn: Turn[Any]) -> Callable[[float, float | None, str | None], Any]:
    async def tell(done: float, total: float | None, text: str | None) -> None:
        good = [number for number in (done, total) if number is not None and math.isfinite(number) and number >= 0]
        try:
            if len(good) == (1 if total is None else 2):
                turn.progress(done, total, (text or "")[:200])
        except Exception:  # the turn is over
            pass

    return tell


__all__ = ["Source"]
