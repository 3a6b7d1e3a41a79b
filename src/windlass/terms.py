"""How far a question is answered: whose approvals count, who is still needed, and what happens when time runs out.

Everything is computed from recorded answers and times, so no process has to be alive when a question expires or
escalates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from ._text import visible_id
from .decisions import AnyResolution, Approve, Ask, Edit, Stage
from .messages import Value
from .records import Answered, Asked, Terms


class Need(Value, frozen=True):
    """What the terms of one gate need now: `quorum` approvals by `people` (None: by anyone), of which some are there.

    `approved` names the people whose approvals count, and `met` says that the terms are met. Of terms with several
    stages, this is stage number `stage` of `stages`.
    """

    gate: str
    people: tuple[str, ...] | None
    quorum: int
    approved: tuple[str, ...] = ()
    met: bool = False
    stage: int = 1
    stages: int = 1

    def __str__(self) -> str:
        where = f"stage {self.stage} of {self.stages}: " if self.stages > 1 else ""
        by = f" ({', '.join(map(visible_id, self.approved))})" if any(self.approved) else ""
        text = f"{where}{len(self.approved)} of {self.quorum}{by}"
        if self.met:
            return text
        if self.people is None:
            return f"{text}, needs anyone"
        return f"{text}, needs {' or '.join([visible_id(name) for name in self.people if name not in self.approved])}"


class Standing(Value, frozen=True):
    """How far a question is answered at one moment.

    `status` is "open", or what follows from approvals and expired terms; `expired` says that it follows from the
    latter. `needs` has an item for the terms of each gate.
    """

    status: Literal["open", "approved", "rejected"]
    needs: tuple[Need, ...]
    expired: bool = False

    @property
    def approved(self) -> tuple[str, ...]:
        """The people whose approvals count."""
        return tuple(dict.fromkeys([name for need in self.needs for name in need.approved]))

    @property
    def needed(self) -> tuple[str, ...] | None:
        """The people of whom one may answer now; None if anyone may."""
        unmet = [need for need in self.needs if not need.met]
        names = [name for need in unmet for name in need.people or () if name not in need.approved]
        return None if any(need.people is None for need in unmet) else tuple(dict.fromkeys(names))

    def __str__(self) -> str:
        return "; ".join(map(str, self.needs))


def terms_of(asked: Asked) -> tuple[Terms, ...]:
    """The terms of a question. If one approval is enough, it has none of its own."""
    if asked.terms:
        return asked.terms
    stage = None if asked.approvers is None else Stage(asked.approvers)
    return (Terms("", (stage,), asked.at, asked.expires_at, asked.default),)


def terms_of_asks(asks: Sequence[tuple[str, Ask]], now: float) -> tuple[Terms, ...]:
    """The terms of the gates that ask; equal terms are kept once."""
    found: list[Terms] = []
    for name, ask in asks:
        expires_at = None if ask.expires is None else now + ask.expires
        terms = Terms("", stages_of(ask), now, expires_at, ask.default)
        if not any(terms == other.replace(by="") for other in found):
            found.append(terms.replace(by=name))
    return tuple(found)


def stages_of(ask: Ask) -> tuple[Stage | None, ...]:
    """Whose approvals an `Ask` requires, one stage after the other."""
    if ask.stages:
        return ask.stages
    return (None if ask.approvers is None else Stage(tuple(ask.approvers), ask.quorum, ask.escalate),)


def takes_one_approval(terms: Sequence[Terms]) -> bool:
    """Whether one person's approval is enough, whoever of the approvers that is."""
    [stage, *later] = [stage for one in terms for stage in one.stages]
    return not later and (stage is None or (stage.quorum == 1 and stage.escalate is None))


def people_of(terms: Sequence[Terms]) -> tuple[str, ...] | None:
    """Everyone whom the terms name from the start; None if some take anyone's approval."""
    stages = [stage for one in terms for stage in one.stages]
    if any(stage is None for stage in stages):
        return None
    return tuple(sorted({name for stage in stages if stage is not None for name in stage.approvers}))


# ---------------------------------------------------------------- where a question stands


def standing(asked: Asked, now: float) -> Standing:
    """How far a question is answered at a moment."""
    given = _given(asked)
    needs: list[Need] = []
    rejected = expired = False
    for terms in terms_of(asked):
        need, _ = _stage(terms, given, now)
        if not need.met and terms.expires_at is not None and now >= terms.expires_at:
            expired, rejected = True, rejected or terms.default != "approve"
            need = need.replace(met=terms.default == "approve")
        needs.append(need)
    status: Literal["open", "approved", "rejected"] = "open"
    if rejected or all(need.met for need in needs):
        status = "rejected" if rejected else "approved"
    return Standing(status, tuple(needs), expired and status != "open")


