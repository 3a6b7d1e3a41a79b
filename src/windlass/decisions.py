"""What hooks and people may answer: the closed union of decisions, and the answers to a question."""

from __future__ import annotations

import enum
from math import inf
from typing import Any, Literal, TypeAlias, get_args

from msgspec import Struct, convert
from msgspec.structs import force_setattr

from .messages import CONTENT_PARTS, ContentPart, Message, ModelReply, ToolResult, Value

AnswerKind = Literal["approve", "edit", "reject", "respond"]
ANSWER_KINDS: tuple[str, ...] = get_args(AnswerKind)


class Decision(Value, frozen=True, tag=True, tag_field="decision"):
    """An answer of a gate."""


class Allow(Decision, frozen=True):
    """Continue."""


class Deny(Decision, frozen=True):
    """Refuse this action; the model reads the reason."""

    reason: str = "denied"


class Answer(Decision, frozen=True, gc=True):
    """Skip the effect and use this value as its result.

    `holds` is set automatically if the value has a type of Windlass, so that a log returns the same value.
    """

    value: Any
    holds: Literal["result", "reply", "message", "parts"] | None = None

    def __post_init__(self) -> None:
        if self.holds is not None and isinstance(self.value, dict | list):  # from a log
            force_setattr(self, "value", convert(self.value, _HELD[self.holds]))
        elif (holds := _holds(self.value)) is not self.holds:
            force_setattr(self, "holds", holds)


_HELD: dict[str, Any] = {
    "result": ToolResult,
    "reply": ModelReply,
    "message": Message,
    "parts": tuple[ContentPart, ...],
}


def _holds(value: Any) -> Literal["result", "reply", "message", "parts"] | None:
    match value:
        case ToolResult():
            return "result"
        case ModelReply():
            return "reply"
        case Message():
            return "message"
        case (_, *_) if isinstance(value, tuple):
            return "parts" if all(isinstance(part, CONTENT_PARTS) for part in value) else None
        case _:
            return None


class Ask(Decision, frozen=True):
    """Suspend durably until a person answers.

    `allow` lists the legal answers and `approvers` the people who may answer (None: anyone). After `expires` seconds,
    `default` is the answer; it takes effect when the session is next resumed.
    """

    question: str = "Approve?"
    allow: tuple[str, ...] = ANSWER_KINDS
    approvers: tuple[str, ...] | None = None
    expires: float | None = None
    default: Literal["approve", "reject"] = "reject"

    def __post_init__(self) -> None:
        options: tuple[object, ...] = (self.allow, self.approvers)
        if any(isinstance(names, str) for names in options):
            raise ValueError("Ask(allow=…, approvers=…) take tuples of names, not a str")
        if not self.allow:
            raise ValueError("Ask(allow=()) could never be answered")
        if self.approvers is not None and not self.approvers:
            raise ValueError("Ask(approvers=()) could never be answered; omit it if anyone may answer")
        if wrong := [kind for kind in self.allow if kind not in ANSWER_KINDS]:
            raise ValueError(f"Ask(allow=…) has unknown answers {wrong}; the answers are {', '.join(ANSWER_KINDS)}")
        expires: object = self.expires
        number = isinstance(expires, int | float) and not isinstance(expires, bool) and 0 <= expires < inf
        if expires is not None and not number:
            raise ValueError(f"Ask(expires={expires!r:.40}) must be a number of seconds, 0 or more, or None for never")
        if self.default not in ("approve", "reject"):
            raise ValueError(f"Ask(default={self.default!r}): must be 'approve' or 'reject'")
        if self.default == "approve" and "approve" not in self.allow:
            raise ValueError("Ask(default='approve') needs 'approve' among the answers it allows")


class Regenerate(Decision, frozen=True):
    """Ask the model again; it sees its rejected reply and this feedback.

    `otherwise` says what happens once the bound is reached (`max_regenerations`): "stop" ends the turn, "pass" lets the
    reply pass, and the outcome names the hooks that objected (`objections`).
    """

    feedback: str = ""
    otherwise: Literal["stop", "pass"] = "stop"

    def __post_init__(self) -> None:
        if self.otherwise not in ("stop", "pass"):
            raise ValueError(f"Regenerate(otherwise={self.otherwise!r}): must be 'stop' or 'pass'")


class Veto(Decision, frozen=True):
    """Do not stop yet; the model reads the feedback."""

    feedback: str = ""


class Finish(Decision, frozen=True, gc=True):
    """Complete the turn with this value."""

    value: Any


class Rewind(Decision, frozen=True):
    """Go back to before step `to` of this turn, with a note to the model. Limits and usage are not reset."""

    to: int
    note: str = ""


class Halt(Decision, frozen=True):
    """End the turn now; `reply` is what the user reads."""

    reason: str = "halted"
    reply: str | None = None


class Again(Decision, frozen=True):
    """For an error: try again after this many seconds; None leaves the wait to the error policy."""

    after: float | None = None

    def __post_init__(self) -> None:
        if self.after is not None and not 0 <= self.after < inf:
            raise ValueError(f"Again(after={self.after!r}) must be a number of seconds, 0 or more, or None")


class Ignore(Decision, frozen=True):
    """For an error: ignore it and continue."""


class Fail(Decision, frozen=True):
    """For an error: do not try again; the turn ends as `Failed` with this error."""


class Vote(enum.Enum):
    """A vote on whether the turn continues. The strictest wins: FORBID, REQUEST, ALLOW_STOP, ALLOW."""

    FORBID = "forbid"
    REQUEST = "request"
    ALLOW_STOP = "allow_stop"
    ALLOW = "allow"


AnyDecision: TypeAlias = (
    Allow | Deny | Answer | Ask | Regenerate | Veto | Finish | Rewind | Halt | Again | Ignore | Fail
)


class Resolution(Struct, frozen=True, tag=True, tag_field="answer", omit_defaults=True):
    """The answer of a person (or a rule) to a question; `by` names who answered."""


class Approve(Resolution, frozen=True):
    """Yes, as shown."""

    by: str | None = None


class Edit(Resolution, frozen=True):
    """Yes, but with these arguments. They pass the gates again."""

    arguments: dict[str, Any]
    by: str | None = None


class Reject(Resolution, frozen=True):
    """No. Without a message the model is told not to try again."""

    message: str = ""
    by: str | None = None


class Respond(Resolution, frozen=True):
    """Do not run it; the model reads this text as the result."""

    text: str
    by: str | None = None


AnyResolution: TypeAlias = Approve | Edit | Reject | Respond


class Says(Struct, frozen=True):
    """One hook's answer in several verbs: a new payload, a decision, parts to inject; each is optional."""

    rewrite: Any = None
    decision: Any = None
    inject: Any = None
