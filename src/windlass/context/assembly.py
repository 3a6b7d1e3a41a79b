"""Request assembly: a pure function of a state and of what the agent is, nothing else."""

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
    user,
)
from windlass.records import Injected
from windlass.states import Fold, OpenStep, State, StepFold, TurnFold, TurnState, step_id

from .budget import Meter

REJECTED = "Your previous reply was rejected: {feedback}\nGive another reply."


class Shown(Protocol):
    """What an agent shows to a model whatever the conversation."""

    @property
    def blank(self) -> ModelRequest:
        """A request without a message."""
        ...


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
    def blank(self) -> ModelRequest:
        """A request without a message, and without settings: they are not kept."""
        return blank_request(self.sections, self.tools, self.model, {}, self.output_schema)


def blank_request(
    sections: tuple[TextPart, ...],
    tools: tuple[ToolSpec, ...],
    model: str,
    settings: Mapping[str, Any],
    output: Mapping[str, Any] | None,
) -> ModelRequest:
    """A request without a message."""
    return ModelRequest(joined(sections), Messages(), tools, model, settings, output, sections)


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
    request, messages = shown.blank, state.shown if state.compactions else state.messages
    opened, turn, step = state.opened, state.turn, state.open
    if opened is not None and (opened.system is not None or opened.tools is not None):
        system, tools = instructions(state, shown)
        request = replace(request, system=system, tools=tools, sections=opened.sections or request.sections)
    if turn is not None and (turn.injected or unrecorded):
        messages = laid_out(state, unrecorded).shown(step_id(state.session, state.steps + 1))
    if step is not None and step.rejected:
        messages = Messages(messages, tail=_rejections(step))
    return replace(request, messages=messages)


def instructions(state: State | Fold, shown: Shown) -> tuple[str, tuple[ToolSpec, ...]]:
    """What stands before the history: the system text and the tools, as the session was opened with them."""
    opened, blank = state.opened, shown.blank
    if opened is None:
        return blank.system, blank.tools
    system = blank.system if opened.system is None else opened.system
    return system, blank.tools if opened.tools is None else opened.tools


def lasting(state: State | Fold) -> Messages:
    """The messages of the current step's request that are meant to stay: without what goes with the step."""
    turn = state.turn
    return state.shown if turn is None or not turn.injected else laid_out(state).shown()


class Laid:
    """What models are shown in a turn, with what was injected for it. It grows with the turn, and so costs what is new.

    A request is a view of `items`, which only ever get longer; whatever would change one that was shown makes new ones.
    """

    __slots__ = ("items", "length", "of_steps", "source", "turn", "used")

    def __init__(self, turn: TurnState | TurnFold, source: list[Message]) -> None:
        self.turn = turn
        self.source = source
        self.items: list[Message] = []
        self.length = 0
        self.used: tuple[int, int] = (0, 0)
        self.of_steps: dict[str, list[Injected]] = {}

    def goes_on(self, turn: TurnState | TurnFold, source: list[Message], length: int, given: tuple[int, int]) -> bool:
        """Whether nothing but new messages and injections came since."""
        grown = length >= self.length and given[0] >= self.used[0] and given[1] >= self.used[1]
        return grown and turn is self.turn and source is self.source

    def shown(self, step: str = "") -> Messages:
        """All messages, the last one with what was injected for this step."""
        messages = Messages.sharing(self.items)
        if not self.items or not (injected := self.of_steps.get(step)):
            return messages
        parts = [part for item in injected for part in item.parts if not isinstance(part, str)]
        return Messages(messages, overlay={len(self.items) - 1: attached(self.items[-1], tuple(parts))})

    @staticmethod
    def in_order(written: Sequence[Injected], unwritten: Sequence[Injected]) -> list[Injected]:
        """What was injected, in the order of the log: there what is not in it has a place without parts."""
        if not unwritten:
            return list(written)
        waiting: dict[tuple[str, str, str], list[Injected]] = {}
        for item in unwritten:
            waiting.setdefault((item.event, item.about, item.hook), []).append(item)
        found: list[Injected] = []
        for item in written:
            given = None if item.record else waiting.get((item.event, item.about, item.hook))
            found.append(given.pop(0) if given else item)
        return found + [item for items in waiting.values() for item in items]

    def take(self, item: Injected, session: str, place: int) -> None:
        """What one hook injected: to its place, or aside until its step comes."""
        if item.durable or not item.parts:
            return
        assert not isinstance(item.parts, str)
        rest = item.about[len(session) + 1 :]
        if rest.isdecimal():
            self.of_steps.setdefault(item.about, []).append(item)
        elif rest.startswith("t"):
            self._put(place, item.parts)
        elif (index := index_of_result(self.items, place, item.about)) is not None:
            self._put(index, item.parts, item.about)

    def _put(self, index: int, parts: tuple[ContentPart, ...], call: str | None = None) -> None:
        if 0 <= index < len(self.items):
            if index < self.length:
                self.items = self.items[:]
            self.items[index] = attached(self.items[index], parts, call)


def laid_out(state: State | Fold, unrecorded: tuple[Injected, ...] = ()) -> Laid:
    """The messages of the turn as they are shown; a fold remembers them."""
    turn = state.turn
    assert turn is not None
    source, length, _ = state.shown.shared
    given = len(turn.injected), len(unrecorded)
    laid: Laid | None = state.laid if isinstance(state, Fold) else None
    if laid is None or not laid.goes_on(turn, source, length, given):
        laid = Laid(turn, source)
        if isinstance(state, Fold):
            state.laid = laid
    laid.items += islice(source, laid.length, length)
    for item in laid.in_order(turn.injected[laid.used[0] :], unrecorded[laid.used[1] :]):
        laid.take(item, state.session, state.place)
    laid.length, laid.used = length, given
    return laid


def attached(message: Message, parts: tuple[ContentPart, ...], call: str | None = None) -> Message:
    """A message with more parts: beside those of a user, or inside a tool result: never as text after one."""
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
    """Where the result of a call is, from the end of the messages back to the start of the turn."""
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
    if last is None or last.reply is None or shown.blank.model in meter.budget.factors:
        return
    sent = next((at for at in range(len(fold.shown) - 1, -1, -1) if fold.shown[at] is last.reply.message), None)
    if sent is not None and not fold.compactions:
        system, tools = instructions(fold, shown)
        ours = meter.ours(system, tools, Messages(fold.shown[:sent]))
        meter.learn(shown.blank.model, ours, last.reply.usage)
