"""A vendor's cache of prompts, simulated: what of a request it would not have to read again."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from windlass.messages import ModelRequest, OpaquePart, Part, TextPart, ThinkingPart, ToolCallPart, ToolResultPart

CHARACTERS = 4
"""How many characters a token has here."""


class PrefixCache:
    """Remembers the prefixes of all requests it was shown, in blocks of tokens, as vendors do.

    `read(request)` gives how many tokens a request has, and how many at its start were the start of an earlier one.
    The sums are `tokens` and `hits`; `rate` is the part of all tokens that were hits.
    """

    def __init__(self, block: int = 128) -> None:
        self.block = block
        self.tokens = self.hits = 0
        self._known: set[bytes] = set()

    @property
    def rate(self) -> float:
        """The part of all tokens so far that were hits."""
        return self.hits / self.tokens if self.tokens else 0.0

    def read(self, request: ModelRequest) -> tuple[int, int]:
        """The tokens of a request, and how many of them were hits. From now on it is known."""
        text = "\n".join(_rendered(request)).encode("utf-8", "surrogatepass")
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


def _rendered(request: ModelRequest) -> Iterable[str]:
    """A request as the texts that a vendor reads, in that order."""
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
