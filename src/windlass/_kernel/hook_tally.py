"""Sums up how long hooks take in one pass, and how its replies stream, for one record at its end."""

from __future__ import annotations

from collections.abc import Callable
from math import log2
from typing import TYPE_CHECKING

from windlass.records import HooksRan, HookTimes

if TYPE_CHECKING:
    from windlass._hooks.hooks import Hook

    from .measured_voice import MeasuredVoice


class _Row:
    """The calls of one hook at one event."""

    __slots__ = ("asked", "buckets", "hook", "said", "seconds", "slowest")

    def __init__(self, hook: Hook) -> None:
        self.hook = hook
        self.asked = 0
        self.seconds = self.slowest = 0.0
        self.buckets: dict[int, int] = {}
        self.said: dict[str, int] = {}

    def times(self) -> HookTimes:
        hook = self.hook
        return HookTimes(
            hook.name,
            hook.event.__name__,
            self.asked,
            round(self.seconds, 9),
            round(self.slowest, 9),
            tuple(sorted(self.buckets.items())),
            self.said,
            hook.kind,
            hook.capability or "",
        )


class HookTally:
    """The times of a pass. `voice` is what streams it, if it is streamed."""

    __slots__ = ("_rows", "monotonic", "voice")

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self.monotonic = monotonic
        self.voice: MeasuredVoice | None = None
        self._rows: dict[Hook, _Row] = {}

    def add(self, hook: Hook, seconds: float, verdict: str) -> None:
        """Count a call. What a wrap surrounds is not in its seconds."""
        row = self._rows.get(hook)
        if row is None:
            row = self._rows[hook] = _Row(hook)
        row.asked += 1
        row.seconds += seconds
        if seconds > row.slowest:
            row.slowest = seconds
        bucket = int(4 * log2(seconds * 1e6)) if seconds > 1e-6 else 0
        row.buckets[bucket] = row.buckets.get(bucket, 0) + 1
        if verdict:
            row.said[verdict] = row.said.get(verdict, 0) + 1

    def take(self) -> HooksRan | None:
        """The record of what was counted since the last one; None if that is nothing."""
        rows, self._rows = self._rows, {}
        streams = () if self.voice is None else self.voice.take_times()
        if not rows and not streams:
            return None
        return HooksRan(tuple([row.times() for row in rows.values()]), streams)
