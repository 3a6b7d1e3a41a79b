"""Recorded HTTP traffic, played back: tests with real models that need no network and no API key."""

from __future__ import annotations

import asyncio
import difflib
import json
import random
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, TypeAlias

from .exchanges import Body, Ending, Exchange, Request, Response, Scrubber, read, write

Mode = Literal["replay", "record", "once"]
Cuts: TypeAlias = int | Sequence[int] | random.Random
"""Where a body is cut: every n bytes, at these offsets, or at random ones."""


class UnexpectedRequest(AssertionError):
    """A request is not on the cassette, or was made too often.

    Find out what changed; if the change is intended, record the cassette again.
    """


class Cassette:
    """Replays recorded HTTP responses from a file, or records them.

    Pass `cassette.client()` to an SDK (`http_client=` or similar) inside `with Cassette(…) as cassette:`. A request
    gets the first unused response to an equal request. Requests are equal if their method, path, parameters and body
    are, in any order of fields; host and headers do not matter. The block fails at its end if a request was not on the
    cassette, or if a response was not used; `assert_done` checks the same at any time.

    - `mode`: "replay" never touches the network; "record" asks the server and rewrites the file when the block ends
      without an error; "once" records if there is no file, else it replays
    - `secrets`: further names of headers, parameters and JSON fields that are not written; the usual ones never are
    - `cuts`: where replayed bodies are cut into pieces, unless the file says so
    - `through`: the transport to the server when recording

    Instead of a file, pass a list of exchanges made by `Exchange.of`. `requests` are the requests that were made,
    without their secrets; `open` is the number of responses that are still being read. A cassette serves one event
    loop.
    """

    def __init__(
        self,
        tape: str | Path | Iterable[Exchange],
        *,
        mode: Mode = "replay",
        secrets: Iterable[str] = (),
        cuts: Cuts | None = None,
        through: Any = None,
    ) -> None:
        if mode not in ("replay", "record", "once"):
            raise ValueError(f"mode={mode!r} must be 'replay', 'record' or 'once'")
        self.path = Path(tape) if isinstance(tape, str | Path) else None
        if self.path is None and mode != "replay":
            raise ValueError("exchanges in memory can only be replayed; name a file to record to")
        self.recording = self.path is not None and (mode == "record" or (mode == "once" and not self.path.exists()))
        self.scrubber = Scrubber(secrets)
        self.cuts = cuts
        self.through = through
        self.exchanges: list[Exchange] = [] if self.recording else self._read(tape)
        self.requests: list[Request] = []
        self.unexpected: list[str] = []
        self.open = 0
        self._left = list(self.exchanges)
        self._takes: list[_Take] = []

    def _read(self, tape: str | Path | Iterable[Exchange]) -> list[Exchange]:
        if isinstance(tape, str | Path):
            path = Path(tape)
            if not path.exists():
                how = "record it with mode='record' or 'once', or with pytest --cassettes=once"
                raise FileNotFoundError(f"there is no cassette {path}: {how}")
            return read(path)
        return list(tape)

    def client(self, http: Any = None, **options: Any) -> Any:
        """An `AsyncClient` on this cassette; `http` is the module, httpx2 unless only httpx is installed."""
        module = http or _http()
        return module.AsyncClient(transport=self.transport(module), **options)

    def transport(self, http: Any = None) -> Any:
        """An `AsyncBaseTransport` on this cassette, for a client that you make yourself."""
        return _classes(http or _http())[0](self)

    def assert_done(self) -> None:
        """Fail if a request was not on the cassette, or if a response was not used."""
        if self.unexpected:
            raise UnexpectedRequest("\n\n".join(self.unexpected))
        left = "\n".join(f"- {exchange.request.method} {exchange.request.url}" for exchange in self._left)
        assert not left, f"{len(self._left)} of {len(self.exchanges)} responses were not used:\n{left}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Report an unexpected request rather than the error that an SDK made of it."""
        if self.unexpected and not isinstance(error, AssertionError):
            raise UnexpectedRequest("\n\n".join(self.unexpected)) from error
        if error is None:
            self.assert_done()
            self._save()

    def _save(self) -> None:
        if self.recording and self.path is not None:
            self.exchanges = [self.scrubber(take.exchange()) for take in self._takes]
            write(self.path, self.exchanges)

    # ---------------------------------------------------------------- for the transport

    def play(self, request: Request) -> Response:
        """The next unused response to a request."""
        known = self.scrubber.request(request)
        self.requests.append(known)
        for index, exchange in enumerate(self._left):
            if exchange.request.fits(known) or exchange.request.fits(request):
                return self._left.pop(index).response
        self.unexpected.append(_unexpected(known, self._left))
        raise UnexpectedRequest(self.unexpected[-1])

    def take(self, request: Request) -> _Take:
        """Start recording an exchange; exchanges are kept in the order of their requests."""
        self.requests.append(self.scrubber.request(request))
        self._takes.append(_Take(request))
        return self._takes[-1]

    def pieces(self, response: Response) -> Iterator[bytes]:
        """The body of a response, cut into pieces."""
        content = response.body.content
        start = 0
        for offset in _offsets(len(content), response.cuts or self.cuts):
            if start < offset < len(content):
                yield content[start:offset]
                start = offset
        yield content[start:]


