"""Walks along the log of one session and has everything judged again that was judged then.

A record tells how far the turn is: before it is folded, all that comes earlier in the lifecycle is judged.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

from windlass.context.assembly import assemble
from windlass.context.replay import NOT_KNOWN, Call, Description, requests
from windlass.decisions import Deny, Halt
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
from windlass.messages import Message, ModelRequest, TextPart, ToolResultPart
from windlass.outcomes import Cancelled, Failed
from windlass.records import (
    Asked,
    Compacted,
    Concluded,
    Delegated,
    ErrorHandled,
    Evaluated,
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
from windlass.states import FOLDS, Fold

from .calls import CallJudge
from .findings import SessionReplay
from .judge import NOT_KEPT, SECRET, Judge
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
        self.judge = Judge(plan, site, records)
        self.calls = CallJudge(self.judge)
        self.votes = VoteJudge(self.judge)
        self._plan = plan
        self._turn = site.turn
        self._records = records
        self._known = known
        self._written = written
        self._requests: dict[tuple[int, int], Call] | None = None
        self._opened: SessionOpened | None = None
        self._started: TurnStarted | None = None
        self._begun = 0
        self._failed = self._responded = self._withheld = False
        self._final_text: str | None = None

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
                await self._begin_turn(self._started)
            if (before := _BEFORE.get(kind)) is not None and not judge.is_over():
                judge.number = number
                await before(self, record)
            if judge.is_over():
                break
            if kind is not SlotSet or not self._is_written_again(record):
                FOLDS[kind](fold, record)
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
        self._started, self._begun, self._failed, self._final_text = record, 0, False, None

    async def _begin_turn(self, started: TurnStarted) -> None:
        self._started = None
        opened, self._opened = self._opened, None
        judge, turn, session = self.judge, self._turn, self.fold.session
        about = f"{session}/t{started.turn}"
        lack = NOT_KEPT if started.withheld else SECRET if started.masked else ""
        if opened is not None:
            await judge.judge(SessionStarting, session, lambda: SessionStarting(self._setup(opened), turn))
        if not judge.is_over():
            await judge.judge(TurnStarting, about, lambda: TurnStarting(started.message, turn), lack)
        if not judge.is_over():
            door = f"{about}/message"
            await judge.judge(MessageAdding, door, lambda: MessageAdding(started.message, turn), lack)

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
        outcome = turn.concluded
        text = self.fold.state.text if self._final_text is None else self._final_text
        about = f"{self.fold.session}/t{turn.number}/end"
        await self.judge.judge(TurnEnding, about, lambda: TurnEnding(outcome, text, self._turn))

    async def resume(self, record: Any = None) -> None:
        """A suspended turn goes on."""
        fold, turn = self.fold, self.fold.turn
        if turn is not None and isinstance(turn.outcome, Suspended):
            about, drift = f"{fold.session}/t{turn.number}/resume", getattr(record, "drift", ())
            await self.judge.judge(Resuming, about, lambda: Resuming(fold.state, self._turn, drift))

    async def enter(self, record: Any) -> None:
        """A message that is not part of a step enters. The user's was judged when the turn began."""
        if record.message is not None:
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
        about = f"{fold.session}/{number}/request" + (f".{round_}" if round_ > 1 else "")
        known = "ModelCalling" in self._plan.points or ("ModelCalling", about) in self.judge.decided
        if not known or self.judge.is_over():
            return
        call = self._sent().get((number, round_))
        missing = [] if call is None else [why for why in call.inexact if why != NOT_KNOWN and "a wrap" not in why]
        lack = missing[0] if missing else ""
        await self.judge.judge(ModelCalling, about, lambda: ModelCalling(self._request(call), self._turn), lack)

    def _sent(self) -> dict[tuple[int, int], Call]:
        """The requests that were sent, by step and round; the first of several attempts."""
        if self._requests is None:
            found: dict[tuple[int, int], Call] = {}
            for call in requests(self.fold.session, self._records, self._known):
                found.setdefault((call.step, call.round), call)
            self._requests = found
        return self._requests

    def _request(self, call: Call | None) -> ModelRequest:
        """The request as gates saw it; one that was not sent, as the agent would make it."""
        if call is None or NOT_KNOWN in call.inexact:
            return assemble(self.fold, self._plan.program, ())
        return call.request

    async def reply(self, record: Any) -> None:
        """A reply is in the log. About the words of a person gates are not asked in the same way."""
        if self._responded:
            self._responded = False
            return
        about = f"{self.fold.session}/{record.step}/reply" + (f".{record.round}" if record.round > 1 else "")
        lack = SECRET if record.masked else ""
        await self.judge.judge(
            ModelReplying, about, lambda: ModelReplying(record.reply, self._turn, record.round), lack
        )

    async def reject(self, record: Any) -> None:
        """A reply was rejected, perhaps because a person gave another one."""
        self._responded = record.feedback == "answered by a person"

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
        await self.calls.decide(record.call)
        if not self.judge.is_over():
            await self.calls.decide_edited(record)

    async def call_tool(self, record: Any) -> None:
        """A tool is about to be called. A wrap may have changed its arguments."""
        await self.calls.decide_changed(record)

    async def review_result(self, record: Any) -> None:
        """A result is about to enter the log."""
        withheld, self._withheld = self._withheld, False
        if not withheld:
            await self.calls.review(record)

    async def hand_over(self, record: Any) -> None:
        """A task is about to be given to another agent."""
        await self.calls.hand_over(record)

    async def end_step(self, record: Any) -> None:
        """The messages of a step are about to enter the transcript."""
        step, session = self.fold.open, self.fold.session
        own = () if step is None else step.messages()
        for at, message in enumerate(own):
            about = f"{session}/{record.step}/{message.role}"
            recorded = self.judge.decided.get(("MessageAdding", about))
            refused = recorded is not None and isinstance(recorded.verdict, Deny | Halt)
            if record.messages is not None and not refused:
                if len(record.messages) != len(own) or _failed(record.messages[at]):
                    continue  # a rewrite failed: no gate was asked
                message = record.messages[at]
            adding, lack = partial(MessageAdding, message, self._turn), SECRET if record.masked else ""
            if not self.judge.is_over():
                await self.judge.judge(MessageAdding, about, adding, lack)

    async def after_step(self, record: Any) -> None:
        """A step has ended. What its hooks saw of an error is not in the log."""
        self.votes.end_step()
        failed, self._failed = self._failed, False
        if not failed and self.fold.last is not None:
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
            self._final_text = str(record.fields.get("value", ""))
        elif type(record) is HookFailed and record.effect == "withheld":
            self._note_withheld(event)
        elif event == "ToolCalling":
            await self.calls.decide(about)
        elif (reach := _REACHED.get(event)) is not None:
            await reach(self)
        if type(record) is HookDecided and not record.shadow and not self.judge.is_over():
            self.judge.note_refused(record)

    def _note_withheld(self, event: str) -> None:
        """A rewrite failed, so what it was to change was withheld, and the gates were not asked."""
        turn = self.fold.turn
        if event == "TurnEnding" and turn is not None:
            self.judge.done.add((event, f"{self.fold.session}/t{turn.number}/end"))
        elif event == "ToolReturning":
            self._withheld = True


def _failed(message: Message) -> bool:
    """Whether a rewrite failed on the results of a step, so that they were withheld and no gate was asked."""
    results = [part for part in message.parts if isinstance(part, ToolResultPart)]
    texts = [part.text for result in results for part in result.content if isinstance(part, TextPart)]
    return any(text.endswith("the log has the details") for text in texts)


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
    Resumed: Walk.resume,
    MessageAdded: Walk.enter,
    ModelAttempted: Walk.call_model,
    ModelReplied: Walk.call_model,
    ReplyRejected: Walk.reject,
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
    ModelReplied: Walk.reply,
    StepEnded: Walk.after_step,
    Evaluated: Walk.after_vote,
}
"""What is judged, or noted, right after a record is folded."""

_REACHED: dict[str, Callable[[Walk], Awaitable[None]]] = {
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
