"""A state is an immutable value and only ever made by folding records: `state.record(r)` gives the next one.

`Fold` is the accumulator of that fold. It changes in place, record by record, and gives its state when somebody asks:
that is why a step costs the same however many records it writes and however long the history is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar, overload

from msgspec import Struct
from msgspec.structs import astuple, replace

from . import records as r
from .decisions import Ask, Edit, Vote
from .errors import StoreError
from .messages import (
    Message,
    Messages,
    ModelReply,
    TextPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    Usage,
    Value,
)
from .outcomes import Cancelled, Completed, Failed, Stopped, StopReason
from .terms import settled, with_answer

_sharing = Messages.sharing  # which Python 3.11 finds slowly
_NO_MESSAGES = Messages()
_NO_SLOTS: Mapping[str, Any] = {}
_NOTHING = Usage(requests=0)
SLICE = 2000
"""After this many records, folding on an event loop lets other tasks run."""

_NO_RESULT = (TextPart("Interrupted, outcome unknown: the step ended before this call had a result."),)


T = TypeVar("T")


def _maker(kind: Callable[..., T], *given: str) -> Callable[..., T]:
    """Compile a function that makes a `kind` from its counterpart: `given` are arguments, all else it has itself.

    The fields are read from their declaration once, and a call is as fast as if they were written out.
    """
    fields: tuple[str, ...] = kind.__match_args__  # type: ignore[attr-defined]
    values = [name if name in given else f"counterpart.{name}" for name in fields]
    made: Callable[..., T] = eval(f"lambda counterpart, {', '.join(given)}: kind({', '.join(values)})", {"kind": kind})
    return made


class Child(Value, frozen=True):
    """A child agent that works on a call: how it was started, and what of its spending was charged so far."""

    started: r.Delegated
    charged: Usage = _NOTHING


class BackgroundChild(Value, frozen=True):
    """A child agent that works in the background: how it was started, and in which turn.

    `taken` says that its result has come in. `cancelled` is why it shall end, if the turn was cancelled meanwhile.
    """

    started: r.Delegated
    turn: int
    taken: bool = False
    cancelled: str | None = None


def usage_by(turn: TurnFold | None, *, reported: bool = False) -> dict[str, Usage]:
    """What hooks and tools spent in a turn by asking models and giving tasks to other agents, by their names.

    With `reported`, also what those of earlier turns spent in the background, if their results came in this turn.
    """
    spent: dict[str, Usage] = {}
    for side in turn.sides if turn is not None else ():
        if side.paid:
            spent[side.by] = spent.get(side.by, _NOTHING) + side.reply.usage
    children = () if turn is None else (*turn.delegated, *turn.reported) if reported else turn.delegated
    for child in children:
        spent[child.started.by] = spent.get(child.started.by, _NOTHING) + child.charged
    return spent


BACKGROUND = "child"
"""The kind of an inbox entry with the result of a background child."""


def background_key(session: str) -> str:
    """The inbox key of the result of a background child."""
    return f"{BACKGROUND}/{session}"


def children_at_work(fold: Fold) -> list[r.Delegated]:
    """The child agents that work for a turn, or may: those of open calls, and those that hooks and tools started."""
    calls = fold.open.calls.values() if fold.open is not None else ()
    of_calls = [child.started for call in calls if call.result is None for child in call.children]
    return [*of_calls, *[child.started for child in (fold.turn.delegated if fold.turn is not None else ())]]


class CallFold(Struct, omit_defaults=True, gc=False):
    """One tool call as the records tell it so far: proposed, then decided, called, returned.

    `call` is what would be executed, `called` the number of the latest attempt, `starts` how often one was started, by
    whatever process. `undoing` says that somebody began to undo it, `edited` who changed its arguments when asked,
    `masked` that its arguments held secrets, which the log does not have.
    `children` has the agents that were given it as a task, one per attempt.
    """

    proposed: ToolCall
    call: ToolCall
    decided: r.ToolDecided | None = None
    called: int = 0
    attempts: tuple[r.ToolAttempted, ...] = ()
    result: ToolResult | None = None
    children: tuple[Child, ...] = ()
    starts: int = 0
    undoing: bool = False
    edited: str | None = None
    masked: bool = False

    def child(self, session: str) -> Child | None:
        """The child agent with this session."""
        return next((child for child in self.children if child.started.session == session), None)

    @property
    def in_doubt(self) -> bool:
        """Whether it was started and nobody has told what came of it."""
        return self.result is None and self.called > len(self.attempts)

    @property
    def waits(self) -> bool:
        """Whether it waits for a person."""
        return self.decided is not None and type(self.decided.verdict) is Ask


class CallState(CallFold, frozen=True):  # type: ignore[misc]
    """One tool call, as a value."""


class Calls(Sequence[CallState]):
    """The calls of an open step as they were at one moment: the latest of each among the versions there were by then.

    A look at a step with thousands of calls costs as little as one with two; only reading it costs what it holds.
    """

    __slots__ = ("_calls", "_count", "_versions")

    def __init__(self, versions: list[CallState]) -> None:
        self._versions = versions
        self._count = len(versions)
        self._calls: tuple[CallState, ...] | None = None

    def _resolved(self) -> tuple[CallState, ...]:
        if self._calls is None:
            latest = {version.proposed.id: version for version in self._versions[: self._count]}
            self._calls = tuple(latest.values())
        return self._calls

    def __len__(self) -> int:
        return len(self._resolved())

    @overload
    def __getitem__(self, index: int) -> CallState: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[CallState, ...]: ...
    def __getitem__(self, index: int | slice) -> CallState | tuple[CallState, ...]:
        return self._resolved()[index]

    def __iter__(self) -> Iterator[CallState]:
        return iter(self._resolved())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Calls | tuple) and self._resolved() == tuple(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self._resolved())


class OpenStep(Value, frozen=True):
    """A step that is not finished: all that is needed to go on with it, in this process or another.

    If its model call failed and is made again, `tried` is the number of the latest attempt that failed, and `retries`
    counts how often it was made again. The attempts that a wrap did not let stand are in `attempts`.
    """

    number: int
    round: int = 1
    reply: ModelReply | None = None
    calls: Sequence[CallState] = ()
    attempts: tuple[r.ModelAttempted, ...] = ()
    rejected: tuple[tuple[ModelReply, str], ...] = ()
    decided: tuple[r.HookDecided, ...] = ()
    tried: int = 0
    retries: int = 0


class Step(Value, frozen=True):
    """What a step came to: the reply and the results of its calls, in the order of the calls."""

    number: int
    reply: ModelReply | None
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()


class TurnFold(Struct, omit_defaults=True, gc=False):
    """One turn as the records tell it so far: counters, transient context, open questions, outcome.

    `start` is the index of its first message; `concluded` says how it will end, `outcome` how it ended, or that it
    is suspended. `writers` are the hooks that wrote a slot or a message since the last step ended, each with the stage.
    `idle` counts how often in a row it went on after a step that called no tool, `restarts` how often in a row it was
    resumed with neither a finished effect nor a suspension in between. `options` are the turn's own, if it has any.
    """

    number: int
    ref: str
    message: Message
    start: int
    started_at: float = 0.0
    steps: int = 0
    usage: Usage = _NOTHING
    active: float = 0.0
    injected: tuple[r.Injected, ...] = ()
    held: tuple[r.MessageHeld, ...] = ()
    decided: tuple[r.HookDecided, ...] = ()
    sides: tuple[r.SideReplied, ...] = ()
    notes: tuple[r.Noted, ...] = ()
    delegated: tuple[Child, ...] = ()
    reported: tuple[Child, ...] = ()
    waiting: tuple[r.Asked, ...] = ()
    answered: tuple[r.Answered, ...] = ()
    evaluated: r.Evaluated | None = None
    vetoes: int = 0
    failed_calls: int = 0
    errors: int = 0
    errors_in_a_row: int = 0
    retries: int = 0
    cancel: str | None = None
    unreviewed: tuple[str, ...] = ()
    objections: tuple[str, ...] = ()
    admitted: bool = False
    last: Step | None = None
    concluded: r.Outcome | None = None
    outcome: r.Outcome | None = None
    text: str | None = None
    rewinds: int = 0
    writers: tuple[tuple[str, str], ...] = ()
    idle: int = 0
    restarts: int = 0
    options: r.TurnOptions | None = None


class TurnState(TurnFold, frozen=True):  # type: ignore[misc]
    """One turn, as a value."""


class Shown(Value, frozen=True):
    """The history as models were shown it right after a compaction.

    The transcript had `length` messages then; the last `untouched` ones of these are as they were. `place` is where the
    message that opened the turn stands. `by` is the strategy, and `tokens` what the request had afterwards.
    """

    messages: tuple[Message, ...]
    length: int
    untouched: int
    place: int = 0
    by: str = ""
    tokens: int = 0

    def cut(self, length: int) -> Shown | None:
        """The same with a shorter transcript; None if that cuts into what was replaced."""
        gone = max(self.length - length, 0)
        if gone > self.untouched:
            return None
        kept = self.messages[: len(self.messages) - gone]
        return self.replace(messages=kept, length=self.length - gone, untouched=self.untouched - gone)


class State(Value, frozen=True):
    """A session as its log tells it. `messages` is the whole transcript; `shown` is what models are shown of it, which
    differs from it once it was compacted. `background` are the agents that work for it in the background. `pending` are
    the records that the store does not have yet."""

    session: str
    seq: int = 0
    messages: Messages = _NO_MESSAGES
    steps: int = 0
    turns: int = 0
    before: Usage = _NOTHING
    slots: Mapping[str, Any] = _NO_SLOTS
    turn: TurnState | None = None
    open: OpenStep | None = None
    opened: r.SessionOpened | None = None
    ended: bool = False
    inbox: tuple[str, ...] = ()
    pipeline: str = ""
    compactions: tuple[Shown, ...] = ()
    background: tuple[BackgroundChild, ...] = ()
    pending: tuple[r.Record, ...] = ()

    @property
    def shown(self) -> Messages:
        """The history as models are shown it."""
        if not self.compactions:
            return self.messages
        latest = self.compactions[-1]
        return Messages([*latest.messages, *self.messages[latest.length :]])

    @property
    def place(self) -> int:
        """Where the message that opened the latest turn stands in what models are shown."""
        return _place(self)

    def record(self, *records: r.Record) -> State:
        """The next state. It carries the records until the store has them."""
        fold = Fold.of(self)
        for record in records:
            fold.add(record)
        return fold.state

    def stored(self) -> State:
        """The same state, once the store has all its records."""
        return replace(self, pending=())

    @property
    def usage(self) -> Usage:
        """What the session has spent: the turns before, and the latest."""
        return self.before if self.turn is None else self.before + self.turn.usage

    @property
    def outcome(self) -> r.Outcome | None:
        """The outcome of the latest turn, if it has one."""
        return self.turn.outcome if self.turn is not None else None

    @property
    def going(self) -> bool:
        """Whether the turn goes on with another step: it is neither concluded nor suspended nor over."""
        turn = self.turn
        return turn is not None and turn.concluded is None and turn.outcome is None

    @property
    def over(self) -> bool:
        """Whether no turn is under way: none has started, or the latest has ended."""
        return over(self)

    @property
    def stop_reason(self) -> StopReason | None:
        """Why the latest turn ended."""
        return stop_reason(self.outcome)

    @property
    def waiting(self) -> tuple[r.Asked, ...]:
        """The questions that wait for an answer."""
        return self.turn.waiting if self.turn is not None else ()

    @property
    def text(self) -> str:
        """The answer of the latest turn: that of its last reply. It is empty if that reply was not let in."""
        turn = self.turn
        if turn is None:
            return ""
        if turn.text is not None:
            return turn.text
        messages, length, _ = self.messages.shared
        for index in range(length - 1, turn.start, -1):
            if (message := messages[index]).role == "assistant":
                return "" if _is_before(message, turn.last) else message.text
        return ""


def _is_before(message: Message, last: Step | None) -> bool:
    """Whether a message is the reply of an earlier step than the last one that has a reply, which was not let in."""
    number = message.id.rpartition("/")[2] if message.id else ""
    return last is not None and last.reply is not None and number.isdecimal() and int(number) < last.number


def stop_reason(outcome: r.Outcome | None) -> StopReason | None:
    """The one reason behind an outcome."""
    match outcome:
        case Completed():
            return StopReason.COMPLETED
        case Stopped(reason=reason):
            return reason
        case Failed():
            return StopReason.ERROR
        case Cancelled():
            return StopReason.CANCELLED
        case r.Suspended():
            return StopReason.SUSPENDED
        case _:
            return None


def pipeline_of_turn(state: State | Fold) -> str:
    """The pipeline of the latest turn: that of the session, unless the turn has options of its own."""
    options = None if state.turn is None else state.turn.options
    return state.pipeline if options is None else options.pipeline


def over(state: State | Fold) -> bool:
    """Whether no turn is under way."""
    turn = state.turn
    return turn is None or (turn.outcome is not None and not isinstance(turn.outcome, r.Suspended))


def _place(state: State | Fold) -> int:
    start = 0 if state.turn is None else state.turn.start
    if not state.compactions:
        return start
    latest = state.compactions[-1]
    return latest.place if start < latest.length else len(latest.messages) + start - latest.length


def step_id(session: str, step: int) -> str:
    """The id of a step; that of a call appends its position."""
    return f"{session}/{step}"


def place_of(fold: Fold, about: str) -> str:
    """What a question is about, without the session: a fork has another, but its calls keep the ids
    they had."""
    if about.startswith(f"{fold.session}/"):
        return about.removeprefix(f"{fold.session}/")
    for call in fold.open.calls if fold.open is not None else ():
        if about == call or about.startswith(f"{call}/"):
            return "/".join(call.split("/")[-2:]) + about.removeprefix(call)
    return about


# ---------------------------------------------------------------- the accumulator


class StepFold(Struct, gc=False):
    """The open step, as the records tell it so far; its calls by their ids, in the order of the calls."""

    number: int
    round: int = 1
    reply: ModelReply | None = None
    calls: dict[str, CallFold] = {}
    attempts: tuple[r.ModelAttempted, ...] = ()
    rejected: tuple[tuple[ModelReply, str], ...] = ()
    decided: tuple[r.HookDecided, ...] = ()
    tried: int = 0
    retries: int = 0
    made: Step | None = None
    versions: list[CallState] | None = None

    def changed(self, call: CallFold) -> None:
        """A call has changed since somebody looked at the step: its new version joins the old ones."""
        assert self.versions is not None
        self.versions.append(CallState(*astuple(call)))

    def step(self) -> Step:
        """What the step has come to."""
        step = self.made
        if step is None and not self.calls:
            step = Step(self.number, self.reply)
        elif step is None:
            calls, results = [], []
            for call in self.calls.values():
                calls.append(call.call)
                if call.result is not None:
                    results.append(call.result)
            step = Step(self.number, self.reply, tuple(calls), tuple(results))
            if self.reply is not None and len(results) == len(calls):
                self.made = step
        return step

    def messages(self) -> tuple[Message, ...]:
        """What it adds to the transcript: the reply, and one message with all results in the order of the calls."""
        if self.reply is None:
            return ()
        if not self.calls:
            return (self.reply.message,)
        parts: list[ToolResultPart] = []
        for call in self.calls.values():
            proposed = call.proposed
            if (result := call.result) is None:  # whoever ended the step has left it open
                parts.append(ToolResultPart(proposed.id, proposed.name, _NO_RESULT, "interrupted"))
            else:
                content = result.content if call.edited is None else (_edit_note(call, call.edited), *result.content)
                parts.append(ToolResultPart(proposed.id, proposed.name, content, result.status))
        return (self.reply.message, Message("tool", tuple(parts)))

    def state(self) -> OpenStep:
        """The value it stands for."""
        if self.versions is None:
            self.versions = [CallState(*astuple(call)) for call in self.calls.values()]
        return _open_step(self, Calls(self.versions))

    @property
    def failures(self) -> int:
        """How many attempts at the model call of this round failed so far, by wraps and retries together."""
        return self.retries + sum(a.error is not None and a.round == self.round for a in self.attempts)

    @classmethod
    def of(cls, step: OpenStep) -> StepFold:
        """The accumulator that stands for a value."""
        return _step_fold(step, {call.proposed.id: CallFold(*astuple(call)) for call in step.calls}, None, None)


_open_step = _maker(OpenStep, "calls")
_step_fold = _maker(StepFold, "calls", "made", "versions")


def microseconds(seconds: float) -> float:
    """A time in whole microseconds: as exact as a log needs it, and short to write.

    A float of 2**52 or more is whole: to add that and take it away rounds, at a fifth of the cost of `round`.
    """
    return (seconds * 1e6 + 2.0**52 - 2.0**52) / 1e6


class Fold:
    """The fold of a log so far, changed in place by each record; `state` is the value it stands for.

    A field of the state is declared here again, as the accumulator has it. The others are its own: `stored` counts the
    records that the store has, `at` is the time of the latest record, and `written` are the stored records since the
    latest turn began, and maybe some before: `of_latest_turn` cuts them off. `going` says whether the turn goes on with
    another step: it is neither concluded nor suspended nor over. `last` is the latest step, until its value is asked
    for. `turn_view` is what the assembly of requests remembers of the turn. `unknown` names the first kind of record
    that only a newer version knows. `messages` shares its storage with all earlier transcripts.
    """

    __slots__ = (
        "_items", "_shown", "_state", "at", "background", "before", "compactions", "ended", "going", "inbox", "last",
        "messages", "open", "opened", "pending", "pipeline", "session", "slots", "steps", "stored", "turn", "turn_view",
        "turns", "unknown", "written",
    )  # fmt: skip
    __match_args__ = (
        "session", "messages", "steps", "turns", "before", "slots", "turn", "open", "opened", "ended", "inbox",
        "pipeline", "compactions", "background", "pending",
    )  # fmt: skip

    def __init__(
        self,
        session: str,
        messages: Messages = _NO_MESSAGES,
        steps: int = 0,
        turns: int = 0,
        before: Usage = _NOTHING,
        slots: Mapping[str, Any] = _NO_SLOTS,
        turn: TurnFold | None = None,
        open: StepFold | None = None,
        opened: r.SessionOpened | None = None,
        ended: bool = False,
        inbox: tuple[str, ...] = (),
        pipeline: str = "",
        compactions: tuple[Shown, ...] = (),
        background: tuple[BackgroundChild, ...] = (),
        pending: list[r.Record] | None = None,
    ) -> None:
        self._shown: list[Message]  # once the session is compacted
        self.session = session
        self.messages = messages
        self.steps = steps
        self.turns = turns
        self.before = before
        self.slots = slots
        self.turn = turn
        self.open = open
        self.opened = opened
        self.ended = ended
        self.inbox = inbox
        self.pipeline = pipeline
        self.compactions = compactions
        self.background = background
        self.pending: list[r.Record] = [] if pending is None else pending
        self.stored = 0
        self.at = -1.0
        self.written: list[r.Record] = []
        self.going = False
        self.last: StepFold | None = None
        self.turn_view: Any = None
        self.unknown = ""
        self._items: list[Message] = []
        self._state: State | None = None

    @classmethod
    def of(cls, state: State) -> Fold:
        """The accumulator that stands for a state."""
        messages = list(state.messages)
        fold = _fold(
            state,
            _sharing(messages),
            None if state.turn is None else TurnFold(*astuple(state.turn)),
            None if state.open is None else StepFold.of(state.open),
            list(state.pending),
        )
        fold.stored = state.seq - len(state.pending)
        fold.going = state.going
        fold._items = messages
        if state.compactions:
            fold._shown = list(state.shown)
        return fold

    def add(self, record: r.Record) -> None:
        """Fold one record. It is pending until the store has it."""
        FOLDS[type(record)](self, record)  # first: a record that does not fold is not stored
        self.pending.append(record)

    @property
    def seq(self) -> int:
        """How many records were folded."""
        return self.stored + len(self.pending)

    def tick(self, now: Callable[[], float]) -> float:
        """The time for the next record: now in whole microseconds, and never before the latest record."""
        at = (now() * 1e6 + 2.0**52 - 2.0**52) / 1e6  # `microseconds`, without a call
        if at > self.at:
            self.at = at
            return at
        return self.at

    def acknowledge(self, count: int) -> None:
        """The store has the first `count` of the pending records."""
        self.stored += count
        self.written += self.pending[:count]
        self.pending = self.pending[count:]

    def extend(self, records: Sequence[r.Record]) -> None:
        """Fold records that the store has. Raises `StoreError` if they do not follow from each other."""
        self._add_stored(records)
        self._have_stored(records)

    async def extend_in_slices(self, records: Sequence[r.Record]) -> None:
        """`extend` for logs of any length: other tasks run after every `SLICE` records."""
        for start in range(0, len(records), SLICE):
            if start:
                await asyncio.sleep(0)
            self._add_stored(records[start : start + SLICE])
        self._have_stored(records)

    def _add_stored(self, records: Sequence[r.Record]) -> None:
        try:
            for record in records:
                self.add(record)
        except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise broken_log(self.session, self.seq + 1, error) from error

    def _have_stored(self, records: Sequence[r.Record]) -> None:
        """The store has these records, which are folded and pending."""
        self.at = max([self.at, *[record.at for record in records]])
        self.acknowledge(len(records))
        self.written = of_latest_turn(self.written)

    def glimpse(self) -> State:
        """The value it stands for, without the records the store does not have: what an observer is shown."""
        pending, self.pending, self._state = self.pending, [], None
        try:
            return replace(self.state, seq=self.stored + len(pending))
        finally:
            self.pending, self._state = pending, None

    @property
    def state(self) -> State:
        """The value it stands for, made when it is asked for."""
        state, turn, pending = self._state, self.turn, self.pending
        seq = self.stored + len(pending)
        if state is None or state.seq != seq or len(state.pending) != len(pending):
            if turn is not None and self.last is not None:
                turn.last, self.last = self.last.step(), None
            state = self._state = _state(
                self,
                seq,
                None if turn is None else TurnState(*astuple(turn)),
                None if self.open is None else self.open.state(),
                tuple(pending),
            )
        return state

    @property
    def shown(self) -> Messages:
        """The history as models are shown it."""
        return _sharing(self._shown) if self.compactions else self.messages

    @property
    def place(self) -> int:
        """Where the message that opened the latest turn stands in what models are shown."""
        return _place(self)

    def say(self, messages: Sequence[Message]) -> None:
        """Messages enter the transcript."""
        self._items += messages
        self.messages = _sharing(self._items)
        if self.compactions:
            self._shown += messages

    def cut(self, length: int) -> None:
        """Only the first messages stay; those who look at the longer transcript keep it."""
        self._items = self._items[:length]
        self.messages = _sharing(self._items)
        kept = [shown.cut(length) for shown in self.compactions]
        self._show(tuple([shown for shown in kept if shown is not None]))

    def compact(self, record: r.Compacted) -> None:
        """Something shorter takes the place of a range of what is shown."""
        start, end = record.range
        before, place = list(self.shown), self.place
        if place in record.messages:
            place = start + record.messages.index(place)
        elif place >= end:
            place += len(record.messages) - (end - start)
        elif place >= start:
            place = start
        new = [before[message] if isinstance(message, int) else message for message in record.messages]
        messages = (*before[:start], *new, *before[end:])
        untouched = len(before) - end
        if self.compactions:
            latest = self.compactions[-1]
            untouched = min(untouched, latest.untouched + len(self._items) - latest.length)
        shown = Shown(messages, len(self._items), untouched, place, record.by, record.after)
        self._show((*self.compactions, shown))

    def _show(self, compactions: tuple[Shown, ...]) -> None:
        self.compactions = compactions
        if compactions:
            self._shown = [*compactions[-1].messages, *self._items[compactions[-1].length :]]

    def spend(self, usage: Usage) -> None:
        """A model call was paid for."""
        turn = self.turn
        assert turn is not None
        turn.usage = turn.usage + usage


_state = _maker(State, "seq", "turn", "open", "pending")
_fold = _maker(Fold, "messages", "turn", "open", "pending")


def broken_log(session: str, number: int, error: Exception) -> StoreError:
    """The error for a record that does not fold."""
    return StoreError(
        f"the log of session {session!r} is broken at record {number}: it does not follow from the records before it "
        f"({type(error).__name__}: {error})"
    )


def fold(session: str, records: Iterable[r.Record]) -> State:
    """The state that a log tells of."""
    return fold_log(session, records).state


def fold_log(session: str, records: Iterable[r.Record]) -> Fold:
    """The accumulator after a whole log."""
    made = Fold(session)
    made.extend(list(records))
    return made


async def fold_in_slices(session: str, records: Sequence[r.Record]) -> Fold:
    """`fold_log` on an event loop: if the log is long, other tasks run in between."""
    made = Fold(session)
    await made.extend_in_slices(records)
    return made


def of_latest_turn(records: Sequence[r.Record]) -> list[r.Record]:
    """The records of the latest turn: from what its hooks did before it began, all that came since the one before."""
    began = len(records)
    while began and type(records[began - 1]) is not r.TurnStarted:
        began -= 1
    while began and type(records[began - 1]) is not r.TurnEnded:
        began -= 1
    return list(records[began:])


PROGRESS: tuple[type[r.Record], ...] = (
    r.ModelAttempted, r.ModelReplied, r.ToolAttempted, r.ToolReturned, r.SideReplied, r.Charged, r.Suspended,
)  # fmt: skip
"""A finished effect, or a suspension. A turn that is resumed again and again without one is in a crash loop."""

# ---------------------------------------------------------------- one fold per kind of record

_R = TypeVar("_R", bound=r.Record)
FOLDS: dict[type[r.Record], Callable[[Fold, Any], None]] = {}


def _folds(kind: type[_R]) -> Callable[[Callable[[Fold, _R], None]], Callable[[Fold, _R], None]]:
    def register(fold_one: Callable[[Fold, _R], None]) -> Callable[[Fold, _R], None]:
        FOLDS[kind] = fold_one
        return fold_one

    return register


def _turn(fold: Fold) -> TurnFold:
    assert fold.turn is not None, "a record of a turn before any turn"
    return fold.turn


def _open(fold: Fold) -> StepFold:
    if fold.open is None:
        fold.open = StepFold(fold.steps + 1)
    return fold.open


@_folds(r.SessionOpened)
def _(fold: Fold, record: r.SessionOpened) -> None:
    if fold.opened is None:
        fold.opened = record
    elif record.parent:
        fold.opened = fold.opened.replace(parent=record.parent)
    fold.pipeline = record.pipeline
    fold.ended = False


@_folds(r.SessionEnded)
def _(fold: Fold, record: r.SessionEnded) -> None:
    fold.ended = True


@_folds(r.HistoryImported)
def _(fold: Fold, record: r.HistoryImported) -> None:
    fold.say(record.messages)


@_folds(r.TurnStarted)
def _(fold: Fold, record: r.TurnStarted) -> None:
    if fold.turn is not None:
        fold.before = fold.before + fold.turn.usage
    fold.turn = TurnFold(record.turn, record.ref, record.message, len(fold.messages), record.at)
    if record.options is not None:
        fold.turn.options = record.options
    fold.turns = record.turn
    if fold.background:
        fold.background = tuple([child for child in fold.background if not child.taken])
    fold.written = []
    fold.open = fold.last = None
    fold.going = True


@_folds(r.MessageAdded)
def _(fold: Fold, record: r.MessageAdded) -> None:
    if record.message is not None:
        fold.say((record.message,))
    else:
        turn = _turn(fold)
        turn.admitted = True
        fold.say((turn.message,))


@_folds(r.MessageHeld)
def _(fold: Fold, record: r.MessageHeld) -> None:
    turn = _turn(fold)
    turn.held = (*turn.held, record)
    if record.stage:
        turn.writers = (*turn.writers, (record.stage, record.by))


@_folds(r.HeldReleased)
def _(fold: Fold, record: r.HeldReleased) -> None:
    turn = _turn(fold)
    turn.held = turn.held[record.count :]


@_folds(r.Injected)
def _(fold: Fold, record: r.Injected) -> None:
    turn = _turn(fold)
    turn.injected = (*turn.injected, record)


@_folds(r.HookDecided)
def _(fold: Fold, record: r.HookDecided) -> None:
    if record.shadow:
        return
    if fold.open is not None or record.about.startswith(step_id(fold.session, fold.steps + 1)):
        step = _open(fold)
        step.decided = (*step.decided, record)
    elif fold.turn is not None:
        fold.turn.decided = (*fold.turn.decided, record)


@_folds(r.HookFailed)
def _(fold: Fold, record: r.HookFailed) -> None:
    if record.effect == "unreviewed" and fold.turn is not None:
        fold.turn.unreviewed = tuple(sorted({*fold.turn.unreviewed, record.hook}))


@_folds(r.HooksRan)
def _(fold: Fold, record: r.HooksRan) -> None:
    """Times change nothing."""


@_folds(r.ModelAttempted)
def _(fold: Fold, record: r.ModelAttempted) -> None:
    step = _open(fold)
    step.attempts = (*step.attempts, record)
    _turn(fold).restarts = 0
    if record.reply is not None:
        fold.spend(record.reply.usage)


_sum = Usage.__add__  # a call: Python evaluates an operator of a class much slower


@_folds(r.ModelReplied)
def _(fold: Fold, record: r.ModelReplied) -> None:
    reply = record.reply
    step = fold.open
    if step is None:
        step = fold.open = StepFold(record.step, 1, reply)
    else:
        step.reply = reply
        step.versions = None
    for part in reply.message.parts:
        if type(part) is ToolCallPart:
            call = ToolCall(part.id, part.name, part.json, part.vendor_id)
            step.calls[part.id] = CallFold(call, call)
    if record.masked:
        for state in step.calls.values():
            state.masked = r.MASK in state.call.json
    turn = fold.turn
    assert turn is not None
    if record.paid:
        turn.usage = _sum(turn.usage, reply.usage)
    if turn.restarts:
        turn.restarts = 0


@_folds(r.ReplyRejected)
def _(fold: Fold, record: r.ReplyRejected) -> None:
    step = _open(fold)
    fold.open = fresh = StepFold(step.number)
    fresh.round = step.round + 1
    fresh.rejected = step.rejected if step.reply is None else (*step.rejected, (step.reply, record.feedback))


@_folds(r.ReplyPassed)
def _(fold: Fold, record: r.ReplyPassed) -> None:
    if fold.turn is not None:
        fold.turn.objections = tuple(sorted({*fold.turn.objections, *record.by}))


@_folds(r.ToolDecided)
def _(fold: Fold, record: r.ToolDecided) -> None:
    step = fold.open
    assert step is not None
    call = step.calls[record.call]
    call.decided = record
    turn = fold.turn
    assert turn is not None
    if turn.waiting and type(record.verdict) is not Ask:  # nobody has to answer any more
        turn.waiting = tuple([asked for asked in turn.waiting if asked.id != record.call])
    if record.json is not None:
        call.call = call.proposed.replace(json=record.json)
        call.masked = record.masked and r.MASK in record.json
        call.edited = _editor(turn, record.call)
    if step.versions is not None:
        step.changed(call)


def _editor(turn: TurnFold, call: str) -> str | None:
    """Who changed the arguments of a call when asked about it."""
    edits = [answered for answered in turn.answered if answered.id == call and isinstance(answered.answer, Edit)]
    return (edits[-1].by or "a person") if edits else None


def _edit_note(call: CallFold, by: str) -> TextPart:
    """What the transcript says beside the result of an edited call: the reply keeps what the model proposed."""
    return TextPart(f"[Before this call ran, {by} changed its arguments to {call.call.json}]\n", "edit")


@_folds(r.ToolCalled)
def _(fold: Fold, record: r.ToolCalled) -> None:
    step = fold.open
    assert step is not None
    call = step.calls[record.call]
    call.called = record.attempt
    call.starts += 1
    if step.versions is not None:
        step.changed(call)


@_folds(r.UndoCalled)
def _(fold: Fold, record: r.UndoCalled) -> None:
    step = fold.open
    assert step is not None
    call = step.calls[record.call]
    call.undoing = True
    if step.versions is not None:
        step.changed(call)


@_folds(r.ToolAttempted)
def _(fold: Fold, record: r.ToolAttempted) -> None:
    step = fold.open
    assert step is not None
    call = step.calls[record.call]
    call.attempts = (*call.attempts, record)
    _turn(fold).restarts = 0
    if step.versions is not None:
        step.changed(call)


@_folds(r.ToolReturned)
def _(fold: Fold, record: r.ToolReturned) -> None:
    step, turn = fold.open, fold.turn
    assert step is not None
    assert turn is not None
    call = step.calls[record.call]
    call.result = record.result
    if step.versions is not None:
        step.changed(call)
    if record.result.status == "error":
        turn.failed_calls += 1
    if turn.restarts:
        turn.restarts = 0
    if call.children:
        _forget_questions(turn, call)


def _forget_questions(turn: TurnFold, call: CallFold) -> None:
    """The call is over: nobody waits for answers to what its child agents asked."""
    sessions = [child.started.session for child in call.children]
    theirs = tuple([f"{session}/" for session in (*sessions, call.proposed.id)])
    turn.waiting = tuple([asked for asked in turn.waiting if not asked.id.startswith(theirs)])


@_folds(r.Delegated)
def _(fold: Fold, record: r.Delegated) -> None:
    if record.background:
        fold.background = (*fold.background, BackgroundChild(record, _turn(fold).number))
        return
    if record.key:
        turn = _turn(fold)
        turn.delegated = (*turn.delegated, Child(record))
        return
    step = _open(fold)
    call = step.calls[record.call]
    call.children = (*call.children, Child(record))
    if step.versions is not None:
        step.changed(call)


@_folds(r.Charged)
def _(fold: Fold, record: r.Charged) -> None:
    turn = _turn(fold)
    earlier = [] if record.call else [child for child in fold.background if _is_earlier(child, record, turn)]
    if earlier:
        fold.before = fold.before + record.usage
        turn.reported = (*turn.reported, Child(earlier[0].started, record.usage))
        return
    if not record.call:
        turn.delegated = _charged(turn.delegated, record)
    else:
        step = _open(fold)
        call = step.calls[record.call]
        call.children = _charged(call.children, record)
        if step.versions is not None:
            step.changed(call)
    turn.restarts = 0
    fold.spend(record.usage)


def _is_earlier(child: BackgroundChild, record: r.Charged, turn: TurnFold) -> bool:
    """Whether a charge is for a child that an earlier turn started, whose budget it had."""
    return child.started.session == record.session and child.turn != turn.number


def _charged(children: tuple[Child, ...], record: r.Charged) -> tuple[Child, ...]:
    """The children, one of which was charged for."""
    return tuple(
        [
            child.replace(charged=child.charged + record.usage) if child.started.session == record.session else child
            for child in children
        ]
    )


@_folds(r.StepEnded)
def _(fold: Fold, record: r.StepEnded) -> None:
    turn, step = fold.turn, fold.open
    assert turn is not None
    if step is None:
        step = StepFold(record.step)
    fold.say(step.messages() if record.messages is None else record.messages)
    fold.steps = record.step
    fold.open = None
    turn.steps += 1
    turn.active += record.active
    if turn.errors_in_a_row:
        turn.errors_in_a_row = 0
    if turn.writers:
        turn.writers = ()
    if turn.idle and step.calls:
        turn.idle = 0
    fold.last = step


@_folds(r.Evaluated)
def _(fold: Fold, record: r.Evaluated) -> None:
    turn = _turn(fold)
    turn.evaluated = record
    if record.vote is Vote.REQUEST or record.vote is Vote.ALLOW:
        last = fold.last or turn.last
        if last is not None and not last.calls:
            turn.idle += 1


@_folds(r.StopVetoed)
def _(fold: Fold, record: r.StopVetoed) -> None:
    turn = _turn(fold)
    turn.vetoes += 1
    turn.evaluated = r.Evaluated(fold.steps, Vote.REQUEST, tuple([(name, "veto") for name in record.by]))


@_folds(r.Rewound)
def _(fold: Fold, record: r.Rewound) -> None:
    turn = _turn(fold)
    turn.rewinds += 1
    turn.last = fold.last = None
    fold.cut(record.length)


@_folds(r.Compacted)
def _(fold: Fold, record: r.Compacted) -> None:
    fold.compact(record)


@_folds(r.ErrorHandled)
def _(fold: Fold, record: r.ErrorHandled) -> None:
    turn = _turn(fold)
    turn.errors += 1
    turn.errors_in_a_row += 1
    if record.action == "retry":
        turn.retries += 1
        if record.attempt:
            step = _open(fold)
            step.tried = record.attempt
            step.retries += 1
        elif fold.open is not None and fold.open.reply is None:
            fold.open.round += 1
            fold.open.tried = fold.open.retries = 0


@_folds(r.Asked)
def _(fold: Fold, record: r.Asked) -> None:
    turn = _turn(fold)
    turn.waiting = (*turn.waiting, record)
    turn.answered = tuple([answered for answered in turn.answered if answered.id != record.id])


@_folds(r.Answered)
def _(fold: Fold, record: r.Answered) -> None:
    turn = _turn(fold)
    if record.partial:
        turn.waiting = tuple([with_answer(asked, record) if asked.id == record.id else asked for asked in turn.waiting])
        return
    asked = next((asked for asked in turn.waiting if asked.id == record.id), None)
    turn.waiting = tuple([asked for asked in turn.waiting if asked.id != record.id])
    turn.answered = (*turn.answered, record if asked is None else settled(asked, record))


@_folds(r.Withdrawn)
def _(fold: Fold, record: r.Withdrawn) -> None:
    turn = _turn(fold)
    turn.waiting = tuple([asked for asked in turn.waiting if asked.id not in record.ids])


@_folds(r.Suspended)
def _(fold: Fold, record: r.Suspended) -> None:
    turn = _turn(fold)
    turn.outcome = record.replace(waiting_for=turn.waiting)  # with what is under review, which the record leaves out
    turn.active += record.active
    turn.restarts = 0
    fold.going = False


@_folds(r.Resumed)
def _(fold: Fold, record: r.Resumed) -> None:
    turn = _turn(fold)
    turn.outcome = None
    turn.active += record.active
    turn.restarts += 1
    fold.going = turn.concluded is None
    if turn.options is None:
        fold.pipeline = record.pipeline
    else:
        turn.options = turn.options.replace(pipeline=record.pipeline)


@_folds(r.SlotSet)
def _(fold: Fold, record: r.SlotSet) -> None:
    fold.slots = {**fold.slots, record.slot: record.value}
    if record.stage and (turn := fold.turn) is not None:
        turn.writers = (*turn.writers, (record.stage, record.by))


@_folds(r.SideReplied)
def _(fold: Fold, record: r.SideReplied) -> None:
    turn = _turn(fold)
    turn.sides = (*turn.sides, record)
    turn.restarts = 0
    if record.paid:
        fold.spend(record.reply.usage)


@_folds(r.Noted)
def _(fold: Fold, record: r.Noted) -> None:
    if fold.turn is not None:
        fold.turn.notes = (*fold.turn.notes, record)


@_folds(r.CancelRequested)
def _(fold: Fold, record: r.CancelRequested) -> None:
    _turn(fold).cancel = record.reason or "cancelled"


@_folds(r.InboxTaken)
def _(fold: Fold, record: r.InboxTaken) -> None:
    fold.inbox = (*fold.inbox, record.key)
    if fold.background and record.entry == BACKGROUND:
        fold.background = tuple(
            [
                child.replace(taken=True) if background_key(child.started.session) == record.key else child
                for child in fold.background
            ]
        )
    if fold.turn is not None:
        fold.turn.idle = 0


@_folds(r.Concluded)
def _(fold: Fold, record: r.Concluded) -> None:
    turn = _turn(fold)
    turn.concluded = record.outcome
    if record.text is not None or turn.text is not None:
        turn.text = record.text
    fold.going = False


@_folds(r.TurnEnded)
def _(fold: Fold, record: r.TurnEnded) -> None:
    turn = _turn(fold)
    turn.outcome = record.outcome
    turn.active += record.active
    if record.text is not None:
        turn.text = record.text
    if turn.injected:
        turn.injected = ()
    if turn.waiting:
        turn.waiting = ()
    fold.open = fold.turn_view = None
    fold.going = False
    if fold.background and isinstance(record.outcome, Cancelled):
        why = record.outcome.reason
        fold.background = tuple([child.replace(cancelled=why) for child in fold.background])


def _changes_nothing(fold: Fold, record: r.Record) -> None:
    """A record for those who read the log."""


def _note_unknown(fold: Fold, record: r.Unknown) -> None:
    fold.unknown = fold.unknown or record.name or "?"


FOLDS[r.Unknown] = _note_unknown
for _kind in r.KINDS.values():
    FOLDS.setdefault(_kind, _changes_nothing)

__all__ = [
    "CallState",
    "Calls",
    "OpenStep",
    "Shown",
    "State",
    "Step",
    "TurnState",
    "fold",
    "stop_reason",
]
