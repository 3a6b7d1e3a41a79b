"""What hooks and people may answer: the closed union of decisions, and the answers to a question."""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping
from math import inf
from typing import Any, Literal, TypeAlias, cast, get_args

from msgspec import Struct, convert, json
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


Escalation: TypeAlias = tuple[float, tuple[str, ...]]
"""After how many seconds which people may answer, too."""


class Stage(Value, frozen=True):
    """One stage of an approval: `quorum` of the `approvers` must approve before the next stage begins.

    `escalate=(seconds, names)` adds approvers if the stage has lasted that long.
    """

    approvers: tuple[str, ...]
    quorum: int = 1
    escalate: Escalation | None = None

    def __post_init__(self) -> None:
        if cast(object, self.approvers) is None:
            raise ValueError("Stage(approvers=…) needs the names of the people who may approve")
        _check_people("Stage", self.approvers, self.quorum, self.escalate)


class Ask(Decision, frozen=True, gc=True):
    """Suspend durably until people answer.

    `allow` lists the legal answers and `approvers` the people who may answer (None: anyone). After `expires` seconds,
    `default` is the answer; it takes effect when the session is next resumed. `details` is JSON for the person who
    answers, and questions with a higher `priority` are listed first.

    `quorum` is how many of the approvers must approve. `escalate=(seconds, names)` adds approvers after that time.
    `stages` asks one group of people after the other, and replaces `approvers`, `quorum` and `escalate`. One person's
    `Reject` or `Respond` is always enough.
    """

    question: str = "Approve?"
    allow: tuple[str, ...] = ANSWER_KINDS
    approvers: tuple[str, ...] | None = None
    expires: float | None = None
    default: Literal["approve", "reject"] = "reject"
    details: Mapping[str, Any] = {}
    priority: int = 0
    quorum: int = 1
    escalate: Escalation | None = None
    stages: tuple[Stage, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(allow := cast(object, self.allow), str):
            raise ValueError(f"Ask(allow={allow!r}) takes a tuple of names, not a str")
        if not self.allow:
            raise ValueError("Ask(allow=()) could never be answered")
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
        if type(self.priority) is not int:
            raise ValueError(f"Ask(priority={self.priority!r}): must be an int; a higher one is listed first")
        _check_details(self.details)
        _check_people("Ask", self.approvers, self.quorum, self.escalate)
        if self.stages != ():
            self._check_stages()

    def _check_stages(self) -> None:
        stages: Any = self.stages
        if not isinstance(stages, list | tuple) or not stages or any(type(stage) is not Stage for stage in stages):
            raise ValueError("Ask(stages=…) takes a list of one or more Stage(approvers, quorum=1, escalate=None)")
        if self.approvers is not None or self.quorum != 1 or self.escalate is not None:
            raise ValueError("Ask(stages=…): give approvers, quorum and escalate to each Stage instead of the Ask")
        force_setattr(self, "stages", tuple(stages))


def _check_details(details: Any) -> None:
    """Raise unless the details are a JSON object."""
    problem = f"a {type(details).__name__}" if not isinstance(details, dict) else ""
    if not problem and details:
        try:
            json.encode(details)
            problem = "" if all(type(key) is str for key in details) else "a key that is not a str"
        except (TypeError, ValueError, RecursionError, OverflowError) as error:
            problem = str(error)
    if problem:
        raise ValueError(f"Ask(details=…) takes a dict of JSON values for the person who answers: {problem}")


def _check_people(what: str, approvers: Any, quorum: Any, escalate: Any) -> None:
    """Raise unless these people can give that many approvals."""
    names = _names(what, "approvers", approvers) if approvers is not None else None
    if type(quorum) is not int or quorum < 1:
        raise ValueError(f"{what}(quorum={quorum!r}): must be an int, 1 or more")
    if names is None and quorum > 1:
        raise ValueError(f"{what}(quorum={quorum}) needs approvers=…, the names of the people whose approvals count")
    if escalate is not None:
        if names is None:
            raise ValueError(f"{what}(escalate=…) needs approvers=…: without them anyone may answer already")
        if not isinstance(escalate, list | tuple) or len(escalate) != 2:
            raise ValueError(f"{what}(escalate=…) takes (seconds, names), not {escalate!r}")
        after, added = escalate
        if type(after) not in (int, float) or not 0 <= after < inf:
            raise ValueError(f"{what}(escalate=({after!r}, …)): must be a number of seconds, 0 or more")
        names = names | _names(what, "escalate", added)
    if names is not None and quorum > len(names):
        raise ValueError(f"{what}(quorum={quorum}) can never be met: it names only {len(names)} people")


def _names(what: str, option: str, names: Any) -> set[str]:
    if isinstance(names, str) or not isinstance(names, list | tuple):
        raise ValueError(f"{what}({option}=…) takes a tuple of names, not a {type(names).__name__}")
    if not names:
        raise ValueError(f"{what}({option}=()) could never be answered; omit it if anyone may answer")
    if any(type(name) is not str for name in names):
        raise ValueError(f"{what}({option}=…) takes names of people: {names!r}")
    return set(names)


class Regenerate(Decision, frozen=True):
    """Ask the model again; it sees its rejected reply and this feedback.

    `otherwise` says what happens once the bound is reached (`max_regenerations`): "stop" ends the turn, "pass" lets the
    reply pass, and the outcome names the hooks that objected (`objections`). `limit` is a lower bound of this hook's
    own; with 0 the model is not asked again. If several hooks ask to regenerate, the highest of their limits holds.
    """

    feedback: str = ""
    otherwise: Literal["stop", "pass"] = "stop"
    limit: int | None = None

    def __post_init__(self) -> None:
        if self.otherwise not in ("stop", "pass"):
            raise ValueError(f"Regenerate(otherwise={self.otherwise!r}): must be 'stop' or 'pass'")
        _check_limit("Regenerate", self.limit)


class Veto(Decision, frozen=True):
    """Do not stop yet; the model reads the feedback.

    After `Agent(max_vetoes=…)` vetoes the turn ends as stopped. `limit` is a lower bound of this hook's own: after that
    many vetoes in the turn the stop stands, and the outcome names the hooks that objected (`objections`). If several
    hooks veto, the highest of their limits holds.
    """

    feedback: str = ""
    limit: int | None = None

    def __post_init__(self) -> None:
        _check_limit("Veto", self.limit)


def _check_limit(what: str, limit: object) -> None:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise ValueError(f"{what}(limit={limit!r}): must be a whole number, 0 or more, or None")


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
    """The answer of a person (or a rule) to a question; `by` names who answered.

    `digest` is the `Asked.digest` of what that person reviewed. If it is given, the answer is refused when somebody
    has edited the call since.
    """


class Approve(Resolution, frozen=True):
    """Yes, as shown. `remember` is a rule, such as `bash(git *)`, that the approver wants to hold from now on: it is
    recorded with the answer, and capabilities may act on it."""

    by: str | None = None
    remember: str | None = None
    digest: str | None = None

    def __post_init__(self) -> None:
        rule: Any = self.remember
        if rule is not None and (type(rule) is not str or not _RULE.fullmatch(rule)):
            raise ValueError(
                f"Approve(remember={rule!r}): must be a rule, which is the name of a tool, a pattern, or a tool with "
                "tests in parentheses, such as 'bash(git *)'"
            )


_RULE = re.compile(r"[^()\s]+(\(.+\))?", re.DOTALL)
"""A rule as the matchers of hooks write it."""


class Edit(Resolution, frozen=True):
    """Yes, but with these arguments. They pass the gates again."""

    arguments: dict[str, Any]
    by: str | None = None
    digest: str | None = None


class Reject(Resolution, frozen=True):
    """No. Without a message the model is told not to try again."""

    message: str = ""
    by: str | None = None
    digest: str | None = None


class Respond(Resolution, frozen=True):
    """Do not run it; the model reads this text as the result."""

    text: str
    by: str | None = None
    digest: str | None = None


AnyResolution: TypeAlias = Approve | Edit | Reject | Respond


class Says(Struct, frozen=True):
    """One hook's answer in several verbs: a new payload, a decision, parts to inject; each is optional."""

    rewrite: Any = None
    decision: Any = None
    inject: Any = None
