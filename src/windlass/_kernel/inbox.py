"""What comes from outside: steering, answers, cancels, results of agents in the background.

Only the owner of the session moves it into the log.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct

from windlass._hooks.conceals import concealed_answered
from windlass._hooks.runs import SKIPPED
from windlass.errors import StaleAnswer
from windlass.messages import Message, Usage, as_message, user
from windlass.outcomes import Cancelled
from windlass.ownership import QUEUED
from windlass.protocols import Store
from windlass.records import (
    Answered,
    Asked,
    CancelRequested,
    Charged,
    HookFailed,
    InboxTaken,
    MessageHeld,
    Record,
)
from windlass.states import BACKGROUND, Fold, children_at_work, fold_in_slices
from windlass.terms import with_answer

from .child_program import check_edit
from .journal import Journal
from .transcript import Transcript

log = logging.getLogger("windlass")


class Inbox(Struct, eq=False):
    """The inbox of a session, during one pass.

    `claimed` are the caller's answers that have their place in an inbox, as the caller gave them:
    the entries are without secrets.
    """

    _journal: Journal
    _transcript: Transcript
    claimed: tuple[Answered, ...] = ()

    async def take(self) -> bool:
        """Move entries into the log: steering becomes a message, a cancel ends the turn that it was
        meant for.

        Whether a message was added. Entries that come after this are announced by the next commit.
        A queued message waits for a turn of its own. An entry of another kind is taken and has no
        effect: otherwise it would end every turn from here on.
        """
        journal, added = self._journal, False
        journal.take_mail()
        for key, kind, data in await journal.program.store.inbox(
            journal.fold.session, journal.fold.inbox
        ):
            if kind.startswith(QUEUED):
                continue
            taken = InboxTaken(key, kind)
            if kind == "steer" and (message := steering_message(data)) is not None:
                added = await self._add(message, "steering", taken) or added
            elif kind == BACKGROUND and (result := background_result(journal.fold, data)):
                records = (taken, Charged("", result.session, result.usage))
                added = await self._add(result.message(), result.agent, *records) or added
            else:
                journal.record(taken)
            if kind == "answer" and (answered := answer_in(journal, data)) is not None:
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

    async def take_charges(self) -> None:
        """At the end of a session: what its background children have spent. Nobody reads their
        results any more."""
        journal = self._journal
        for key, kind, data in await journal.ask_store(
            journal.program.store.inbox(journal.fold.session, journal.fold.inbox)
        ):
            if kind == BACKGROUND and (result := background_result(journal.fold, data)):
                journal.record(InboxTaken(key, kind))
                journal.record(Charged("", result.session, result.usage))

    async def _add(self, message: Message, by: str, *taken: Record) -> bool:
        """A message enters at once, or after the step that is open: a call and its result must stay
        together.

        That it was taken is recorded together with the message, so that no crash comes between
        them.
        """
        if self._journal.fold.open is None:
            return await self._transcript.add(message, by, *taken)
        for record in taken:
            self._journal.record(record)
        self._journal.record(MessageHeld(message, by))
        return True

    async def answers(self) -> tuple[list[InboxTaken], list[Answered]]:
        """The answers in this inbox, or in that of an agent below whose question is open here, too.

        An answer that matches no open question has no effect.
        """
        journal, store = self._journal, self._journal.program.store
        entries = [
            entry
            for entry in await store.inbox(journal.fold.session, journal.fold.inbox)
            if entry[1] == "answer"
        ]
        given = [
            data for kind, data in await entries_below(store, journal.fold) if kind == "answer"
        ]
        turn, mask = journal.fold.turn, journal.mask
        questions = {asked.id: asked for asked in turn.waiting} if turn is not None else {}
        counted: list[Answered] = []
        for data in (*given, *[data for _, _, data in entries]):
            if (answered := _answer_to(questions, journal, data)) is not None:
                counted.append(answered)
                asked = questions.pop(answered.id)
                if answered.partial:
                    shown = answered if mask is None else mask(answered)
                    questions[asked.id] = with_answer(asked, shown)
        return [InboxTaken(key, kind) for key, kind, _ in entries], counted

    async def cancels(self) -> tuple[list[InboxTaken], str | None]:
        """The cancels in this inbox, and why the turn is cancelled; None if it is not."""
        journal = self._journal
        entries = await journal.program.store.inbox(journal.fold.session, journal.fold.inbox)
        found = [entry for entry in entries if entry[1] == "cancel"]
        reasons = [cancel_reason(journal.fold, data) for _, _, data in found]
        reason = next((reason for reason in reasons if reason is not None), None)
        return [InboxTaken(key, kind) for key, kind, _ in found], reason

    async def entries_settled_by(self, delivered: Sequence[Answered]) -> list[InboxTaken]:
        """The entries with answers to questions that are settled by answers from above, or that are
        not open. The others are read when the turn has gone on."""
        journal, turn = self._journal, self._journal.fold.turn
        waiting = {asked.id for asked in turn.waiting} if turn is not None else set[str]()
        open_ids = waiting - {answered.id for answered in delivered}
        return [
            InboxTaken(key, kind)
            for key, kind, data in await journal.program.store.inbox(
                journal.fold.session, journal.fold.inbox
            )
            if kind == "answer" and not (isinstance(data, dict) and data.get("id") in open_ids)
        ]


class BackgroundResult(Struct, frozen=True):
    """What a background child puts into the inbox of its parent when it has ended."""

    session: str
    agent: str
    text: str
    usage: Usage

    def message(self) -> Message:
        """What the parent's model reads of it."""
        text = f"Result of background task {self.session} (agent {self.agent!r}):\n{self.text}"
        return user(text, origin=self.agent)


def background_result(fold: Fold, data: Any) -> BackgroundResult | None:
    """An entry as the result of a child at work; None if it is not one, or was taken before."""
    try:
        result = msgspec.convert(data, BackgroundResult)
    except msgspec.ValidationError:
        return None
    at_work = [child.started.session for child in fold.background if not child.taken]
    return result if result.session in at_work else None


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
            entries = await store.inbox(session, child.inbox)
            found += [(kind, data) for _, kind, data in entries if kind in ("answer", "cancel")]
    return found


def answer_in(journal: Journal, data: Any) -> Answered | None:
    """An entry as the answer to an open question; None if it is not one that counts."""
    turn = journal.fold.turn
    return _answer_to(
        {asked.id: asked for asked in turn.waiting} if turn is not None else {}, journal, data
    )


def _answer_to(questions: dict[str, Asked], journal: Journal, data: Any) -> Answered | None:
    asked = questions.get(str(data.get("id"))) if isinstance(data, dict) else None
    if asked is None:
        return None
    from windlass.approvals import matching_answer

    fits = partial(check_edit, journal.program)
    try:
        found = matching_answer(journal.fold.session, asked, data, journal.now(), fits)
        return None if found is None else concealed_answered(journal.program.conceals, found)
    except StaleAnswer as stale:
        log.info("an answer does not count: %s", stale)
        return None


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


def steering_message(data: Any) -> Message | None:
    """The message that steers the turn; None if it is not a message of a user."""
    try:
        message = msgspec.convert(data, Message) if isinstance(data, dict) else as_message(data)
    except (TypeError, msgspec.ValidationError):
        return None
    return message if message.role == "user" else None
