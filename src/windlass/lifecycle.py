"""Two classes of hooks: `Lifecycle`, six methods that may change things, and `LifecycleHook`, six observers."""

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
    """Six methods that observe and can neither block nor change anything. Override the ones you need."""

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

    def on_session_end(self, session_id: str, text: str) -> None:
        """A session was closed."""


def install_lifecycle(registrar: Registrar, lifecycle: Any) -> None:
    """Register the methods that a lifecycle object overrides."""
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
    """Installs a hook whose method gets the payload of the event, or a part of it, instead of the event."""

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


def _on_fact(fact: type[Fact], call: Callable[[Callable[..., Any], Any, Turn[Any]], Any]) -> _Install:
    """Installs an observer of a fact; `call` passes the method the arguments it takes."""

    def install(registrar: Registrar, method: Callable[..., Any], name: str) -> None:
        async def observe_async(fact: Any, turn: Turn[Any]) -> None:
            if (pending := call(method, fact, turn)) is not None:
                await pending

        def observe(fact: Any, turn: Turn[Any]) -> None:
            call(method, fact, turn)

        hook = Hook("observe", fact, observe_async if is_async(method) else observe, {"name": name})
        hook.behind = method
        registrar.add(hook)

    return install


def _pre_tool(method: Callable[..., Any], fact: ToolCalled, turn: Turn[Any]) -> Any:
    call = turn.call(fact.call)
    return method(fact.name, call.arguments if fact.json is None else call.replace(json=fact.json).arguments)


def _post_tool(method: Callable[..., Any], fact: ToolReturned, turn: Turn[Any]) -> Any:
    return method(fact.name, fact.result) if fact.result.status == "ok" else None


_OBSERVERS: dict[str, _Install] = {
    "pre_tool_call": _on_fact(ToolCalled, _pre_tool),
    "post_tool_call": _on_fact(ToolReturned, _post_tool),
    "pre_llm_call": _on_fact(ModelCalled, lambda method, fact, turn: method(fact.request)),
    "post_llm_call": _on_fact(ModelReplied, lambda method, fact, turn: method(fact.reply)),
    "on_session_start": _on_fact(SessionOpened, lambda method, fact, turn: method(turn.session_id)),
    "on_session_end": _on_fact(SessionEnded, lambda method, fact, turn: method(turn.session_id, turn.state.text)),
}
