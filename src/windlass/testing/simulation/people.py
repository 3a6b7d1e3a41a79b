"""The people of a simulation: they answer questions, in some order, in some way, sooner or later or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from random import Random
from typing import Any

from windlass.approvals import progress
from windlass.decisions import AnyResolution, Approve, Edit, Reject, Respond
from windlass.records import Asked
from windlass.testing.ways import agreeable

from .worlds import Stage

_WAITS = (60.0, 3_600.0, 86_400.0)


async def answers_to(world: Stage, waiting: Sequence[Asked]) -> dict[str, AnyResolution]:
    """What people answer to open questions, when they have answered. Some may be left open."""
    order = list(waiting)
    if len(order) > 1 and (first := world.draw("order", partial(_shuffle, len(order)))):
        known = [place for place in first if place < len(waiting)]
        order = [waiting[place] for place in dict.fromkeys((*known, *range(len(waiting))))]
    answers: dict[str, AnyResolution] = {}
    for asked in order:
        chosen: dict[str, Any] = world.draw("person", partial(_choose, world, asked)) or {}
        if world.calm:
            chosen = {}
        if waits := chosen.get("waits"):
            await asyncio.sleep(waits)
        if chosen.get("does") != "nothing":
            answers[asked.id] = _answer(world, asked, chosen)
    return answers


def _shuffle(count: int, random: Random) -> list[int] | None:
    """The order of the answers, if it is not that of the questions."""
    order = random.sample(range(count), count)
    return None if order == list(range(count)) else order


def _choose(world: Stage, asked: Asked, random: Random) -> dict[str, Any] | None:
    if not world.chances.unwilling(random):
        return None
    does = random.choice([*asked.allow, "nothing"])
    chosen: dict[str, Any] = {"does": does}
    if does == "edit" and asked.call is not None:
        spec = world.watcher.spec_of(asked.call.name) if world.watcher is not None else None
        chosen["arguments"] = dict(asked.call.arguments) if spec is None else world.speaker.arguments(random, spec)
    if random.random() < 0.3:
        chosen["waits"] = random.choice(_WAITS)
    return chosen


def _answer(world: Stage, asked: Asked, chosen: dict[str, Any]) -> AnyResolution:
    needed = progress(asked, world.now()).needed
    by = needed[0] if needed else None
    match chosen.get("does"):
        case "reject":
            return Reject("simulated: no", by)
        case "respond":
            return Respond("simulated: an answer", by)
        case "edit" if "arguments" in chosen:
            return Edit(chosen["arguments"], by)
        case "approve":
            return Approve(by)
        case _:
            return agreeable(asked)
