"""The lifecycle as data: one class per point where hooks can still decide, and the facts that only live observers see.

The tense is the contract: `-ing` can still be decided, the past tense is a fact. Each event class states its own rules:
what a rewrite may change, where injections go, which decisions a gate may answer (strictest first), and what a failed
gate and a person's rejection count as.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeAlias, TypeVar, get_args

from msgspec import Struct

from . import records
from .decisions import (
    Again,
    Allow,
    Answer,
    AnyDecision,
    Ask,
    Deny,
    Fail,
    Finish,
    Halt,
    Ignore,
    Regenerate,
    Rewind,
    Veto,
    Vote,
)
from .messages import Delegation, Message, ModelReply, ModelRequest, ToolCall, ToolResult, ToolSpec, Value
from .outcomes import StopReason
from .records import Fact, Outcome
from .states import State, Step

if TYPE_CHECKING:
    from .tools import Tool
    from .turns import Turn

E = TypeVar("E")
D = TypeVar("D")
P = TypeVar("P")

Placement = Literal["prefix", "turn", "step", "result", "child"]


class Event(Struct, Generic[E, D, P], frozen=True, gc=False):
    """A point of the lifecycle. `E` is the event itself, `P` what a rewrite returns.

    `D` is a union of what its gates may answer, strictest first. Type checkers read it, and `ranks` is taken from it.

    - `payload`: the field a rewrite may replace, or None
    - `injects`: where injected parts go, or None if nothing can be injected here
    - `ranks`: the decisions a gate may answer, strictest first
    - `raised`: what a gate that raises or times out counts as; None means no answer
    - `rejected`: what a person's Reject of an `Ask` counts as, or None if a gate cannot ask here
    - `answers`: what people may answer to an `Ask`
    - `on_tools`: whether hooks may be limited to some tools (`tool=…`)
    """

    payload: ClassVar[str | None] = None
    injects: ClassVar[Placement | None] = None
    ranks: ClassVar[tuple[type[AnyDecision] | Vote, ...]] = (Halt, Allow)
    raised: ClassVar[type[AnyDecision] | Vote | None] = Halt
    rejected: ClassVar[type[AnyDecision] | None] = None
    answers: ClassVar[tuple[str, ...]] = ("approve", "reject", "respond")
    on_tools: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        for base in vars(cls).get("__orig_bases__", ()):
            _, decisions, _ = get_args(base)
            members = get_args(decisions) or (decisions,)
            cls.ranks = tuple(Vote) if Vote in members else members


class Setup(Value, frozen=True):
    """What a session starts with: the system text, and the tools as the model sees them."""

    system: str
    tools: tuple[ToolSpec, ...]


class SessionStarting(Event["SessionStarting", Halt | Allow, Setup], frozen=True):
    """A new session is about to write its first record."""

    setup: Setup
    turn: Turn[Any]

    payload: ClassVar[str | None] = "setup"
    injects: ClassVar[Placement | None] = "prefix"


class TurnStarting(Event["TurnStarting", Halt | Ask | Answer | Allow, Message], frozen=True):
    """A user message is about to open a turn."""

    message: Message
    turn: Turn[Any]

    payload: ClassVar[str | None] = "message"
    injects: ClassVar[Placement | None] = "turn"
    rejected = Halt


class StepStarting(Event["StepStarting", Halt | Allow, None], frozen=True):
    """A step is about to begin."""

    step: int
    turn: Turn[Any]

    injects: ClassVar[Placement | None] = "step"


class Compaction(Value, frozen=True):
    """A planned compaction: which range of the messages that models see, by which strategy, and why.

    A rewrite may change the `range` and the `instructions` for the writer of a summary.
    """

    range: tuple[int, int]
    instructions: str = ""
    by: str = ""
    reason: str = ""


class Compacting(Event["Compacting", Deny | Allow, "Compaction | tuple[int, int] | str"], frozen=True):
    """A range of the history is about to be replaced by something shorter, in the model's view of it.

    A rewrite may return another plan, or only a range or the instructions. `Deny` skips the compaction for now.
    """

    plan: Compaction
    turn: Turn[Any]

    payload: ClassVar[str | None] = "plan"
    raised = Deny

    @property
    def range(self) -> tuple[int, int]:
        """The messages to replace: the index of the first, and the index after the last."""
        return self.plan.range


class ModelCalling(Event["ModelCalling", Halt | Ask | Answer | Allow, ModelRequest], frozen=True):
    """A request is about to be sent to a model: the last look at everything that is sent.

    `side` names the hook or tool that asks with `turn.ask`; it is empty for the turn's own requests.
    """

    request: ModelRequest
    turn: Turn[Any]

    @property
    def side(self) -> str:
        """The hook or tool that asks with `turn.ask`; empty for the turn's own request."""
        return self.request.side

    payload: ClassVar[str | None] = "request"
    rejected = Halt


