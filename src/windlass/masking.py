"""Secrets that the application names: wherever one turns up, it is masked before it is recorded."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import msgspec

from .errors import ConfigError
from .messages import json_with_surrogates
from .records import Record, decode, encode

MASK = "•••"
LEAST = 4

_FOREIGN = frozenset({"data", "value", "fields", "schema", "arguments", "settings"})
"""The fields of records that hold what applications and models made: there keys and numbers are looked at, too."""

_IDS = {"id", "call", "ref", "about", "session", "digest", "fingerprint", "pipeline"}
_WORDS = {"kind", "type", "role", "decision", "answer", "outcome", "status", "finish", "event", "vote"}
_OURS = frozenset(_IDS | _WORDS)
"""The fields of records with words of ours, and those by which records find each other: a session's id and hashes."""


class Mask:
    """Takes secrets out of records, and so out of the log, the state, the stream, observers and what a model is told.

    A secret is found as it is and as JSON writes it, in whatever spelling, also inside the JSON of a call's arguments.
    """

    __slots__ = ("_forms", "_secrets")

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        given: Any = secrets
        if isinstance(given, str) or not isinstance(given, Iterable):
            raise ConfigError(f"Agent(secrets=…): secrets must be a list of texts, not of type {type(given).__name__}")
        secrets = list(given)
        if wrong := [type(secret).__name__ for secret in list[Any](secrets) if not isinstance(secret, str)]:
            raise ConfigError(f"Agent(secrets=…): each secret must be a str, not of type {wrong[0]}")
        self._secrets = sorted(set(secrets), key=len, reverse=True)
        for secret in self._secrets:
            if len(secret) < LEAST:
                raise ConfigError(f"a secret is a text of at least {LEAST} characters; a shorter one is everywhere")
            form = secret
            for _ in range(3):
                forms |= {form, json.dumps(form)[1:-1]}
                form = json.dumps(form, ensure_ascii=False)[1:-1]
        self._forms = sorted(forms, key=len, reverse=True)

    def __call__(self, record: Record) -> Record:
        """The record without secrets: the same one if it has none."""
        data = encode(record)
        if not self._suspicious(data):
            return record
        plain = json.loads(data)
        masked = self.plain(plain)
        return record if masked == plain else _record(masked)

    def plain(self, value: Any, *, foreign: bool = False) -> Any:
        """A value made of what JSON has, without secrets. In foreign ones keys and numbers are masked as well."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, list | tuple):
            return [self.plain(item, foreign=foreign) for item in value]
        if isinstance(value, dict):
            return dict([self._field(key, item, foreign) for key, item in value.items()])
        if foreign and type(value) in (int, float) and str(value) in self._secrets:
            return MASK
        return value

    def _field(self, key: str, value: Any, foreign: bool) -> tuple[str, Any]:
        if foreign:
            return self._text(key), self.plain(value, foreign=True)
        if key in _OURS and isinstance(value, str):
            return key, value
        return key, self.plain(value, foreign=key in _FOREIGN)

    def _suspicious(self, data: bytes) -> bool:
        """Whether there may be a secret: its bytes, or something inside a text that is written in another way."""
        return b"\\" in data or any(form.encode("utf-8", "surrogatepass") in data for form in self._forms)

    def _text(self, text: str) -> str:
        if text[:1] in ("{", "["):
            try:
                inner = json.loads(text)
            except ValueError:
                pass
            else:
                if (masked := self.plain(inner, foreign=True)) != inner:
                    return json.dumps(masked, ensure_ascii=False, separators=(",", ":"))
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text


def _record(plain: dict[str, Any]) -> Record:
    """A record from what JSON has of it."""
    try:
        return decode(msgspec.json.encode(plain))
    except UnicodeEncodeError:  # a lone surrogate
        return decode(json_with_surrogates(plain).encode())
