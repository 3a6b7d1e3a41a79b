"""Compaction: planned by a strategy, judged by the hooks, then one record. Until that is written nothing changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from windlass._hooks.dispatch import Passage
from windlass.checking import checked_history, read_back
from windlass.context.assembly import instructions
from windlass.context.compaction import Compactor, Window, parted, safe_range
from windlass.decisions import Deny
from windlass.errors import CompactionError, ConfigError, ContextOverflow
from windlass.events import Compacting, Compaction
from windlass.messages import Message
from windlass.outcomes import error_value
from windlass.policies import category_of
from windlass.records import Compacted, ErrorHandled, HookFailed
from windlass.states import over, step_id
from windlass.turns import Asker, Host, Turn

from .segment import Segment
from .side_calls import Unrecorded
from .stages import decide

AGAIN = 1.1
"""A strategy that was not let, or gained nothing, is asked again when the context has grown by so much."""

RELIEF = 0.5
"""What is left of a request that was too large when no further strategy is asked."""


async def compact(segment: Segment) -> None:
    """Ask every strategy once, in their order."""
    window = window_of(segment)
    for compactor in segment.program.compactors:
        tried = segment.tried.get(compactor.name)
        if tried is not None and window.tokens < tried * AGAIN:
            segment.tried = {**segment.tried, compactor.name: min(tried, window.tokens)}
            continue
        plan = compactor.plan(window)
        if plan is None:
            continue
        about = f"{step_id(segment.fold.session, segment.fold.steps + 1)}/compact"
        try:
            made = await carry_out(segment, compactor, plan, window, about)
        except ConfigError:
            raise
        except Exception as error:  # the request may fit all the same: if it does not, `relieve` asks once more
            made = None
            segment.record(HookFailed(compactor.name, "Compacting", error_value(error), effect="not compacted"))
        segment.tried = {**segment.tried, compactor.name: window.tokens if made is None else 0}
        window = window_of(segment)


async def compact_now(segment: Segment, instructions: str) -> tuple[Compacted, ...]:
    """Ask every strategy once, due or not. What they replaced."""
    done: list[Compacted] = []
    for compactor in segment.program.compactors:
        made = await _forced(segment, compactor, "asked for", f"{segment.fold.session}/compact", instructions)
        done += [] if made is None else [made]
    return tuple(done)


async def relieve(segment: Segment, error: ContextOverflow) -> bool:
    """After a request that was too large: strategies are asked, due or not, until enough is gone. Once in a step.

    Whether it is worth another try.
    """
    number = segment.fold.steps + 1
    if not segment.program.compactors or segment.relieved == number:
        return False
    segment.relieved = number
    enough = window_of(segment).tokens * RELIEF
    about, reason = f"{step_id(segment.fold.session, number)}/overflow", "the request was too large for the model"
    done = False
    failed: Exception | None = None
    for compactor in segment.program.compactors:
        if not done or window_of(segment).tokens > enough:
            try:
                done = await _forced(segment, compactor, reason, about) is not None or done
            except Exception as raised:
                failed = failed or raised
    if failed is not None and not done:
        raise failed from error
    if done:
        by = "compaction"
        segment.record(ErrorHandled(error_value(error), category_of(error), "retry", by, number))
    return done


async def _forced(
    segment: Segment, compactor: Compactor, reason: str, about: str, instructions: str = ""
) -> Compacted | None:
    window = window_of(segment)
    plan = compactor.plan(window, forced=True)
    if plan is None:
        return None
    plan = _planned(compactor.name, plan)
    plan = plan.replace(instructions=instructions or plan.instructions, reason=reason)
    return await carry_out(segment, compactor, plan, window, about)


def prepare(segment: Segment) -> None:
    """The turn has ended: strategies may write ahead what will soon be due."""
    about = f"{segment.fold.session}/t{segment.fold.turns}/ahead"
    for compactor in segment.program.compactors:
        if (prepares := getattr(compactor, "prepare", None)) is not None:
            asker = Asker("Compacting", about, compactor.name, (compactor.name,), recorded=False)
            try:
                prepares(Turn(cast(Host, Unrecorded(segment)), asker=asker))
            except Exception as error:
                segment.record(HookFailed(compactor.name, "TurnEnded", error_value(error), effect="not prepared"))


def window_of(segment: Segment) -> Window:
    """What the next request would show, and how much room there is."""
    program, fold = segment.program, segment.fold
    assert segment.meter is not None
    messages = fold.shown
    system, tools = instructions(fold, program)
    tokens = segment.meter.theirs(segment.meter.ours(system, tools, messages), program.model_name)
    limit = program.budget.limit(program.model_name, program.settings)
    room = None if limit is None else max(limit - program.reserve, 0)
    meter, name = segment.meter, program.model_name
    going = not over(fold)
    return Window(
        fold.session, messages, fold.place, going, fold.compactions, tokens, room, meter, name, program.models
    )


async def carry_out(
    segment: Segment, compactor: Compactor, plan: Compaction, window: Window, about: str
) -> Compacted | None:
    """One compaction, as a whole or not at all: None if it was denied, if there is nothing to cut or to gain."""
    plan = _planned(compactor.name, plan)
    if (point := segment.hooks.compacting) is not None:
        passage = Passage(point, Compacting(plan, segment.turn), segment, f"{about}/{compactor.name}")
        plan = (await passage.rewrite()).plan
        if isinstance(await decide(segment, passage), Deny):
            return None
    found = safe_range(window.messages, *plan.range)
    if found is None:
        return None
    plan = plan.replace(range=found)
    given = await compactor.replace(plan, window, segment.turn_of(compactor.name, "Compacting", about))
    made = compacted(compactor.name, plan, window, given)
    if made is None:
        return None
    record = made.replace(at=0.0)
    segment.record(record)
    await segment.commit()
    return record


def _planned(name: str, plan: object) -> Compaction:
    """What a strategy plans, in its name."""
    try:
        if type(plan) is not Compaction:
            raise TypeError(f"expected a Compaction, got {type(plan).__name__}")
        made: Compaction = read_back(plan.replace(by=name), Compaction)
    except TypeError as error:
        raise CompactionError(f"compactor {name!r} gave an invalid plan; nothing was changed: {error}") from None
    return made


def compacted(name: str, plan: Compaction, window: Window, given: Sequence[Message]) -> Compacted | None:
    """The record of it, with what stays as numbers. Refused if it parts a pair; None if it is no smaller."""
    start, end = plan.range
    old = window.messages[start:end]
    try:
        given = checked_history(given, old)
    except TypeError as error:
        text = f"compactor {name!r} gave something that is no message; nothing was changed: {error}"
        raise CompactionError(text) from None
    numbers = {id(message): start + at for at, message in enumerate(old)}
    new: list[Message | int] = [numbers.get(id(message), message) for message in given]
    place = window.place
    if start <= place < end and window.stays(place) and place not in new:
        later = [at for at, message in enumerate(new) if isinstance(message, int) and message > place]
        new.insert(later[0] if later else len(new), place)
    shown = [window.messages[one] if isinstance(one, int) else one for one in new]
    if parted(old, shown):
        raise CompactionError(f"compactor {name!r} parted a call from its result; nothing was changed")
    before, after = window.size(old), window.size(shown)
    if after >= before:
        return None
    sizes = window.tokens, window.tokens - before + after
    return Compacted(plan.range, tuple(new), name, plan.reason, *sizes)