def next_change(asked: Asked, now: float) -> float | None:
    """When time alone changes where a question stands: it expires, or more people may answer. None if never.

    A question that has expired changes now.
    """
    if standing(asked, now).status != "open":
        return now
    moments: list[float | None] = []
    for terms in terms_of(asked):
        need, began = _stage(terms, _given(asked), now)
        stage = terms.stages[need.stage - 1]
        if not need.met:
            moments += [terms.expires_at, began + stage.escalate[0] if stage is not None and stage.escalate else None]
    return min([at for at in moments if at is not None and at > now], default=None)


def _given(asked: Asked) -> dict[str, float]:
    """Who has answered a question, and when."""
    given: dict[str, float] = {}
    for answered in asked.answers:
        given.setdefault(answered.by, answered.answered_at or answered.at)
    return given


def _stage(terms: Terms, given: dict[str, float], now: float) -> tuple[Need, float]:
    """The first stage that is not met, or the last one, and when it began: when the one before it was met."""
    began, count = terms.asked_at, len(terms.stages)
    need = Need(terms.by, None, 1)
    for number, stage in enumerate(terms.stages, 1):
        people, quorum, since = _people(stage, began, now)
        times = {name: max(at, since.get(name, at)) for name, at in given.items() if people is None or name in people}
        need = Need(terms.by, people, quorum, tuple(times), len(times) >= quorum, number, count)
        if not need.met or number == count:
            break
        began = max(began, sorted(times.values())[quorum - 1])
    return need, began


def _people(stage: Stage | None, began: float, now: float) -> tuple[tuple[str, ...] | None, int, dict[str, float]]:
    """Who may approve in a stage at a moment, how many must, and since when those who were added later may."""
    if stage is None:
        return None, 1, {}
    if stage.escalate is None or now < began + stage.escalate[0]:
        return stage.approvers, stage.quorum, {}
    after, added = stage.escalate
    new = [name for name in added if name not in stage.approvers]
    return (*stage.approvers, *new), stage.quorum, dict.fromkeys(new, began + after)


# ---------------------------------------------------------------- an answer


def refusal(asked: Asked, by: str, now: float) -> str:
    """Why a person may not answer a question now; empty if they may."""
    found = standing(asked, now)
    if found.status != "open":
        return "it has expired" if found.expired else "it has been answered already"
    needed, named = found.needed, people_of(terms_of(asked))
    if by and any(answered.by == by for answered in asked.answers):
        return f"{visible_id(by)} has answered it already; it stands at {found}"
    if needed is None or by in needed:
        return ""
    if named is not None and by not in named:
        return f"{by!r} may not answer it; approvers: {', '.join(map(visible_id, needed))}"
    return f"{by!r} cannot answer it now; it stands at {found}"


def with_answer(asked: Asked, answered: Answered) -> Asked:
    """The question after an answer that leaves it open. An edit replaces what is asked about: approvals lapse."""
    if answered.digest != asked.digest:
        return asked
    if isinstance(answered.answer, Edit) and asked.call is not None:
        call = asked.call.replace(arguments=answered.answer.arguments)
        if call.digest != asked.digest:
            proposed = asked.proposed or asked.call
            return asked.replace(call=call, digest=call.digest, answers=(answered,), proposed=proposed)
    return asked.replace(answers=(*asked.answers, answered))


def without_answers(asked: Asked) -> Asked:
    """The question as it was first asked."""
    if asked.proposed is not None:
        asked = asked.replace(call=asked.proposed, digest=asked.proposed.digest, proposed=None)
    return asked.replace(answers=()) if asked.answers else asked


def first_digest(asked: Asked) -> str:
    """The digest of what was first asked about."""
    return asked.digest if asked.proposed is None else asked.proposed.digest


def answer_to(asked: Asked, answer: AnyResolution, at: float, *, masked: bool = False) -> Answered:
    """An answer that may be given, as a record: partial if the question stays open."""
    answered = Answered(asked.id, answer, asked.digest, answer.by or "", asked.by, at=at, masked=masked)
    if not isinstance(answer, Approve | Edit) or standing(with_answer(asked, answered), at).status == "approved":
        return answered
    return answered.replace(partial=True)


def settled(asked: Asked, answered: Answered) -> Answered:
    """The answer that counts for what was first asked about: an edit that others have approved is that edit."""
    if asked.proposed is None:
        return answered
    if isinstance(answered.answer, Approve):
        answered = asked.answers[0].replace(expired=answered.expired, partial=False)
    return answered.replace(digest=asked.proposed.digest)
