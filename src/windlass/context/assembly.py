"""Request assembly: a pure function of a state and the agent's prompt."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from windlass.messages import (
    ContentPart,
    Message,
    Messages,
    ModelRequest,
    Part,
    TextPart,
    ToolResultPart,
    ToolSpec,
    digest,
    stable_text,
    user,
)
from windlass.records import Injected
from windlass.states import Fold, OpenStep, State, StepFold, TurnFold, TurnState, step_id

from .budget import Meter

REJECTED = "Your previous reply was rejected: {feedback}\nGive another reply."


class PromptSource(Protocol):
    """Anything that has the part of a request that does not depend on the conversation."""

    @property
    def blank(self) -> ModelRequest:
        """A request without messages."""
        ...

    @property
    def run_tools(self) -> int:
        """How many of its tools, the last ones, are for one turn only."""
        ...


class Prompt(Struct, frozen=True, omit_defaults=True):
    """The part of an agent's requests that does not depend on the conversation, as it is stored with the log.

    Settings are left out: they could contain anything. `answer` is the number of tokens they reserve for a reply. The
    last `run_tools` of the tools are for one turn only.
    """

    sections: tuple[TextPart, ...]
    model: str
    tools: tuple[ToolSpec, ...] = ()
    window: int | None = None
    answer: int = 0
    output_schema: Mapping[str, Any] | None = None
    run_tools: int = 0

    @property
    def blank(self) -> ModelRequest:
        """A request without messages, and without settings, which are not stored."""
        return blank_request(self.sections, self.tools, self.model, {}, self.output_schema)


def blank_request(
    sections: tuple[TextPart, ...],
    tools: tuple[ToolSpec, ...],
    model: str,
    settings: Mapping[str, Any],
    output: Mapping[str, Any] | None,
) -> ModelRequest:
    """A request without messages."""
    return ModelRequest(join_sections(sections), Messages(), tools, model, settings, output, sections)


def prompt_of(
    sections: Sequence[TextPart],
    model: str,
    windows: Mapping[str, int | None],
    settings: Mapping[str, Any],
    output_schema: Mapping[str, Any] | None,
) -> Prompt:
    """The stored form of an agent's prompt. The tools are added when they are described."""
    answer = settings.get("max_tokens")
    room = answer if isinstance(answer, int) else 0
    return Prompt(tuple(sections), model, (), windows.get(model), room, output_schema)


def join_sections(sections: Iterable[TextPart]) -> str:
    """The system text made of these sections."""
    return "\n\n".join([section.text for section in sections])


def assemble(state: State | Fold, source: PromptSource, unlogged: tuple[Injected, ...] = ()) -> ModelRequest:
    """The request of the current step. `unlogged` are injections that hooks keep out of the log.

    Parts injected for the turn stay beside its user message for the whole turn, so that step n+1 extends step n.
    Parts injected for the step are added to the last tool result and disappear with the step. A rejected reply and its
    feedback come last, for this attempt only. The history itself is shared, never copied.
    """
    request, messages = source.blank, state.shown if state.compactions else state.messages
    opened, turn, step = state.opened, state.turn, state.open
    if opened is not None and (opened.system is not None or opened.tools is not None):
        system, tools = instructions(state, source)
        request = replace(request, system=system, tools=tools, sections=opened.sections or request.sections)
    if turn is not None and (turn.injected or unlogged):
        messages = view_of_turn(state, unlogged).messages(step_id(state.session, state.steps + 1))
    if step is not None and step.rejected:
        messages = Messages(messages, tail=_rejections(step))
    return replace(request, messages=messages)


def request_digest(request: ModelRequest) -> str:
    """A fingerprint of a whole request: costs as much as it is long, so it is taken only where it
    is needed."""
    values = (request.tools, request.settings, request.output)
    return digest(
        request.system,
        request.model,
        stable_text(list(request.messages)),
        *map(stable_text, values),
    )


def instructions(state: State | Fold, source: PromptSource) -> tuple[str, tuple[ToolSpec, ...]]:
    """The system text and the tools, as the session was opened with them: the part of a request before the history.

    The tools of one turn come after those of the session.
    """
    opened, blank = state.opened, source.blank
    if opened is None:
        return blank.system, blank.tools
    system = blank.system if opened.system is None else opened.system
    if opened.tools is None:
        return system, blank.tools
    added = blank.tools[len(blank.tools) - source.run_tools :]
    names = {tool.name for tool in added}
    return system, (*[tool for tool in opened.tools if tool.name not in names], *added)


def lasting(state: State | Fold) -> Messages:
    """The messages of the current step's request that later requests repeat: without the parts of this step only."""
    turn = state.turn
    return state.shown if turn is None or not turn.injected else view_of_turn(state).messages()


