"""The hash chain of a log: the links between its batches, and the seals of records that can be pruned.

The link of a batch is a hash of its lines, keyed with the link before it. A transient injection can be pruned later, so
its line does not enter the link itself: its stub does, which is the same record without parts, and a salted digest of
the whole line. When the parts are pruned, the salt is deleted too. The link can still be checked, and nobody can find
out by guessing what the parts were. With a key, only its owner can compute links.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from windlass.errors import ConfigError
from windlass.logs import Batch, Seal

START = bytes(16)
"""The start of a chain that has no start of its own: of sessions from before format 3, and of those in memory."""

_SIZE = 16
_SEALED = b"windlass-sealed"
_CHECKSUM = b"windlass-row"
_KEY = b"windlass-key"
_FINGERPRINT = b"windlass-print"

_json = json.JSONDecoder()
_WHITE = re.compile(r"[ \t]*")


class Sealed(NamedTuple):
    """The link of a batch and the seals of its prunable lines. Without such lines there are no seals and no nonce."""

    link: bytes
    seals: tuple[Seal, ...] = ()
    nonce: bytes = b""


class Chain:
    """Computes links of hash chains and checksums of rows, with a key or without."""

    __slots__ = ("_key", "fingerprint")

    def __init__(self, key: bytes = b"") -> None:
        self._key = blake2b(key, digest_size=32, person=_KEY).digest() if key else b""
        self.fingerprint = blake2b(self._key, digest_size=_SIZE, person=_FINGERPRINT).digest() if key else b""
        """Tells a key from another one; empty without a key."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Chain) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def seal(self, session: str, seq: int, previous: bytes, lines: bytes) -> Sealed:
        """Link new lines to a chain. Lines that can be pruned are sealed with a new nonce."""
        if b'"Injected"' in lines and (indexes := prunable(lines)):
            nonce = os.urandom(_SIZE)
            texts = lines.split(b"\n")
            seals = tuple([Seal(index, _commitment(nonce, index, texts[index])) for index in indexes])
            return Sealed(self._link(session, seq, previous, _skeleton(texts, seals), _SEALED), seals, nonce)
        if seq:  # the same as `_link`, for most appends
            return Sealed(blake2b(lines, digest_size=_SIZE, key=previous + self._key).digest())
        return Sealed(self._link(session, seq, previous, lines))

    def link(self, session: str, batch: Batch) -> bytes:
        """The link that a batch must have. Raises `ValueError` if a seal does not fit its line."""
        if not batch.seals:
            if batch.seq:
                return blake2b(batch.lines, digest_size=_SIZE, key=batch.previous + self._key).digest()
            return self._link(session, batch.seq, batch.previous, batch.lines)
        texts = batch.lines.split(b"\n")
        last = -1
        for seal in batch.seals:
            if seal.index <= last:
                raise ValueError("its seals are not in order")
            last = seal.index
            _check_seal(seal, texts, batch.nonce)
        return self._link(session, batch.seq, batch.previous, _skeleton(texts, batch.seals), _SEALED)

    def _link(self, session: str, seq: int, previous: bytes, lines: bytes, person: bytes = b"") -> bytes:
        if seq or previous == START:
            return blake2b(lines, digest_size=_SIZE, key=previous + self._key, person=person).digest()
        name = blake2b(session.encode("utf-8", "surrogatepass"), digest_size=_SIZE).digest()
        return blake2b(lines, digest_size=_SIZE, key=previous + self._key, person=person, salt=name).digest()

    def end(self, session: str, records: int, head: bytes) -> bytes | None:
        """What the row of a session says about the end of its log, if there is a key; otherwise None.

        Each link is valid on its own, so without this a log could be cut after any of its batches.
        """
        return self.checksum("end", session, records, head) if self._key else None

    def checksum(self, *values: Any) -> bytes:
        """A checksum of the values of a row that no log covers."""
        plain = [value.encode("utf-8", "surrogatepass") if isinstance(value, str) else value for value in values]
        return blake2b(msgspec.msgpack.encode(plain), digest_size=_SIZE, key=self._key, person=_CHECKSUM).digest()


@lru_cache(maxsize=64)
def chain_of(key: str | bytes | None) -> Chain:
    """The chain for a key, or for none. Stores with the same key share it."""
    if key is None:
        return Chain()
    data: object = key.encode("utf-8", "surrogatepass") if isinstance(key, str) else key
    if not isinstance(data, bytes) or len(data) < _SIZE:
        raise ConfigError(
            f"the key of a store must be a text or bytes, at least {_SIZE} bytes long; make one with "
            "`openssl rand -hex 32`"
        )
    return Chain(data)


