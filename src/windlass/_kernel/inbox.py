"""What comes from outside: steering, answers, cancels.

Only the owner of the session moves it into the log.
"""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import Struct

from windlass._hooks.readers import SKIPPED
from windlass.approvals import answer_of, check_answer
from windlass.errors import StaleAnswer
from windlass.messages import Message, as_message
from windlass.outcomes import Cancelled
from windlass.protocols import Store
from windlass.records import Answered, CancelRequested, HookFailed, InboxTaken, MessageHeld
from windlass.states import Fold, children_at_work, fold_in_slices

from .journal import Journal
from .transcript import Transcript


class Inbox(Struct, eq=False):
    """The inbox of a session, during one pass."""

    _journal: Journal
    _transcript: Transcript

    async def take(self) -> bool:
        """Move entries into the log: steering becomes a message, a cancel ends the turn that it was
        meant for.

        Whether a message was added. Entries that come after this are announced by the next commit.
        An entry of another kind is taken and has no effect: otherwise it would end every turn from
        here on.
        """
        journal, added = self._journal, False
        journal.take_mail()
        for key, kind, data in await journal.program.store.take(
            journal.fold.session, journal.fold.inbox
        ):
            taken = InboxTaken(key, kind)
            if kind == "steer" and (message := _steering(data)) is not None:
                added = await self._add(taken, message) or added
            else:
                journal.record(taken)
            if kind == "answer" and (answered := matching_answer(journal, data)) is not None:
                journal.record_answer(answered)
            if kind == SKIPPED and (failed := _failed(data)) is not None:
                journal.record(failed)
            if kind == "cancel" and (reason := cancel_reason(journal.fold, data)) is not None:
                journal.record(CancelRequested(reason))
                journal.conclude(Cancelled(reason))
        return added

    async def was_steered(self) -> bool:
        """Take the inbox if there is something in it: whether the turn got a message and should go
        on."""
        return self._journal.has_mail and await self.take()

    async def _add(self, taken: InboxTaken, message: Message) -> bool:
        """Steering enters at once, or after the step that is open: a call and its result must stay
        together.

        That it was taken is recorded together with the message, so that no crash comes between
        them.
        """
        if self._journal.fold.open is None:
            return await self._transcript.add(message, "steering", taken)
        self._journal.record(taken)
        self._journal.record(MessageHeld(message, "steering"))
        return True

    async def answers(self) -> tuple[list[InboxTaken], list[Answered]]:
        """The answers in this inbox, or in that of an agent below whose question is open here, too.

        An answer that matches no open question has no effect.
        """
        journal, store = self._journal, self._journal.program.store
        entries = [
            entry
            for entry in await store.take(journal.fold.session, journal.fold.inbox)
            if entry[1] == "answer"
        ]
        given = [
            data for kind, data in await entries_below(store, journal.fold) if kind == "answer"
        ]
        matching: dict[str, Answered] = {}
        for data in (*given, *[data for _, _, data in entries]):
            if (answered := matching_answer(journal, data)) is not None:
                matching.setdefault(answered.id, answered)
        return [InboxTaken(key, kind) for key, kind, _ in entries], list(matching.values())


async def entries_below(store: Store, fold: Fold) -> list[tuple[str, Any]]:
    """The answers and cancels in the inboxes of agents below that wait for a person: their kinds
    and contents.

    Those of the lowest agent come first: the agent that asks a question is answered first.
    """
    found: list[tuple[str, Any]] = []
    for started in children_at_work(fold):
        session = started.session
        child = await fold_in_slices(session, await store.read(session))
        if child.turn is not None and child.turn.waiting:
            found += await entries_below(store, child)
            entries = await store.take(session, child.inbox)
            found += [(kind, data) for _, kind, data in entries if kind in ("answer", "cancel")]
    return found


def matching_answer(journal: Journal, data: Any) -> Answered | None:
    """An answer from outside as a record, if it matches an open question.

    It counts if it was given before its question expired, by the giver's clock, or is read before
    that, by ours; in either case until the question's default is recorded.
    """
    try:
        ask_id, digest, answer, at = answer_of(data)
    except (
        AttributeError,
        KeyError,
        TypeError,
        msgspec.ValidationError,
    ):  # the entry is not an answer
        return None
    turn = journal.fold.turn
    waiting = turn.waiting if turn is not None else ()
    asked = next(
        (asked for asked in waiting if asked.id == ask_id and asked.digest == digest), None
    )
    if asked is None:
        return None
    given = min(at, journal.now())
    try:
        answer = check_answer(journal.fold.session, asked, answer, given)
    except StaleAnswer:
        return None
    masked = data.get("masked") is True
    return Answered(ask_id, answer, digest, answer.by or "", asked.by, at=given, masked=masked)


def cancel_reason(fold: Fold, data: Any) -> str | None:
    """Why the turn is cancelled; None if the cancel is for another turn, which is over.

    A text is for any turn.
    """
    if not isinstance(data, dict):
        return str(data)
    return str(data.get("reason", "")) if data.get("turn") == fold.turns else None


def _failed(data: Any) -> HookFailed | None:
    """A fact that a durable observer failed on while no turn was at work."""
    try:
        return msgspec.convert(data, HookFailed)
    except msgspec.ValidationError:
        return None


def _steering(data: Any) -> Message | None:
    """The message that steers the turn; None if it is not a message of a user."""
    try:
        message = msgspec.convert(data, Message) if isinstance(data, dict) else as_message(data)
    except (TypeError, msgspec.ValidationError):
        return None
    return message if message.role == "user" else None
