"""Retries of a call that is not the turn's own model call: no hook is asked, the caller gets the last error."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

from windlass.policies import ErrorPolicy
from windlass.protocols import Clock

T = TypeVar("T")


async def with_retries(ask: Callable[[], Awaitable[T]], policy: ErrorPolicy, clock: Clock, made: int = 0) -> T:
    """Make a model call, and make it again as the policy says; `made` counts failed attempts before this one."""
    while True:
        try:
            return await ask()
        except Exception as error:
            made += 1
            wait = policy.wait_before_retry(error, made)
            if wait is None:
                raise
        await clock.sleep(wait)