class TurnView:
    """The messages that models see in a turn, with its injected parts. It grows with the turn: only new ones cost.

    A request is a view of `items`, which only get longer. To change a message that a request has shown, the list is
    copied first.
    """

    __slots__ = ("items", "length", "source", "step_injections", "turn", "used")

    def __init__(self, turn: TurnState | TurnFold, source: list[Message]) -> None:
        self.turn = turn
        self.source = source
        self.items: list[Message] = []
        self.length = 0
        self.used: tuple[int, int] = (0, 0)
        self.step_injections: dict[str, list[Injected]] = {}

    def extends_to(
        self, turn: TurnState | TurnFold, source: list[Message], length: int, counts: tuple[int, int]
    ) -> bool:
        """Whether the turn has only gained messages and injections since this view was last used."""
        grown = length >= self.length and counts[0] >= self.used[0] and counts[1] >= self.used[1]
        return grown and turn is self.turn and source is self.source

    def messages(self, step: str = "") -> Messages:
        """All messages, the last one with the parts that were injected for this step."""
        messages = Messages.sharing(self.items)
        if not self.items or not (injected := self.step_injections.get(step)):
            return messages
        parts = [part for item in injected for part in item.parts if not isinstance(part, str)]
        return Messages(messages, overlay={len(self.items) - 1: attach(self.items[-1], tuple(parts))})

    @staticmethod
    def in_order(logged: Sequence[Injected], unlogged: Sequence[Injected]) -> list[Injected]:
        """All injections in the order of the log, which has an entry without parts for each unlogged one."""
        if not unlogged:
            return list(logged)
        waiting: dict[tuple[str, str, str], list[Injected]] = {}
        for item in unlogged:
            waiting.setdefault((item.event, item.about, item.hook), []).append(item)
        ordered: list[Injected] = []
        for item in logged:
            matching = None if item.record else waiting.get((item.event, item.about, item.hook))
            ordered.append(matching.pop(0) if matching else item)
        return ordered + [item for items in waiting.values() for item in items]

    def add(self, item: Injected, session: str, place: int) -> None:
        """Add an injection to its message, or set it aside until its step comes."""
        if item.durable or not item.parts:
            return
        assert not isinstance(item.parts, str)
        rest = item.about[len(session) + 1 :]
        if rest.isdecimal():
            self.step_injections.setdefault(item.about, []).append(item)
        elif rest.startswith("t"):
            self._put(place, item.parts)
        elif (index := index_of_result(self.items, place, item.about)) is not None:
            self._put(index, item.parts, item.about)

    def _put(self, index: int, parts: tuple[ContentPart, ...], call: str | None = None) -> None:
        if 0 <= index < len(self.items):
            if index < self.length:
                self.items = self.items[:]
            self.items[index] = attach(self.items[index], parts, call)


def view_of_turn(state: State | Fold, unlogged: tuple[Injected, ...] = ()) -> TurnView:
    """The view of the current turn; a fold remembers it."""
    turn = state.turn
    assert turn is not None
    source, length, _ = state.shown.shared
    counts = len(turn.injected), len(unlogged)
    view: TurnView | None = state.turn_view if isinstance(state, Fold) else None
    if view is None or not view.extends_to(turn, source, length, counts):
        view = TurnView(turn, source)
        if isinstance(state, Fold):
            state.turn_view = view
    view.items += islice(source, view.length, length)
    for item in view.in_order(turn.injected[view.used[0] :], unlogged[view.used[1] :]):
        view.add(item, state.session, state.place)
    view.length, view.used = length, counts
    return view


def attach(message: Message, parts: tuple[ContentPart, ...], call: str | None = None) -> Message:
    """A message with more parts: added to a user message, or inside a tool result, never as text after a result."""
    if message.role != "tool":
        return message.replace(parts=(*message.parts, *parts))
    changed: list[Part] = list(message.parts)
    for at in range(len(changed) - 1, -1, -1):
        result = changed[at]
        if isinstance(result, ToolResultPart) and call in (None, result.call_id):
            changed[at] = result.replace(content=(*result.content, *parts))
            break
    return message.replace(parts=tuple(changed))


def index_of_result(messages: Sequence[Message], start: int, call: str) -> int | None:
    """The index of the message with a call's result, searched from the end back to the start of the turn."""
    for index in range(len(messages) - 1, start, -1):
        message = messages[index]
        if message.role == "tool" and any(getattr(part, "call_id", None) == call for part in message.parts):
            return index
    return None


def _rejections(step: OpenStep | StepFold) -> tuple[Message, ...]:
    """The latest rejected reply, without its calls, and the feedback on it."""
    reply, feedback = step.rejected[-1]
    parts = tuple(part for part in reply.message.parts if hasattr(part, "text"))
    rejected = (Message("assistant", parts),) if parts else ()
    return (*rejected, user(REJECTED.format(feedback=feedback), origin="regenerate"))


def calibrate(meter: Meter, fold: Fold, source: PromptSource) -> None:
    """Learn from the log how the vendor counts tokens, unless this process knows already."""
    turn = fold.turn
    last = fold.last or (turn.last if turn is not None else None)
    if last is None or last.reply is None or source.blank.model in meter.budget.factors:
        return
    sent = next((at for at in range(len(fold.shown) - 1, -1, -1) if fold.shown[at] is last.reply.message), None)
    if sent is not None and not fold.compactions:
        system, tools = instructions(fold, source)
        ours = meter.ours(system, tools, Messages(fold.shown[:sent]))
        meter.learn(source.blank.model, ours, last.reply.usage)
