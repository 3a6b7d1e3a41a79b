"""Passages that a search has found: ranked, named by their source, and chosen so that they fit."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from html import escape
from typing import Any

from windlass.messages import CONTENT_PARTS, ContentPart, TextPart, Value

from .tags import inert

DAMPING = 60
"""The constant of reciprocal rank fusion: how much less the first places count than they would alone."""


class Passage(Value, frozen=True):
    """Something that a search has found: a text or a part, its `source`, and a `score`; higher is better.

    The score only tells the passages of one search apart: searches count differently.
    """

    content: str | ContentPart
    source: str = ""
    score: float = 0.0

    @property
    def text(self) -> str:
        """The text; empty if the content is another part."""
        if isinstance(self.content, str):
            return self.content
        return self.content.text if isinstance(self.content, TextPart) else ""


def passages_of(found: Any, by: str) -> list[Passage]:
    """What a source returned, as passages. A value of another kind raises `TypeError` and names the source."""
    if found is None:
        return []
    items = found if isinstance(found, list | tuple) else [found]
    made = [one if isinstance(one, Passage) else Passage(one, by) for one in items]
    for one in made:
        content: object = one.content
        if not isinstance(content, (str, *CONTENT_PARTS)):
            kind = type(content).__name__
            raise TypeError(f"source {by!r} returned {kind}: return texts, parts or passages, or a list of them")
    return [one.replace(source=one.source or by) for one in made if not isinstance(one.content, str) or one.content]


def fuse(*rankings: Sequence[Passage]) -> list[Passage]:
    """One ranking made of several, by reciprocal rank fusion: what several searches rank high comes first."""
    scores: dict[tuple[str, Any], float] = {}
    known: dict[tuple[str, Any], Passage] = {}
    for ranking in rankings:
        for rank, passage in enumerate(ranking, 1):
            key = (passage.source, passage.content)
            known.setdefault(key, passage)
            scores[key] = scores.get(key, 0.0) + 1 / (DAMPING + rank)
    return [known[key].replace(score=score) for key, score in sorted(scores.items(), key=lambda item: -item[1])]


def choose(
    passages: Iterable[Passage], fits: Callable[[Sequence[Passage]], bool]
) -> tuple[list[Passage], list[Passage]]:
    """Those that fit, the best first, and those that are left out. A passage is taken whole or not at all."""
    chosen: list[Passage] = []
    left: list[Passage] = []
    for passage in passages:
        (chosen if fits([*chosen, passage]) else left).append(passage)
    return chosen, left


def render(passages: Sequence[Passage], heading: str) -> list[ContentPart]:
    """Passages as a model reads them: one text in which each has its source, and then the parts that are not text."""
    texts = [heading, *[element(one.source, one.text) for one in passages if one.text]]
    parts: list[ContentPart] = []
    for one in passages:
        if not isinstance(one.content, str | TextPart):
            parts += [TextPart(f"From {one.source}:"), one.content]
    return [TextPart("\n".join(texts)), *parts]


def element(source: str, text: str) -> str:
    """A text between tags that it can neither close nor forge."""
    return f'<passage source="{escape(source)}">\n{inert(text, "passage")}\n</passage>'
