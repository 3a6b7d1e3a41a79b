"""Vaults: keep what was hidden from models and logs, so that tools can get it back."""

from __future__ import annotations

import re
from typing import Protocol, runtime_checkable

from windlass.randomness import random_bytes


@runtime_checkable
class Vault(Protocol):
    """Keeps what was hidden, so that tools can get it back. It belongs to the application.

    `hide` returns a placeholder that nobody can guess: a model that guessed one could get the text of another user.
    """

    def hide(self, kind: str, text: str) -> str:
        """Store a text, and return the placeholder for it."""
        ...

    def reveal(self, text: str) -> str:
        """The text with what was hidden in place of the placeholders."""
        ...


class MemoryVault:
    """A vault in the memory of this process. The same text always gets the same placeholder."""

    def __init__(self) -> None:
        self._placeholders: dict[tuple[str, str], str] = {}
        self._texts: dict[str, str] = {}

    def hide(self, kind: str, text: str) -> str:
        """The placeholder of a text."""
        fresh = f"[{kind}:{random_bytes(8).hex()}]"
        placeholder = self._placeholders.setdefault((kind, text), fresh)
        self._texts[placeholder] = text
        return placeholder

    def reveal(self, text: str) -> str:
        """The text with its placeholders replaced by what they stand for."""
        return re.sub(r"\[\w+:[0-9a-f]{16}\]", lambda match: self._texts.get(match[0], match[0]), text)
