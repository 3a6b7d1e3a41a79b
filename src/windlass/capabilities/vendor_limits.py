"""Vendor limits: what the vendor of a model reports about its own rate limits."""

from __future__ import annotations

from windlass.messages import RateLimits


class VendorLimits:
    """What the vendor of a model last reported: what is left, when it is full again, and until when to pause."""

    def __init__(self) -> None:
        self._paused_until = 0.0
        self._reports: dict[str, tuple[float, float, float, float]] = {}

    def note_reply(self, limits: RateLimits, now: float) -> None:
        """Remember the limits that came with a reply."""
        reported = {
            "requests": (limits.requests, limits.requests_left, limits.requests_reset),
            "tokens": (limits.tokens, limits.tokens_left, limits.tokens_reset),
        }
        for kind, (most, left, reset) in reported.items():
            if left is not None and reset is not None:
                rate = (most - left) / reset if most is not None and most > left and reset > 0 else 0.0
                self._reports[kind] = float(left), rate, now, now + reset

    def pause(self, seconds: float, now: float) -> None:
        """The vendor asks for a pause."""
        self._paused_until = max(self._paused_until, now + seconds)

    @property
    def counts_tokens(self) -> bool:
        """Whether the vendor has reported a limit of tokens."""
        return "tokens" in self._reports

    def wait(self, tokens: int, now: float) -> float:
        """In how many seconds a request of this size may be sent."""
        if not self._reports:
            return max(0.0, self._paused_until - now)
        waits = [self._wait_for(kind, n, now) for kind, n in (("requests", 1), ("tokens", tokens))]
        return max(0.0, self._paused_until - now, *waits)

    def take(self, tokens: int) -> None:
        """A request of this size is sent."""
        if not self._reports:
            return
        for kind, n in (("requests", 1), ("tokens", tokens)):
            if kind in self._reports:
                left, *rest = self._reports[kind]
                self._reports[kind] = (left - n, *rest)  # type: ignore[assignment]

    def _wait_for(self, kind: str, n: int, now: float) -> float:
        left, rate, at, full = self._reports.get(kind, (0.0, 0.0, 0.0, 0.0))
        left += max(0.0, now - at) * rate
        if now >= full or left >= n:
            return 0.0
        return min(full - now, (n - left) / rate) if rate else full - now
