"""The answers with which a turn is resumed: from inboxes, from the caller, and from time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from windlass.approvals import answers_in, checked_answers, claim, stale_answer
from windlass.decisions import AnyResolution, Edit
from windlass.errors import StoreError
from windlass.records import Answered, Asked, InboxTaken, Suspended, TakenOver
from windlass.states import Fold
from windlass.terms import first_digest, takes_one_approval, terms_of, with_answer

from .arguments import changed_log
from .child_program import check_edit
from .inbox import Inbox
from .journal import Journal

if TYPE_CHECKING:
    from .segment import Segment

AnyAnswers: TypeAlias = Mapping[str, AnyResolution | Sequence[AnyResolution]]

_TRIES = 10
"""How often an answer is compared with those that others give meanwhile."""


async def read_answers(
    journal: Journal, inbox: Inbox, given: AnyAnswers
) -> tuple[list[InboxTaken], list[Answered]]:
    """The entries of the inbox, and all answers that count now: those in inboxes, those that the
    caller gave, and those of questions whose time has run out.

    `StaleAnswer` refuses what the caller gave if it does not count; then nothing is written. What
    counts is put into an inbox first, where it has to be the first to take its place: of two
    answers at the same time one is refused, also if time gives one of them. If that is one of
    several that the caller gave, those before it stay in the inbox, and count at the next resume.
    """
    counted: list[Answered] = []
    for _ in range(_TRIES):
        left = _without(given, inbox.claimed)
        taken, known, counted = await _answers_now(journal, inbox, left)
        many = sum([len(answers_in(answers)) for answers in left.values()])
        if await _claim(journal, inbox, taken, counted, many):
            return taken, known + counted
    why = "others are answering it, too; look at it again with session.approvals()"
    raise stale_answer(journal.fold.session, counted[0].id, why)


async def _claim(
    journal: Journal,
    inbox: Inbox,
    taken: list[InboxTaken],
    answers: Sequence[Answered],
    by_caller: int,
) -> bool:
    """Put answers into inboxes: first those of the caller, then those that are due. Whether each
    could take its place; if not, others have answered since the inboxes were read.

    The session is claimed first: a pass that another one outruns must leave no answer behind.
    """
    if answers:
        await journal.begin()
    session, program = journal.fold.session, journal.program
    mask, fits = None if journal.mask is None else journal.mask.plain, partial(check_edit, program)
    for index, answered in enumerate(answers):
        place = await claim(
            program.store,
            session,
            answered,
            now=answered.at,
            mask=mask,
            fits=fits,
            due=index >= by_caller,
        )
        if place is None:
            return False
        holder, key = place
        if key:
            inbox.claimed = (*inbox.claimed, answered)
        if key and holder == session:
            taken.append(InboxTaken(key, "answer"))
    return True


def _without(given: AnyAnswers, claimed: Sequence[Answered]) -> AnyAnswers:
    """The answers that the caller gave, without those that have their place: they are the first."""
    if not claimed:
        return given
    ids = [answered.id for answered in claimed]
    left = {ask_id: answers_in(answers)[ids.count(ask_id) :] for ask_id, answers in given.items()}
    return {ask_id: answers for ask_id, answers in left.items() if answers}


async def _answers_now(
    journal: Journal, inbox: Inbox, given: AnyAnswers
) -> tuple[list[InboxTaken], list[Answered], list[Answered]]:
    """The entries of the inbox, the answers in inboxes, and the others that count: the caller's
    first."""
    now = journal.now()  # before the inbox is read: an answer that came until then is known
    waiting = journal.fold.turn.waiting if journal.fold.turn is not None else ()
    taken, known = await inbox.answers() if journal.has_mail or waiting else ([], [])
    session, mask = journal.fold.session, journal.mask
    questions = {asked.id: asked for asked in waiting}
    for answered in known:
        asked = questions.pop(answered.id)
        if answered.partial:
            questions[asked.id] = with_answer(asked, answered if mask is None else mask(answered))
        if answered.id in given:
            _check_unchanged(session, answered, given[answered.id])
    fits = partial(check_edit, journal.program)
    claimed = {(answered.id, answered.by): answered for answered in inbox.claimed}
    known = [claimed.get((answered.id, answered.by), answered) for answered in known]
    return taken, known, checked_answers(session, list(questions.values()), given, now, fits, mask)


def _check_unchanged(
    session: str, known: Answered, given: AnyResolution | Sequence[AnyResolution]
) -> None:
    """Raise if the caller answers a question that is answered in an inbox, or that was edited there
    when the caller could not know it."""
    if not known.partial:
        raise stale_answer(session, known.id, "it has been answered already")
    first = next(iter(answers_in(given)), None)
    if isinstance(known.answer, Edit) and getattr(first, "digest", None) is None:
        text = (
            f"{known.by!r} has edited the call since the turn was suspended; look at it again with"
        )
        raise stale_answer(
            session, known.id, f"{text} session.approvals(), and give digest=asked.digest"
        )


async def take_partial_answers(segment: Segment) -> bool:
    """Record answers that leave every question open. Whether that is all there is to do: then the
    turn stays suspended, and no hook runs.

    If there is anything else, such as a cancel in the inbox, nothing is recorded here.
    """
    fold, journal, inbox = segment.fold, segment.journal, segment.inbox
    turn = fold.turn
    if turn is None or not isinstance(turn.outcome, Suspended):
        return False
    if all(takes_one_approval(terms_of(asked)) for asked in turn.waiting):
        return False
    try:
        check_digests(fold)
    except StoreError:  # the turn ends with it
        return False
    entries = await journal.program.store.inbox(fold.session, fold.inbox)
    if any(kind != "answer" for _, kind, _ in entries):
        return False
    taken, answers = await read_answers(journal, inbox, segment.entry.answers)
    if not answers or not all(answered.partial for answered in answers):
        return False
    if segment.entry.took_over:
        journal.record(TakenOver(segment.entry.took_over))
    for answered in answers:
        segment.site.arguments.hold_edit(answered)
        journal.record_answer(answered)
    for record in taken:
        journal.record(record)
    segment.questions.suspend()
    await segment.settle()
    return True


def check_digests(fold: Fold) -> None:
    """Raise if the arguments of an open call are not those of its verdict or of its question.

    Nothing is written before that: an answer stays in the inbox.
    """
    calls = fold.open.calls if fold.open is not None else {}
    for call in calls.values():
        decided = call.decided
        if call.result is not None or decided is None or not decided.digest:
            continue
        if call.call.digest != decided.digest:
            raise changed_log(fold.session, call.call.id, call.call.name)
    for asked in fold.turn.waiting if fold.turn is not None else ():
        _check_digest(fold, asked)


def _check_digest(fold: Fold, asked: Asked) -> None:
    about = fold.open.calls.get(asked.id) if fold.open is not None else None
    decided = None if about is None else about.decided
    if asked.call is not None and asked.call.digest != asked.digest:
        raise changed_log(fold.session, asked.call.id, asked.call.name)
    if decided is not None and decided.digest != first_digest(asked):
        raise changed_log(fold.session, decided.call, decided.name)
