"""Two shapes over the verbs: `Lifecycle`, six points that may change things, and `LifecycleHook`, six that look on."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from operator import attrgetter
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from ._hooks.hooks import Hook, is_async, itself
from ._hooks.registrar import Registrar
from .decisions import Allow, Ask, Halt, Regenerate, Says
from .errors import RegistrationError
from .events import ModelCalled, ModelCalling, ModelReplying, TurnEnding, TurnStarting
from .messages import Message, ModelCall, ModelReply, ModelRequest, ToolCall, ToolResult
from .records import Fact, ModelReplied, SessionEnded, SessionOpened, ToolCalled, ToolReturned
from .turns import Turn
from .types import AnyEvent, CallModel, CallTool, Replied

_Install: TypeAlias = Callable[[Registrar, Callable[..., Any], str], None]


class HookAction:
    """What `after_model` may answer: CONTINUE, APPROVE, Reject(reason), Modify(reply), Regenerate, Ask."""

    CONTINUE = None
    APPROVE = Allow()
    Regenerate = Regenerate
    Ask = Ask

    class Reject(Struct, frozen=True):
        """End the turn."""

        reason: str = "rejected"

    class Modify(Struct, frozen=True):
        """Use this reply instead."""

        reply: ModelReply | Message | str


class Lifecycle:
    """Six hooks around an agent, all optional: only the methods you override are registered.

    Every method may be plain or async, may return None for "unchanged", and may ask for `turn` as a further parameter.
    """

    def before_agent(self, text: str) -> str | Awaitable[str | None] | None:
        """The user's text before the turn begins."""
        raise NotImplementedError

    def before_model(
        self, messages: Sequence[Message]
    ) -> Sequence[Message] | Awaitable[Sequence[Message] | None] | None:
        """The messages of a request before it leaves."""
        raise NotImplementedError

    def wrap_model_call(self, request: ModelRequest, call_next: CallModel) -> Replied | Awaitable[Replied]:
        """Around the model call."""
        raise NotImplementedError

    def after_model(self, reply: ModelReply) -> Any:
        """The reply before anything is done with it."""
        raise NotImplementedError

    def wrap_tool_call(self, call: ToolCall, call_next: CallTool) -> Any:
        """Around each tool call."""
        raise NotImplementedError

    def after_agent(self, text: str) -> str | Awaitable[str | None] | None:
        """The final text before it is handed out."""
        raise NotImplementedError


class LifecycleHook:
    """Six methods that look on and can neither block nor change anything; override what you need."""

    def pre_tool_call(self, name: str, arguments: dict[str, Any]) -> None:
        """A tool is being called."""

    def post_tool_call(self, name: str, result: ToolResult) -> None:
        """A tool has succeeded."""

    def pre_llm_call(self, request: ModelRequest) -> None:
        """A request has left."""

    def post_llm_call(self, reply: ModelReply) -> None:
        """A reply has come."""

    def on_session_start(self, session_id: str) -> None:
        """A session was opened."""

    def on_session_end(self, session_id: str, text: str) -> None:
        """A session was closed."""


def install_lifecycle(registrar: Registrar, lifecycle: Any) -> None:
    """Register what a lifecycle object overrides."""
    label = type(lifecycle).__name__
    if not isinstance(lifecycle, Lifecycle | LifecycleHook):
        raise RegistrationError(f"with_lifecycle needs a Lifecycle or a LifecycleHook, got {label}", hook=label)
    for base, installers in ((Lifecycle, _LIFECYCLE), (LifecycleHook, _OBSERVERS)):
        for name, install in installers.items() if isinstance(lifecycle, base) else ():
            if getattr(type(lifecycle), name) is not getattr(base, name):
                install(registrar, getattr(lifecycle, name), f"{label}.{name}")


def _before_model(event: ModelCalling, messages: Any) -> ModelRequest:
    return event.request.replace(messages=messages)


def _after_model(event: ModelReplying, action: Any) -> Any:
    if isinstance(action, HookAction.Modify):
        return Says(rewrite=action.reply)
    if isinstance(action, HookAction.Reject):
        return Says(decision=Halt(action.reason))
    return action


def _on_event(
    kind: Literal["rewrite", "hook"],
    event: type[AnyEvent],
    view: Callable[[Any], Any],
    answer: Callable[[Any, Any], Any] | None = None,
) -> _Install:
    """A hook whose method sees the payload of the event, or a value of it, not the event."""

    def install(registrar: Registrar, method: Callable[..., Any], name: str) -> None:
        hook = Hook(kind, event, method, {"name": name})
        hook.view, hook.answer = view, answer
        registrar.add(hook)

    return install


def _around(effect: type) -> _Install:
    return lambda registrar, method, name: registrar.add(Hook("wrap", effect, method, {"name": name}))


_LIFECYCLE: dict[str, _Install] = {
    "before_agent": _on_event("rewrite", TurnStarting, attrgetter("text")),
    "before_model": _on_event("rewrite", ModelCalling, attrgetter("messages"), _before_model),
    "wrap_model_call": _around(ModelCall),
    "after_model": _on_event("hook", ModelReplying, itself, _after_model),
    "wrap_tool_call": _around(ToolCall),
    "after_agent": _on_event("rewrite", TurnEnding, itself),
}


def _observing(fact: type[Fact], look: Callable[[Callable[..., Any], Any, Turn[Any]], Any]) -> _Install:
    """An observer of a fact that calls a method with what the method wants to know."""

    def install(registrar: Registrar, method: Callable[..., Any], name: str) -> None:
        async def awaited(fact: Any, turn: Turn[Any]) -> None:
            if (pending := look(method, fact, turn)) is not None:
                await pending

        def plain(fact: Any, turn: Turn[Any]) -> None:
            look(method, fact, turn)

        hook = Hook("observe", fact, awaited if is_async(method) else plain, {"name": name})
        hook.behind = method
        registrar.add(hook)

    return install


def _pre_tool(method: Callable[..., Any], fact: ToolCalled, turn: Turn[Any]) -> Any:
    call = turn.call(fact.call)
    return method(fact.name, call.arguments if fact.json is None else call.replace(json=fact.json).arguments)


def _post_tool(method: Callable[..., Any], fact: ToolReturned, turn: Turn[Any]) -> Any:
    return method(fact.name, fact.result) if fact.result.status == "ok" else None


_OBSERVERS: dict[str, _Install] = {
    "pre_tool_call": _observing(ToolCalled, _pre_tool),
    "post_tool_call": _observing(ToolReturned, _post_tool),
    "pre_llm_call": _observing(ModelCalled, lambda see, fact, turn: see(fact.request)),
    "post_llm_call": _observing(ModelReplied, lambda see, fact, turn: see(fact.reply)),
    "on_session_start": _observing(SessionOpened, lambda see, fact, turn: see(turn.session_id)),
    "on_session_end": _observing(SessionEnded, lambda see, fact, turn: see(turn.session_id, turn.state.text)),
}
