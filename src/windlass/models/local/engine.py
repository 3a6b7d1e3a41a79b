"""llama.cpp in this process: one engine per file of weights, used from threads, and stopped when the process ends."""

from __future__ import annotations

import asyncio
import atexit
import ctypes
import json
import os
import secrets
import threading
from collections.abc import AsyncGenerator, Callable
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias
from urllib.request import ProxyHandler, Request, build_opener

from windlass.errors import BadRequest, ModelTimeout, ServerError

Chunk: TypeAlias = dict[str, Any]

llama_cpp: Any = import_module("xllamacpp")  # without types

BATCH = 128
"""The number of prompt tokens that are read at a time; a request can be cancelled in between."""

PROMPTS_KEPT = 256
"""The size in MiB of the cache of prompts, for conversations that continue."""


class How(NamedTuple):
    """How weights are run: computing threads, size of the window, and a chat template instead of the model's own."""

    threads: int
    context: int
    template: str | None


class Engine:
    """The llama.cpp server for one file of weights; the first request starts it.

    It serves one request at a time; others wait. It also listens on the loopback device, with a key that only this
    process has.
    """

    def __init__(self, path: Path, name: str, how: How) -> None:
        self._path = path
        self._name = name
        self._how = how
        self._turn = threading.Lock()
        self._server: Any = None
        self.knows_tools = False

    async def start(self) -> None:
        """Load the weights, unless they are loaded, without blocking the event loop."""
        if self._server is None:
            loaded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            _Work(self._load, loaded)
            await loaded

    def _load(self, work: _Work) -> None:
        with self._turn:
            if self._server is not None or work.stopped:
                return
            key = secrets.token_hex(16)
            try:
                server = llama_cpp.Server(self._parameters(key))
            except RuntimeError as error:
                raise ServerError(f"llama.cpp cannot load {self._path.name}: {error}") from error
            self.knows_tools = _knows_tools(server.listening_address, key)
            self._server = server

    def _parameters(self, key: str) -> Any:
        parameters = llama_cpp.CommonParams()
        parameters.model.path = str(self._path)
        parameters.model_alias = {self._name}
        parameters.n_ctx = self._how.context
        parameters.n_parallel = 1
        parameters.n_batch = BATCH
        parameters.cache_ram_mib = PROMPTS_KEPT
        parameters.cpuparams.n_threads = self._how.threads
        parameters.cpuparams_batch.n_threads = self._how.threads
        if self._how.template is not None:
            parameters.chat_template = self._how.template
        parameters.port = 0
        parameters.api_keys = [key]
        parameters.verbosity = -1
        parameters.warmup = False
        return parameters

    async def chunks(self, body: dict[str, Any], timeout: float | None) -> AsyncGenerator[Chunk, None]:
        """The chunks of an answer as they are generated. Closing the generator stops the model."""
        await self.start()
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Chunk] = asyncio.Queue()
        ended: asyncio.Future[None] = loop.create_future()
        ended.add_done_callback(lambda _: queue.put_nowait({}))

        def generate(work: _Work) -> None:
            def receive(chunk: Chunk) -> bool:
                if not work.stopped:
                    work.call_in_loop(queue.put_nowait, chunk)
                return work.stopped

            self._generate(body, work, receive)

        work = _Work(generate, ended)
        try:
            while chunk := await _next(queue, timeout):
                yield chunk
            ended.result()
        finally:
            work.stopped = True
            if not ended.cancel():
                ended.exception()

    def _generate(self, body: dict[str, Any], work: _Work, receive: Callable[[Chunk], bool]) -> None:
        with self._turn:
            if work.stopped:
                return
            try:
                self._server.handle_chat_completions(body, receive)
            except (ValueError, RuntimeError, TypeError) as error:  # TypeError: what its JSON encoder cannot encode
                raise BadRequest(f"llama.cpp rejects the request: {error}") from error

    def forget(self) -> None:
        """Drop the server after a fork: its threads are not in this process, so it can be neither used nor stopped."""
        self._turn = threading.Lock()
        server, self._server = self._server, None
        if server is not None:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(server))

    def stop(self) -> None:
        """Stop the server; its threads end before this returns."""
        with self._turn:
            self._server = None


async def _next(queue: asyncio.Queue[Chunk], timeout: float | None) -> Chunk:
    try:
        return await asyncio.wait_for(queue.get(), timeout)
    except TimeoutError as error:
        raise ModelTimeout("the model did not answer in time") from error


def _knows_tools(address: str, key: str) -> bool:
    """Whether the template of the model supports tools."""
    request = Request(f"{address}/props", headers={"Authorization": f"Bearer {key}"})
    try:
        with build_opener(ProxyHandler({})).open(request, timeout=60) as answer:
            return bool(json.load(answer)["chat_template_caps"]["supports_tools"])
    except (OSError, ValueError, KeyError, TypeError):
        return False


class _Work:
    """Work in its own thread, with a future for its result. It should check often whether it is `stopped`.

    Only the end of the process waits for the thread: a caller that gives up need not wait until the thread notices.
    """

    def __init__(self, do: Callable[[_Work], None], done: asyncio.Future[None]) -> None:
        self.stopped = False
        self._do = do
        self._done = done
        self._loop = done.get_loop()
        self._thread = threading.Thread(target=self._run, name="windlass-local", daemon=True)
        _working.add(self)
        self._thread.start()

    def _run(self) -> None:
        error: Exception | None = None
        try:
            self._do(self)
        except Exception as raised:
            error = raised
        finally:
            _working.discard(self)
        self.call_in_loop(self._end, error)

    def call_in_loop(self, call: Callable[..., object], *arguments: object) -> None:
        """Call a function in the event loop; if the loop is closed, stop."""
        try:
            self._loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError:
            self.stopped = True

    def _end(self, error: Exception | None) -> None:
        if self._done.done():
            return
        if error is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(error)

    def wait(self) -> None:
        """Stop the work, and wait for its thread."""
        self.stopped = True
        self._thread.join()


_engines: dict[tuple[Path, How], Engine] = {}
_lock = threading.Lock()
_working: set[_Work] = set()


def engine(path: Path, name: str, how: How) -> Engine:
    """The engine for a file of weights; the same engine for the same file and options."""
    key = (path.resolve(), how)
    with _lock:
        if key not in _engines:
            _engines[key] = Engine(path, name, how)
        return _engines[key]


@atexit.register
def _stop_all() -> None:
    for work in list(_working):
        work.wait()
    for one in _engines.values():
        one.stop()


def _forget_all() -> None:
    global _lock
    _lock = threading.Lock()
    _working.clear()
    for one in _engines.values():
        one.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
