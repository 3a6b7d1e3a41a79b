"""Watches a run for what makes code depend on more than the seed: the real clock, random numbers, and files."""

from __future__ import annotations

import os
import random
import sqlite3
import sys
import time
from datetime import date, datetime
from types import FrameType
from typing import Any, Self

from .choices import SeededRandom
from .refusals import is_users, short_path

_CLOCKS: dict[Any, str] = {
    getattr(time, name): f"time.{name}"
    for name in (
        "time",
        "time_ns",
        "monotonic",
        "monotonic_ns",
        "perf_counter",
        "perf_counter_ns",
        "localtime",
        "gmtime",
        "ctime",
        "strftime",
    )
}
_RANDOM = {os.urandom: "os.urandom", os.getpid: "os.getpid", id: "id", hash: "hash"}
_OUTSIDE: dict[Any, str] = {
    open: "open",
    sqlite3.connect: "sqlite3.connect",
    os.listdir: "os.listdir",
    os.scandir: "os.scandir",
}
_GLOBAL: Any = vars(random)["_inst"]


class Suspects:
    """Within a block, notes which lines of the user's code ask for the time, for something random, or for a file."""

    def __init__(self) -> None:
        self._found: dict[str, None] = {}

    def __enter__(self) -> Self:
        self._before = sys.getprofile()
        if self._before is None:
            sys.setprofile(self._note)
        return self

    def __exit__(self, *exc: object) -> None:
        if self._before is None:
            sys.setprofile(None)

    @property
    def text(self) -> str:
        """What was found, for a report."""
        if not self._found:
            return (
                "    (no call of a clock, of a random number or of a file was seen: look for the order of a set, for "
                "addresses such as those in `<object object at 0x7f…>`, and for state that outlives a session)"
            )
        return "    the agent's code called " + "; ".join(list(self._found)[:8])

    def _note(self, frame: FrameType, event: str, arg: Any) -> None:
        if event == "c_call" and (name := _name_of(arg)) is not None and (place := _caller(frame)) is not None:
            self._found[f"{name} in {place}"] = None


def _name_of(called: Any) -> str | None:
    owner = getattr(called, "__self__", None)
    if owner is _GLOBAL:
        return f"random.{called.__name__}"
    if isinstance(owner, random.Random) and not isinstance(owner, SeededRandom):
        return f"{type(owner).__name__}.{called.__name__}"
    if isinstance(owner, type) and issubclass(owner, date) and called.__name__ in ("now", "utcnow", "today"):
        return f"{'datetime' if issubclass(owner, datetime) else 'date'}.{called.__name__}"
    try:
        return _CLOCKS.get(called) or _RANDOM.get(called) or _OUTSIDE.get(called)
    except TypeError:
        return None


def _caller(frame: FrameType | None) -> str | None:
    """The line of the user's code that asked, if it asked by way of the standard library alone."""
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            return f"{short_path(file)}:{frame.f_lineno}"
        if "windlass" in file:
            return None
        frame = frame.f_back
    return None
