"""A simulated prompt cache of a vendor: how much of a request it would serve from the cache."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from windlass.messages import ModelRequest, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

CHARACTERS = 4
"""The number of characters per token."""


class PrefixCache:
    """Remembers the prefixes of all requests, in blocks of tokens, as vendors do.

    `read(request)` returns the number of tokens of a request, and how many at its start were the start of an earlier
    request. `tokens` and `hits` are the totals; `rate` is the fraction of all tokens that were hits.
    """

    def __init__(self, block: int = 128) -> None:
        self.block = block
        self.tokens = self.hits = 0
        self._known: set[bytes] = set()

    @property
    def rate(self) -> float:
        """The fraction of all tokens so far that were hits."""
        return self.hits / self.tokens if self.tokens else 0.0

    def read(self, request: ModelRequest) -> tuple[int, int]:
        """Count the tokens of a request and the hits among them, and remember the request."""
        text = "\n".join(_render(request)).encode("utf-8", "surrogatepass")
        size = self.block * CHARACTERS
        link, hits = b"", 0
        for start in range(0, len(text) - size + 1, size):
            link = blake2b(link + text[start : start + size], digest_size=12).digest()
            if link in self._known:
                hits += self.block
            else:
                self._known.add(link)
        tokens = len(text) // CHARACTERS
        self.tokens += tokens
        self.hits += hits
        return tokens, hits


def _render(request: ModelRequest) -> Iterable[str]:
    """The texts of a request in the order in which a vendor reads them."""
    yield request.model
    for spec in request.tools:
        yield msgspec.json.encode(spec).decode()
    yield request.system
    for message in request.messages:
        yield message.role
        for part in message.parts:
            yield from _texts(part)


def _texts(part: Part) -> Iterable[str]:
    match part:
        case TextPart(text=text) | ThinkingPart(text=text):
            yield text
        case ToolCallPart(name=name, json=json, id=id_):
            yield f"{id_} {name} {json}"
        case ToolResultPart(call_id=call, content=content, status=status):
            yield f"{call} {status}"
            for inner in content:
                yield from _texts(inner)
        case OpaquePart(data=data):
            yield msgspec.json.encode(data, enc_hook=str).decode()
        case _:
            yield repr(part)
