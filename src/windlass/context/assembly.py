"""Request assembly: a pure function of a state and of what the agent is, nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from msgspec import Struct

from windlass.messages import (
    ContentPart,
    Message,
    Messages,
    ModelRequest,
    Part,
    TextPart,
    ToolResultPart,
    ToolSpec,
    user,
)
from windlass.records import Injected
from windlass.states import Fold, OpenStep, State, StepFold, step_id

from .budget import Meter

REJECTED = "Your previous reply was rejected: {feedback}\nGive another reply."


class Shown(Protocol):
    """What an agent shows to a model whatever the conversation."""

    @property
    def system(self) -> str: ...
    @property
    def sections(self) -> tuple[TextPart, ...]: ...
    @property
    def specs(self) -> tuple[ToolSpec, ...]: ...
    @property
    def settings(self) -> Mapping[str, Any]: ...
    @property
    def output_schema(self) -> Mapping[str, Any] | None: ...
    @property
    def model_name(self) -> str: ...


class Prompt(Struct, frozen=True, omit_defaults=True):
    """What an agent shows to a model whatever the conversation, as it is kept with its log.

    Settings are not: who knows what is in them. `answer` is how many tokens they leave to a reply.
    """

    sections: tuple[TextPart, ...]
    model: str
    tools: tuple[ToolSpec, ...] = ()
    window: int | None = None
    answer: int = 0
    output_schema: Mapping[str, Any] | None = None

    @property
    def system(self) -> str:
        """The system text."""
        return joined(self.sections)

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        """The tools."""
        return self.tools

    @property
    def settings(self) -> Mapping[str, Any]:
        """Nothing: settings are not kept."""
        return {}

    @property
    def model_name(self) -> str:
        """The model that is asked, if no hook says otherwise."""
        return self.model


def prompt_of(
    sections: Sequence[TextPart],
    model: str,
    windows: Mapping[str, int | None],
    settings: Mapping[str, Any],
    output_schema: Mapping[str, Any] | None,
) -> Prompt:
    """What is kept of an agent's prompt. The tools are added when they are described."""
    answer = settings.get("max_tokens")
    room = answer if isinstance(answer, int) else 0
    return Prompt(tuple(sections), model, (), windows.get(model), room, output_schema)


def joined(sections: Iterable[TextPart]) -> str:
    """The system text that some sections make."""
    return "\n\n".join([section.text for section in sections])


def assemble(state: State | Fold, shown: Shown, unrecorded: tuple[Injected, ...] = ()) -> ModelRequest:
    """The request of the current step.

    Parts injected for the turn stand beside its user message for the whole turn, so that step n+1 extends step n.
    Parts injected for the step ride in the last tool result and go with the step. A rejected reply and its feedback
    stand at the tail, for this attempt only. The history itself is shared, never copied.
    """
    system, sections, tools, messages = shown.system, shown.sections, shown.specs, state.shown
    opened, turn, step = state.opened, state.turn, state.open
    if opened is not None and (opened.system is not None or opened.tools is not None):
        system, tools = instructions(state, shown)
        sections = opened.sections or sections
    if turn is not None and (turn.injected or unrecorded):
        overlay = _overlay(state, messages, (*turn.injected, *unrecorded))
        messages = Messages(messages, overlay=overlay)
    if step is not None and step.rejected:
        messages = Messages(messages, tail=_rejections(step))
    return ModelRequest(system, messages, tools, shown.model_name, shown.settings, shown.output_schema, sections)


def instructions(state: State | Fold, shown: Shown) -> tuple[str, tuple[ToolSpec, ...]]:
    """What stands before the history: the system text and the tools, as the session was opened with them."""
    opened = state.opened
    if opened is None:
        return shown.system, shown.specs
    system = shown.system if opened.system is None else opened.system
    return system, shown.specs if opened.tools is None else opened.tools


def lasting(state: State | Fold) -> Messages:
    """The messages of the current step's request that are meant to stay: without what goes with the step."""
    turn, messages = state.turn, state.shown
    this_step = step_id(state.session, state.steps + 1)
    injected = () if turn is None else tuple([item for item in turn.injected if item.about != this_step])
    return Messages(messages, overlay=_overlay(state, messages, injected)) if injected else messages


def _overlay(state: State | Fold, messages: Messages, injected: tuple[Injected, ...]) -> dict[int, Message]:
    """The messages that carry injected parts, by their index."""
    overlay: dict[int, Message] = {}
    this_step = step_id(state.session, state.steps + 1)
    for item in injected:
        assert not isinstance(item.parts, str)
        if item.durable or not item.parts:
            continue
        if item.about == this_step:
            _attach(messages, overlay, len(messages) - 1, item.parts)
        elif item.about.startswith(f"{state.session}/t"):
            _attach(messages, overlay, state.place, item.parts)
        elif (index := _index_of_result(messages, state.place, item.about)) is not None:
            _attach(messages, overlay, index, item.parts, item.about)
    return overlay


def _attach(
    messages: Messages,
    overlay: dict[int, Message],
    index: int,
    parts: tuple[ContentPart, ...],
    call: str | None = None,
) -> None:
    """Put parts beside a user message, or into the content of a tool result: never as text after one."""
    if not 0 <= index < len(messages):
        return
    message = overlay.get(index, messages[index])
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


def _index_of_result(messages: Messages, start: int, call: str) -> int | None:
    for index in range(len(messages) - 1, start, -1):
        message = messages[index]
        if message.role == "tool" and any(getattr(part, "call_id", None) == call for part in message.parts):
            return index
    return None


def _rejections(step: OpenStep | StepFold) -> tuple[Message, ...]:
    """The latest rejected reply, without its calls, and what was wrong with it."""
    reply, feedback = step.rejected[-1]
    parts = tuple(part for part in reply.message.parts if hasattr(part, "text"))
    said = (Message("assistant", parts),) if parts else ()
    return (*said, user(REJECTED.format(feedback=feedback), origin="regenerate"))


def calibrate(meter: Meter, fold: Fold, shown: Shown) -> None:
    """Learn from the log how the vendor counts, if nobody has told it in this process."""
    turn = fold.turn
    last = fold.last or (turn.last if turn is not None else None)
    if last is None or last.reply is None or shown.model_name in meter.budget.factors:
        return
    sent = next((at for at in range(len(fold.shown) - 1, -1, -1) if fold.shown[at] is last.reply.message), None)
    if sent is not None and not fold.compactions:
        system, tools = instructions(fold, shown)
        meter.tokens(system, tools, Messages(fold.shown[:sent]), shown.model_name)
        meter.learn(last.reply.usage)
