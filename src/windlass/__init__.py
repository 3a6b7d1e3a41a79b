"""Windlass: a runtime for LLM agents whose lifecycle is the product."""

from __future__ import annotations

from ._hooks.registrar import Registrar as Hooks
from ._kernel.composites import PhaseHandler
from .agent import Agent, Session
from .criteria import (
    ActiveTimeLimit,
    CostLimit,
    Deadline,
    ErrorLimit,
    FinishedBecause,
    ReplyContains,
    RetryLimit,
    StepLimit,
    TokenLimit,
    tools_ran,
)
from .decisions import (
    Allow,
    Answer,
    Approve,
    Ask,
    Deny,
    Edit,
    Finish,
    Halt,
    Ignore,
    Regenerate,
    Reject,
    Respond,
    Rewind,
    Says,
    Veto,
    Vote,
)
from .errors import ModelError, NotDone, ToolError, WindlassError
from .events import (
    Compacting,
    Continuing,
    Delegating,
    Erring,
    MessageAdding,
    ModelCalled,
    ModelCalling,
    ModelReplying,
    Resuming,
    SessionStarting,
    StepEnding,
    StepStarted,
    StepStarting,
    Stopping,
    SubagentStopping,
    ToolCalling,
    ToolReturning,
    TurnEnding,
    TurnFailed,
    TurnStarting,
)
from .lifecycle import HookAction, Lifecycle, LifecycleHook
from .messages import (
    ImagePart,
    Message,
    ModelCall,
    ModelReply,
    ModelRequest,
    OpaquePart,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCallPart,
    ToolResult,
    ToolResultPart,
    ToolSpec,
    Usage,
    assistant,
    user,
)
from .outcomes import Cancelled, Completed, Failed, Stopped, StopReason
from .pipeline import Pipeline
from .policies import ErrorPolicy
from .records import (
    Answered,
    Asked,
    CancelRequested,
    ErrorHandled,
    Evaluated,
    HookDecided,
    HookFailed,
    Injected,
    MessageAdded,
    ModelReplied,
    ReplyRejected,
    Resumed,
    SessionEnded,
    SessionOpened,
    StepEnded,
    StopVetoed,
    Suspended,
    ToolCalled,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    TurnStarted,
)
from .results import Result
from .slots import Slot
from .states import State, Step, fold
from .tools import Tool, tool
from .turns import Turn

__version__ = "0.1.0"
