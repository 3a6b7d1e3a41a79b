"""The methods of lifecycle objects as hooks: sugar over the verbs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Literal, TypeAlias, cast

from windlass.decisions import Says
from windlass.errors import RegistrationError
from windlass.events import ModelCalled, ModelCalling, ModelReplying, TurnEnding, TurnStarting
from windlass.lifecycle import HookAction, Lifecycle, LifecycleHook
from windlass.messages import ModelCall, ModelRequest, ToolCall
from windlass.records import (
    Fact,
    ModelReplied,
    SessionEnded,
    SessionOpened,
    ToolCalled,
    ToolReturned,
)
from windlass.turns import Turn
from windlass.types import AnyEvent

from .hooks import Hook, Options, is_async, itself, parameters_of

_Make: TypeAlias = Callable[[Callable[..., Any], str, Options], Hook]
_Arguments: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]


def hooks_of(lifecycle: Any, options: Options) -> Iterator[Hook]:
    """The methods that a lifecycle object overrides, as hooks with these options.

    An option that a method cannot have is left out for it; one that no method can have is an error.
    """
    label = type(lifecycle).__name__
    if not isinstance(lifecycle, Lifecycle | LifecycleHook):
        raise RegistrationError(
            f"with_lifecycle needs a Lifecycle or a LifecycleHook, got {label}", hook=label
        )
    made = [
        make(getattr(lifecycle, name), f"{label}.{name}", options)
        for base, makers in ((Lifecycle, _LIFECYCLE), (LifecycleHook, _OBSERVERS))
        for name, make in (makers.items() if isinstance(lifecycle, base) else ())
        if getattr(type(lifecycle), name) is not getattr(base, name)
    ]
    for option in options:
        if made and not any(option in hook.options for hook in made):
            methods = ", ".join([hook.name for hook in made])
            raise RegistrationError(
                f"with_lifecycle({option}=…) has no effect on {label}: {methods} cannot have that option",
                hook=label,
            )
    yield from made


def _before_model(event: ModelCalling, messages: Any) -> ModelRequest:
    return event.request.replace(messages=messages)


def _after_model(event: ModelReplying, action: Any) -> Any:
    if isinstance(action, HookAction.Modify):
        return Says(rewrite=action.reply)
    return action


def _on_event(
    kind: Literal["rewrite", "hook"],
    event: type[AnyEvent],
    view: Callable[[Any], Any],
    answer: Callable[[Any, Any], Any] | None = None,
) -> _Make:
    """Makes a hook whose method gets the payload of the event, or a part of it, instead of the event."""

    def make(method: Callable[..., Any], name: str, options: Options) -> Hook:
        hook = Hook(
            kind, event, method, _legal(options, name, ("band", "priority", "inherit", *live))
        )
        hook.view, hook.answer = view, answer
        return hook

    live = ("live",) if event in (ModelReplying, TurnEnding) else ()
    return make


def _around(effect: type) -> _Make:
    def make(method: Callable[..., Any], name: str, options: Options) -> Hook:
        return Hook("wrap", effect, method, _legal(options, name, ("band", "priority", "inherit")))

    return make


def _legal(options: Options, name: str, legal: tuple[str, ...]) -> Options:
    """The options that a method can have, with its name."""
    chosen = {option: value for option, value in options.items() if option in legal}
    return cast(Options, {"name": name, **chosen})


_LIFECYCLE: dict[str, _Make] = {
    "before_agent": _on_event("rewrite", TurnStarting, attrgetter("text")),
    "before_model": _on_event("rewrite", ModelCalling, attrgetter("messages"), _before_model),
    "wrap_model_call": _around(ModelCall),
    "after_model": _on_event("hook", ModelReplying, itself, _after_model),
    "wrap_tool_call": _around(ToolCall),
    "after_agent": _on_event("rewrite", TurnEnding, itself),
}


def _on_fact(fact: type[Fact], arguments: Callable[[Any, Turn[Any]], _Arguments | None]) -> _Make:
    """Makes an observer of a fact. `arguments` are those of the method: the positional ones, and others by name.

    None skips the fact. The method gets `turn` if it asks for it.
    """

    def make(method: Callable[..., Any], name: str, options: Options) -> Hook:
        asked = parameters_of(method)[0]

        def call(fact: Any, turn: Turn[Any]) -> Any:
            if (given := arguments(fact, turn)) is None:
                return None
            by_name = {**given[1], "turn": turn}
            return method(*given[0], **{name: by_name[name] for name in asked if name in by_name})

        async def observe_async(fact: Any, turn: Turn[Any]) -> None:
            if (pending := call(fact, turn)) is not None:
                await pending

        def observe(fact: Any, turn: Turn[Any]) -> None:
            call(fact, turn)

        observer = observe_async if is_async(method) else observe
        hook = Hook("observe", fact, observer, _legal(options, name, ("inherit",)))
        hook.behind = method
        return hook

    return make


def _pre_tool(fact: ToolCalled, turn: Turn[Any]) -> _Arguments:
    call = turn.call(fact.call)
    call = call if fact.json is None else call.replace(json=fact.json)
    return (fact.name, call.arguments), {}


def _post_tool(fact: ToolReturned, turn: Turn[Any]) -> _Arguments | None:
    return ((fact.name, fact.result), {}) if fact.result.status == "ok" else None


def _session_end(fact: SessionEnded, turn: Turn[Any]) -> _Arguments:
    state = turn.state
    return (turn.session_id, state.text), {"outcome": state.outcome, "usage": state.usage}


_OBSERVERS: dict[str, _Make] = {
    "pre_tool_call": _on_fact(ToolCalled, _pre_tool),
    "post_tool_call": _on_fact(ToolReturned, _post_tool),
    "pre_llm_call": _on_fact(ModelCalled, lambda fact, turn: ((fact.request,), {})),
    "post_llm_call": _on_fact(ModelReplied, lambda fact, turn: ((fact.reply,), {})),
    "on_session_start": _on_fact(SessionOpened, lambda fact, turn: ((turn.session_id,), {})),
    "on_session_end": _on_fact(SessionEnded, _session_end),
}
