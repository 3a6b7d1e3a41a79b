"""The records of the log: facts that are written once and never changed. A state is a fold of them."""

from __future__ import annotations

import json as stdlib_json
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, Literal, TypeAlias, Union, get_args

import msgspec

from .decisions import AnyDecision, AnyResolution, Stage, Vote
from .errors import StoreError
from .messages import (
    PART_TAGS,
    ContentPart,
    Delegation,
    Message,
    ModelReply,
    TextPart,
    ToolCall,
    ToolResult,
    ToolSpec,
    Usage,
    Value,
    json_with_surrogates,
)
from .outcomes import Cancelled, Completed, ErrorValue, Failed, Stopped

MASK = "•••"
"""Stands for a secret in a record that was masked."""


class Fact(Value, frozen=True, kw_only=True, tag=True, tag_field="kind"):
    """Something that happened. Observers receive facts; they cannot change them.

    `at` is the time, in seconds since the epoch by the agent's clock. In a log it never goes back.
    `path` and `seq` are set for observers and streams, never in the log. `path` is the session of the sub-agent that
    the fact comes from. `seq` is a number: for a durable observer the position in the log, counted from 1, otherwise
    the position in the stream.
    """

    at: float = 0.0
    path: str = ""
    seq: int = 0


class Record(Fact, frozen=True, kw_only=True):
    """A fact that is written to the log. `masked` says that it held secrets, which were replaced by `•••`."""

    masked: bool = False


class SessionOpened(Record, frozen=True):
    """A process opened the session: new, resumed or forked. `system` and `tools` are set if a hook changed them, and
    `sections` says who put what into the system text. For a fork, `origin` is its source as `session@record` and
    `forked_at` is its time; copied records keep their own times. For a sub-agent, `parent` is the session of its
    parent."""

    how: Literal["new", "resumed", "forked"] = "new"
    agent: str = ""
    pipeline: str = ""
    system: str | None = None
    tools: tuple[ToolSpec, ...] | None = None
    origin: str = ""
    sections: tuple[TextPart, ...] | None = None
    parent: str = ""
    forked_at: float = 0.0


class SessionEnded(Record, frozen=True):
    """The session was closed."""


class HistoryImported(Record, frozen=True):
    """Messages from elsewhere became the transcript of a new session, before its first turn.

    `withheld` counts the messages that hooks did not let in; `agent` is the name of the agent that imported them.
    """

    messages: tuple[Message, ...]
    agent: str = ""
    withheld: int = 0


class TurnCriterion(Value, frozen=True):
    """A criterion among the options of a turn. Without `parameters` it is code, which a resume must pass again."""

    name: str
    parameters: Mapping[str, Any] | None = None


class TurnOptions(Value, frozen=True):
    """The options of one turn, given to `run`. They also apply when the turn is resumed.

    `model` is a name; `model_object` says that a model object was given, which a resume must pass again unless the
    agent has a model of that name. `tools` are the names of tools, which a resume must pass again. `settings` are those
    that were given, without the agent's own. `pipeline` is the digest of the agent with these options.
    """

    model: str = ""
    model_object: bool = False
    settings: Mapping[str, Any] = {}
    criteria: tuple[TurnCriterion, ...] = ()
    tools: tuple[str, ...] = ()
    pipeline: str = ""


class TurnStarted(Record, frozen=True):
    """A user message opened a turn. It enters the transcript with a `MessageAdded`, once the gates allow it.

    If hooks refused the message, `withheld` is its number of characters, and `message` says only that it was withheld.
    `options` are set if the turn has options of its own.
    """

    turn: int
    message: Message
    ref: str
    withheld: int = 0
    options: TurnOptions | None = None


class MessageAdded(Record, frozen=True):
    """A message that is not part of a step entered the transcript: steering, feedback, a durable injection.

    Without a `message` it is the user message that opened the turn.
    """

    message: Message | None = None
    by: str = ""


class MessageHeld(Record, frozen=True):
    """A hook or tool added a message, which enters the transcript after those of the step. For a hook, `stage` is its
    event and what that was about."""

    message: Message
    by: str = ""
    stage: str = ""


class HeldReleased(Record, frozen=True):
    """The first `count` held messages entered the transcript, or were refused."""

    count: int


class Injected(Record, frozen=True):
    """Context that a hook added. A hook may return one, with `parts` and flags; the kernel fills in the rest.

    Transient parts (the default) last for their turn or step only; `durable` parts join the transcript. With
    `record=False` they stay out of the log, and the hook is asked again on resume.
    """

    parts: str | tuple[ContentPart, ...]
    durable: bool = False
    record: bool = True
    hook: str = ""
    event: str = ""
    about: str = ""
    took: float = 0.0


