"""Waits for replies that are made in the background, and cancels them if the wait is cancelled."""

from __future__ import annotations

from asyncio import CancelledError, sleep
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from windlass.errors import ModelError
from windlass.models.connections import Connection, Posted

FAILURES = 3
"""How many polls in a row may fail: another poll is free, a new reply is not."""


async def wait_until_done(
    answer: Posted, connection: Connection, include: Any, every: float, options: dict[str, Any]
) -> Posted:
    """Poll until the answer is no longer pending, and return it."""
    if not _is_pending(answer.body):
        return answer
    path = f"/responses/{answer.body['id']}"
    params = {"include": include} if include else None
    failures = 0
    try:
        while _is_pending(answer.body):
            await sleep(every)
            try:
                answer, failures = await connection.get(path, params=params, **options), 0
            except ModelError as error:
                failures += 1
                if not error.retryable or failures == FAILURES:
                    raise
    except CancelledError:
        with suppress(ModelError):
            await connection.post(f"{path}/cancel", {}, **options)
        raise
    return answer


def _is_pending(answer: Any) -> bool:
    return isinstance(answer, Mapping) and answer.get("status") in ("queued", "in_progress") and "id" in answer
