"""Ranks tools by the words that a text shares with their names and descriptions, with BM25."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from math import log

from windlass.messages import ToolSpec

_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])|[^\W_a-zA-Z]+")
_PLAIN = frozenset(
    re.findall(
        r"\w+",
        "a about all an and any are as at be but by can could do does for from get give has have how i if in into is "
        "it its me my no not of on one or our out please should so some tell than that the their them then there these "
        "they this to us was we what when where which who why will with would you your",
    )
)
"""Words that are in most messages and say nothing about tools."""
SATURATION, LENGTH = 1.2, 0.75
NAME = 3
"""How many times a word of a tool's name counts."""


class ToolRanking:
    """Tools by the words in their names, descriptions and parameters."""

    def __init__(self, specs: Iterable[ToolSpec]) -> None:
        self._words: dict[str, Counter[str]] = {spec.name: Counter(_words_of(spec)) for spec in specs}
        self._lengths = {name: words.total() for name, words in self._words.items()}
        self._average = sum(self._lengths.values()) / max(len(self._lengths), 1) or 1.0
        self._tools_with = Counter([word for words in self._words.values() for word in words])

    def rank(self, text: str) -> list[str]:
        """The names of the tools that share a word with a text, the best first."""
        wanted = set(_words(text)) - _PLAIN
        scores = {name: self._score(name, wanted) for name in self._words}
        return sorted([name for name, score in scores.items() if score > 0], key=lambda name: -scores[name])

    def _score(self, name: str, wanted: Iterable[str]) -> float:
        counts, total = self._words[name], len(self._words)
        norm = SATURATION * (1 - LENGTH + LENGTH * self._lengths[name] / self._average)
        score = 0.0
        for word in wanted:
            if (count := counts.get(word, 0)) > 0:
                known = self._tools_with[word]
                score += log(1 + (total - known + 0.5) / (known + 0.5)) * count * (SATURATION + 1) / (count + norm)
        return score


def _words_of(spec: ToolSpec) -> Iterator[str]:
    for _ in range(NAME):
        yield from _words(spec.name)
    yield from _words(spec.description)
    properties: Mapping[str, Mapping[str, object]] = spec.schema.get("properties", {})
    for name, described in properties.items():
        yield from _words(name)
        yield from _words(str(described.get("description", "")))


def _words(text: str) -> Iterator[str]:
    """The words of a text, in small letters and without the ending of a plural; `readFile` has two."""
    for word in _WORD.findall(text):
        small = word.lower()
        yield small[:-1] if len(small) > 3 and small.endswith("s") and not small.endswith("ss") else small