class Rewritten(Record, frozen=True, gc=True):
    """A rewrite changed a payload; `fields` has the changed fields with their new values. `took` is how many seconds
    the hook took."""

    event: str
    hook: str
    about: str
    fields: dict[str, Any]
    took: float = 0.0


class HookDecided(Record, frozen=True):
    """Gates decided about something other than a tool call. `took` is how many seconds the gates that answered took."""

    event: str
    about: str
    verdict: AnyDecision | Vote | None
    answers: tuple[tuple[str, AnyDecision | Vote], ...]
    shadow: bool = False
    took: float = 0.0


class HookFailed(Record, frozen=True):
    """A hook failed, was skipped, blocked the event loop or was flooded; `effect` says what that meant, `took` after
    how many seconds it failed.

    `fact` is the position in the log of a fact that a durable observer failed on each time, and that is now skipped.
    """

    hook: str
    event: str
    error: ErrorValue
    effect: str = ""
    fact: int = 0
    took: float = 0.0


class HookTimes(Value, frozen=True):
    """How long one hook, registered with `verb`, took at one event in one segment of a turn: `seconds` in all, at the
    `slowest` in one call.

    `asked` counts the calls, those that stayed silent included. `said` counts what it answered by name: a decision or
    vote such as `deny`, `rewrite`, `inject`, `failed`, or `timeout`. The time of a wrap is its own: what it surrounds
    is not in it. Each pair in `buckets` is a number and how many calls it counts: bucket n holds the times from
    2**(n/4) microseconds up to the next one.
    """

    hook: str
    event: str
    asked: int
    seconds: float
    slowest: float
    buckets: tuple[tuple[int, int], ...]
    said: Mapping[str, int] = {}
    verb: str = ""
    capability: str = ""


class TransformTimes(Value, frozen=True):
    """What a transformer did in one attempt: `pieces` out for `chunks` in, in how many `seconds`.

    `held` is the most characters that it held back at once.
    """

    name: str
    chunks: int
    pieces: int
    held: int
    seconds: float


class StreamTimes(Value, frozen=True):
    """How one attempt at a reply was streamed: `chunks` of the model with so many `characters`, `sent` pieces to the
    consumer, and what each of the `transforms` did.

    `first_chunk`, `last_chunk`, `first_sent` and `last_sent` are seconds since the attempt began, None if there was no
    chunk or piece. `held` says that everything waited until hooks had judged the whole reply. `retracted` is
    why the words were taken back.
    """

    step: int
    round: int
    attempt: int
    chunks: int
    characters: int
    sent: int
    first_chunk: float | None = None
    last_chunk: float | None = None
    first_sent: float | None = None
    last_sent: float | None = None
    held: bool = False
    retracted: str = ""
    transforms: tuple[TransformTimes, ...] = ()


class HooksRan(Record, frozen=True, gc=True):
    """How long `hooks` took since the turn was started or resumed, summed up per hook and event, and how replies were
    streamed. It is written before the turn ends or suspends, only with `Agent(measure_hooks=True)`."""

    hooks: tuple[HookTimes, ...] = ()
    streams: tuple[StreamTimes, ...] = ()


class ModelAttempted(Record, frozen=True):
    """An attempt at a model call that a wrap discarded: its reply or its error."""

    step: int
    round: int
    attempt: int
    fingerprint: str = ""
    reply: ModelReply | None = None
    error: ErrorValue | None = None


class ModelReplied(Record, frozen=True):
    """The reply that counts for this step. `paid` is false if no model was called for it (a cache, an `Answer`).

    `fingerprint` is set if a wrap had changed the request.
    """

    step: int
    reply: ModelReply
    round: int = 1
    attempt: int = 1
    paid: bool = True
    fingerprint: str = ""


class ReplyRejected(Record, frozen=True):
    """The reply was rejected: it is paid for, but its calls are not made and it does not enter the transcript."""

    step: int
    feedback: str
    by: tuple[str, ...] = ()


class ReplyPassed(Record, frozen=True):
    """The reply stands although hooks rejected it or vetoed the stop after it: their bound is reached, and they let it
    pass then."""

    step: int
    feedback: str
    by: tuple[str, ...] = ()


