"""The loop. There is no other: run, iterate, stream, resume and sub-agents all come through here."""

from __future__ import annotations

from collections.abc import Awaitable

from windlass._hooks.wraps import surround
from windlass.states import State

from .composites import DONE, Emit, Given
from .segment import Segment


async def drive(segment: Segment, emit: Emit | None = None) -> State:
    """Take a turn to its end, or to where it has to wait. The fold is the log so far; its state is made on demand."""
    fold, lifecycle, runner, applier = segment.fold, segment.lifecycle, segment.runner, segment.applier
    evaluator, resolver = segment.evaluator, segment.resolver
    try:
        segment.enter()
        await lifecycle.start(fold)
        while fold.going:
            try:
                step = await runner.run(fold)
                if (applying := applier.apply(fold, step)) is not DONE:
                    await applying
                if fold.going:
                    evaluating = evaluator.evaluate(fold)
                    evaluated = evaluating.value if isinstance(evaluating, Given) else await evaluating
                    if (resolving := resolver.resolve(fold, evaluated)) is not DONE:
                        await resolving
            except Exception as error:
                await segment.errors.handle(error, fold)
            if emit is not None and fold.going:
                await emit(fold.state)
        return await lifecycle.finish(fold)
    except BaseException as error:
        return await lifecycle.failed(fold, error)


def drive_wrapped(segment: Segment, emit: Emit | None = None) -> Awaitable[State]:
    """The same inside the wraps of the turn, if there are any."""
    if wraps := segment.hooks.turn_wraps:
        return surround(wraps, lambda _: drive(segment, emit), segment)(segment.turn)
    return drive(segment, emit)
