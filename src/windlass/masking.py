"""Secrets that the application names: wherever one turns up, it is masked before it is recorded."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, TypeVar, cast
from weakref import WeakSet

import msgspec

from .errors import ConfigError, text_of
from .events import ModelCalled, TurnFailed
from .messages import ModelRequest, json_with_surrogates
from .outcomes import error_value, recorded_error
from .records import Fact, Record, decode, encode

T = TypeVar("T")
FactT = TypeVar("FactT", bound=Fact)

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

    __slots__ = ("__weakref__", "_forms", "_secrets")

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
        _filter.masks.add(self)

    def __call__(self, record: FactT) -> FactT:
        """The record or live fact without secrets: the same one if it has none."""
        if not isinstance(record, Record):
            return self._fact(record)
        data = encode(record)
        if not self._suspicious(data):
            return record
        plain = json.loads(data)
        masked = self.plain(plain)
        return record if masked == plain else cast(FactT, _record(masked))

    def _fact(self, fact: FactT) -> FactT:
        if isinstance(fact, ModelCalled) and isinstance(fact.request, ModelRequest):
            return cast(FactT, fact.replace(request=self._request(fact.request)))
        if isinstance(fact, TurnFailed):
            return cast(FactT, fact.replace(error=self._value(fact.error)))
        return self._value(fact)

    def _request(self, request: ModelRequest) -> ModelRequest:
        return request.replace(
            system=self.text(request.system),
            messages=[self._value(message) for message in request.messages],
            tools=tuple([self._value(tool) for tool in request.tools]),
            settings=self.plain(dict(request.settings), foreign=True),
            sections=tuple([self._value(section) for section in request.sections]),
        )

    def _value(self, value: T) -> T:
        """A struct without secrets: the same one if it has none."""
        if not isinstance(value, msgspec.Struct):
            return value
        plain = msgspec.to_builtins(value, enc_hook=str)
        masked = self.plain(plain)
        return value if masked == plain else msgspec.convert(masked, type(value))

    def error(self, error: BaseException | None) -> BaseException | None:
        """An exception without secrets: the same one if neither it nor what caused it has any."""
        found, seen = error, 0
        while found is not None and seen < 20:
            text = f"{text_of(found)} {found.args!r}"
            if self.text(text) != text:
                assert error is not None
                masked = recorded_error(self._value(error_value(error)))
                masked.__suppress_context__ = True
                return masked
            found, seen = found.__cause__ or found.__context__, seen + 1
        return error

    def plain(self, value: Any, *, foreign: bool = False) -> Any:
        """A value made of what JSON has, without secrets. In foreign ones keys and numbers are masked as well."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.plain(item, foreign=foreign) for item in value]
        if isinstance(value, dict):
            return dict([self._field(key, item, foreign) for key, item in value.items()])
        if foreign and type(value) in (int, float) and str(value) in self._secrets:
            return MASK
        return value

    def _field(self, key: str, value: Any, foreign: bool) -> tuple[str, Any]:
        if foreign:
            return self.text(key), self.plain(value, foreign=True)
        if key in _OURS and isinstance(value, str):
            return key, value
        return key, self.plain(value, foreign=key in _FOREIGN)

    def text_of_forms(self, text: str) -> str:
        """A text without secrets, however they are spelled; the text itself is not read as JSON."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def begun(self, text: str) -> int:
        """How many characters at the end of a text may be the beginning of a secret."""
        longest = min(len(self._forms[0]) - 1, len(text)) if self._forms else 0
        for size in range(longest, 0, -1):
            if any(form.startswith(text[-size:]) for form in self._forms):
                return size
        return 0

    def _suspicious(self, data: bytes) -> bool:
        """Whether there may be a secret: its bytes, or something inside a text that is written in another way."""
        return b"\\" in data or any(form.encode("utf-8", "surrogatepass") in data for form in self._forms)

    def text(self, text: str) -> str:
        """A text without secrets."""
        if text[:1] in ("{", "["):
            try:
                inner = json.loads(text)
            except ValueError:
                pass
            else:
                if (masked := self.plain(inner, foreign=True)) != inner:
                    return json.dumps(masked, ensure_ascii=False, separators=(",", ":"))
        return self.text_of_forms(text)


class Masking:
    """The transformer that takes secrets out of what a model says; it holds back what may be the beginning of one."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = ""

    def feed(self, text: str) -> Iterator[str]:
        """All but the end that may go on as a secret."""
        text = self._mask.text_of_forms(self._held + text)
        begun = self._mask.begun(text)
        self._held = text[len(text) - begun :]
        if said := text[: len(text) - begun]:
            yield said

    def flush(self) -> Iterator[str]:
        """What turned out to be no secret."""
        if self._held:
            yield self._held


class _LogFilter(logging.Filter):
    """Takes the secrets of all agents out of what Windlass logs."""

    masks: ClassVar[WeakSet[Mask]] = WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        text = record.getMessage()
        masked = text
        for mask in list(self.masks):
            masked = mask.text(masked)
        if masked != text:
            record.msg, record.args, record.exc_info, record.exc_text = masked, (), None, None
        return True


_filter = _LogFilter()
logging.getLogger("windlass").addFilter(_filter)


def _record(plain: dict[str, Any]) -> Record:
    """A record from what JSON has of it."""
    try:
        return decode(msgspec.json.encode(plain))
    except UnicodeEncodeError:  # a lone surrogate
        return decode(json_with_surrogates(plain).encode())