class ToolDecided(Record, frozen=True):
    """The verdict on one call of the tool `name`. If a hook or a person answered, `digest` binds it to the arguments,
    and `took` is how many seconds the hooks took. `json` is set if the arguments were changed. For a task for another
    agent, `delegation` is the task, and `delegating` names the hooks that answered at `Delegating`."""

    call: str
    verdict: AnyDecision
    digest: str = ""
    answers: tuple[tuple[str, AnyDecision], ...] = ()
    json: str | None = None
    delegation: Delegation | None = None
    delegating: tuple[str, ...] = ()
    name: str = ""
    took: float = 0.0


class ToolCalled(Record, frozen=True):
    """An attempt at a call was started. `json` is set if a wrap changed the arguments."""

    call: str
    name: str
    attempt: int = 1
    fingerprint: str = ""
    json: str | None = None


class UndoCalled(Record, frozen=True):
    """The compensation of a call in doubt was started. Its result becomes the result of the call."""

    call: str
    name: str


class ToolAttempted(Record, frozen=True):
    """An attempt at a call that a wrap discarded: its result or its error."""

    call: str
    attempt: int
    fingerprint: str = ""
    result: ToolResult | None = None
    error: ErrorValue | None = None


class ToolReturned(Record, frozen=True):
    """The result of a call, from any source: the tool, a denial, an answer, a person, a cancel.

    `error` is what the tool raised; the model does not read it.
    """

    call: str
    name: str
    result: ToolResult
    error: ErrorValue | None = None


class Delegated(Record, frozen=True):
    """A child agent was given a task; `session` is its own session. `tokens` and `usd` are its share of the budget.

    If a hook or tool gave it the task with `turn.delegate`, `by` names it, `key` says at which event and about what,
    and `call` is empty. In the `background` it works beside the turn and may outlive it: then its share is granted, and
    its result comes through the inbox.
    """

    call: str
    session: str
    agent: str
    task: str
    tools: tuple[str, ...] | None = None
    tokens: int | None = None
    usd: float | None = None
    key: str = ""
    by: str = ""
    background: bool = False


class Charged(Record, frozen=True):
    """What a child agent has spent since it was last charged; it now counts in this turn."""

    call: str
    session: str
    usage: Usage


class StepEnded(Record, frozen=True):
    """The step's messages entered the transcript. `messages` is set if they differ from the reply and its results."""

    step: int
    messages: tuple[Message, ...] | None = None
    active: float = 0.0


class Evaluated(Record, frozen=True):
    """The vote after a step, and who cast it. If a turn continues only because tools were called, observers receive
    this fact, but it is not written: the calls are in the log."""

    step: int
    vote: Vote | None
    reasons: tuple[tuple[str, str], ...] = ()


class StopVetoed(Record, frozen=True):
    """A stop was vetoed; the feedback follows as a message."""

    reason: str
    by: tuple[str, ...]
    feedback: str


class Rewound(Record, frozen=True):
    """The transcript went back to its first `length` messages; steps and usage are not reset."""

    to: int
    length: int
    by: tuple[str, ...] = ()


class Compacted(Record, frozen=True):
    """A range of the model's view of the history was replaced by something shorter; the transcript is unchanged.

    `range` counts the messages of the view before the change; a number among `messages` is one of them that stays.
    `before` and `after` are tokens of the whole request, `by` is the strategy and `reason` what triggered it.
    """

    range: tuple[int, int]
    messages: tuple[Message | int, ...]
    by: str = ""
    reason: str = ""
    before: int = 0
    after: int = 0


class ErrorHandled(Record, frozen=True):
    """An error occurred and was answered with retry, ignore, fail or halt.

    For a model call that is retried, `attempt` is the number of the attempt that failed.
    """

    error: ErrorValue
    category: str
    action: Literal["retry", "ignore", "fail", "halt"]
    by: str = "policy"
    step: int = 0
    attempt: int = 0


class Terms(Value, frozen=True):
    """What the `Ask` of one gate, `by`, requires: approvals of people, in one or more stages.

    A stage without approvers takes anyone's approval. `asked_at` is when the first stage began. If the terms are not
    met at `expires_at`, `default` holds for them.
    """

    by: str = ""
    stages: tuple[Stage | None, ...] = (None,)
    asked_at: float = 0.0
    expires_at: float | None = None
    default: str = "reject"


class AskedRequest(Value, frozen=True, gc=True):
    """A request to a model as a person reviews it; `tools` are names."""

    model: str = ""
    system: str = ""
    messages: tuple[Message, ...] = ()
    tools: tuple[str, ...] = ()
    settings: Mapping[str, Any] = {}


