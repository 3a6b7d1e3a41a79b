"""Runs a coroutine for code that is not async."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from functools import partial
from typing import Any, TypeVar

from ._threads import threads

T = TypeVar("T")


def run_sync(run: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Run a coroutine to its end: in an event loop of its own, and in a thread if one is running here."""
    if asyncio._get_running_loop() is None:  # unlike get_running_loop, it does not raise
        return asyncio.run(run())
    results: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            results.append(asyncio.run(run()))
        except BaseException as error:
            errors.append(error)

    threads().start(partial(copy_context().run, work), "windlass-run-sync", daemon=None).join()
    if errors:
        raise errors[0]
    return results[0]
