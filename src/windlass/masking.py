"""Masks the secrets that the application names, wherever they occur, before anything is recorded."""

from __future__ import annotations

import json
import logging
from base64 import b64decode, b64encode
from collections.abc import Iterable, Iterator
from traceback import format_exception
from typing import Any, ClassVar, TypeVar, cast
from weakref import WeakSet

import msgspec

from .errors import ConfigError, text_of
from .events import ModelCalled, TurnFailed
from .messages import ModelRequest, json_with_surrogates
from .outcomes import error_from_value, error_value
from .records import MASK as MASK
from .records import Fact, Record, decode, encode

T = TypeVar("T")
FactT = TypeVar("FactT", bound=Fact)

MIN_LENGTH = 4

_FOREIGN = frozenset({"data", "value", "fields", "schema", "arguments", "settings", "native"})
"""The fields of records with values from applications and models: their keys and numbers are masked, too."""

_MEDIA = frozenset({"image", "document", "audio", "video"})
"""The types of parts whose `data` is the base64 of a file."""

_IDS = {"id", "call", "ref", "about", "session", "digest", "fingerprint", "pipeline"}
_WORDS = {"kind", "type", "role", "decision", "answer", "outcome", "status", "finish", "event", "vote"}
_OURS = frozenset(_IDS | _WORDS)
"""The fields of records that are never masked: words of Windlass, and the ids and hashes that link records."""


class Mask:
    """Removes secrets from records, and so from the log, the state, the stream, observers and what the model reads.

    It finds a secret verbatim and in every spelling that JSON allows, also inside the JSON of a call's arguments.
    """

    __slots__ = ("__weakref__", "_forms", "_secrets")

    def __init__(self, secrets: Iterable[str]) -> None:
        forms: set[str] = set()
        option: Any = secrets
        if isinstance(option, str) or not isinstance(option, Iterable):
            raise ConfigError(f"Agent(secrets=…): secrets must be a list of texts, not of type {type(option).__name__}")
        secrets = list(option)
        if wrong := [type(secret).__name__ for secret in list[Any](secrets) if not isinstance(secret, str)]:
            raise ConfigError(f"Agent(secrets=…): each secret must be a str, not of type {wrong[0]}")
        self._secrets = sorted(set(secrets), key=len, reverse=True)
        for secret in self._secrets:
            if len(secret) < MIN_LENGTH:
                raise ConfigError(
                    f"Agent(secrets=…): secrets must have at least {MIN_LENGTH} characters; shorter ones match too much"
                )
            form = secret
            for _ in range(3):
                forms |= {form, json.dumps(form)[1:-1], repr(form)[1:-1]}
                form = json.dumps(form, ensure_ascii=False)[1:-1]
        self._forms = sorted(forms, key=len, reverse=True)
        _filter.masks.add(self)

    def __call__(self, record: FactT) -> FactT:
        """The record or live fact without secrets; the same object if it has none. A record that had some says so."""
        if not isinstance(record, Record):
            return self._fact(record)
        data = encode(record)
        if not self._may_contain_secret(data):
            return record
        plain = json.loads(data)
        masked = self.plain(plain)
        return record if masked == plain else cast(FactT, _record({**masked, "masked": True}))

    def _fact(self, fact: FactT) -> FactT:
        if isinstance(fact, ModelCalled) and isinstance(fact.request, ModelRequest):
            return cast(FactT, fact.replace(request=self._request(fact.request)))
        if isinstance(fact, TurnFailed):
            return cast(FactT, fact.replace(error=self.value(fact.error)))
        return self.value(fact)

    def _request(self, request: ModelRequest) -> ModelRequest:
        return request.replace(
            system=self.text(request.system),
            messages=[self.value(message) for message in request.messages],
            tools=tuple([self.value(tool) for tool in request.tools]),
            settings=self.plain(dict(request.settings), foreign=True),
            sections=tuple([self.value(section) for section in request.sections]),
        )

    def value(self, value: T) -> T:
        """A struct without secrets; the same object if it has none."""
        if not isinstance(value, msgspec.Struct):
            return value
        plain = msgspec.to_builtins(value, enc_hook=str)
        masked = self.plain(plain)
        return value if masked == plain else msgspec.convert(masked, type(value))

    def error(self, error: BaseException | None) -> BaseException | None:
        """An exception without secrets; the same object if neither it nor its causes have any."""
        cause, depth = error, 0
        while cause is not None and depth < 20:
            text = f"{text_of(cause)} {cause.args!r} {getattr(cause, '__notes__', ())!r}"
            if self.text(text) != text:
                assert error is not None
                masked = error_from_value(self.value(error_value(error)))
                masked.__suppress_context__ = True
                return masked
            cause, depth = cause.__cause__ or cause.__context__, depth + 1
        return error

    def plain(self, value: Any, *, foreign: bool = False) -> Any:
        """A JSON value without secrets. In a `foreign` value, keys and numbers are masked, too."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list | tuple):
            return [self.plain(item, foreign=foreign) for item in value]
        if isinstance(value, dict):
            if not foreign and value.get("type") in _MEDIA and isinstance(value.get("data"), str):
                return self._media(value)
            asks = value.get("kind") == "Asked" or value.get("decision") == "Ask"
            return dict([self._field(key, item, foreign, asks) for key, item in value.items()])
        if foreign and type(value) in (int, float) and str(value) in self._secrets:
            return MASK
        return value

    def _media(self, part: dict[str, Any]) -> dict[str, Any]:
        """A media part without secrets in its name and address, and in its content if that is text.

        Other content is not searched: removing bytes would damage the file.
        """
        masked = dict([self._field(key, item, False) for key, item in part.items() if key != "data"])
        if str(part.get("media_type", "")).startswith("text/"):
            content = b64decode(part["data"]).decode("utf-8", "surrogateescape")
            clean = self.text(content).encode("utf-8", "surrogateescape")
            return {**masked, "data": b64encode(clean).decode()}
        return {**masked, "data": part["data"]}

    def _field(self, key: str, value: Any, foreign: bool, asks: bool = False) -> tuple[str, Any]:
        if foreign:
            return self.text(key), self.plain(value, foreign=True)
        if key in _OURS and isinstance(value, str):
            return key, value
        return key, self.plain(value, foreign=key in _FOREIGN or (asks and key == "details"))

    def text_of_forms(self, text: str) -> str:
        """A text without secrets in any spelling; the text itself is not parsed as JSON."""
        for form in self._forms:
            if form in text:
                text = text.replace(form, MASK)
        return text

    def open_end(self, text: str) -> int:
        """How many characters at the end of a text may be the start of a secret."""
        longest = min(len(self._forms[0]) - 1, len(text)) if self._forms else 0
        for size in range(longest, 0, -1):
            if any(form.startswith(text[-size:]) for form in self._forms):
                return size
        return 0

    def _may_contain_secret(self, data: bytes) -> bool:
        """Whether the data has the bytes of a secret, or escapes or the base64 of a text, which may hold one."""
        if b"\\" in data or b'"media_type":"text/' in data:
            return True
        return any(form.encode("utf-8", "surrogatepass") in data for form in self._forms)

    def text(self, text: str) -> str:
        """A text without secrets."""
        if text[:1] in ("{", "["):
            try:
                inner = json.loads(text)
            except ValueError:
                pass
            else:
                if (masked := self.plain(inner, foreign=True)) != inner:
                    return self._json(text, masked)
        return self.text_of_forms(text)

    def _json(self, text: str, masked: Any) -> str:
        """A JSON text with a masked value. It keeps its spelling if replacing the secrets in it gives that value."""
        simple = self.text_of_forms(text)
        try:
            if json.loads(simple) == masked:
                return simple
        except ValueError:
            pass
        return json.dumps(masked, ensure_ascii=False, separators=(",", ":"))

    @property
    def secrets(self) -> frozenset[str]:
        """The texts that it masks."""
        return frozenset(self._secrets)


class Masking:
    """A transformer that removes secrets from a model's text; it holds back an end that may be the start of one."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._held = ""

    def feed(self, text: str) -> Iterator[str]:
        """Yield all but an end that may be the start of a secret."""
        text = self._mask.text_of_forms(self._held + text)
        end = len(text) - self._mask.open_end(text)
        self._held = text[end:]
        if safe := text[:end]:
            yield safe

    def flush(self) -> Iterator[str]:
        """Yield the held end: it is not a secret."""
        if self._held:
            yield self._held


