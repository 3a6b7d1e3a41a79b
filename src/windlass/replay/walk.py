"""Walks along the log of one session and has everything judged again that was judged then.

A record tells how far the turn is: before it is folded, all that comes earlier in the lifecycle is judged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from windlass._kernel.step import has_begun
from windlass.context.assembly import assemble
from windlass.context.replay import NOT_KNOWN, Call, Description, requests
from windlass.decisions import Answer, Ask, Deny, Halt
from windlass.events import (
    Compacting,
    Compaction,
    MessageAdding,
    ModelCalling,
    ModelReplying,
    Resuming,
    SessionStarting,
    Setup,
    StepEnding,
    StepStarting,
    TurnEnding,
    TurnStarting,
)
from windlass.messages import Message, ModelRequest
from windlass.outcomes import Cancelled, Failed, StopReason
from windlass.records import (
    Answered,
    Asked,
    CancelRequested,
    Charged,
    Compacted,
    Concluded,
    Delegated,
    ErrorHandled,
    Evaluated,
    HistoryImported,
    HookDecided,
    HookFailed,
    HooksRan,
    InboxTaken,
    Injected,
    MessageAdded,
    MessageHeld,
    ModelAttempted,
    ModelReplied,
    Noted,
    Record,
    ReplyPassed,
    ReplyRejected,
    Resumed,
    Rewritten,
    SessionOpened,
    SideReplied,
    SlotSet,
    StepEnded,
    StopVetoed,
    Suspended,
    ToolCalled,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    TurnStarted,
)
from windlass.states import FOLDS, Fold, broken_log

from .calls import CallJudge
from .findings import SessionReplay
from .judge import NOT_KEPT, SECRET, Judge, about_reply, about_request
from .plans import Plan
from .sites import ReadLog, RecordedAnswers, RecordedSite
from .votes import VoteJudge

_OF_CALLS = frozenset(
    [
        ToolDecided,
        HookDecided,
        HookFailed,
        Rewritten,
        SlotSet,
        Injected,
        SideReplied,
        Noted,
        Asked,
        HooksRan,
    ]
)
"""The records among which the calls of one step are decided."""


_ON_THE_WAY = frozenset(
    [
        Answered,
        Asked,
        Charged,
        Delegated,
        HookFailed,
        InboxTaken,
        MessageHeld,
        Noted,
        Rewritten,
        SideReplied,
        SlotSet,
        Suspended,
    ]
)
"""The records that hooks leave at an event before its gates have decided."""


class Walk:
    """One session on its way through a replay. `written` are hooks whose recorded writes do not count, by name and
    event: they are asked again, or are gone."""

    def __init__(
        self,
        plan: Plan,
        session: str,
        records: Sequence[Record],
        scope: Any,
        read: ReadLog,
        known: Mapping[str, Description],
        written: frozenset[tuple[str, str]],
    ) -> None:
        self.fold = Fold(session)
        site = RecordedSite(plan.program, self.fold, scope, RecordedAnswers(records), read)
        self.judge = Judge(plan, site, records, known)
        self.calls = CallJudge(self.judge)
        self.votes = VoteJudge(self.judge)
        self._plan = plan
        self._turn = site.turn
        self._records = records
        self._known = known
        self._written = written
        self._requests: dict[tuple[int, int, int], Call] | None = None
        self._opened: SessionOpened | None = None
        self._started: TurnStarted | None = None
        self._begun = 0
        self._failed = self._responded = self._withheld = self._unreviewed = False
        self._masked = self._superseded = False
        self._texts: dict[str, str] = {}
        self._changed: dict[str, dict[str, Any]] = {}

    async def run(self) -> SessionReplay:
        """The whole way, or up to the step of the first difference."""
        fold, judge, clock = self.fold, self.judge, self._plan.clock
        for number, record in enumerate(self._records, 1):
            kind = type(record)
            clock.at = record.at
            if judge.among_calls and kind not in _OF_CALLS:
                break
            if self._started is not None and kind is not InboxTaken and not _is_callers(record):
                judge.number = number
                died = kind is Resumed or (kind in _ON_THE_WAY and self._died_here())
                await self._begin_turn(self._started, goes_on=not died)
            if (before := _BEFORE.get(kind)) is not None and not judge.is_over():
                judge.number = number
                await before(self, record)
            if judge.is_over():
                break
            if kind is not SlotSet or not self._is_written_again(record):
                try:
                    FOLDS[kind](fold, record)
                except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
                    raise broken_log(fold.session, number, error) from error
            fold.stored += 1
            fold.at = record.at
            if (after := _AFTER.get(kind)) is not None:
                judge.number = number
                await after(self, record)
                if judge.is_over():
                    break
        return judge.found

    def _is_written_again(self, record: Any) -> bool:
        event, _, _ = record.stage.partition(":")
        return bool(event) and (record.by, event) in self._written

    # ------------------------------------------------------------ the session and the turn

    async def open_session(self, record: Any) -> None:
        """A new session: its hooks are asked when its turn has begun."""
        if record.how == "new":
            self._opened = record

    async def start_turn(self, record: Any) -> None:
        """A turn has begun: its hooks are asked once the caller's slots are set."""
        self.votes.begin_turn()
        self._started, self._begun = record, 0
        self._failed = self._responded = self._unreviewed = False
        self._texts, self._changed = {}, {}

    async def _begin_turn(self, started: TurnStarted, *, goes_on: bool) -> None:
        """The turn has begun, and the process has gone on with it, or died."""
        self._started = None
        opened, self._opened = self._opened, None
        judge, turn, session = self.judge, self._turn, self.fold.session
        if opened is not None:
            await judge.judge(SessionStarting, session, lambda: SessionStarting(self._setup(opened), turn))
        if goes_on and not judge.is_over():
            lack = NOT_KEPT if started.withheld else SECRET if started.masked else ""
            await self._let_in(f"{session}/t{started.turn}", started.message, lack)

    async def _let_in(self, about: str, message: Message, lack: str = "") -> None:
        """The verdicts on the message that opens a turn. It is only at the door if it is not refused, and nobody is
        asked about it."""
        judge, turn = self.judge, self._turn
        await judge.judge(TurnStarting, about, lambda: TurnStarting(message, turn), lack)
        if not judge.is_over() and not isinstance(judge.holds(TurnStarting, about).verdict, Ask | Halt):
            await judge.judge(MessageAdding, f"{about}/message", lambda: MessageAdding(message, turn), lack)

    async def let_in_again(self) -> None:
        """The message of a turn that was resumed before it was let in."""
        turn = self.fold.turn
        if turn is not None and self._started is None and not turn.admitted and self.fold.going:
            await self._let_in(f"{self.fold.session}/t{turn.number}", turn.message)

    def _setup(self, opened: SessionOpened) -> Setup:
        setup = self._plan.setup
        system = setup.system if opened.system is None else opened.system
        return Setup(system, setup.tools if opened.tools is None else opened.tools)

    async def end_turn(self, record: Any = None) -> None:
        """The turn is about to end."""
        await self.votes.stop()
        turn = self.fold.turn
        if turn is None or turn.concluded is None or self.judge.is_over():
            return
        outcome, judge = turn.concluded, self.judge
        about = f"{self.fold.session}/t{turn.number}/end"
        text = self._texts.get(about)
        text = self.fold.state.text if text is None else text
        await judge.judge(TurnEnding, about, lambda: TurnEnding(outcome, text, self._turn))
        held = judge.holds(TurnEnding, about).verdict
        if isinstance(held, Answer) and not judge.is_over():
            words = self._texts.get(f"{about}/response", str(held.value))
            ending = partial(TurnEnding, outcome, words, self._turn)
            await judge.judge(TurnEnding, f"{about}/response", ending, settled=judge.asked_at("TurnEnding", about))

    async def resume(self, record: Any = None) -> None:
        """A suspended turn goes on. One that only ends is not asked about."""
        fold, turn = self.fold, self.fold.turn
        self._superseded = type(record) is Resumed and self._ends_for_another_message()
        if (
            turn is not None
            and isinstance(turn.outcome, Suspended)
            and not self._superseded
            and not self._is_cancelled()
        ):
            about, drift = f"{fold.session}/t{turn.number}/resume", getattr(record, "drift", ())
            await self.judge.judge(Resuming, about, lambda: Resuming(fold.state, self._turn, drift))

    def _is_cancelled(self) -> bool:
        """Whether the turn was cancelled while it was suspended, and is resumed only for that."""
        following = self._records[self.judge.number : self.judge.number + 4]
        told = any(isinstance(record, InboxTaken) and record.entry == "cancel" for record in following)
        return told and isinstance(following[0], CancelRequested)

    def _ends_for_another_message(self) -> bool:
        """Whether a suspended turn is resumed only to end, since the user has sent another message."""
        turn, following = self.fold.turn, self._records[self.judge.number :]
        if turn is None or not isinstance(turn.outcome, Suspended) or not following:
            return False
        if turn.concluded is None:
            first = following[0]
            return isinstance(first, Concluded) and getattr(first.outcome, "reason", None) is StopReason.SUPERSEDED
        ends = (at for at, record in enumerate(following) if isinstance(record, TurnEnded | Suspended | Resumed))
        match following[next(ends, len(following)) :][:2]:
            case [TurnEnded(), TurnStarted()]:
                return self.judge.questions.answer_to(f"{self.fold.session}/t{turn.number}/end") is None
            case _:
                return False

    async def go_on(self, record: Any) -> None:
        """A turn goes on in another pass: what it had not done is judged again, once the log shows that it was."""
        fold, step = self.fold, self.fold.open
        self.judge.resume(superseded=self._superseded)
        self.calls.resume()
        self.votes.resume()
        self._responded = False
        if step is None and not has_begun(fold):
            self._begun = 0
        if step is not None and step.reply is not None:
            self._unreviewed = not any(call.decided for call in step.calls.values())

    async def suspend(self, record: Any) -> None:
        """The turn waits: what was to be judged again has been."""
        if self._unreviewed:
            await self.review()
        if not self.judge.is_over():
            await self.calls.decide_again()

    async def import_history(self, record: Any) -> None:
        """Messages from elsewhere enter, unless another program let them in."""
        opened = next((one for one in self._records if isinstance(one, SessionOpened)), None)
        if opened is None or opened.agent != record.agent or record.withheld:
            return
        for number, message in enumerate(record.messages, 1):
            place, lack = f"{self.fold.session}/m{number}", SECRET if record.masked else ""
            if not self.judge.is_over():
                await self.judge.judge(MessageAdding, place, partial(MessageAdding, message, self._turn), lack)

    async def enter(self, record: Any) -> None:
        """A message that is not part of a step enters. The user's was judged when the turn began."""
        if record.message is None:
            await self.let_in_again()
        else:
            place, lack = f"{self.fold.session}/m{len(self.fold.messages) + 1}", SECRET if record.masked else ""
            await self.judge.judge(MessageAdding, place, lambda: MessageAdding(record.message, self._turn), lack)

    async def conclude(self, record: Any) -> None:
        """The outcome is decided, or a stop was vetoed."""
        if isinstance(getattr(record, "outcome", None), Cancelled | Failed):
            self.votes.forget()
        await self.votes.stop()

    # ------------------------------------------------------------ a step

    async def begin_step(self, record: Any = None) -> None:
        """A step begins, unless it has."""
        if self.votes.due:
            await self.votes.compare(None)
        number = self.fold.steps + 1
        if self.judge.is_over() or self._begun == number or self.fold.turn is None:
            return
        self._begun = number
        self.votes.begin_step()
        about = f"{self.fold.session}/{number}/start"
        await self.judge.judge(StepStarting, about, lambda: StepStarting(number, self._turn))

    async def call_model(self, record: Any = None) -> None:
        """A request is about to be sent."""
        await self.begin_step()
        fold = self.fold
        number, round_ = fold.steps + 1, 1 if fold.open is None else fold.open.round
        about = about_request(fold.session, number, round_)
        known = "ModelCalling" in self._plan.points or self.judge.recorded("ModelCalling", about) is not None
        if not known or self._responded or self.judge.is_over():
            return  # nobody was asked: the words are a person's
        call = self._sent().get((number, round_, self.judge.passes))
        missing = [] if call is None else [why for why in call.inexact if why != NOT_KNOWN and "a wrap" not in why]
        lack = missing[0] if missing else ""
        await self.judge.judge(ModelCalling, about, lambda: ModelCalling(self._request(call), self._turn), lack)

    def _sent(self) -> dict[tuple[int, int, int], Call]:
        """The requests that were sent, by step, round and pass; the first of several attempts."""
        if self._requests is None:
            found: dict[tuple[int, int, int], Call] = {}
            passes = 0

            def counted() -> Iterator[Record]:
                nonlocal passes
                for record in self._records:
                    passes += type(record) is Resumed
                    yield record

            for call in requests(self.fold.session, counted(), self._known):
                found.setdefault((call.step, call.round, passes), call)
            self._requests = found
        return self._requests

    def _request(self, call: Call | None) -> ModelRequest:
        """The request as gates saw it; one that was not sent, as the agent would make it."""
        if call is None or NOT_KNOWN in call.inexact:
            return assemble(self.fold, self._plan.program, ())
        return call.request

    async def reply(self, record: Any) -> None:
        """A reply is in the log. It is judged once the log shows that it was: the process may have died."""
        self._unreviewed, self._masked = True, record.masked

    async def review(self) -> None:
        """The verdict on a reply. Of gates whose question a person has answered with it, only a refusal counts."""
        due, self._unreviewed, step = self._unreviewed, False, self.fold.open
        if not due or not self.fold.going or step is None or step.reply is None:
            return
        session, judge, reply, number, round_ = self.fold.session, self.judge, step.reply, step.number, step.round
        settled = judge.asked_at("ModelReplying", about_reply(session, number, round_ - 1)) if self._responded else ()
        replying, lack = partial(ModelReplying, reply, self._turn, round_), SECRET if self._masked else ""
        await judge.judge(ModelReplying, about_reply(session, number, round_), replying, lack, settled)

    async def reject(self, record: Any) -> None:
        """A reply was rejected, perhaps because a person gave another one."""
        if self._unreviewed:
            await self.review()
        step = self.fold.open
        about = about_reply(self.fold.session, record.step, 1 if step is None else step.round)
        self._responded = isinstance(self.judge.holds(ModelReplying, about).verdict, Answer)

    async def let_pass(self, record: Any) -> None:
        """A reply stands although gates rejected it."""
        if self._unreviewed:
            await self.review()

    async def compact(self, record: Any) -> None:
        """A part of the history is about to be replaced."""
        session = self.fold.session
        about = f"{session}/{self.fold.steps + 1}/compact"
        if record.reason == "asked for":
            about = f"{session}/compact"
        elif record.reason.startswith("the request was too large"):
            about = f"{session}/{self.fold.steps + 1}/overflow"
        plan = Compaction(record.range, "", record.by, record.reason)
        await self.judge.judge(Compacting, f"{about}/{record.by}", lambda: Compacting(plan, self._turn))

    async def decide_call(self, record: Any) -> None:
        """A call is about to be decided."""
        if self._unreviewed:
            await self.review()
        if self.calls.again:
            await self.calls.decide_again(record)
        await self.calls.decide(record.call)
        if not self.judge.is_over():
            await self.calls.decide_edited(record)

    async def call_tool(self, record: Any) -> None:
        """A tool is about to be called. A wrap may have changed its arguments."""
        if self.calls.again:
            await self.calls.decide_again()
        await self.calls.decide_changed(record)

    async def review_result(self, record: Any) -> None:
        """A result is about to enter the log."""
        withheld, self._withheld = self._withheld, False
        if self.calls.again:
            await self.calls.decide_again()
        if not withheld and not self.judge.is_over():
            await self.calls.review(record)

    async def hand_over(self, record: Any) -> None:
        """A task is about to be given to another agent."""
        if self.calls.again:
            await self.calls.decide_again()
        await self.calls.hand_over(record)

    async def end_step(self, record: Any) -> None:
        """The messages of a step are about to enter the transcript."""
        if self._unreviewed:
            await self.review()
        step, session = self.fold.open, self.fold.session
        own = () if step is None else step.messages()
        for at, message in enumerate(own):
            about = f"{session}/{record.step}/{message.role}"
            if record.messages is not None:
                recorded = self.judge.recorded("MessageAdding", about)
                message = _changed(message, self._changed.get(about, {}))
                entered = record.messages[at] if len(record.messages) == len(own) else None
                if entered != message and not (recorded and isinstance(recorded.verdict, Deny | Halt)):
                    continue  # a rewrite failed, so the message was withheld: no gate was asked
            if not self.judge.is_over():
                await self._at_door(about, message, masked=record.masked)

    async def _at_door(self, about: str, message: Message, *, masked: bool = False) -> None:
        """The verdict on a message of a step."""
        lack = SECRET if masked else ""
        await self.judge.judge(MessageAdding, about, partial(MessageAdding, message, self._turn), lack)

    async def _hear_at_door(self, about: str) -> None:
        """A gate has spoken about a message: that of the user, or one of the open step."""
        if about.endswith("/message"):
            await self.let_in_again()
        elif self.fold.open is not None:
            place, _, role = about.rpartition("/")
            own = [message for message in self.fold.open.messages() if message.role == role]
            if own and place == f"{self.fold.session}/{self.fold.open.number}":
                await self.review()
                masked = any(call.masked for call in self.fold.open.calls.values())
                await self._at_door(about, _changed(own[0], self._changed.get(about, {})), masked=masked)

    async def after_step(self, record: Any) -> None:
        """A step has ended. What its hooks saw of an error is not in the log."""
        self.votes.end_step()
        failed, self._failed, self._responded = self._failed, False, False
        following = self._records[self.judge.number : self.judge.number + 1]
        died = not following or type(following[0]) is Resumed
        if not failed and not died and self.fold.last is not None:
            step = self.fold.last.step()
            about = f"{self.fold.session}/{record.step}/end"
            await self.judge.judge(StepEnding, about, lambda: StepEnding(step, self._turn))

    async def vote(self, record: Any) -> None:
        """A vote is about to be recorded."""
        await self.votes.compare(record)

    async def after_vote(self, record: Any) -> None:
        """A vote is in the log."""
        self.votes.note(record)

    async def err(self, record: Any) -> None:
        """An error was handled."""
        self._failed = record.action in ("fail", "halt", "ignore")
        if record.category == "hook" and self.fold.open is None:
            self.votes.due = False
        elif record.step > self.fold.steps and record.category != "tool":
            await self.begin_step()

    # ------------------------------------------------------------ records of hooks

    async def hear(self, record: Any) -> None:
        """A hook has recorded something: the turn has come as far as its event."""
        event, about = _stage(record)
        if type(record) is Rewritten and event == "TurnEnding":
            self._texts[about] = str(record.fields.get("value", ""))
        elif type(record) is Rewritten and event == "MessageAdding":
            self._changed.setdefault(about, {}).update(record.fields)
        elif type(record) is HookFailed and record.effect == "withheld":
            self._note_withheld(event)
        elif type(record) in _ON_THE_WAY and self._died_here():
            pass  # the gates are asked again when the turn is resumed
        elif event == "ToolCalling":
            await self.review()
            await self.calls.decide(about)
        elif event == "MessageAdding" and type(record) is HookDecided:
            await self._hear_at_door(about)
        elif (reach := _REACHED.get(event)) is not None:
            await reach(self)
        if type(record) is HookDecided and not record.shadow and not self.judge.is_over():
            self.judge.note_refused(record)

    def _died_here(self) -> bool:
        """Whether the process died at the event at hand: no record tells that its gates had decided."""
        for at in range(self.judge.number, len(self._records)):
            if (kind := type(self._records[at])) not in _ON_THE_WAY:
                return kind is Resumed
        return True

    def _note_withheld(self, event: str) -> None:
        """A rewrite failed, so what it was to change was withheld, and the gates were not asked."""
        turn = self.fold.turn
        if event == "TurnEnding" and turn is not None:
            self.judge.done.add((event, f"{self.fold.session}/t{turn.number}/end"))
        elif event == "ToolReturning":
            self._withheld = True


