"""The loop. There is no other: run, iterate, stream, resume and sub-agents all come through here."""

from __future__ import annotations

from windlass.states import State

from .composites import Emit
from .segment import Segment


async def drive(segment: Segment, state: State, emit: Emit | None = None) -> State:
    """Take a state to the end of its turn, or to where it has to wait. Every state is a fold of the log."""
    lifecycle, runner, applier = segment.lifecycle, segment.runner, segment.applier
    try:
        state = await lifecycle.start(state)
        while state.going:
            try:
                step = await runner.run(state)
                state = await applier.apply(state, step)
                if state.going:
                    state = await segment.resolver.resolve(state, await segment.evaluator.evaluate(state))
            except Exception as error:
                state = await segment.errors.handle(error, segment.state)
            if emit is not None and state.going:
                await emit(state)
        return await lifecycle.finish(state)
    except BaseException as error:
        return await lifecycle.failed(segment.state, error)