class _Take:
    """An exchange that is being recorded."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.status = 0
        self.headers: dict[str, str] = {}
        self.ending: Ending = "ends"
        self.raw = bytearray()
        self.http: Any = None

    def exchange(self) -> Exchange:
        """The exchange as recorded so far; a compressed body is stored decompressed."""
        whole = self.http.Response(self.status, headers=self.headers, content=bytes(self.raw))
        return Exchange(self.request, Response(self.status, self.headers, Body.of(whole.content), (), self.ending))


def _offsets(length: int, cuts: Cuts | None) -> Iterable[int]:
    if cuts is None:
        return ()
    if isinstance(cuts, int):
        return range(cuts, length, cuts)
    if isinstance(cuts, random.Random):
        return sorted(cuts.sample(range(1, length), cuts.randint(1, min(length - 1, 40)))) if length > 1 else ()
    return sorted(cuts)


def _unexpected(request: Request, left: Sequence[Exchange]) -> str:
    """The message for a request that is not on the cassette, with a diff to the most similar unused one."""
    text = f"{request.method} {request.url} is not on the cassette"
    if not left:
        return f"{text}: all its responses are used"
    made = _lines(request)
    nearest = max((_lines(exchange.request) for exchange in left), key=lambda lines: _likeness(made, lines))
    return "\n".join(
        [f"{text}; the most similar of {len(left)} unused:", *difflib.unified_diff(nearest, made, lineterm="", n=2)]
    )


def _likeness(made: list[str], lines: list[str]) -> float:
    return difflib.SequenceMatcher(None, made, lines, autojunk=False).ratio()


def _lines(request: Request) -> list[str]:
    body = request.body
    text = json.dumps(body.json, indent=1, sort_keys=True) if isinstance(body.json, dict | list) else str(body.content)
    return [f"{request.method} {request.url}", *text.splitlines()]


# ---------------------------------------------------------------- httpx2, or httpx


def _http() -> Any:
    for name in ("httpx2", "httpx"):
        try:
            return import_module(name)
        except ModuleNotFoundError:
            continue
    raise ModuleNotFoundError("a Cassette needs httpx2 (or httpx): pip install 'windlass[testing]'", name="httpx2")


@cache
def _classes(http: Any) -> tuple[Any, Any]:
    """Transport and stream classes for a module, which accepts only subclasses of its own."""

    class Replayed(http.AsyncByteStream):  # type: ignore[misc]
        """A recorded body."""

        def __init__(self, cassette: Cassette, response: Response) -> None:
            self.cassette = cassette
            self.response = response
            self.closed = False
            cassette.open += 1

        async def __aiter__(self) -> AsyncIterator[bytes]:
            for piece in self.cassette.pieces(self.response):
                yield piece
                await asyncio.sleep(0)
            if self.response.ending == "breaks":
                raise http.ReadError("the connection broke, as it did when this was recorded")
            if self.response.ending == "stalls":
                await asyncio.get_running_loop().create_future()

        async def aclose(self) -> None:
            self.cassette.open -= not self.closed
            self.closed = True

    class Recorded(http.AsyncByteStream):  # type: ignore[misc]
        """A body that is recorded while it is passed on."""

        def __init__(self, cassette: Cassette, take: _Take, stream: Any) -> None:
            self.cassette = cassette
            self.take = take
            self.stream = stream
            self.closed = False
            cassette.open += 1

        async def __aiter__(self) -> AsyncIterator[bytes]:
            try:
                async for piece in self.stream:
                    self.take.raw += piece
                    yield piece
            except http.TransportError:
                self.take.ending = "breaks"
                raise

        async def aclose(self) -> None:
            self.cassette.open -= not self.closed
            self.closed = True
            await self.stream.aclose()

    class Transport(http.AsyncBaseTransport):  # type: ignore[misc]
        """Sends requests to a cassette, and on to the server while it records."""

        def __init__(self, cassette: Cassette) -> None:
            self.cassette = cassette
            self.through: Any = cassette.through

        async def handle_async_request(self, request: Any) -> Any:
            made = Request(str(request.url), request.method, dict(request.headers), Body.of(await request.aread()))
            if self.cassette.recording:
                return await self._record(request, made)
            response = self.cassette.play(made)
            headers = {"content-type": response.body.kind, **response.headers}
            return http.Response(response.status, headers=headers, stream=Replayed(self.cassette, response))

        async def _record(self, request: Any, made: Request) -> Any:
            self.through = self.through or http.AsyncHTTPTransport()
            response = await self.through.handle_async_request(request)
            take = self.cassette.take(made)
            take.http, take.status, take.headers = http, response.status_code, dict(response.headers)
            # A new response, because one that has been read already would have no stream.
            stream = Recorded(self.cassette, take, response.stream)
            return http.Response(
                response.status_code, headers=response.headers, stream=stream, extensions=response.extensions
            )

        async def aclose(self) -> None:
            if self.through is not None:
                await self.through.aclose()

    return Transport, Replayed