class ModelReplying(Event["ModelReplying", Halt | Regenerate | Ask | Allow, ModelReply], frozen=True):
    """A model has replied; the reply has not been used yet. `round` counts the replies of this step, from 1."""

    reply: ModelReply
    turn: Turn[Any]
    round: int = 1

    payload: ClassVar[str | None] = "reply"
    rejected = Regenerate


class ToolCalling(Event["ToolCalling", Halt | Deny | Ask | Answer | Allow, ToolCall], frozen=True):
    """A tool call is about to be decided. `tool` is None if the agent has no tool of that name."""

    call: ToolCall
    turn: Turn[Any]

    @property
    def tool(self) -> Tool[..., Any] | None:
        """The tool that is called: its `spec`, `effect`, `annotations`, and the `capability` that brought it."""
        return self.turn.tools.get(self.call.name)

    payload: ClassVar[str | None] = "call"
    injects: ClassVar[Placement | None] = "result"
    raised = Deny
    rejected = Deny
    answers = ("approve", "edit", "reject", "respond")
    on_tools: ClassVar[bool] = True


class Delegating(Event["Delegating", Halt | Deny | Ask | Allow, Delegation], frozen=True):
    """A task is about to be handed to a child agent. `tool` is the tool that hands it over; None if code does."""

    task: Delegation
    turn: Turn[Any]
    tool: Tool[..., Any] | None = None

    @property
    def agent(self) -> str:
        """The name of the child agent."""
        return self.task.agent

    payload: ClassVar[str | None] = "task"
    injects: ClassVar[Placement | None] = "child"
    raised = Deny
    rejected = Deny
    answers = ("approve", "edit", "reject", "respond")


class ToolReturning(Event["ToolReturning", Halt | Deny | Finish | Allow, ToolResult], frozen=True):
    """A call has a result, from any source; the model has not seen it yet. `tool` is None if the agent has no tool of
    that name."""

    call: ToolCall
    result: ToolResult
    turn: Turn[Any]

    @property
    def tool(self) -> Tool[..., Any] | None:
        """The tool that was called."""
        return self.turn.tools.get(self.call.name)

    payload: ClassVar[str | None] = "result"
    injects: ClassVar[Placement | None] = "result"
    raised = Deny
    on_tools: ClassVar[bool] = True


class MessageAdding(Event["MessageAdding", Halt | Deny | Allow, Message], frozen=True):
    """A message is about to enter the transcript, from any source."""

    message: Message
    turn: Turn[Any]

    payload: ClassVar[str | None] = "message"


class StepEnding(Event["StepEnding", Halt | Rewind | Allow, None], frozen=True):
    """A step is over; `error` is set if it ended with one."""

    step: Step
    turn: Turn[Any]
    error: BaseException | None = None

    injects: ClassVar[Placement | None] = "step"


class Continuing(Event["Continuing", Vote | tuple[Vote, str], None], frozen=True):
    """Criteria and hooks vote on whether the turn continues. A gate may say why: `(Vote.FORBID, "why")`."""

    state: State
    turn: Turn[Any]

    raised = Vote.FORBID


class Stopping(Event["Stopping", Halt | Veto | Allow, None], frozen=True):
    """The turn is about to stop. `stop_active` is true if a stop of this turn was vetoed before."""

    reason: StopReason
    stop_active: bool
    turn: Turn[Any]

    raised = None


class SubagentStopping(Event["SubagentStopping", Halt | Veto | Allow, None], frozen=True):
    """The turn of a child agent, named `agent`, is about to stop."""

    reason: StopReason
    stop_active: bool
    turn: Turn[Any]
    agent: str = ""

    raised = None