class Asked(Record, frozen=True, gc=True):
    """A question that waits for an answer; `id` is the id of the call, reply, turn or request that it is about.

    `call`, `reply`, `request` or `text` is what a person reviews, and `digest` binds answers to it. `details` and
    `priority` come from the gates that ask. If one approval is not enough, `terms` says what each gate requires; then
    `approvers` lists everyone who is named, and `expires_at` is when the first of the terms expires.

    `answers` and `proposed` are set in a state, as people answer: `answers` are the approvals of what is asked about
    now. Once a person has edited the call, `call` and `digest` are the edited ones, and `proposed` is the call as it
    was first asked about.
    """

    id: str
    event: str
    question: str
    allow: tuple[str, ...]
    digest: str
    by: tuple[str, ...]
    call: ToolCall | None = None
    approvers: tuple[str, ...] | None = None
    default: str = "reject"
    expires_at: float | None = None
    details: Mapping[str, Any] = {}
    priority: int = 0
    terms: tuple[Terms, ...] = ()
    reply: ModelReply | None = None
    request: AskedRequest | None = None
    text: str | None = None
    answers: tuple[Answered, ...] = ()
    proposed: ToolCall | None = None


class Answered(Record, frozen=True):
    """A question was answered: by whom, and for which digest. `covers` names the hooks that asked it.

    A `partial` answer leaves the question open, because others must approve, too. `at` is when the person answered. If
    further records were written before the answer was read, `at` is when it was read, and `answered_at` is when the
    person answered.
    """

    id: str
    answer: AnyResolution
    digest: str
    by: str = ""
    covers: tuple[str, ...] = ()
    expired: bool = False
    answered_at: float = 0.0
    partial: bool = False


class Withdrawn(Record, frozen=True):
    """Questions that nobody needs an answer to any more: the agent that asked them was ended."""

    ids: tuple[str, ...]
    reason: str = ""


class Suspended(Record, frozen=True):
    """The turn waits for answers. It is a record and, until the turn is resumed, the outcome.

    In the log, the questions in it are without their `reply`, `request` and `text`, which the `Asked` before it has.
    """

    waiting_for: tuple[Asked, ...] = ()
    active: float = 0.0


class Resumed(Record, frozen=True):
    """A suspended or interrupted turn was resumed; `pipeline` is the one it continues with.

    `drift` lists how that differs from the one that recorded the turn. If the process before it died, `active` is how
    many seconds that one had worked since its last step ended, up to its last record.
    """

    pipeline: str = ""
    drift: tuple[str, ...] = ()
    active: float = 0.0


class TakenOver(Record, frozen=True):
    """The session was taken over from a process that was working on it; `owner` names that process.

    What that process had begun is in doubt, and it can write no more.
    """

    owner: str


class Noted(Record, frozen=True, gc=True, rename={"kind": "topic"}):
    """A fact of a hook or tool of its own, made with `turn.note`: by whom, of which kind, with what data.

    `key` identifies it, so that a hook that runs again after a crash does not write it again.
    """

    by: str
    kind: str
    data: Any = None
    key: str = ""


class SlotSet(Record, frozen=True, gc=True):
    """A slot got a value. If a hook set it, `stage` is its event and what that was about."""

    slot: str
    value: Any
    by: str = ""
    stage: str = ""


class SideReplied(Record, frozen=True):
    """A hook or tool asked a model with `turn.ask`; on resume the reply is taken from this record.

    `key` says who asked, at which event and about what. `paid` is false if no model was called for this reply: a guard
    or a wrap answered.
    """

    key: str
    fingerprint: str
    reply: ModelReply
    by: str = ""
    paid: bool = True


class CancelRequested(Record, frozen=True):
    """A cancellation of the turn was requested."""

    reason: str = ""


class InboxTaken(Record, frozen=True):
    """An entry of the inbox was moved into the log."""

    key: str
    entry: str


class Concluded(Record, frozen=True):
    """The outcome of the turn is decided; its ending hooks have not run yet."""

    outcome: Completed | Stopped | Failed | Cancelled
    text: str | None = None


class TurnEnded(Record, frozen=True):
    """The turn ended. `text` is set if a hook changed the concluded text."""

    outcome: Completed | Stopped | Failed | Cancelled
    text: str | None = None
    active: float = 0.0


class Unknown(Record, frozen=True, gc=True):
    """A record written by a newer version of Windlass. It can be shown and exported; the session cannot continue."""

    name: str
    data: dict[str, Any]


