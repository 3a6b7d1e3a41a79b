"""Two classes of hooks: `Lifecycle`, six methods that may change things, and `LifecycleHook`, six observers."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from msgspec import Struct

from .decisions import Allow, Ask, Halt, Regenerate
from .messages import Message, ModelReply, ModelRequest, ToolCall, ToolResult, Usage
from .records import Outcome
from .types import CallModel, CallTool, Replied


class HookAction:
    """What `after_model` may answer: CONTINUE, APPROVE, Halt(reason), Modify(reply), Regenerate, Ask.

    `Halt(reason)` ends the turn. `Reject` is an answer of people, with `agent.resume`; a hook cannot return it.
    """

    CONTINUE = None
    APPROVE = Allow()
    Regenerate = Regenerate
    Ask = Ask
    Halt = Halt

    class Modify(Struct, frozen=True):
        """Use this reply instead."""

        reply: ModelReply | Message | str


class Lifecycle:
    """Six hooks around an agent. Override the methods you need: only those are registered.

    Every method may be plain or async, may return None for "unchanged", and may ask for `turn` as a further parameter.
    """

    def before_agent(self, text: str) -> str | Awaitable[str | None] | None:
        """Gets the user's text before the turn begins; may return another text."""
        raise NotImplementedError

    def before_model(
        self, messages: Sequence[Message]
    ) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """Gets the messages of a request before it is sent; may return others."""
        raise NotImplementedError

    def wrap_model_call(self, request: ModelRequest, call_next: CallModel) -> Replied | Awaitable[Replied]:
        """Wraps the model call: returns a reply, usually from `call_next(request)`."""
        raise NotImplementedError

    def after_model(self, reply: ModelReply) -> Any:
        """Gets the reply before it is used; may return one of `HookAction`."""
        raise NotImplementedError

    def wrap_tool_call(self, call: ToolCall, call_next: CallTool) -> Any:
        """Wraps each tool call: returns a result, usually from `call_next(call)`."""
        raise NotImplementedError

    def after_agent(self, text: str) -> str | Awaitable[str | None] | None:
        """Gets the final text before the caller does; may return another text."""
        raise NotImplementedError


class LifecycleHook:
    """Six methods that observe and can neither block nor change anything. Override the ones you need.

    Every method may be plain or async, and may ask for `turn` as a further parameter.
    """

    def pre_tool_call(self, name: str, arguments: dict[str, Any]) -> None:
        """A tool is being called."""

    def post_tool_call(self, name: str, result: ToolResult) -> None:
        """A tool has succeeded."""

    def pre_llm_call(self, request: ModelRequest) -> None:
        """A request was sent to a model."""

    def post_llm_call(self, reply: ModelReply) -> None:
        """A model has replied."""

    def on_session_start(self, session_id: str) -> None:
        """A session was opened."""

    def on_session_end(self, session_id: str, text: str, outcome: Outcome | None, usage: Usage) -> None:
        """A session was closed.

        Gets the text and the outcome of its last turn, None if it had no turn, and what the session has spent.
        A method may leave out `outcome` and `usage`.
        """
