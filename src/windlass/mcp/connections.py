"""A connection to an MCP server: started when it is first used, and again after the server has ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar

import httpx2
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError as ProtocolError
from mcp_types import CONNECTION_CLOSED, Implementation, ToolListChangedNotification

from mcp import Client
from windlass.errors import ToolError

from .pipes import Pipe
from .servers import Server

T = TypeVar("T")

log = logging.getLogger("windlass.mcp")

_PAGES = 100


class Life:
    """One run of a server, from its start to its end. It is used on the event loop of the worker only."""

    def __init__(self, server: Server, handlers: dict[str, Any]) -> None:
        self.server = server
        self.over = False
        self.announced = False
        self.client: Client | None = None
        self._handlers = handlers
        self._stop = asyncio.Event()
        self._pipe: Pipe | None = None
        self._task: asyncio.Task[None] | None = None

    async def begin(self) -> None:
        """Start the server and shake hands; raises an error that names the server."""
        ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._task = asyncio.ensure_future(self._live(ready))
        try:
            async with asyncio.timeout(self.server.start_timeout):
                await asyncio.shield(ready)
        except TimeoutError:
            await self.end()
            raise self.server.error(f"did not answer within {self.server.start_timeout:g} s{self.words}") from None
        except asyncio.CancelledError:
            await self.end()
            raise
        except BaseException as error:
            await self.end()
            raise self.server.error(f"cannot be started: {_cause(error)}{self.words}") from error

    @property
    def words(self) -> str:
        """What is known of its end."""
        said = "" if self._pipe is None else self._pipe.last_words
        return f" ({said})" if said else ""

    async def _live(self, ready: asyncio.Future[None]) -> None:
        try:
            async with AsyncExitStack() as stack:
                options: dict[str, Any] = {"client_info": Implementation(name="windlass", version="0"), "cache": None}
                client = Client(self._transport(), message_handler=self._notice, **options, **self._handlers)
                self.client = await stack.enter_async_context(client)
                if not ready.done():
                    ready.set_result(None)
                await self._stop.wait()
        except BaseException as error:
            if not ready.done():
                ready.set_exception(error)
                ready.exception()  # it may be that nobody waits any more
            elif not isinstance(error, asyncio.CancelledError):
                log.warning("the connection to MCP server %r ended: %s", self.server.name, _cause(error))
        finally:
            self.over = True

    def _transport(self) -> Any:
        if self.server.url:
            return _http(self.server)
        self._pipe = Pipe(self.server, self.give_up)
        return self._pipe.open()

    async def _notice(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self.announced = True

    def give_up(self) -> None:
        """The connection is of no use any more: let it end, and do not wait."""
        self.over = True
        self._stop.set()

    async def end(self) -> None:
        """End the connection, and the process of the server with it."""
        self.give_up()
        if self._task is not None and not self._task.done():
            if self.client is None:  # it hangs while it shakes hands
                self._task.cancel()
            await asyncio.wait([self._task], timeout=10)
            self._task.cancel()


class Connection:
    """A server that is started when it is needed. Its methods run on the event loop of the worker."""

    def __init__(self, server: Server, handlers: dict[str, Any] | None = None) -> None:
        self.server = server
        self._handlers = handlers or {}
        self._lock = asyncio.Lock()
        self._life: Life | None = None

    @property
    def life(self) -> Life | None:
        """The current run of the server."""
        return self._life

    async def live(self) -> Life:
        """A run of the server that can be used."""
        async with self._lock:
            if self._life is not None and not self._life.over:
                return self._life
            if self._life is not None:
                await self._life.end()
            self._life = None
            life = Life(self.server, self._handlers)
            await life.begin()
            self._life = life
            return life

    async def close(self) -> None:
        """End the server. The next use starts it again."""
        async with self._lock:
            if self._life is not None:
                await self._life.end()
            self._life = None

    async def request(self, work: Callable[[Client], Awaitable[T]]) -> T:
        """Ask the server something; raises `ToolError` with what went wrong."""
        life = await self.live()
        assert life.client is not None
        try:
            return await work(life.client)
        except ProtocolError as error:
            if error.code == CONNECTION_CLOSED or "Session terminated" in str(error):
                life.give_up()
                await asyncio.sleep(0)
                raise ToolError(
                    f"the MCP server {self.server.name!r} ended during the call, so its outcome is unknown{life.words}"
                ) from error
            raise ToolError(f"the MCP server {self.server.name!r} answered: {str(error)[:2000]}") from error
        except (OSError, RuntimeError, ValueError, RecursionError, BaseExceptionGroup) as error:
            raise ToolError(
                f"the call to the MCP server {self.server.name!r} failed: {_cause(error)[:1000]}"
            ) from error

    async def tools(self) -> tuple[list[Any], bool]:
        """All tools that the server lists, and whether it has resources."""
        life = await self.live()
        life.announced = False

        async def pages(client: Client) -> list[Any]:
            if client.server_capabilities.tools is None:
                return []
            listed: list[Any] = []
            cursor: str | None = None
            for _ in range(_PAGES):
                page = await client.list_tools(cursor=cursor)
                listed += page.tools
                cursor = page.next_cursor
                if not cursor:
                    break
            return listed

        async with asyncio.timeout(self.server.start_timeout):
            listed = await self.request(pages)
        assert life.client is not None
        return listed, life.client.server_capabilities.resources is not None


@asynccontextmanager
async def _http(server: Server) -> AsyncGenerator[Any, None]:
    async def limit(response: httpx2.Response) -> None:
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        events = response.headers.get("content-type", "").startswith("text/event-stream")
        response.stream = _Limited(response.stream, server, events=events)

    hooks: dict[str, list[Any]] = {"response": [limit]}
    timeout = httpx2.Timeout(30, read=300)
    async with (
        httpx2.AsyncClient(headers=dict(server.headers), timeout=timeout, event_hooks=hooks) as http,
        streamable_http_client(server.url, http_client=http) as streams,
    ):
        yield streams


class _Limited(httpx2.AsyncByteStream):
    """The body of a response, which ends with an error if a message in it is too long."""

    def __init__(self, body: httpx2.AsyncByteStream, server: Server, *, events: bool) -> None:
        self._body = body
        self._server = server
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, before = 0, b""
        async for piece in self._body:
            size += len(piece)
            recent, before = before + piece, piece[-3:]  # the end of an event may be in two pieces
            if self._events and (end := max(recent.rfind(b"\n\n"), recent.rfind(b"\r\n\r\n"))) >= 0:
                size = len(recent) - end  # the next event begins there
            if size > self._server.max_message:
                raise httpx2.ReadError(f"it sent a message of more than {self._server.max_message:,} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._body.aclose()


def _cause(error: BaseException) -> str:
    """The first plain error in a tree of groups, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    text = str(error) or type(error).__name__
    return text if isinstance(error, ProtocolError) else f"{type(error).__name__}: {text}" if str(error) else text


__all__ = ["Connection", "Life"]
