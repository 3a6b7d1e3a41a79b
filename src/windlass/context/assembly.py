"""Request assembly: a pure function of a state and of what the agent is, nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from windlass.messages import ContentPart, Message, Messages, ModelRequest, Part, ToolResultPart, ToolSpec, user
from windlass.records import Injected
from windlass.states import Fold, OpenStep, State, StepFold, TurnFold, step_id

REJECTED = "Your previous reply was rejected: {feedback}\nGive another reply."


class Shown(Protocol):
    """What an agent shows to a model whatever the conversation."""

    system: str
    specs: tuple[ToolSpec, ...]
    settings: Mapping[str, Any]
    output_schema: Mapping[str, Any] | None

    @property
    def model_name(self) -> str: ...


def assemble(state: State | Fold, shown: Shown, unrecorded: tuple[Injected, ...] = ()) -> ModelRequest:
    """The request of the current step.

    Parts injected for the turn stand beside its user message for the whole turn, so that step n+1 extends step n.
    Parts injected for the step ride in the last tool result and go with the step. A rejected reply and its feedback
    stand at the tail, for this attempt only. The history itself is shared, never copied.
    """
    system, tools, messages = shown.system, shown.specs, state.messages
    opened, turn, step = state.opened, state.turn, state.open
    if opened is not None and (opened.system is not None or opened.tools is not None):
        system = system if opened.system is None else opened.system
        tools = tools if opened.tools is None else opened.tools
    if turn is not None and (turn.injected or unrecorded):
        overlay = _overlay(state, turn, (*turn.injected, *unrecorded))
        messages = Messages(messages, overlay=overlay)
    if step is not None and step.rejected:
        messages = Messages(messages, tail=_rejections(step))
    return ModelRequest(system, messages, tools, shown.model_name, shown.settings, shown.output_schema)


def _overlay(state: State | Fold, turn: TurnFold, injected: tuple[Injected, ...]) -> dict[int, Message]:
    """The messages that carry injected parts, by their index."""
    overlay: dict[int, Message] = {}
    this_step = step_id(state.session, state.steps + 1)
    for item in injected:
        assert not isinstance(item.parts, str)
        if item.durable or not item.parts:
            continue
        if item.about == this_step:
            _attach(state, overlay, len(state.messages) - 1, item.parts)
        elif item.about.startswith(f"{state.session}/t"):
            _attach(state, overlay, turn.start, item.parts)
        elif (index := _index_of_result(state, turn, item.about)) is not None:
            _attach(state, overlay, index, item.parts, item.about)
    return overlay


def _attach(
    state: State | Fold,
    overlay: dict[int, Message],
    index: int,
    parts: tuple[ContentPart, ...],
    call: str | None = None,
) -> None:
    """Put parts beside a user message, or into the content of a tool result: never as text after one."""
    if not 0 <= index < len(state.messages):
        return
    message = overlay.get(index, state.messages[index])
    if message.role != "tool":
        overlay[index] = message.replace(parts=(*message.parts, *parts))
        return
    changed: list[Part] = list(message.parts)
    for at in range(len(changed) - 1, -1, -1):
        result = changed[at]
        if isinstance(result, ToolResultPart) and call in (None, result.call_id):
            changed[at] = result.replace(content=(*result.content, *parts))
            break
    overlay[index] = message.replace(parts=tuple(changed))


def _index_of_result(state: State | Fold, turn: TurnFold, call: str) -> int | None:
    for index in range(len(state.messages) - 1, turn.start, -1):
        message = state.messages[index]
        if message.role == "tool" and any(getattr(part, "call_id", None) == call for part in message.parts):
            return index
    return None


def _rejections(step: OpenStep | StepFold) -> tuple[Message, ...]:
    """The latest rejected reply, without its calls, and what was wrong with it."""
    reply, feedback = step.rejected[-1]
    parts = tuple(part for part in reply.message.parts if hasattr(part, "text"))
    said = (Message("assistant", parts),) if parts else ()
    return (*said, user(REJECTED.format(feedback=feedback), origin="regenerate"))
