"""Work that mostly ends without waiting: what can only matter while it waits is prepared when it first does."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from contextlib import AbstractAsyncContextManager
from types import coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def once_it_waits(work: Awaitable[T], around: AbstractAsyncContextManager[object]) -> T:
    """The result of some work. The context manager `around` is entered when the work first waits.

    A time-out is an example: a timer cannot break off code that does not wait, so work that never waits needs none.
    Entering must not wait itself.
    """
    steps = work.__await__()
    try:
        yielded = next(steps)
    except StopIteration as done:
        result: T = done.value
        return result
    async with around:
        return await _resume(steps, yielded)


@coroutine
def _resume(steps: Generator[Any, Any, T], yielded: Any) -> Generator[Any, Any, T]:
    """Go on with work that waits for what it yielded."""
    while True:
        try:
            try:
                sent = yield yielded
            except BaseException as error:
                yielded = steps.throw(error)
            else:
                yielded = steps.send(sent)
        except StopIteration as done:
            result: T = done.value
            return result
