"""Compaction: planned by a strategy, judged by the hooks, then one record. Until that is written nothing changes."""

from __future__ import annotations

from collections.abc import Sequence

from windlass._hooks.dispatch import Passage
from windlass.context.assembly import instructions
from windlass.context.compaction import Compactor, Window, safe_range
from windlass.decisions import Deny
from windlass.errors import CompactionError
from windlass.events import Compacting, Compaction
from windlass.messages import Message
from windlass.records import Compacted
from windlass.states import step_id

from .segment import Segment
from .stages import decide

AGAIN = 1.1
"""A strategy that could do nothing, or was not let, is asked again when the context has grown by so much."""


async def compact(segment: Segment) -> None:
    """Ask every strategy once, in their order."""
    for compactor in segment.program.compactors:
        window = window_of(segment)
        tried = segment.tried.get(compactor.name)
        if tried is not None and window.tokens < tried * AGAIN:
            continue
        plan = compactor.plan(window)
        if plan is not None and await carry_out(segment, compactor, plan, window) is None:
            segment.tried = {**segment.tried, compactor.name: window.tokens}


async def compact_now(segment: Segment, instructions: str) -> tuple[Compacted, ...]:
    """Ask every strategy once, due or not. What they replaced."""
    done: list[Compacted] = []
    for compactor in segment.program.compactors:
        window = window_of(segment)
        plan = compactor.plan(window, forced=True)
        if plan is not None:
            plan = plan.replace(instructions=instructions or plan.instructions, reason="asked for")
            made = await carry_out(segment, compactor, plan, window)
            done += [] if made is None else [made]
    return tuple(done)


def window_of(segment: Segment) -> Window:
    """What the next request would show, and how much room there is."""
    program, fold = segment.program, segment.fold
    assert segment.meter is not None
    messages = fold.shown
    system, tools = instructions(fold, program)
    tokens = segment.meter.tokens(system, tools, messages, program.model_name)
    limit = program.budget.limit(program.model_name, program.settings)
    room = None if limit is None else max(limit - program.reserve, 0)
    return Window(segment.state, messages, fold.place, tokens, room, segment.meter, program.model_name)


async def carry_out(segment: Segment, compactor: Compactor, plan: Compaction, window: Window) -> Compacted | None:
    """One compaction, as a whole or not at all: None if it was denied, or if there is nothing to cut."""
    plan = plan.replace(by=compactor.name)
    if (point := segment.hooks.compacting) is not None:
        about = f"{step_id(segment.fold.session, segment.fold.steps + 1)}/compact/{compactor.name}"
        passage = Passage(point, Compacting(plan, segment.turn), segment, about)
        plan = (await passage.rewrite()).plan
        if isinstance(await decide(segment, passage), Deny):
            return None
    found = safe_range(window.messages, *plan.range)
    if found is None:
        return None
    plan = plan.replace(range=found)
    given = await compactor.replace(plan, window, segment.turn_of(compactor.name))
    record = compacted(compactor.name, plan, window, given).replace(at=segment.clock.now())
    segment.record(record)
    segment.tried = {}
    await segment.commit()
    return record


def compacted(name: str, plan: Compaction, window: Window, given: Sequence[Message]) -> Compacted:
    """The record of it, with what stays as numbers. Refused if it is empty, parts a pair or is no smaller."""
    start, end = plan.range
    old = window.messages[start:end]
    if not all(isinstance(message, Message) for message in given):
        raise CompactionError(f"compactor {name!r} gave something that is no message")
    numbers = {id(message): start + at for at, message in enumerate(old)}
    new: list[Message | int] = [numbers.get(id(message), message) for message in given]
    if start <= window.place < end and not window.state.over and window.place not in new:
        new.append(window.place)
    shown = [window.messages[one] if isinstance(one, int) else one for one in new]
    if safe_range(shown, 0, len(shown)) != ((0, len(shown)) if shown else None):
        raise CompactionError(f"compactor {name!r} parted a call from its result; nothing was changed")
    before, after = window.size(old), window.size(shown)
    if after >= before:
        raise CompactionError(
            f"compactor {name!r} would replace about {before:,} tokens by {after:,}; nothing was changed"
        )
    sizes = window.tokens, window.tokens - before + after
    return Compacted(plan.range, tuple(new), name, plan.reason, *sizes)