def _changed(message: Message, fields: Mapping[str, Any]) -> Message:
    """A message with what rewrites made of it, according to the log."""
    changed = {**msgspec.to_builtins(message), **fields}
    return msgspec.convert(changed, Message) if fields else message


def _is_callers(record: Any) -> bool:
    """Whether a record sets a slot that the caller gave."""
    return type(record) is SlotSet and record.by == "caller"


def _stage(record: Any) -> tuple[str, str]:
    """The event of a hook's record, and what that was about, as far as the record says."""
    if isinstance(record, SlotSet | MessageHeld):
        event, _, about = record.stage.partition(":")
        return event, about
    if isinstance(record, SideReplied | Noted):
        return record.key.partition(":")[0], ""
    return record.event, getattr(record, "about", "")


_Place: TypeAlias = Callable[[Walk, Any], Awaitable[None]]

_BEFORE: dict[type[Record], _Place] = {
    SessionOpened: Walk.open_session,
    HistoryImported: Walk.import_history,
    Resumed: Walk.resume,
    MessageAdded: Walk.enter,
    ModelAttempted: Walk.call_model,
    ModelReplied: Walk.call_model,
    ReplyRejected: Walk.reject,
    ReplyPassed: Walk.let_pass,
    Suspended: Walk.suspend,
    Compacted: Walk.compact,
    ErrorHandled: Walk.err,
    ToolDecided: Walk.decide_call,
    ToolCalled: Walk.call_tool,
    ToolReturned: Walk.review_result,
    Delegated: Walk.hand_over,
    StepEnded: Walk.end_step,
    Evaluated: Walk.vote,
    Concluded: Walk.conclude,
    StopVetoed: Walk.conclude,
    TurnEnded: Walk.end_turn,
    **dict.fromkeys(
        (HookDecided, HookFailed, Rewritten, Injected, SlotSet, MessageHeld, SideReplied, Noted), Walk.hear
    ),
}
"""What is judged before a record is folded."""

_AFTER: dict[type[Record], _Place] = {
    TurnStarted: Walk.start_turn,
    Resumed: Walk.go_on,
    ModelReplied: Walk.reply,
    StepEnded: Walk.after_step,
    Evaluated: Walk.after_vote,
}
"""What is judged, or noted, right after a record is folded."""

_REACHED: dict[str, Callable[[Walk], Awaitable[None]]] = {
    "TurnStarting": Walk.let_in_again,
    "ModelReplying": Walk.review,
    "ToolReturning": lambda walk: walk.calls.decide_again(),
    "StepStarting": Walk.begin_step,
    "Compacting": Walk.begin_step,
    "ModelCalling": Walk.call_model,
    "ModelCall": Walk.call_model,
    "Stopping": lambda walk: walk.votes.stop(),
    "SubagentStopping": lambda walk: walk.votes.stop(),
    "TurnEnding": Walk.end_turn,
    "Resuming": Walk.resume,
}
"""What is judged once a hook has recorded something at an event."""