Outcome: TypeAlias = Completed | Stopped | Failed | Cancelled | Suspended

AnyRecord: TypeAlias = Union[  # noqa: UP007
    SessionOpened, SessionEnded, TurnStarted, MessageAdded, MessageHeld, HeldReleased, Injected, Rewritten,
    HookDecided, HookFailed, ModelAttempted, ModelReplied, ReplyRejected, ReplyPassed, ToolDecided, ToolCalled,
    ToolAttempted, ToolReturned, UndoCalled, Delegated, Charged, StepEnded, Evaluated, StopVetoed, Rewound, Compacted,
    ErrorHandled, Asked, Answered, Withdrawn, Suspended, Resumed, TakenOver, Noted, SlotSet, SideReplied,
    CancelRequested, InboxTaken, Concluded, TurnEnded, HistoryImported, HooksRan,
]  # fmt: skip

KINDS: dict[str, type[Record]] = {str(kind.__struct_config__.tag): kind for kind in get_args(AnyRecord)}

Upcaster: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]
UPCASTERS: dict[str, Upcaster] = {}
"""Maps an old kind to a function that returns the plain form of the next one. The second version of a record is tagged
`Name.2`, so the kind names the version."""


def _refuse(value: object) -> Any:
    raise TypeError(f"a record cannot hold a {type(value).__name__}")


_encoder = msgspec.json.Encoder(enc_hook=_refuse)
_plain: msgspec.json.Decoder[dict[str, Any]] = msgspec.json.Decoder(dict[str, Any])


@cache
def _decoder() -> msgspec.json.Decoder[Record]:
    """Made when a log is first read: it takes a tenth of the time of the whole import."""
    return msgspec.json.Decoder(AnyRecord)


def encode(record: Record) -> bytes:
    """The bytes of a record, as every store and every stream holds them."""
    value = record.data if type(record) is Unknown else record
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError:
        return json_with_surrogates(msgspec.to_builtins(value, enc_hook=_refuse)).encode()


def parent_of(records: Iterable[Record]) -> str:
    """The session that started this one, according to its log; "" unless it is the session of a sub-agent."""
    parents = [record.parent for record in records if isinstance(record, SessionOpened) and record.parent]
    return parents[-1] if parents else ""


def decode(data: bytes) -> Record:
    """A record from its bytes. Records of a newer version can be read: new fields are ignored, unknown parts become
    opaque, an unknown kind becomes `Unknown`. A known kind that cannot be read raises `StoreError`."""
    try:
        return _decoder().decode(data)
    except msgspec.ValidationError:
        return _decode_foreign(_plain.decode(data))
    except msgspec.DecodeError:  # a lone surrogate, or not JSON at all
        return _decode_foreign(stdlib_json.loads(data))


def _decode_foreign(plain: dict[str, Any]) -> Record:
    """A record that another version wrote, or one with lone surrogates."""
    kind = str(plain.get("kind"))
    while kind not in KINDS and kind in UPCASTERS:
        plain = UPCASTERS[kind](plain)
        kind = str(plain.get("kind"))
    if kind not in KINDS:
        at = plain.get("at")
        return Unknown(kind, plain, at=at if isinstance(at, float) else 0.0)
    try:
        return msgspec.convert(_opaque(plain), KINDS[kind])
    except msgspec.ValidationError as error:
        text = f"a record of kind {kind} cannot be read: {error}"
        raise StoreError(f"{text}. It is damaged, or another version of Windlass wrote it") from None


_FOREIGN = ("data", "value", "fields", "schema", "arguments", "settings", "native", "details")


def _opaque(value: Any) -> Any:
    """The same plain value, with message parts of an unknown type wrapped as opaque parts."""
    if isinstance(value, list):
        return [_opaque(item) for item in value]
    if not isinstance(value, dict):
        return value
    known: dict[str, Any] = {
        key: item if key in _FOREIGN and "holds" not in value else _opaque(item) for key, item in value.items()
    }
    if known.get("decision") == "Retry":  # the former name of `Again`
        known = {"decision": "Again", "after": max(known.get("delay", 0.0), 0.0)}
    for key in ("parts", "content"):
        if isinstance(parts := known.get(key), list):
            known[key] = [
                {"type": "opaque", "vendor": "unknown", "data": part}
                if isinstance(part, dict) and part.get("type") not in PART_TAGS
                else part
                for part in parts
            ]
    return known
