"""Reports how far a long piece of work is: to a function, or as a bar on standard error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from .errors import ConfigError

log = logging.getLogger("windlass")


class Progress(Protocol):
    """How far the work is: parts done, failed among them, and in all (None if that is not known)."""

    @property
    def done(self) -> int: ...
    @property
    def failed(self) -> int: ...
    @property
    def total(self) -> int | None: ...


P = TypeVar("P", bound=Progress)


def check_progress(progress: object, whose: str) -> None:
    """Raise unless `progress` is a bool or a function; `whose` names the function that takes it."""
    if not isinstance(progress, bool) and not callable(progress):
        raise ConfigError(f"{whose}(progress={progress!r}): progress must be True, False or a function")


class Report(Generic[P]):
    """Tells a function how far the work is, or shows a bar. A function that fails is logged and not called again."""

    def __init__(self, progress: bool | Callable[[P], object]) -> None:
        self._bar = _Bar() if progress is True else None
        self._tell = self._bar or (progress if callable(progress) else None)

    def __call__(self, progress: P) -> None:
        if self._tell is None:
            return
        try:
            self._tell(progress)
        except Exception:
            log.exception("the progress function failed and is not called again")
            self._tell = None

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


class _Bar:
    """A progress bar on standard error."""

    def __init__(self) -> None:
        from rich import progress as bars
        from rich.console import Console

        failed = bars.TextColumn("{task.fields[failed]} failed")
        columns = (bars.BarColumn(), bars.MofNCompleteColumn(), failed, bars.TimeElapsedColumn())
        self._progress = bars.Progress(*columns, console=Console(stderr=True))
        self._task = self._progress.add_task("", total=None, failed=0)

    def __call__(self, progress: Progress) -> None:
        self._progress.start()
        self._progress.update(self._task, completed=progress.done, total=progress.total, failed=progress.failed)

    def close(self) -> None:
        self._progress.stop()
