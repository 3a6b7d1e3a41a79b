"""Retries of side calls: no hook is asked, and the caller gets the last error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from windlass.policies import ErrorPolicy
from windlass.protocols import Clock

T = TypeVar("T")


async def with_retries(
    ask: Callable[[], Awaitable[T]], tried: Callable[[], int], policy: ErrorPolicy, clock: Clock
) -> T:
    """Make a model call, and repeat it as the policy says. `tried` counts all attempts: `ask` may make several."""
    failures = 0
    while True:
        try:
            return await ask()
        except Exception as error:
            failures += 1
            wait = policy.wait_before_retry(error, max(failures, tried()))
            if wait is None:
                raise
        await clock.sleep(wait)