class Resuming(Event["Resuming", Halt | Ask | Allow, None], frozen=True):
    """A suspended turn is about to resume; `drift` lists how the agent differs from the one that recorded it."""

    state: State
    turn: Turn[Any]
    drift: tuple[str, ...] = ()

    injects: ClassVar[Placement | None] = "step"
    raised = Ask
    rejected = Halt
    answers = ("approve", "reject")


class Erring(Event["Erring", Halt | Fail | Ignore | Again, None], frozen=True):
    """An error occurred; `attempt` counts the failed attempts at this model call, or the errors in a row."""

    error: BaseException
    category: str
    attempt: int
    turn: Turn[Any]


class TurnEnding(Event["TurnEnding", Deny | Ask | Allow, str], frozen=True):
    """The turn is over, whatever the outcome; a rewrite may still change the text that the caller gets."""

    outcome: Outcome
    text: str
    turn: Turn[Any]

    payload: ClassVar[str | None] = "text"
    raised = Deny
    rejected = Deny


LIFECYCLE: tuple[type[Event[Any, Any, Any]] | str, ...] = (
    "wrap(Turn)",
    SessionStarting,
    TurnStarting,
    "wrap(Step)",
    StepStarting,
    Compacting,
    ModelCalling,
    "wrap(ModelCall)",
    "token stream",
    ModelReplying,
    ToolCalling,
    Delegating,
    "wrap(ToolCall)",
    ToolReturning,
    MessageAdding,
    StepEnding,
    Continuing,
    Stopping,
    SubagentStopping,
    TurnEnding,
    Erring,
    Resuming,
)
"""The order in which a turn reaches its events, the wraps of its effects and the transformers of the token stream.

`Erring` and `Resuming` come last: they can happen anywhere.
"""

EVENTS: tuple[type[Event[Any, Any, Any]], ...] = tuple([place for place in LIFECYCLE if not isinstance(place, str)])


# ---------------------------------------------------------------- facts that are only seen live, not written


class StepStarted(Fact, frozen=True):
    """A step has begun."""

    step: int


class ModelCalled(Fact, frozen=True, gc=True):
    """A request is sent to a model, exactly as in `request`. `round` counts how often the step asked for a reply."""

    step: int
    attempt: int
    request: Any = None
    round: int = 1


class HookRan(Fact, frozen=True):
    """A hook was asked about an event or an effect, and took this many seconds; a wrap's time includes its inner calls.

    `verb` is how it was registered, `capability` what brought it, and `about` the id of what it was asked about.
    `verdict` says what it answered: the name of a decision or vote such as `deny`, `rewrite`, `inject`, `failed`,
    `timeout`, or nothing. It is only made if an observer listens to it. Observers, transformers and wraps of a turn are
    not measured. `Agent(measure_hooks=True)` writes the times to the log, summed up, as `HooksRan`.
    """

    hook: str
    event: str
    seconds: float
    verb: str = ""
    capability: str = ""
    about: str = ""
    verdict: str = ""


class TurnFailed(Fact, frozen=True, gc=True):
    """The turn ended with an error."""

    error: Any


class LateResult(Fact, frozen=True):
    """A tool returned a result after the agent had given it up. The fact has only the status and the number of
    characters: the content has passed no hook."""

    call: str
    status: str = "ok"
    size: int = 0


class Progressed(Fact, frozen=True):
    """A tool or hook told with `turn.progress` how far it is: `done` of `total`, with a `text`.

    `about` is the id of the call, or of what the hook looks at; `by` names the tool or hook. If hooks on
    `ToolReturning` look at the results of the tool, `text` is empty: they have not seen it.
    """

    about: str
    by: str
    done: float
    total: float | None = None
    text: str = ""


class Retracted(Fact, frozen=True):
    """All that was streamed of this step so far is void: the attempt was repeated, replaced or rejected."""

    step: int
    reason: str = ""


LIVE_FACTS: tuple[type[Fact], ...] = (
    StepStarted,
    ModelCalled,
    HookRan,
    TurnFailed,
    LateResult,
    Progressed,
    Retracted,
)
FACTS: tuple[type[Fact], ...] = (*records.KINDS.values(), *LIVE_FACTS)
Decidable: TypeAlias = AnyDecision | Vote
