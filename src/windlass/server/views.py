"""What requests and responses hold, as values."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta, Struct

from windlass.decisions import AnyResolution
from windlass.logs import SessionInfo
from windlass.messages import (
    AudioPart,
    DocumentPart,
    ImagePart,
    Message,
    TextPart,
    Usage,
    VideoPart,
)
from windlass.outcomes import Cancelled, Failed, Stopped
from windlass.records import Asked
from windlass.results import Result
from windlass.states import State

Content: TypeAlias = TextPart | ImagePart | DocumentPart | AudioPart | VideoPart
Words: TypeAlias = str | list[Content]
"""What a user says: a text, or a list of content parts."""

Mode: TypeAlias = Literal["wait", "stream", "start"]
SessionName: TypeAlias = Annotated[str, Meta(min_length=1, max_length=512)]


def as_message(words: Words) -> str | Message:
    """What a client said as a message. A client cannot choose the origin of a part."""
    if isinstance(words, str):
        return words
    return Message("user", tuple([part.replace(origin=None) for part in words]))


# ---------------------------------------------------------------- requests


class NewTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """A message that opens a turn.

    `mode` says what the response is: the result of the turn (`wait`), its events (`stream`), or the session at once
    (`start`). A client that leaves does not end the turn, unless `cancel_on_disconnect` is true.
    """

    message: Words
    mode: Mode = "wait"
    cancel_on_disconnect: bool = False
    takeover: bool = False


class NewSessionTurn(NewTurn, frozen=True, forbid_unknown_fields=True):
    """A message that opens a turn, in this session or, without an id, in a new one."""

    session: SessionName | None = None


class ResumeTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """Resumes a suspended or interrupted turn, with answers by the ids of their questions."""

    answers: dict[str, AnyResolution | list[AnyResolution]] = {}
    mode: Mode = "wait"
    cancel_on_disconnect: bool = False
    takeover: bool = False


class NewFork(Struct, frozen=True, forbid_unknown_fields=True):
    """Copies the first `at` records of a session, by default all, to a new session."""

    at: Annotated[int, Meta(ge=0, le=2**53)] | None = None
    to: SessionName | None = None


class CancelTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """Cancels the turn of a session, with a reason for its log."""

    reason: str = ""


class SteerTurn(Struct, frozen=True, forbid_unknown_fields=True):
    """A message that the running turn reads at its next step."""

    message: Words


class FindSessions(Struct, frozen=True, forbid_unknown_fields=True):
    """Which sessions to list: those with this text in their id, first message or agent, and with this status."""

    search: str = ""
    status: Literal["open", "running", "suspended", "ended", "erased"] | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ReadRecords(Struct, frozen=True, forbid_unknown_fields=True):
    """Which records to list: `limit` of them, after the first `start`."""

    start: Annotated[int, Meta(ge=0, le=2**53)] = 0
    limit: Annotated[int, Meta(ge=1, le=10_000)] = 1000


class WatchEvents(Struct, frozen=True, forbid_unknown_fields=True):
    """From where to watch: `since` is the `id` of the last event that was received."""

    since: str | None = None


# ---------------------------------------------------------------- responses


class TurnError(Struct, frozen=True):
    """The error that a turn ended with."""

    type: str
    message: str


class TurnView(Struct, frozen=True):
    """A turn: how it ended, or where it stands.

    `status` is completed, stopped, failed, cancelled, suspended (then `questions` wait for answers) or unfinished:
    running, or interrupted and waiting for a resume.
    """

    session: str
    turn: int
    status: Literal["completed", "stopped", "failed", "cancelled", "suspended", "unfinished"]
    text: str
    usage: Usage
    stop_reason: str | None = None
    detail: str = ""
    error: TurnError | None = None
    questions: tuple[Asked, ...] = ()


class StartedView(Struct, frozen=True):
    """A turn that was started; watch it at `events`."""

    session: str
    events: str


class SessionView(Struct, frozen=True):
    """A session: its transcript, what it has spent, and its latest turn."""

    session: str
    turns: int
    steps: int
    running: bool
    usage: Usage
    messages: tuple[Message, ...]
    turn: TurnView | None = None


class SessionsView(Struct, frozen=True):
    """Sessions, the latest first."""

    sessions: tuple[SessionInfo, ...]


class AgentView(Struct, frozen=True):
    """An agent of this server."""

    name: str
    model: str
    tools: tuple[str, ...]


class AgentsView(Struct, frozen=True):
    """The agents of this server."""

    agents: tuple[AgentView, ...]


class RecordsView(Struct, frozen=True):
    """Records of a session's log. `next` is the `start` for the ones after them, if there are any."""

    records: tuple[msgspec.Raw, ...]
    next: int | None = None


class WhyView(Struct, frozen=True):
    """Why the latest turn went as it did: plain data, and the same as text."""

    data: dict[str, Any]
    text: str


class ForkView(Struct, frozen=True):
    """The new session."""

    session: str


class CancelView(Struct, frozen=True):
    """Whether there was a turn to cancel."""

    cancelled: bool


class Question(Struct, frozen=True):
    """An open question of a session, and who is still needed."""

    session: str
    asked: Asked
    progress: str


class QuestionsView(Struct, frozen=True):
    """Open questions, the highest priority first."""

    questions: tuple[Question, ...]


class DoneView(Struct, frozen=True):
    """It is done."""

    done: Literal[True] = True


class HealthView(Struct, frozen=True):
    """The server is up, or about to stop."""

    status: Literal["ok", "stopping"]


def turn_view(state: State, usage: Usage | None = None) -> TurnView | None:
    """The latest turn of a session; None if it has none."""
    turn, outcome = state.turn, state.outcome
    if turn is None:
        return None
    detail = ""
    error = None
    match outcome:
        case Stopped():
            detail = outcome.detail
        case Cancelled():
            detail = outcome.reason
        case Failed():
            error = TurnError(outcome.error.type, outcome.error.message)
        case _:
            pass
    status: Any = "unfinished" if outcome is None else type(outcome).__name__.lower()
    reason = state.stop_reason
    return TurnView(
        state.session,
        state.turns,
        status,
        state.text,
        turn.usage if usage is None else usage,
        None if reason is None else reason.value,
        detail,
        error,
        state.waiting,
    )


def result_view(result: Result[Any]) -> TurnView:
    """The turn that a result is of."""
    view = turn_view(result.state, result.usage)
    assert view is not None
    return view