class MaskingArguments:
    """Removes secrets from the JSON of a call's arguments as it streams: all pieces together are what is recorded."""

    def __init__(self, mask: Mask) -> None:
        self._mask = mask
        self._masking = Masking(mask)
        self._given: list[str] = []
        self._said: list[str] = []
        self._escaped = False

    def feed(self, text: str) -> str:
        """What may be said now. After the first escape, which may spell a secret, the rest waits for the end."""
        self._given.append(text)
        self._escaped = self._escaped or "\\" in text
        said = "" if self._escaped else "".join(self._masking.feed(text))
        self._said.append(said)
        return said

    def flush(self) -> str | None:
        """The rest, once the JSON is whole; None if what was said is not its beginning."""
        whole, said = self._mask.text("".join(self._given)), "".join(self._said)
        return whole[len(said) :] if whole.startswith(said) else None


def joined_mask(masks: Iterable[Mask | None]) -> Mask | None:
    """One mask for the secrets of several; None if there are none."""
    given = [mask for mask in masks if mask is not None]
    secrets = frozenset[str]().union(*[mask.secrets for mask in given])
    if not secrets:
        return None
    return next((mask for mask in given if mask.secrets == secrets), None) or Mask(sorted(secrets))


class _LogFilter(logging.Filter):
    """Removes the secrets of all agents from what Windlass logs."""

    masks: ClassVar[WeakSet[Mask]] = WeakSet()

    def filter(self, record: logging.LogRecord) -> bool:
        masks = list(self.masks)
        if not masks:
            return True
        text = record.getMessage()
        error = record.exc_info[1] if record.exc_info else None
        traceback = record.exc_text or ("" if error is None else "".join(format_exception(error)))
        masked, masked_traceback = text, traceback
        for mask in masks:
            masked, masked_traceback = mask.text(masked), mask.text(masked_traceback)
        if masked != text or masked_traceback != traceback:
            record.msg, record.args, record.exc_info, record.exc_text = masked, (), None, masked_traceback or None
        return True


_filter = _LogFilter()
logging.getLogger("windlass").addFilter(_filter)


def _record(plain: dict[str, Any]) -> Record:
    """A record from its JSON value."""
    try:
        return decode(msgspec.json.encode(plain))
    except UnicodeEncodeError:  # a lone surrogate
        return decode(json_with_surrogates(plain).encode())
