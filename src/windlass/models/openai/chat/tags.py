"""Splits an answer that begins with a thought between tags, such as `<think>…</think>`, as it comes in pieces."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from windlass.errors import ConfigError
from windlass.models.openai.dialects import THINK_TAGS

Piece: TypeAlias = tuple[Literal["tagged", "text"], str]


def checked_tags(given: Any) -> tuple[str, str] | None:
    """The tags for the option `think_tags`: True, False, or the pair of tags."""
    if isinstance(given, bool):
        return THINK_TAGS if given else None
    if isinstance(given, list | tuple) and len(given) == 2 and all(isinstance(tag, str) and tag for tag in given):
        return given[0], given[1]
    raise ConfigError(f"think_tags={given!r} must be True, False or a pair of tags such as {THINK_TAGS}")


class TagSplitter:
    """Splits the text of one answer. White space around the thought is dropped, and so is an empty thought.

    Only an answer that begins with the opening tag has a thought: later on, a tag is part of the text.
    """

    def __init__(self, tags: tuple[str, str] | None) -> None:
        self._opening, self._closing = tags or ("", "")
        self._place: Literal["start", "thought", "between", "text"] = "text" if tags is None else "start"
        self._held = ""
        self._thought = False

    def feed(self, text: str) -> Iterator[Piece]:
        """The pieces that are certain after this text; the rest is held back."""
        if self._place == "start":
            text = self._begin(self._held + text)
        if self._place == "thought" and (text or self._held):
            thought, text = self._think(self._held + text)
            if thought:
                yield "tagged", thought
        if self._place == "between" and (text := text.lstrip()):
            self._place = "text"
        if self._place == "text" and text:
            yield "text", text

    def end(self) -> Iterator[Piece]:
        """The text that was held back when the answer ended."""
        held, self._held = self._held, ""
        if self._place == "thought":
            held = held.rstrip()
        if held:
            yield ("tagged" if self._place == "thought" else "text"), held
        self._place = "text"

    def _begin(self, text: str) -> str:
        """Decide whether the answer begins with the tag; returns the text after it."""
        plain = text.lstrip()
        self._held = ""
        if plain.startswith(self._opening):
            self._place = "thought"
            return plain.removeprefix(self._opening)
        if self._opening.startswith(plain):
            self._held = text
            return ""
        self._place = "text"
        return text

    def _think(self, text: str) -> tuple[str, str]:
        """The part of a thought that is certain, and the text after the thought."""
        if not self._thought:
            text = text.lstrip()
        thought, found, rest = text.partition(self._closing)
        if found:
            self._place, self._held = "between", ""
            return thought.rstrip(), rest
        certain = text[: len(text) - _overlap(text, self._closing)].rstrip()
        self._held = text[len(certain) :]
        self._thought = self._thought or bool(certain)
        return certain, ""


def _overlap(text: str, tag: str) -> int:
    """How many letters at the end of a text may be the beginning of a tag."""
    return next((size for size in range(min(len(text), len(tag) - 1), 0, -1) if tag.startswith(text[-size:])), 0)


def split_tags(text: str, tags: tuple[str, str] | None) -> list[Piece]:
    """The pieces of a whole answer."""
    splitter = TagSplitter(tags)
    return [*splitter.feed(text), *splitter.end()]


__all__ = ["TagSplitter", "checked_tags", "split_tags"]
