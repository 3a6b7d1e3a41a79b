"""Requests and responses in the format of a cassette: one JSON object per line, without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, urlencode, urlsplit

import msgspec
from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import replace

SCRUBBED = "(scrubbed)"
HEAD = {"format": "windlass.cassette", "version": 1}

SECRET_HEADERS = frozenset(
    ("authorization", "x-api-key", "api-key", "x-goog-api-key", "cookie", "set-cookie", "openai-organization",
     "openai-project", "anthropic-organization-id", "anthropic-workspace-id")
)  # fmt: skip
SECRET_ENDINGS = ("authorization", "-key", "apikey", "-token", "secret", "password", "cookie")
SECRET_PARAMETERS = frozenset(("key", "api_key", "apikey", "api-key", "access_token", "token", "sig", "signature"))
SECRET_FIELDS = frozenset(("api_key", "apikey", "access_token", "refresh_token", "id_token", "client_secret"))
IGNORED_HEADERS = frozenset(
    ("content-encoding", "content-length", "transfer-encoding", "connection", "keep-alive", "date")
)
LOOKS_SECRET = re.compile(r"\b(?:sk-|gsk_|ghp_|AIza|AKIA)(?=[\w-]*\d)[\w-]{16,}|(?<=\bBearer )[\w.~+/=-]{8,}", re.ASCII)

Ending = Literal["ends", "breaks", "stalls"]
"""How the body of a response ends: normally, with a broken connection, or never, with the connection still open."""


class Body(Struct, frozen=True, omit_defaults=True):
    """A body in its most readable form: as JSON, as text or, in base64, as bytes. An empty one matches any request."""

    json: Any | UnsetType = UNSET
    text: str | UnsetType = UNSET
    base64: bytes | UnsetType = UNSET

    @classmethod
    def of(cls, content: bytes) -> Body:
        """The body for some bytes."""
        if not content:
            return cls()
        try:
            plain = msgspec.json.decode(content)
            if isinstance(plain, dict | list):
                return cls(json=plain)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
        try:
            return cls(text=content.decode())
        except UnicodeDecodeError:
            return cls(base64=content)

    @property
    def content(self) -> bytes:
        """The bytes; JSON is encoded anew and may differ from the recorded bytes."""
        if self.json is not UNSET:
            return msgspec.json.encode(self.json)
        if not isinstance(self.text, UnsetType):
            return self.text.encode()
        return b"" if isinstance(self.base64, UnsetType) else self.base64

    @property
    def kind(self) -> str:
        """The probable media type."""
        if self.json is not UNSET:
            return "application/json"
        if isinstance(self.text, str):
            return "text/event-stream" if self.text.startswith(("data:", "event:", ":", "id:")) else "text/plain"
        return "application/octet-stream"


class Request(Struct, frozen=True, omit_defaults=True):
    """A request. `url` may be only a path: the host does not matter for a match."""

    url: str
    method: str = "POST"
    headers: dict[str, str] = {}
    body: Body = Body()

    def fits(self, made: Request) -> bool:
        """Whether a request matches this one in method, path, parameters and, if this one has a body, in its body."""
        return (
            self.method.upper() == made.method.upper()
            and _place(self.url) == _place(made.url)
            and (self.body == Body() or self.body == made.body)
        )


class Response(Struct, frozen=True, omit_defaults=True):
    """A response. `cuts` are the offsets at which its body is cut when it is sent in pieces."""

    status: int = 200
    headers: dict[str, str] = {}
    body: Body = Body()
    cuts: tuple[int, ...] = ()
    ending: Ending = "ends"


class Exchange(Struct, frozen=True):
    """A request and the response to it."""

    request: Request
    response: Response

    @classmethod
    def of(
        cls,
        url: str,
        answer: Any,
        *,
        sent: Any = UNSET,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        cuts: Sequence[int] = (),
        ending: Ending = "ends",
        method: str = "POST",
    ) -> Exchange:
        """An exchange written by hand. `answer` is a text, bytes, or else JSON; so is `sent`, if the body matters."""
        return cls(
            Request(url, method, {}, Body() if sent is UNSET else _body(sent)),
            Response(status, dict(headers or {}), _body(answer), tuple(cuts), ending),
        )


def sse(*events: Any, end: str = "") -> str:
    """Server-sent events. Each is its data, as a text or else as JSON, or a pair of its name and its data."""
    lines = [_event(*event) if isinstance(event, tuple) else _event("", event) for event in events]
    return "".join(lines) + end


def _event(name: str, data: Any) -> str:
    text = data if isinstance(data, str) else msgspec.json.encode(data).decode()
    return (f"event: {name}\n" if name else "") + f"data: {text}\n\n"


def _body(value: Any) -> Body:
    if isinstance(value, bytes):
        return Body(base64=value)
    return Body(text=value) if isinstance(value, str) else Body(json=value)


def _place(url: str) -> tuple[str, list[tuple[str, str]]]:
    parts = urlsplit(url)
    return parts.path, sorted(parse_qsl(parts.query, keep_blank_values=True))


# ---------------------------------------------------------------- files


def read(path: Path) -> list[Exchange]:
    """Read the exchanges of a file; raises ValueError with the number of an invalid line."""
    exchanges: list[Exchange] = []
    for number, line in enumerate(path.read_bytes().splitlines() or [b""], 1):
        try:
            if number == 1:
                head = msgspec.json.decode(line)
                if head != HEAD:
                    raise ValueError(f"a cassette must begin with {msgspec.json.encode(HEAD).decode()}")
            elif line.strip():
                exchanges.append(msgspec.json.decode(line, type=Exchange))
        except ValueError as error:
            raise ValueError(f"{path}, line {number}: {error}") from error
    return exchanges


def write(path: Path, exchanges: Iterable[Exchange]) -> None:
    """Write a file, whole or not at all. The exchanges must have been scrubbed."""
    lines = [HEAD, *exchanges]
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".draft")
    draft.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    draft.replace(path)


# ---------------------------------------------------------------- secrets


class Scrubber:
    """Removes secrets before they are written: headers, parameters and JSON fields, and their values anywhere else.

    `names` adds names of headers, parameters and fields.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.names = frozenset(name.lower() for name in names)

    def __call__(self, exchange: Exchange) -> Exchange:
        """The exchange without secrets."""
        known = self._values(exchange.request)
        response = exchange.response
        return Exchange(
            self.request(exchange.request),
            replace(response, headers=self._headers(response.headers, known), body=self._body(response.body, known)),
        )

    def request(self, request: Request) -> Request:
        """The request without secrets."""
        known = self._values(request)
        return Request(
            self._url(request.url, known),
            request.method,
            self._headers(request.headers, known),
            self._body(request.body, known),
        )

    def _values(self, request: Request) -> list[str]:
        """The secret values of a request, the longest first. Short values are ignored: they occur in other words."""
        found = [value for name, value in request.headers.items() if self._is_header(name)]
        found += [value for name, value in parse_qsl(urlsplit(request.url).query) if self._is_parameter(name)]
        found += [word for value in found for word in _words(value)]
        return sorted({value for value in found if len(value) >= 8}, key=len, reverse=True)

    def _is_header(self, name: str) -> bool:
        name = name.lower()
        return name in SECRET_HEADERS or name in self.names or name.endswith(SECRET_ENDINGS)

    def _is_parameter(self, name: str) -> bool:
        return name.lower() in SECRET_PARAMETERS or name.lower() in self.names

    def _is_field(self, name: object) -> bool:
        return isinstance(name, str) and (name.lower() in SECRET_FIELDS or name.lower() in self.names)

    def _url(self, url: str, known: Sequence[str]) -> str:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        kept = [pair for pair in parse_qsl(parts.query, keep_blank_values=True) if not self._is_parameter(pair[0])]
        return _text(parts._replace(netloc=host, query=urlencode(kept), fragment="").geturl(), known)

    def _headers(self, headers: Mapping[str, str], known: Sequence[str]) -> dict[str, str]:
        return {
            name: _text(value, known)
            for name, value in headers.items()
            if not self._is_header(name) and name.lower() not in IGNORED_HEADERS
        }

    def _body(self, body: Body, known: Sequence[str]) -> Body:
        if body.json is not UNSET:
            return Body(json=self._plain(body.json, known))
        if isinstance(body.text, str):
            return Body(text=_text(body.text, known))
        if isinstance(body.base64, bytes):
            content = body.base64
            for value in known:
                content = content.replace(value.encode(), SCRUBBED.encode())
            return Body(base64=content)
        return body

    def _plain(self, value: Any, known: Sequence[str]) -> Any:
        if isinstance(value, str):
            return _text(value, known)
        if isinstance(value, list):
            return [self._plain(item, known) for item in value]
        if isinstance(value, dict):
            return {
                key: SCRUBBED if self._is_field(key) and isinstance(item, str) else self._plain(item, known)
                for key, item in value.items()
            }
        return value


def _words(value: str) -> list[str]:
    """The words of a secret. Of an AWS signature only two are secret: answers contain its other words, too."""
    if value.startswith("AWS4-"):
        return re.findall(r"\b(?:Credential|Signature)=([^/,\s]+)", value)
    return re.split(r"[\s;,=]+", value)


def _text(text: str, known: Sequence[str]) -> str:
    for value in known:
        text = text.replace(value, SCRUBBED)
    return LOOKS_SECRET.sub(SCRUBBED, text)
