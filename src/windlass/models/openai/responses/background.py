"""Replies that are made in the background: asked for until they are there, and stopped if nobody waits any more."""

from __future__ import annotations

from asyncio import CancelledError, sleep
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from windlass.errors import ModelError
from windlass.models.connections import Connection

FAILURES = 3
"""So many times in a row may asking fail: to ask again is free, to begin again is not."""


async def finished(answer: Any, connection: Connection, include: Any, every: float, options: dict[str, Any]) -> Any:
    """The answer as it is when it is no longer being made."""
    if not _in_the_making(answer):
        return answer
    path = f"/responses/{answer['id']}"
    params = {"include": include} if include else None
    failures = 0
    try:
        while _in_the_making(answer):
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


def _in_the_making(answer: Any) -> bool:
    return isinstance(answer, Mapping) and answer.get("status") in ("queued", "in_progress") and "id" in answer
