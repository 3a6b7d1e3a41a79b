"""The loop.

There is no other: run, iterate, stream, resume and sub-agents all come through here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from windlass._hooks.dispatch import cancelled
from windlass._hooks.wraps import surround
from windlass.errors import raiser_of
from windlass.outcomes import error_value
from windlass.records import HookFailed
from windlass.states import State

from .contracts import Emit
from .model_calls import unasked

if TYPE_CHECKING:
    from .segment import Segment


async def drive(segment: Segment, emit: Emit | None = None) -> State:
    """Take a turn to its end, or to where it has to wait.

    The fold is the log so far; its state is made on demand.
    """
    fold, phases = segment.fold, segment.phases
    lifecycle, errors = phases.lifecycle, phases.errors
    try:
        segment.cancellation.enter()
        await lifecycle.start(fold)
        while fold.going:
            try:
                step = await phases.runner.run(fold)
                await phases.applier.apply(fold, step)
                if not phases.goes_on(fold) and fold.going:
                    await phases.resolver.resolve(fold, await phases.evaluator.evaluate(fold))
            except Exception as error:
                await errors.handle(error, fold)
            except asyncio.CancelledError:
                if cancelled():
                    raise
                await errors.handle(unasked(segment.program.model_name), fold)
            if emit is not None and fold.going:
                await emit(fold.state)
        return await lifecycle.finish(fold)
    except BaseException as error:
        return await lifecycle.failed(fold, error)


def drive_wrapped(segment: Segment, emit: Emit | None = None) -> Awaitable[State]:
    """The same inside the wraps of the turn, if there are any."""
    return _drive_in_wraps(segment, emit) if segment.site.hooks.turn_wraps else drive(segment, emit)


async def _drive_in_wraps(segment: Segment, emit: Emit | None) -> State:
    """A wrap that fails before the turn has begun fails the turn; what it does after the turn
    changes no outcome."""
    entered = False
    ended: State | None = None

    async def inside(_: object) -> State:
        nonlocal entered, ended
        entered = True
        ended = await drive(segment, emit)
        return ended

    try:
        await surround(segment.site.hooks.turn_wraps, inside, segment.site)(segment.site.turn)
    except BaseException as error:
        if not entered:
            return await segment.phases.lifecycle.failed(segment.fold, error)
        if ended is None or not isinstance(error, Exception):
            raise
        failed = HookFailed(
            raiser_of(error), "Turn", error_value(error), effect="the turn had ended"
        )
        segment.journal.record(failed)
        return await segment.journal.settle(segment.site.tasks)
    assert ended is not None
    return ended
