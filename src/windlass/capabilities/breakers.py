"""Circuit breakers: which models have failed so often that they are not asked for a while, in this process."""

from __future__ import annotations

from threading import Lock

from msgspec import Struct

from .options import require_count, require_seconds


class Breaker(Struct, frozen=True):
    """When a model is not asked any more: after this many `failures` in a row, for this many `seconds`.

    Then one request tries it: if that fails, too, it is not asked for as long again.
    """

    failures: int = 5
    seconds: float = 30.0

    def __post_init__(self) -> None:
        require_count("Breaker", "failures", self.failures)
        require_seconds("Breaker", "seconds", self.seconds)


class Breakers:
    """The failures in a row of each model, and until when it is not asked. It may be used from any thread."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._failures: dict[str, int] = {}
        self._until: dict[str, float] = {}

    @property
    def any_open(self) -> bool:
        """Whether there is a model that may not be asked."""
        return bool(self._until)

    def lets_pass(self, model: str, breaker: Breaker, now: float) -> bool:
        """Whether a model may be asked. After its time one request may; the others wait for what comes of it."""
        if model not in self._until:
            return True
        with self._lock:
            until = self._until.get(model, now)
            if now < until:
                return False
            self._until[model] = now + breaker.seconds
            return True

    def note_failure(self, model: str, breaker: Breaker, now: float) -> None:
        """A model failed."""
        with self._lock:
            failures = self._failures[model] = self._failures.get(model, 0) + 1
            if failures >= breaker.failures:
                self._until[model] = now + breaker.seconds

    def note_success(self, model: str) -> None:
        """A model replied."""
        if model in self._failures:
            with self._lock:
                self._failures.pop(model, None)
                self._until.pop(model, None)
