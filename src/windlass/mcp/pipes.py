"""Talks to an MCP server over its standard input and output: bounded messages, and no process left behind."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
from collections import deque
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import anyio
from mcp.client.stdio import get_default_environment
from mcp.shared.message import SessionMessage
from mcp_types import INTERNAL_ERROR, ErrorData, JSONRPCError, jsonrpc_message_adapter

from .servers import Server

log = logging.getLogger("windlass.mcp")

_GRACE = 2.0
"""How many seconds a server has to end by itself, and then once more after SIGTERM."""
_GARBAGE = 1_000
"""After how many lines in a row that are no messages a server is given up."""
_STDERR_LINES = 20


class Pipe:
    """A running server. `ended` is called when it has closed its output; `reason` then says why, if that is known."""

    def __init__(self, server: Server, ended: Callable[[], None]) -> None:
        self.server = server
        self.ended = ended
        self.reason = ""
        self.stderr: deque[str] = deque(maxlen=_STDERR_LINES)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def last_words(self) -> str:
        """Why the server ended, with what it wrote to its standard error last."""
        status = None if self._process is None else self._process.returncode
        said = "\n".join(self.stderr).strip()
        words = [self.reason, f"exit status {status}" if status else "", f"it wrote: {said[-1000:]}" if said else ""]
        return "; ".join([word for word in words if word])

    @asynccontextmanager
    async def open(self) -> AsyncGenerator[Any, None]:
        """The streams for a client, while the server runs."""
        process = await self._start()
        incoming, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, outgoing = anyio.create_memory_object_stream[SessionMessage](0)
        tasks = [
            asyncio.ensure_future(self._read(process, incoming)),
            asyncio.ensure_future(self._write(process, outgoing)),
            asyncio.ensure_future(self._listen(process)),
        ]
        try:
            yield read, write
        finally:
            with anyio.CancelScope(shield=True):
                await self._stop(process)
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks, timeout=_GRACE)
                for stream in (read, write, incoming, outgoing):
                    stream.close()

    async def _start(self) -> asyncio.subprocess.Process:
        server = self.server
        environment = {**get_default_environment(), **server.env}
        if shutil.which(server.command[0], path=environment.get("PATH")) is None:
            raise FileNotFoundError(f"the command {server.command[0]!r} was not found")
        self._process = await asyncio.create_subprocess_exec(
            *server.launched(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            cwd=server.cwd,
            limit=server.max_message,
            start_new_session=True,
        )
        return self._process

    async def _read(self, process: asyncio.subprocess.Process, incoming: Any) -> None:
        assert process.stdout is not None
        garbage = 0
        try:
            while line := await process.stdout.readline():
                message = read_line(line)
                garbage = garbage + 1 if message is None else 0
                if garbage > _GARBAGE:
                    self.reason = "it writes text that is not MCP to its standard output"
                    break
                if message is not None:
                    await incoming.send(SessionMessage(message))
        except ValueError:  # the line is longer than the limit
            self.reason = f"it sent a message of more than {self.server.max_message:,} bytes"
        except (anyio.ClosedResourceError, anyio.BrokenResourceError, ConnectionError):
            pass
        finally:
            with suppress(ProcessLookupError, asyncio.TimeoutError):
                if not self.reason:  # an exit status is known a moment after the end of the output
                    await asyncio.wait_for(process.wait(), 0.2)
            incoming.close()
            self.ended()

    async def _write(self, process: asyncio.subprocess.Process, outgoing: Any) -> None:
        assert process.stdin is not None
        with suppress(ConnectionError, anyio.ClosedResourceError):
            async for sent in outgoing:
                process.stdin.write(sent.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n")
                await process.stdin.drain()

    async def _listen(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while chunk := await process.stderr.read(4096):
            for line in chunk.decode(errors="replace").splitlines():
                self.stderr.append(line[:400])
                log.debug("MCP server %s: %s", self.server.name, line[:400])

    async def _stop(self, process: asyncio.subprocess.Process) -> None:
        """Close its input, then end the whole process group: first politely."""
        assert process.stdin is not None
        process.stdin.close()
        for number in (signal.SIGTERM, signal.SIGKILL):
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(_exit_of(process), _GRACE)
                break
            _signal_group(process.pid, number)
        _signal_group(process.pid, signal.SIGKILL)  # what it left behind
        with suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_exit_of(process), _GRACE)
        transport = getattr(process, "_transport", None)
        if transport is not None:  # a descendant may hold the pipes open
            transport.close()


async def _exit_of(process: asyncio.subprocess.Process) -> None:
    while process.returncode is None:  # noqa: ASYNC110 - `wait` also waits for pipes that a descendant may hold open
        await asyncio.sleep(0.01)


def _signal_group(pid: int, number: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def read_line(line: bytes) -> Any:
    """The message in a line; None if there is none. An unreadable answer becomes an error, so that nobody waits."""
    try:
        return jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError:
        pass
    try:
        given = json.loads(line.decode(errors="replace"))
        if not isinstance(given, dict):
            return None
        text = json.dumps(given, ensure_ascii=False).encode("utf-8", "replace")
        return jsonrpc_message_adapter.validate_json(text, by_name=False)
    except (ValueError, RecursionError):
        pass
    ident = _id_of(line)
    if ident is None:
        return None
    error = ErrorData(code=INTERNAL_ERROR, message="the server sent an answer that cannot be read")
    return JSONRPCError(jsonrpc="2.0", id=ident, error=error)


def _id_of(line: bytes) -> str | int | None:
    """The id of an answer that cannot be read; None if it is not an answer."""
    try:
        given = json.loads(line.decode(errors="replace"))
    except (ValueError, RecursionError):
        return None
    ident = given.get("id") if isinstance(given, dict) and "method" not in given else None
    return ident if isinstance(ident, str | int) and not isinstance(ident, bool) else None


__all__ = ["Pipe", "read_line"]
