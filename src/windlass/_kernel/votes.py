"""Does the turn go on, and may it stop?

Criteria and hooks vote; a stop may be vetoed, never without bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from windlass._hooks.compiled import Point
from windlass.criteria import (
    COUNTING,
    TOOLS_RAN,
    Limit,
    name_of,
    tools_ran,
    vote_on_step,
)
from windlass.decisions import Halt, Veto, Vote
from windlass.errors import HookError
from windlass.events import Continuing, Stopping, SubagentStopping
from windlass.messages import user
from windlass.outcomes import Completed, Stopped, StopReason
from windlass.records import Evaluated, ReplyPassed, StopVetoed
from windlass.states import Fold, State, step_id
from windlass.types import Criterion

from .inbox import Inbox
from .journal import Journal
from .program import Program
from .questions import Questions
from .site import Site
from .transcript import Transcript

_RANK = {vote: rank for rank, vote in enumerate(Vote)}
_TOOLS_RAN = [("tools_ran", TOOLS_RAN[1])]
_REQUEST, _FORBID, _COMPLETED = (
    Vote.REQUEST,
    Vote.FORBID,
    StopReason.COMPLETED,
)  # which Python 3.11 finds slowly
_FINISHED = {
    "length": StopReason.LENGTH,
    "content_filter": StopReason.CONTENT_FILTER,
    "refusal": StopReason.REFUSAL,
}
GO_ON = Evaluated(0, Vote.REQUEST, tuple(_TOOLS_RAN))


_CONTINUING_VOTES = (Vote.REQUEST, Vote.ALLOW)
_SUCCESS = Completed()


class Evaluator(Struct, eq=False):
    """Collects the votes and records the strictest, with the reasons of those that cast it.

    Until the turn has `_quick_below` steps, a step that called tools needs no vote: only `tools_ran`
    would speak.
    """

    _journal: Journal
    _site: Site
    _criteria: Sequence[tuple[str, Criterion]] = ()
    _point: Point | None = None
    _quick_below: int = 0
    _told: bool = False

    def __post_init__(self) -> None:
        self._criteria = self._journal.program.named_criteria
        self._point = self._site.hooks.at(Continuing)
        if self._point is None:
            self._quick_below = self._journal.program.steps_without_votes
        self._told = self._journal.audience.hears(Evaluated)

    def goes_on(self, fold: Fold) -> bool:
        """Whether the turn goes on without a vote: its latest step called tools, and only `tools_ran` would speak."""
        last, turn = fold.last, fold.turn
        if last is None or not last.calls or turn is None or turn.steps >= self._quick_below:
            return False
        if not fold.going:
            return False
        if self._told:
            self._tell_to_go_on(fold)
        return True

    async def evaluate(self, fold: Fold) -> Evaluated:
        if self.goes_on(fold):
            return GO_ON
        best: Vote | None = None
        reasons: list[tuple[str, str]] = []
        votes: list[tuple[str, Any]] = [*self._criteria]
        if self._point is not None:
            votes += await self._votes_of_hooks(self._point, fold.state)
        for name, criterion in votes:
            given: Any = criterion if type(criterion) is tuple else _vote(name, criterion, fold)
            if given is not None:
                vote, why = given if type(given) is tuple else (given, "")
                if vote is best:
                    reasons.append((name, why))
                elif best is None or _RANK[vote] < _RANK[best]:
                    best, reasons = vote, [(name, why)]
        if best is _REQUEST and reasons == _TOOLS_RAN:
            self._tell_to_go_on(fold)
            return GO_ON
        evaluated = Evaluated(fold.steps, best, tuple(sorted(reasons)))
        self._journal.record(evaluated)
        return evaluated

    def _tell_to_go_on(self, fold: Fold) -> None:
        """Tell of the usual vote, which is not written: tools were called."""
        self._journal.fact(Evaluated, fold.steps, _REQUEST, tuple(_TOOLS_RAN))

    async def _votes_of_hooks(self, point: Point, state: State) -> Iterable[tuple[str, Any]]:
        passage = self._site.passage(point, Continuing(state, self._site.turn), str(state.steps))
        await passage.rewrite()
        await passage.judge()
        reasons = dict(passage.reasons)
        return [(name, (vote, reasons.get(name, ""))) for name, vote in passage.answers]


class Resolver(Struct, frozen=True):
    """Decides about a stop. Hard limits, errors and cancels are never put to a veto.

    `above` are the hooks of the agent above this one, which may hold up the stop of a sub-agent. An
    `ephemeral` session ends with its turn, so it waits for agents in the background.
    """

    journal: Journal
    site: Site
    questions: Questions
    transcript: Transcript
    inbox: Inbox
    above: Point | None = None
    ephemeral: bool = False

    async def resolve(self, fold: Fold, evaluated: Evaluated) -> None:
        if evaluated is GO_ON:  # tools were called: the usual case
            return
        journal, program = self.journal, self.journal.program
        if evaluated.vote in _CONTINUING_VOTES:
            if (turn := fold.turn) is not None and turn.idle and turn.idle > program.max_idle_steps:
                detail = _idle_detail(evaluated, program.max_idle_steps)
                journal.conclude(Stopped(StopReason.NO_PROGRESS, detail))
            return
        reason, detail = reason_of(evaluated, program, fold)
        outcome = _SUCCESS if reason is _COMPLETED else Stopped(reason, detail)
        if reason.hard or not await self._held_up(fold, reason):
            journal.conclude(outcome)
        else:
            await journal.commit()

    async def _held_up(self, fold: Fold, reason: StopReason) -> bool:
        """Whether the turn does not simply stop: it was steered or cancelled, or a hook vetoes."""
        if await self.inbox.was_steered():
            self.journal.record(
                Evaluated(fold.steps, Vote.REQUEST, (("steering", "a message came in"),))
            )
            return True
        if not fold.going:
            return True
        if self.ephemeral and fold.background and await self.site.background.collect():
            why = (("background", "a result came in"),)
            self.journal.record(Evaluated(fold.steps, Vote.REQUEST, why))
            return True
        point = self.site.hooks.at(Stopping)
        if point is not None and await self._vetoed(fold, reason, point, Stopping):
            return True
        return self.above is not None and await self._vetoed(
            fold, reason, self.above, SubagentStopping
        )

    async def _vetoed(
        self, fold: Fold, reason: StopReason, point: Point, event: type[Stopping | SubagentStopping]
    ) -> bool:
        """Whether the turn does not simply stop: it goes on with feedback, or it was concluded
        here."""
        journal, turn = self.journal, fold.turn
        assert turn is not None
        about = f"{step_id(fold.session, fold.steps)}/stop"
        stopping: Any = event(reason, turn.vetoes > 0, self.site.turn)
        if event is SubagentStopping:
            stopping = replace(stopping, agent=journal.program.name)
        passage = self.site.passage(point, stopping, about)
        await passage.rewrite()
        verdict = await self.questions.decide(passage)
        if isinstance(verdict, Halt):
            journal.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
            return True
        if not isinstance(verdict, Veto):
            return False
        by = tuple(sorted(name for name, decision in passage.answers if isinstance(decision, Veto)))
        names = ", ".join(by)
        if verdict.limit is not None and turn.vetoes >= verdict.limit:
            journal.record(ReplyPassed(fold.steps, verdict.feedback, by))
            return False
        if turn.vetoes >= journal.program.max_vetoes:
            journal.conclude(
                Stopped(StopReason.VETO_CAP, f"{names} vetoed {turn.vetoes + 1} times")
            )
            return True
        journal.record(StopVetoed(reason.value, by, verdict.feedback))
        await self.transcript.add(user(verdict.feedback or "Go on.", origin=names), names)
        await self.transcript.add_held()
        return True


def _vote(name: str, criterion: Criterion, fold: Fold) -> Any:
    """What one criterion votes.

    A state is made for those that need one: not for counters that are within limits.
    """
    if criterion is tools_ran:
        return vote_on_step(
            fold.turn, fold.last or (fold.turn.last if fold.turn is not None else None)
        )
    if type(criterion) in COUNTING and criterion.exceeded(fold, fold.turn) is None:  # type: ignore[attr-defined]
        return None
    try:
        cast = criterion(fold.state)
    except Exception as error:
        raise HookError(
            f"criterion {name!r} failed: {type(error).__name__}: {error}", hook=name
        ) from error
    given: tuple[object, ...] = cast if isinstance(cast, tuple) and len(cast) == 2 else (cast, "")
    if cast is not None and not (isinstance(given[0], Vote) and type(given[1]) is str):
        raise HookError(
            f"criterion {name!r} voted {cast!r}; it may vote a Vote, (Vote, reason) or None",
            hook=name,
        )
    return cast


def cut_off(settings: Mapping[str, Any]) -> str:
    """What is said of a reply, or of a call in it, that had no more room."""
    limit = settings.get("max_tokens")
    named = (
        "max_tokens is not set: the model's own limit holds"
        if limit is None
        else f"max_tokens={limit}"
    )
    return f"was cut off at the limit of output tokens ({named})"


def reason_of(evaluated: Evaluated, program: Program, fold: Fold) -> tuple[StopReason, str]:
    """Why a turn stops: the strongest reason of those who forbade it, or how the model finished."""
    if evaluated.vote is _FORBID:
        detail = "; ".join(f"{name}: {why}" if why else name for name, why in evaluated.reasons)
        names = {name for name, _ in evaluated.reasons}
        limits = [
            c.reason for c in program.criteria if isinstance(c, Limit) and name_of(c) in names
        ]
        return min(limits, key=lambda reason: reason.rank, default=StopReason.FORBIDDEN), detail
    last = fold.last or (fold.turn.last if fold.turn is not None else None)
    finish = last.reply.finish if last is not None and last.reply is not None else "stop"
    reason = _FINISHED.get(finish, _COMPLETED)
    if reason is StopReason.LENGTH:
        return reason, f"the reply {cut_off(program.settings)}"
    return reason, "" if reason is _COMPLETED else f"the model finished because of {finish!r}"


def _idle_detail(evaluated: Evaluated, bound: int) -> str:
    votes = "; ".join(f"{name}: {why}" if why else name for name, why in evaluated.reasons)
    return (
        f"went on {bound} times in a row without a tool call (max_idle_steps), and again: {votes}"
    )
