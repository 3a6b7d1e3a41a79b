"""The built-in detector of secrets and personal data, and the detectors that names and groups stand for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from windlass.errors import ConfigError

from .detectors import Detector, Found
from .kinds import BEGIN, END, GROUPED, HINT, KEYS, LABEL, LABELLED, PERSONAL, SHORTEST

LONG_WORD = 1024
"""A find in a longer word begins within its last characters, or is already there to be seen."""

LONG_GROUP = 64
"""The greatest length of a number that people group, and of what may stand before a secret."""


class BuiltIn:
    """The kinds that Windlass knows, of which `kinds` lists those to find.

    A find contains no white space, unless it is a private key or a number that people group, such as a card. So a
    stream is held back only by the last word, and from where such a number or key may have begun.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self.kinds = kinds
        self._private = "private_key" in kinds
        keys = {kind: KEYS[kind] for kind in kinds if kind in KEYS}
        self._keys = re.compile("|".join(f"(?P<{kind}>{pattern})" for kind, pattern in keys.items())) if keys else None
        self._labelled = [(kind, *LABELLED[kind]) for kind in kinds if kind in LABELLED]
        self._personal = [(kind, *PERSONAL[kind]) for kind in kinds if kind in PERSONAL]

    def find(self, text: str) -> Iterator[Found]:
        """All finds in the text."""
        if len(text) < SHORTEST:
            return
        if self._private and "-----BEGIN" in text:
            yield from _private_keys(text)
        if self._keys is not None:
            for match in self._keys.finditer(text):
                yield Found(str(match.lastgroup), *match.span())
        for kind, label, secret in self._labelled:
            for match in label.finditer(text):
                if value := secret.match(text, match.end()):
                    yield Found(kind, *value.span())
        for kind, pattern, valid in self._personal if HINT.search(text) else ():
            for match in pattern.finditer(text):
                if valid is None or valid(match[pattern.groups]):
                    yield Found(kind, *match.span(pattern.groups))

    def held(self, text: str) -> int:
        """Where the first find begins that more text could still make or lengthen."""
        word = max(len(text) - len(_last_word(text)), len(text) - LONG_WORD)
        held = min(_begun(LABEL, text, word), _begun(GROUPED, text, len(text)))
        return min(held, _unfinished_key(text)) if self._private and "-----BEGIN" in text else held


def _private_keys(text: str) -> Iterator[Found]:
    """Private keys. One without an end is hidden to the end of the text."""
    at = 0
    while begin := BEGIN.search(text, at):
        end = END.search(text, begin.end())
        at = len(text) if end is None else end.end()
        if "PRIVATE KEY" in begin[0]:
            yield Found("private_key", begin.start(), at)


def _unfinished_key(text: str) -> int:
    """Where a private key begins that has not ended."""
    at = 0
    while begin := BEGIN.search(text, at):
        end = END.search(text, begin.end())
        if end is None:
            return begin.start()
        at = end.end()
    return len(text)


def _last_word(text: str) -> str:
    return "" if not text or text[-1].isspace() else text.rsplit(None, 1)[-1]


def _begun(pattern: re.Pattern[str], text: str, end: int) -> int:
    """Where the last characters before `end` begin to look like the pattern; `end` if nowhere."""
    match = pattern.search(text, max(0, end - LONG_GROUP), end)
    return end if match is None else match.start()


GROUPS: Mapping[str, Sequence[str]] = {"secrets": ("private_key", *KEYS, *LABELLED), "pii": tuple(PERSONAL)}
"""Names for several kinds at once."""


def detectors_of(given: Iterable[str | Detector]) -> list[Detector]:
    """The detectors that names of kinds, names of groups and detectors stand for."""
    known = [kind for group in GROUPS.values() for kind in group]
    chosen: list[str] = []
    detectors: list[Detector] = []
    for one in given:
        if isinstance(one, Detector):
            detectors.append(one)
        elif one in GROUPS or one in known:
            chosen += GROUPS.get(one, (one,))
        else:
            raise ConfigError(
                f"Redact: {one!r} is neither a kind nor a detector. Kinds: {', '.join([*GROUPS, *known])}. "
                "A detector has `kinds`, `find` and `held`: see Pattern"
            )
    if chosen:
        detectors.insert(0, BuiltIn([kind for kind in known if kind in chosen]))
    return detectors
