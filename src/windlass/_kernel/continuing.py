"""Does the turn go on? Criteria and hooks vote; the strictest vote wins whatever the order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from msgspec import Struct

from windlass._hooks.dispatch import Passage
from windlass.criteria import COUNTING, TOOLS_RAN, Limit, name_of, tools_ran, vote_on_step
from windlass.decisions import Vote
from windlass.errors import HookError
from windlass.events import Continuing
from windlass.outcomes import StopReason
from windlass.records import Evaluated
from windlass.states import Fold, State
from windlass.types import Criterion

from .program import Program
from .segment import Segment

_RANK = {vote: rank for rank, vote in enumerate(Vote)}
_TOOLS_RAN = [("tools_ran", TOOLS_RAN[1])]
_REQUEST, _FORBID, _COMPLETED = Vote.REQUEST, Vote.FORBID, StopReason.COMPLETED  # which Python 3.11 finds slowly
_FINISHED = {
    "length": StopReason.LENGTH,
    "content_filter": StopReason.CONTENT_FILTER,
    "refusal": StopReason.REFUSAL,
}
GO_ON = Evaluated(0, Vote.REQUEST, tuple(_TOOLS_RAN))


class Evaluator(Struct, frozen=True):
    """Collects the votes and records the strictest with the reasons of those who cast it."""

    segment: Segment

    async def evaluate(self, fold: Fold) -> Evaluated:
        segment = self.segment
        best: Vote | None = None
        reasons: list[tuple[str, str]] = []
        votes: Iterable[tuple[str, Any]] = segment.program.named_criteria
        if segment.hooks.continuing is not None:
            votes = [*votes, *await self._hooks(fold.state)]
        for name, criterion in votes:
            given = criterion if type(criterion) is Vote else _vote(name, criterion, fold)
            if given is not None:
                vote, why = given if type(given) is tuple else (given, "")
                if vote is best:
                    reasons.append((name, why))
                elif best is None or _RANK[vote] < _RANK[best]:
                    best, reasons = vote, [(name, why)]
        if best is _REQUEST and reasons == _TOOLS_RAN:
            if segment.listens:
                segment.fact(Evaluated, fold.steps, best, tuple(reasons))
            return GO_ON
        evaluated = Evaluated(fold.steps, best, tuple(sorted(reasons)))
        segment.record(evaluated)
        return evaluated

    async def _hooks(self, state: State) -> list[tuple[str, Any]]:
        point = self.segment.hooks.continuing
        assert point is not None
        passage = Passage(point, Continuing(state, self.segment.turn), self.segment, str(state.steps))
        await passage.rewrite()
        await passage.judge()
        return list(passage.answers)


def _vote(name: str, criterion: Criterion, fold: Fold) -> Any:
    """What one criterion votes. A state is made for those that need one: not for counters that are within limits."""
    if criterion is tools_ran:
        last = fold.last or (fold.turn.last if fold.turn is not None else None)
        return TOOLS_RAN if last is not None and last.calls else vote_on_step(fold.turn, last)
    if type(criterion) in COUNTING and criterion.exceeded(fold, fold.turn) is None:  # type: ignore[attr-defined]
        return None
    try:
        cast = criterion(fold.state)
    except Exception as error:
        raise HookError(f"criterion {name!r} failed: {type(error).__name__}: {error}", hook=name) from error
    given: tuple[object, ...] = cast if isinstance(cast, tuple) and len(cast) == 2 else (cast, "")
    if cast is not None and not (isinstance(given[0], Vote) and type(given[1]) is str):
        raise HookError(f"criterion {name!r} voted {cast!r}; it may vote a Vote, (Vote, reason) or None", hook=name)
    return cast


def cut_off(settings: Mapping[str, Any]) -> str:
    """What is said of a reply, or of a call in it, that had no more room."""
    limit = settings.get("max_tokens")
    named = "max_tokens is not set: the model's own limit holds" if limit is None else f"max_tokens={limit}"
    return f"was cut off at the limit of output tokens ({named})"


def reason_of(evaluated: Evaluated, program: Program, fold: Fold) -> tuple[StopReason, str]:
    """Why a turn stops: the strongest reason of those who forbade it, or how the model finished."""
    if evaluated.vote is _FORBID:
        detail = "; ".join(f"{name}: {why}" if why else name for name, why in evaluated.reasons)
        names = {name for name, _ in evaluated.reasons}
        limits = [c.reason for c in program.criteria if isinstance(c, Limit) and name_of(c) in names]
        return min(limits, key=lambda reason: reason.rank, default=StopReason.FORBIDDEN), detail
    last = fold.last or (fold.turn.last if fold.turn is not None else None)
    finish = last.reply.finish if last is not None and last.reply is not None else "stop"
    reason = _FINISHED.get(finish, _COMPLETED)
    if reason is StopReason.LENGTH:
        return reason, f"the reply {cut_off(program.settings)}"
    return reason, "" if reason is _COMPLETED else f"the model finished because of {finish!r}"
