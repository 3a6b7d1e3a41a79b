"""Every error that Windlass raises, in one tree.

    WindlassError
     ├─ ConfigError                     the agent is configured wrongly; raised before anything runs
     │   ├─ RegistrationError           a hook does not fit its event (names hook, event, what is legal)
     │   ├─ ToolDefinitionError         a tool cannot be described or clashes with another
     │   └─ CompiledError               something was registered after the first run
     ├─ HookError                       a hook misbehaved while a turn was running (names the hook)
     │   ├─ IllegalAnswer               its answer is not legal for its event
     │   ├─ HookTimeout                 it took longer than its timeout
     │   ├─ InjectionOverflow           it injected more than the reserve
     │   └─ SlotConflict                two writers set one slot that has no merge rule
     ├─ ModelError                      a model call failed (carries `retryable`, `retry_after`, `status`)
     │   ├─ RateLimited (QuotaExceeded) · Overloaded · ServerError · ConnectionFailed · ModelTimeout
     │   ├─ AuthFailed · ModelNotFound · BadRequest (UnsupportedPart) · ContentFiltered · ContextOverflow · BadReply
     │   └─ RequestRefused              gates refused a request that a wrap had changed; the turn ends
     ├─ CompactionError                 a compaction failed, and changed nothing
     ├─ ToolError                       raise it in a tool: the model reads the message
     │   ├─ NotDone                     the tool promises that nothing happened: a retry is safe
     │   ├─ ToolTimeout                 the tool took longer than it may
     │   ├─ DelegationRefused           a task that code gave to an agent was refused (carries `agent`, `reason`)
     │   └─ UnsafeRetry                 a second attempt at an unsafe call was refused
     ├─ OutputError                     the turn has no output, or its text does not fit the agent's `output` type
     ├─ NotFinished                     the text of a turn that waits for people was read (carries `waiting_for`)
     ├─ TurnCancelled                   the text of a cancelled turn was read (carries `reason`)
     ├─ SessionError
     │   ├─ SessionBusy                 a turn is running in that session
     │   ├─ SessionDriven               an engine drives the session
     │   ├─ SessionConflict             another writer advanced the log
     │   ├─ SessionUnknown              there is no such session
     │   ├─ NotSuspended                there is nothing to resume
     │   └─ StaleAnswer                 an answer to a question that is not open, or an answer that is not allowed
     └─ StoreError                      the log could not be read or written

Denied, suspended, stopped and out of budget are not errors: they are outcomes and are returned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .records import Asked


def text_of(error: BaseException) -> str:
    """The text of an exception, even if its `__str__` raises."""
    try:
        return str(error)
    except Exception:
        return f"a {type(error).__name__} whose text cannot be read"


def name_raiser(error: BaseException, hook: str) -> None:
    """Note the wrap that an exception came from, or "" if the effect raised it; the first note counts."""
    if not hasattr(error, "windlass_raised_by"):
        error.windlass_raised_by = hook  # type: ignore[attr-defined]


def raiser_of(error: BaseException) -> str:
    """The name of the hook that an exception came from, or ""."""
    return (error.hook if isinstance(error, HookError) else "") or getattr(error, "windlass_raised_by", "")


class WindlassError(Exception):
    """The root of all errors raised by Windlass.

    Catch it to catch them all.
    """


class ConfigError(WindlassError):
    """The agent is configured wrongly, or was called with invalid arguments.

    Fix the code: trying again does not help.
    """


class RegistrationError(ConfigError):
    """A hook does not fit the event it was registered for.

    The message says what is legal there; see the table of events.
    """

    def __init__(self, message: str, *, hook: str = "", event: str = "") -> None:
        super().__init__(message)
        self.hook = hook
        self.event = event


class ToolDefinitionError(ConfigError):
    """A tool cannot be described to a model, or its name is taken.

    Annotate its parameters with plain types, or rename it.
    """

    def __init__(self, message: str, *, tool: str = "") -> None:
        super().__init__(message)
        self.tool = tool


class CompiledError(ConfigError):
    """Something was registered after the first run had compiled the agent.

    Register it before the first run, or create a new agent.
    """


class HookError(WindlassError):
    """A hook failed while a turn was running; `hook` names it and `event` says where.

    The turn ends with it unless the verb says otherwise. Fix the hook; its own exception is the `__cause__`.
    """

    def __init__(self, message: str, *, hook: str, event: str = "") -> None:
        super().__init__(message)
        self.hook = hook
        self.event = event


class IllegalAnswer(HookError):
    """A hook's answer is not legal for its event.

    Return one of the answers that the message lists, or None.
    """


class HookTimeout(HookError, TimeoutError):
    """A hook took longer than its `timeout`.

    Give it more time, or make it faster. A gate that times out counts as a refusal.
    """


class InjectionOverflow(HookError):
    """A hook injected more than the reserve allows; nothing was truncated.

    Inject less, or raise `Agent(injection_reserve=…)`.
    """

    def __init__(self, message: str, *, hook: str, event: str = "", size: int = 0, reserve: int = 0) -> None:
        super().__init__(message, hook=hook, event=event)
        self.size = size
        self.reserve = reserve


class SlotConflict(HookError):
    """Two writers set the same slot at once, and the slot has no merge rule.

    Give it one: `Slot(…, merge=…)`.
    """


class ModelError(WindlassError):
    """A model call failed; adapters translate their vendor's errors into this one.

    `retryable` says whether trying again may help. Each class has its default; pass `retryable=…` to override it. An
    `ErrorPolicy` retries errors that are retryable; a gate on `Erring` or a wrap of `ModelCall` may decide otherwise.
    """

    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        retryable: bool | None = None,
        retry_after: float | None = None,
        status: int | None = None,
        request_id: str | None = None,
    ) -> None:
        super().__init__(message)
        if retryable is not None:
            self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        self.request_id = request_id


class RateLimited(ModelError):
    """The vendor asks us to slow down.

    The agent tries again by itself, after `retry_after` seconds if the vendor names a time.
    """

    retryable = True


class QuotaExceeded(RateLimited):
    """The account has used up its quota.

    Trying again does not help until the account is topped up or the quota is renewed.
    """

    retryable = False


class Overloaded(ModelError):
    """The vendor is overloaded.

    The agent tries again by itself; a wrap may ask another model.
    """

    retryable = True


class ServerError(ModelError):
    """The vendor's server failed.

    The agent tries again by itself; a wrap may ask another model.
    """

    retryable = True


class ConnectionFailed(ModelError, ConnectionError):
    """The vendor could not be reached, or the reply broke off.

    The agent tries again by itself; an incomplete reply is discarded.
    """

    retryable = True


class AuthFailed(ModelError):
    """The vendor rejects the API key, or the key lacks a permission.

    Check the key and its permissions.
    """


class ModelNotFound(ModelError):
    """The model does not exist, or this account has no access to it.

    Check the name.
    """


class BadRequest(ModelError):
    """The vendor rejects the request.

    Its message says what is wrong; trying again does not help.
    """


class UnsupportedPart(BadRequest):
    """The newest message has a part that the model's vendor does not accept, and nothing was sent.

    `model` is the name of the model and `part` the part. Use a model of another vendor, or another form of the part.
    """

    def __init__(self, message: str, *, model: str = "", part: Any = None, **given: Any) -> None:
        super().__init__(message, **given)
        self.model = model
        self.part = part


class ContentFiltered(ModelError):
    """The vendor rejects the content of the request or of the reply.

    Change the request.
    """


class ModelTimeout(ModelError, TimeoutError):
    """The model did not reply in time.

    The agent tries again by itself; a wrap may ask another model.
    """

    retryable = True


class ContextOverflow(ModelError):
    """The request is larger than the model's context window.

    Send less: add a compaction strategy such as `Summarize`, which shortens the history, or shorten the request in a
    rewrite of `ModelCalling`. If it was refused before it was sent, `sizes` has its size in tokens, by origin.
    """

    def __init__(self, message: str, *, sizes: Mapping[str, int] | None = None, **given: Any) -> None:
        super().__init__(message, **given)
        self.sizes = sizes or {}


class CompactionError(WindlassError):
    """A compaction failed; the history and the model's view of it are unchanged.

    Check what the strategy returned: it must be smaller than what it replaces, and must not separate a call from its
    result.
    """


class BadReply(ModelError):
    """The model, or a wrap around it, returned something that is not a reply.

    Return a `ModelReply`, a `Message` or a `str`.
    """


class RequestRefused(ModelError):
    """Gates or limits refused a request of a wrap, for example one for another model.

    The turn ends, whatever the wrap does with this error; do not send another request.
    """


class ToolError(WindlassError):
    """A tool failed, and the model should read why.

    Raise it in a tool, with a message that helps the model.
    """


class NotDone(ToolError):
    """A tool failed and promises that nothing happened in the world, so trying again is safe.

    Raise it in a tool, before its effect.
    """


class ToolTimeout(ToolError, TimeoutError):
    """A tool took longer than it may.

    If the tool is unsafe, the outcome of the call is unknown. Give it more time, or make it faster.
    """


class DelegationRefused(ToolError):
    """A task that `turn.delegate` gives to an agent was refused: `agent` was not started, for this `reason`.

    A gate on `Delegating` denied it or halted the turn, a person rejected it, or agents are nested too deep. Catch it
    to do without the agent; otherwise the model reads it as the result of the tool.
    """

    def __init__(self, message: str, *, agent: str = "", reason: str = "") -> None:
        super().__init__(message)
        self.agent = agent
        self.reason = reason


class UnsafeRetry(ToolError):
    """A second attempt at an unsafe call was refused, because the first one had started.

    Raise `NotDone` in the tool if nothing happened, or declare it with `retry="safe"` or `effect="idempotent"`.
    """


class OutputError(WindlassError):
    """The turn was stopped and has no output, or its final text does not fit the agent's `output` type.

    Look at `result.outcome` before you read `result.output`: only a turn that is `Completed` has one.
    """


class NotFinished(WindlassError):
    """`result.text` or `result.output` was read while the turn was waiting for people; `waiting_for` has the questions.

    Answer them with `agent.resume(session, answers=…)`, or read `result.partial_text`, which never raises.
    """

    def __init__(self, message: str, *, waiting_for: Sequence[Asked] = ()) -> None:
        super().__init__(message)
        self.waiting_for = tuple(waiting_for)


class TurnCancelled(WindlassError):
    """`result.text` or `result.output` was read although the turn was cancelled; `reason` says why.

    Look at `result.outcome` first, or read `result.partial_text`, which never raises.
    """

    def __init__(self, message: str, *, reason: str = "") -> None:
        super().__init__(message)
        self.reason = reason


class SessionError(WindlassError):
    """Something is wrong with a session; `session` names it.

    Raised by `run`, `resume` and the like, never an outcome.
    """

    def __init__(self, message: str, *, session: str) -> None:
        super().__init__(message)
        self.session = session


class SessionBusy(SessionError):
    """A turn is already running in the session.

    Wait for it, or create the agent with `busy="queue"` or `"steer"`.
    """


class SessionDriven(SessionError):
    """An engine drives the session, so a plain `run` or `resume` is refused.

    Use the engine's runner, or let it release the session.
    """


class SessionConflict(SessionError):
    """Another writer advanced the session's log.

    Read the session's state again. Only one process at a time may advance a session.
    """


class SessionUnknown(SessionError):
    """The store has no such session.

    Check the id and the store; `run` creates a session, `resume` does not.
    """


class NotSuspended(SessionError):
    """The session has no turn to resume.

    Its last turn has ended: continue with `run`.
    """


class StaleAnswer(SessionError):
    """An answer was refused: its question is unknown, answered already or expired, or the answer is not allowed.

    Nothing was written. Get the open questions with `(await agent.state(session)).waiting`.
    """

    def __init__(self, message: str, *, session: str, ask_id: str) -> None:
        super().__init__(message, session=session)
        self.ask_id = ask_id


class StoreError(WindlassError):
    """The log could not be read or written.

    The turn ends as `Failed`; once the store works again, `resume` continues from its log.
    """


class StoreClosed(StoreError):
    """The store was used after it had been closed.

    Close a store when its turns are over and its agents are closed (`agent.aclose()`).
    """


def is_transient(error: BaseException) -> bool:
    """Whether a retry of a model call that failed with this error may succeed.

    A `ModelError` has its own `retryable`. Python's own time-outs and connection errors are transient, too.
    """
    if isinstance(error, ModelError):
        return error.retryable
    return isinstance(error, TimeoutError | ConnectionError) and not isinstance(error, HookError)
