"""The stream of a turn whose hooks are measured: what came, what was sent, and when."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

from windlass._hooks.streams import Transform, Transforms
from windlass.deltas import AnyDelta
from windlass.records import StreamTimes, TransformTimes

from .hook_tally import HookTally
from .voice import Voice


class _Counting:
    """A transformer that counts what goes through it."""

    __slots__ = ("_inner", "_tally")

    def __init__(self, inner: Any, tally: _TransformTally) -> None:
        self._inner = inner
        self._tally = tally

    def feed(self, text: str) -> Sequence[str]:
        tally = self._tally
        tally.chunks += 1
        tally.waiting += len(text)
        return tally.run(lambda: self._inner.feed(text))

    def flush(self) -> Sequence[str]:
        return self._tally.run(self._inner.flush)


class _TransformTally:
    """What one transformer did in one attempt. `waiting` is how many characters it holds back."""

    __slots__ = ("_monotonic", "chunks", "held", "name", "pieces", "seconds", "waiting")

    def __init__(self, name: str, monotonic: Callable[[], float]) -> None:
        self.name = name
        self._monotonic = monotonic
        self.chunks = self.pieces = self.held = self.waiting = 0
        self.seconds = 0.0

    def run(self, work: Callable[[], Sequence[str]]) -> Sequence[str]:
        began = self._monotonic()
        pieces = list(work())
        self.seconds += self._monotonic() - began
        self.pieces += len(pieces)
        self.waiting = max(self.waiting - sum([len(one) for one in pieces if type(one) is str]), 0)
        self.held = max(self.held, self.waiting)
        return pieces

    def times(self) -> TransformTimes:
        return TransformTimes(
            self.name, self.chunks, self.pieces, self.held, round(self.seconds, 9)
        )


class _Attempt:
    """One attempt at a reply. The times are those of the first and last chunk, and of the first and last piece."""

    __slots__ = (
        "began",
        "came",
        "characters",
        "chunks",
        "held",
        "place",
        "retracted",
        "sent",
        "transforms",
        "went",
    )

    def __init__(self, place: tuple[int, int, int], began: float, *, held: bool) -> None:
        self.place = place
        self.began = began
        self.held = held
        self.chunks = self.characters = self.sent = 0
        self.came: tuple[float, float] | None = None
        self.went: tuple[float, float] | None = None
        self.retracted = ""
        self.transforms: list[_TransformTally] = []

    def times(self) -> StreamTimes:
        first_chunk, last_chunk = self._offsets(self.came)
        first_sent, last_sent = self._offsets(self.went)
        return StreamTimes(
            *self.place,
            self.chunks,
            self.characters,
            self.sent,
            first_chunk,
            last_chunk,
            first_sent,
            last_sent,
            self.held,
            self.retracted,
            tuple([tally.times() for tally in self.transforms]),
        )

    def _offsets(self, span: tuple[float, float] | None) -> tuple[float | None, float | None]:
        if span is None:
            return None, None
        return round(span[0] - self.began, 6), round(span[1] - self.began, 6)


class MeasuredVoice(Voice):
    """A voice that counts chunks and pieces, attempt by attempt."""

    __slots__ = ("_attempts", "_monotonic")

    def measure(self, tally: HookTally) -> None:
        """Count for this tally from now on."""
        self._attempts: list[_Attempt] = []
        self._monotonic = tally.monotonic
        tally.voice = self

    def take_times(self) -> tuple[StreamTimes, ...]:
        """What was counted since the last time."""
        attempts, self._attempts = self._attempts, []
        return tuple([attempt.times() for attempt in attempts])

    def begin_attempt(self, step: int, round_: int, attempt: int, transforms: Transforms) -> None:
        counted = [_counted(one, self._monotonic) for one in transforms]
        super().begin_attempt(step, round_, attempt, Transforms([one for one, _ in counted]))
        made = _Attempt((step, round_, attempt), self._monotonic(), held=self._mute)
        made.transforms = [tally for _, tally in counted]
        self._attempts.append(made)

    def feed(self, kind: type[AnyDelta], text: str, part: int, name: str = "") -> None:
        if self._attempts:
            attempt, now = self._attempts[-1], self._monotonic()
            attempt.chunks += 1
            attempt.characters += len(text)
            attempt.came = (now if attempt.came is None else attempt.came[0], now)
        super().feed(kind, text, part, name)

    def _say(self, kind: type[AnyDelta], text: str, part: int, name: str) -> None:
        if self._attempts:
            attempt, now = self._attempts[-1], self._monotonic()
            attempt.sent += 1
            attempt.went = (now if attempt.went is None else attempt.went[0], now)
        super()._say(kind, text, part, name)

    def _retract_step(self, step: int, reason: str) -> None:
        for attempt in reversed(self._attempts):
            if attempt.place[0] == step and attempt.sent:
                attempt.retracted = attempt.retracted or reason
                break
        super()._retract_step(step, reason)


def _counted(
    transform: Transform, monotonic: Callable[[], float]
) -> tuple[Transform, _TransformTally]:
    """A transformer that counts, and its counts."""
    made, tally, factory = (
        copy(transform),
        _TransformTally(transform.name, monotonic),
        transform.factory,
    )

    def counting() -> Any:
        inner = factory()
        whole = callable(getattr(inner, "feed", None)) and callable(getattr(inner, "flush", None))
        return _Counting(inner, tally) if whole else inner

    made.factory = counting
    return made, tally