# ---------------------------------------------------------------- lines that can be pruned


def prunable(lines: bytes) -> list[int]:
    """The positions of the lines that can be pruned: transient injections with parts."""
    return [index for index, line in enumerate(lines.split(b"\n")) if _is_transient(line) and stub_of(line) != line]


def stubs(lines: bytes) -> list[int]:
    """The positions of the lines that look pruned: transient injections without parts."""
    return [index for index, line in enumerate(lines.split(b"\n")) if _is_transient(line) and stub_of(line) == line]


def prune_lines(lines: bytes, seals: Sequence[Seal]) -> bytes:
    """The lines of a batch after pruning: each sealed line is its stub."""
    texts = lines.split(b"\n")
    for seal in seals:
        texts[seal.index] = stub_of(texts[seal.index])
    return b"\n".join(texts)


def stub_of(line: bytes) -> bytes:
    """A record without its parts. The rest of the line stays the same, byte for byte."""
    text = line.decode("utf-8", "surrogatepass")
    start, end = _values(text)["parts"]
    return (text[:start] + "[]" + text[end:]).encode("utf-8", "surrogatepass")


def _is_transient(line: bytes) -> bool:
    if b'"Injected"' not in line:
        return False
    text = line.decode("utf-8", "surrogatepass")
    plain = {name: text[start:end] for name, (start, end) in _values(text).items()}
    return plain.get("kind") == '"Injected"' and plain.get("durable") != "true" and "parts" in plain


def _values(text: str) -> dict[str, tuple[int, int]]:
    """Where the values of a JSON object are in its text. Raises `ValueError` if it is not an object."""
    found: dict[str, tuple[int, int]] = {}
    at = _skip(text, 0, "{")
    while True:
        name, at = _json.raw_decode(text, at)
        start = _skip(text, at, ":")
        _, at = _json.raw_decode(text, start)
        found[str(name)] = start, at
        if text[_skip(text, at) :] == "}":
            return found
        at = _skip(text, at, ",")


def _skip(text: str, at: int, sign: str = "") -> int:
    """The next position that is not white space, after a sign if one is expected there."""
    at = _WHITE.match(text, at).end()  # type: ignore[union-attr]
    if sign and text[at : at + 1] != sign:
        raise ValueError("it is not a JSON object")
    return _WHITE.match(text, at + 1).end() if sign else at  # type: ignore[union-attr]


def _commitment(nonce: bytes, index: int, line: bytes) -> bytes:
    return blake2b(line, digest_size=_SIZE, key=nonce, salt=index.to_bytes(_SIZE, "big")).digest()


def _skeleton(texts: list[bytes], seals: Sequence[Seal]) -> bytes:
    """What the link of a batch covers: its lines, but stubs and digests of sealed ones."""
    rest = texts.copy()
    for seal in seals:
        rest[seal.index] = stub_of(rest[seal.index]) + b"#" + seal.digest.hex().encode()
    return b"\n".join(rest)


def _check_seal(seal: Seal, texts: Sequence[bytes], nonce: bytes) -> None:
    line = texts[seal.index] if seal.index < len(texts) else b""
    if not _is_transient(line):
        raise ValueError(f"its record {seal.index + 1} is sealed, but cannot be pruned")
    if not nonce and stub_of(line) != line:
        raise ValueError(f"its record {seal.index + 1} should be pruned, but is not")
    if nonce and _commitment(nonce, seal.index, line) != seal.digest:
        raise ValueError(f"its record {seal.index + 1} was changed after it was written")


# ---------------------------------------------------------------- seals as bytes

_ENTRY = 4 + _SIZE


def pack_seals(seals: Sequence[Seal]) -> bytes | None:
    """The seals of a batch for a column of a table; None if there are none."""
    return b"".join([seal.index.to_bytes(4, "big") + seal.digest for seal in seals]) if seals else None


def unpack_seals(data: bytes | None) -> tuple[Seal, ...]:
    """The seals from a column. Raises `ValueError` if they are damaged."""
    if data is None:
        return ()
    entries = [data[at : at + _ENTRY] for at in range(0, len(data), _ENTRY)]
    seals = tuple([Seal(int.from_bytes(entry[:4], "big"), entry[4:]) for entry in entries])
    indexes = [seal.index for seal in seals]
    if not entries or len(entries[-1]) != _ENTRY or indexes != sorted(set(indexes)):
        raise ValueError("its seals are damaged")
    return seals
