"""Detectors: find secrets and personal data in a text, for `Redact`."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from windlass.errors import ConfigError

from .kinds import BEGIN, END, GROUPED, HINT, KEYS, LABEL, LABELLED, PERSONAL, SHORTEST


class Found(NamedTuple):
    """What a detector found: the kind, and where it begins and ends in the text."""

    kind: str
    start: int
    end: int


@runtime_checkable
class Detector(Protocol):
    """Finds one or more kinds of sensitive text. `kinds` names them.

    `held` says from where on a text is not final, because more text could still make or lengthen a find. A stream is
    held back from there on. `find` and `held` are called from several turns at once, on texts that grow.
    """

    @property
    def kinds(self) -> Sequence[str]:
        """The names of what it finds."""
        ...

    def find(self, text: str) -> Iterable[Found]:
        """What it finds in a text."""
        ...

    def held(self, text: str) -> int:
        """The index from which on the text is not final."""
        ...


class Pattern:
    """A detector for one kind, by a regular expression: `Pattern("staff", r"E\\d{6}", longest=7)`.

    `longest` is the greatest length of a find, with what must stand around it: a stream is held back by that many
    characters. If the expression has a group named `value`, only that group is a find. `valid` may refuse a find.
    """

    def __init__(
        self,
        kind: str,
        pattern: str | re.Pattern[str],
        *,
        longest: int = 128,
        valid: Callable[[str], bool] | None = None,
    ) -> None:
        check_kind(kind)
        if type(longest) is not int or longest < 1:
            raise ConfigError(f"Pattern({kind!r}): longest={longest!r} must be a number of characters")
        try:
            self.pattern = re.compile(pattern)
        except (re.error, TypeError) as error:
            raise ConfigError(f"Pattern({kind!r}): {pattern!r} is not a regular expression: {error}") from None
        if self.pattern.match("") is not None:
            raise ConfigError(f"Pattern({kind!r}): {self.pattern.pattern!r} also matches an empty text")
        self.kinds: Sequence[str] = (kind,)
        self.longest = longest
        self.valid = valid
        self._group: str | int = "value" if "value" in self.pattern.groupindex else 0

    def find(self, text: str) -> Iterator[Found]:
        """All finds in the text."""
        for match in self.pattern.finditer(text):
            if self.valid is None or self.valid(match[self._group]):
                yield Found(self.kinds[0], *match.span(self._group))

    def held(self, text: str) -> int:
        """The last characters may still become a find."""
        return max(0, len(text) - self.longest)


class Scanner:
    """A detector made of a function that returns finds as `(kind, start, end)`: a library, or a service.

    A stream is held back by `longest` characters.
    """

    def __init__(
        self, find: Callable[[str], Iterable[tuple[str, int, int]]], kinds: Sequence[str], *, longest: int = 128
    ) -> None:
        for kind in kinds:
            check_kind(kind)
        self.kinds = tuple(kinds)
        self.longest = longest
        self._find = find

    def find(self, text: str) -> Iterator[Found]:
        """All finds in the text."""
        for found in self._find(text):
            yield Found(*found)

    def held(self, text: str) -> int:
        """The last characters may still become a find."""
        return max(0, len(text) - self.longest)


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


def check_kind(kind: object) -> None:
    """Raise unless it can name a kind."""
    if not isinstance(kind, str) or not kind.isidentifier():
        raise ConfigError(f"{kind!r} is not the name of a kind: use letters, digits and _")


def merged(found: Iterable[Any], text: str) -> list[Found]:
    """Finds in their order; those that overlap become one, of the kind that begins first."""
    result: list[Found] = []
    for one in sorted(found, key=lambda one: (one[1], -one[2])):
        kind, start, end = one
        if not (0 <= start < end <= len(text)):
            raise ValueError(f"a detector returned {one!r} for a text of {len(text)} characters")
        if result and start < result[-1].end:
            result[-1] = result[-1]._replace(end=max(end, result[-1].end))
        else:
            result.append(Found(kind, start, end))
    return result


def datafog_detector(*types: str, longest: int = 64) -> Scanner:
    """Detect personal data with the library datafog (extra `pii`), by its types, such as `"EMAIL"` or `"DE_VAT_ID"`.

    Its regular expressions are used, not its models. A kind is the type in lower case.
    """
    os.environ.setdefault("DATAFOG_NO_TELEMETRY", "1")
    try:
        from datafog.engine import scan
    except ImportError as error:
        raise ConfigError(f"datafog_detector needs datafog ({error}): pip install 'windlass[pii]'") from error
    chosen = types or ("EMAIL", "PHONE", "SSN", "CREDIT_CARD", "IP_ADDRESS")

    def find(text: str) -> Iterator[tuple[str, int, int]]:
        for entity in scan(text, engine="regex", entity_types=list(chosen)).entities:
            yield entity.type.lower(), entity.start, entity.end

    return Scanner(find, [kind.lower() for kind in chosen], longest=longest)


def presidio_detector(engine: Any, *types: str, language: str = "en", longest: int = 128) -> Scanner:
    """Detect personal data with an `AnalyzerEngine` of Presidio that you made, by its types, such as `"PERSON"`.

    A kind is the type in lower case.
    """
    if not types or not callable(getattr(engine, "analyze", None)):
        raise ConfigError("presidio_detector takes an AnalyzerEngine and the types to find, such as 'PERSON'")

    def find(text: str) -> Iterator[tuple[str, int, int]]:
        for found in engine.analyze(text=text, language=language, entities=list(types)):
            yield found.entity_type.lower(), found.start, found.end

    return Scanner(find, [kind.lower() for kind in types], longest=longest)
