"""Transformers that clean a reply and the arguments of its calls as they stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import msgspec


class Cleaner(Protocol):
    """What cleans texts."""

    def clean(self, text: str) -> str: ...
    def clean_values(self, value: Any) -> Any: ...
    def clean_range(self, text: str, start: int, end: int) -> tuple[str, int]: ...
    def held(self, text: str) -> int: ...


class Stream:
    """Redacts a text as it streams. It holds back what may be the beginning of a find."""

    CONTEXT = 64

    def __init__(self, redact: Cleaner) -> None:
        self._redact = redact
        self._text = ""
        self._sent = 0

    def feed(self, text: str) -> Sequence[str]:
        """What is final, of the text so far."""
        self._text += text
        return self._release(self._redact.held(self._text))

    def flush(self) -> Sequence[str]:
        """The rest."""
        return self._release(len(self._text))

    def _release(self, held: int) -> Sequence[str]:
        if held <= self._sent:
            return ()
        output, cut = self._redact.clean_range(self._text, self._sent, held)
        keep = max(0, cut - self.CONTEXT)
        self._text, self._sent = self._text[keep:], cut - keep
        return (output,) if output else ()


_decode = msgspec.json.Decoder().decode


class Arguments:
    """Redacts the arguments of a call. They are held back until they are complete, and cleaned as decoded values."""

    def __init__(self, redact: Cleaner) -> None:
        self._redact = redact
        self._pieces: list[str] = []

    def feed(self, text: str) -> Sequence[str]:
        """Nothing yet."""
        self._pieces.append(text)
        return ()

    def flush(self) -> Sequence[str]:
        """The arguments; unchanged to the byte if nothing was found."""
        text = "".join(self._pieces)
        try:
            value = _decode(text)
        except msgspec.DecodeError:
            return (self._redact.clean(text),)
        cleaned = self._redact.clean_values(value)
        is_same = cleaned is value or cleaned == value
        return (text,) if is_same else (msgspec.json.encode(cleaned).decode(),)
