"""The hook events of Claude Code as data: what each one matches, what its hooks may answer, what exit code 2 means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from msgspec import Struct

Exit2: TypeAlias = Literal["block", "feedback", "user", "ignored"]
"""What exit code 2 does: blocks, is read by the model, is shown to the user, or nothing."""

Kind: TypeAlias = Literal["text", "flag", "number", "object", "list", "texts", "any"]
Shape: TypeAlias = "Kind | tuple[str, ...] | Mapping[str, Any]"
"""What a field must be: a kind, one of some texts, or an object with fields of its own."""

EVERY_TYPE = ("command", "http", "mcp_tool", "prompt", "agent")
NO_MODEL = ("command", "http", "mcp_tool")
START_TYPES = ("command", "mcp_tool")


class Event(Struct, frozen=True):
    """One hook event.

    - `matches`: the field of the input that a matcher is compared with; None if matchers have no effect
    - `exit2`: what exit code 2 does
    - `answers`: the fields of `hookSpecificOutput`
    - `required`: the fields that it must have
    - `here`: where it happens in the lifecycle of Windlass; empty if it never does
    - `decides`: whether `decision: "block"` has an effect
    - `continues`: whether `continue: false` has an effect
    - `plain_context`: whether plain text on stdout is context for the model
    - `types`: the types of handlers that may be used
    - `seconds`: the default time limit of commands, requests and tools
    """

    matches: str | None = None
    exit2: Exit2 = "user"
    answers: Mapping[str, Shape] = {}
    required: tuple[str, ...] = ()
    here: str = ""
    decides: bool = False
    continues: bool = True
    plain_context: bool = False
    types: tuple[str, ...] = EVERY_TYPE
    seconds: float = 600.0

    @property
    def guards(self) -> bool:
        """Whether a hook can keep something from happening."""
        return self.exit2 == "block"


_CONTEXT: dict[str, Shape] = {"additionalContext": "text"}
_PERMISSION: dict[str, Shape] = {"permissionDecisionReason": "text"}
_REQUEST: dict[str, Shape] = {
    "behavior": ("allow", "deny"),
    "updatedInput": "object",
    "updatedPermissions": "list",
    "message": "text",
    "interrupt": "flag",
}

EVENTS: dict[str, Event] = {
    "SessionStart": Event(
        "source",
        answers={
            **_CONTEXT,
            "initialUserMessage": "text",
            "sessionTitle": "text",
            "watchPaths": "texts",
            "reloadSkills": "flag",
        },
        here="SessionStarting, TurnStarting",
        plain_context=True,
        types=START_TYPES,
    ),
    "Setup": Event("trigger", answers=_CONTEXT, types=START_TYPES),
    "InstructionsLoaded": Event("load_reason", "ignored", continues=False, types=NO_MODEL),
    "UserPromptSubmit": Event(
        exit2="block",
        answers={**_CONTEXT, "sessionTitle": "text", "suppressOriginalPrompt": "flag"},
        here="TurnStarting",
        decides=True,
        plain_context=True,
        seconds=30.0,
    ),
    "UserPromptExpansion": Event(
        "command_name", "block", {**_CONTEXT, "suppressOriginalPrompt": "flag"}, decides=True, plain_context=True
    ),
    "MessageDisplay": Event(answers={"displayContent": "text"}, types=NO_MODEL, seconds=10.0),
    "PreToolUse": Event(
        "tool_name",
        "block",
        {
            **_CONTEXT,
            **_PERMISSION,
            "permissionDecision": ("allow", "deny", "ask", "defer"),
            "updatedInput": "object",
        },
        here="ToolCalling",
        decides=True,
    ),
    "PermissionRequest": Event(
        "tool_name", "ignored", {"decision": _REQUEST}, ("decision",), here="an approver of questions about calls"
    ),
    "PermissionDenied": Event("tool_name", "ignored", {"retry": "flag"}),
    "PostToolUse": Event(
        "tool_name",
        "feedback",
        {
            **_CONTEXT,
            "updatedToolOutput": "any",
            "updatedMCPToolOutput": "any",
            "classifierContext": "text",
        },
        here="ToolReturning",
        decides=True,
    ),
    "PostToolUseFailure": Event("tool_name", "feedback", _CONTEXT, here="ToolReturning"),
    "PostToolBatch": Event(exit2="block", answers=_CONTEXT, here="StepStarting", decides=True),
    "Notification": Event("notification_type", "ignored", _CONTEXT, here="Asked", continues=False, types=NO_MODEL),
    "SubagentStart": Event("agent_type", answers=_CONTEXT, here="TurnStarting of a sub-agent", types=NO_MODEL),
    "SubagentStop": Event("agent_type", "block", _CONTEXT, here="SubagentStopping", decides=True),
    "Stop": Event(exit2="block", answers=_CONTEXT, here="Stopping", decides=True),
    "StopFailure": Event("error", "ignored", here="TurnFailed", continues=False, types=NO_MODEL),
    "TaskCreated": Event(exit2="block", decides=True, continues=False),
    "TaskCompleted": Event(exit2="block"),
    "TeammateIdle": Event(exit2="block"),
    "ConfigChange": Event("source", "block", decides=True, continues=False, types=NO_MODEL),
    "CwdChanged": Event(
        answers={"watchPaths": "texts"}, here="ToolReturning of a shell", continues=False, types=NO_MODEL
    ),
    "FileChanged": Event("file_path", answers={"watchPaths": "texts"}, continues=False, types=NO_MODEL),
    "DirectoryAdded": Event("source", continues=False, types=NO_MODEL),
    "WorktreeCreate": Event(exit2="block", answers={"worktreePath": "text"}, continues=False, types=NO_MODEL),
    "WorktreeRemove": Event(continues=False, types=NO_MODEL),
    "PreCompact": Event("trigger", "block", here="Compacting", decides=True, continues=False, types=NO_MODEL),
    "PostCompact": Event("trigger", here="Compacted", continues=False, types=NO_MODEL),
    "PreModelSwitch": Event(
        exit2="block",
        answers={**_PERMISSION, "permissionDecision": ("allow", "deny", "ask")},
        decides=True,
        types=NO_MODEL,
        seconds=30.0,
    ),
    "PostModelSwitch": Event(answers=_CONTEXT, plain_context=True, types=NO_MODEL, seconds=30.0),
    "Elicitation": Event(
        "mcp_server_name",
        "block",
        {"action": ("accept", "decline", "cancel"), "content": "object"},
        continues=False,
        types=NO_MODEL,
    ),
    "ElicitationResult": Event(
        "mcp_server_name",
        "block",
        {"action": ("accept", "decline", "cancel"), "content": "object"},
        continues=False,
        types=NO_MODEL,
    ),
    "SessionEnd": Event("reason", here="SessionEnded", continues=False, types=NO_MODEL),
}

COMMON_ANSWERS: dict[str, Shape] = {
    "continue": "flag",
    "stopReason": "text",
    "suppressOutput": "flag",
    "systemMessage": "text",
    "terminalSequence": "text",
    "decision": ("approve", "block"),
    "reason": "text",
    "hookSpecificOutput": "object",
}
"""The fields of every answer in JSON."""

TOOL_EVENTS = ("PreToolUse", "PostToolUse", "PostToolUseFailure", "PermissionRequest", "PermissionDenied")
"""The events on which `if` has an effect."""

NEVER_FAIL_CLOSED = ("Stop", "SubagentStop", "TaskCompleted", "TeammateIdle")
"""Where a broken hook must not block: the turn could never end."""

FORMER_TOOLS = {"Task": "Agent"}
"""Former names of tools that matchers may still use."""
