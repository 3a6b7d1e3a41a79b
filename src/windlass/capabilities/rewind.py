"""Rewind: lets the model return to a checkpoint of its turn, with a note to itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta, Struct

from windlass.decisions import Rewind as RewindDecision
from windlass.errors import ToolError
from windlass.events import StepEnding
from windlass.messages import Message, ToolResultPart
from windlass.slots import Slot
from windlass.tools import Tool, tool
from windlass.turns import Turn

from .option_types import check_types
from .options import require_count, require_name

if TYPE_CHECKING:
    from windlass import Assembly, Hooks

START = "start"
"""The checkpoint that every turn has: before its first step."""
SHOWN = 200
"""How many characters of the arguments of a call are shown to the model."""
_RAN = ("ok", "error", "interrupted", "cancelled")
"""The status of a call that was begun, or may have been."""
_OWN = ("checkpoint", "rewind")


class Left(Struct, frozen=True):
    """Something of a step that a rewind has removed, in words: a call that was made, or a message."""

    step: int
    text: str


class Checkpoints(Struct, frozen=True):
    """The checkpoints of a turn: by label, the first step after each. `effects` and `told` are from steps that were
    removed: calls that are not undone, and messages that the model has to know."""

    turn: int = 0
    steps: Mapping[str, int] = {}
    effects: tuple[Left, ...] = ()
    told: tuple[Left, ...] = ()


class Rewind:
    """Let the model set checkpoints and return to them: the tools `checkpoint` and `rewind`.

    After a rewind the transcript is as it was at the checkpoint. The model reads the note that it wrote, the calls that
    have had effects since, which are not undone, and what the user said meanwhile. Usage, limits and slots are not
    reset. Checkpoints belong to one turn; `"start"` is always there. A turn has at most `limit` rewinds, by default as
    many as `Agent(max_vetoes=…)` allows, and `max_checkpoints`.
    """

    @check_types
    def __init__(self, *, limit: int | None = None, max_checkpoints: int = 20, name: str = "rewind") -> None:
        require_name("Rewind", name)
        if limit is not None:
            require_count("Rewind", "limit", limit)
        require_count("Rewind", "max_checkpoints", max_checkpoints)
        self.name = name
        self.limit, self.max_checkpoints = limit, max_checkpoints
        self._slot: Slot[Checkpoints] = Slot(name, Checkpoints, input=False, output=False)

    def install(self, registrar: Hooks) -> None:
        """Register the slot, the tools and the gate."""
        known: list[Assembly] = []

        @registrar.check
        def within_the_bound(assembly: Assembly) -> str | None:
            known.append(assembly)
            most = assembly.bounds["max_vetoes"]
            if self.limit is None or self.limit <= most:
                return None
            return f"limit={self.limit} rewinds are more than Agent(max_vetoes={most}) allows; raise max_vetoes"

        @tool(effect="idempotent", inline=True)
        def rewind(label: str, note: Annotated[str, Meta(min_length=1)], turn: Turn[Any]) -> str:
            """Return to a checkpoint: all that you have read and said since is removed. Make this call alone.

            Args:
                label: the checkpoint, or "start" for the beginning of this turn
                note: what you want to remember: what you tried, what you learned, and what to do instead
            """
            most = known[-1].bounds["max_vetoes"] if self.limit is None else self.limit
            return self._check(turn, label, most)

        registrar.slot(self._slot)
        registrar.tool(self.checkpoint)
        registrar.tool(rewind)
        registrar.gate(StepEnding, name=self.name, when=_calls_rewind)(self._return)

    def summary(self) -> str:
        """The limit, for `explain`."""
        return "as many rewinds as vetoes" if self.limit is None else f"at most {self.limit} rewinds"

    @tool(effect="idempotent", inline=True, sequential=True)
    def checkpoint(self, label: Annotated[str, Meta(min_length=1, max_length=80)], turn: Turn[Any]) -> str:
        """Set a checkpoint after this step, to which you can return with `rewind` if an approach fails.

        Args:
            label: a name for it; a checkpoint of the same name is moved
        """
        if label == START:
            raise ToolError(f"{START!r} is the beginning of this turn; choose another label")
        mine = self._checkpoints(turn)
        if label not in mine.steps and len(mine.steps) >= self.max_checkpoints:
            raise ToolError(f"a turn has at most {self.max_checkpoints} checkpoints; move one: {', '.join(mine.steps)}")
        steps = {**mine.steps, label: turn.state.steps + 2}
        turn.set(self._slot, Checkpoints(mine.turn, steps, mine.effects, mine.told))
        return f"Checkpoint {label!r} is set."

    def _check(self, turn: Turn[Any], label: str, most: int) -> str:
        """Raise unless this rewind is possible; the gate makes it when the step ends."""
        state = turn.state
        if state.open is not None and len(state.open.calls) > 1:
            raise ToolError(
                "make this call alone: the other calls of this step have been made, and nothing was removed"
            )
        if state.turn is not None and state.turn.rewinds >= most:
            raise ToolError(f"this turn has no rewind left, it had {most}; go on from here")
        steps = self._steps(turn)
        if label not in steps:
            raise ToolError(f"there is no checkpoint {label!r} in this turn; there are {', '.join(steps)}")
        return f"Returning to {label!r}."

    def _return(self, event: StepEnding, turn: Turn[Any]) -> RewindDecision | None:
        """Make the rewind that the model has called for, unless the call was refused or answered by others."""
        (call,), (result,) = event.step.calls, event.step.results
        to = self._steps(turn).get(call.arguments.get("label", ""))
        if to is None or result.status != "ok" or event.error is not None:
            return None
        mine, left = self._checkpoints(turn), list(_messages_since(turn, to))
        effects = (*mine.effects, *_effects(left, turn.tools))
        told = (*mine.told, *_told(left, self.name))
        kept = {label: step for label, step in mine.steps.items() if step <= to}
        turn.set(self._slot, Checkpoints(mine.turn, kept, effects, told))
        return RewindDecision(
            to, _note(call.arguments["label"], call.arguments["note"], _lines(effects, to), _lines(told, to))
        )

    def _checkpoints(self, turn: Turn[Any]) -> Checkpoints:
        mine = turn.get(self._slot)
        return mine if mine.turn == turn.state.turns else Checkpoints(turn.state.turns)

    def _steps(self, turn: Turn[Any]) -> dict[str, int]:
        """The first step after each checkpoint."""
        state = turn.state
        done = state.turn.steps if state.turn is not None else 0
        return {START: state.steps - done + 1, **self._checkpoints(turn).steps}


def _calls_rewind(event: StepEnding) -> bool:
    return len(event.step.calls) == 1 and event.step.calls[0].name == "rewind"


def _messages_since(turn: Turn[Any], step: int) -> Iterator[tuple[int, Message]]:
    """The messages of a step of the turn and of all later ones, each with the number of its step."""
    state = turn.state
    current = 0
    for message in list(state.messages)[state.turn.start + 1 if state.turn is not None else 0 :]:
        if message.role == "assistant" and message.id:
            current = int(message.id.rsplit("/", 1)[1])
        if current >= step:
            yield current, message


def _effects(messages: Sequence[tuple[int, Message]], tools: Mapping[str, Tool[..., Any]]) -> list[Left]:
    """The calls that were made, except those of pure tools, and what came of them."""
    results = [part for _, message in messages for part in message.parts if isinstance(part, ToolResultPart)]
    status = {part.call_id: part.status for part in results}
    return [
        Left(step, f"{call.name}({_cut(call.json)}): {status[call.id]}")
        for step, message in messages
        for call in message.tool_calls
        if status.get(call.id) in _RAN and call.name not in _OWN and _has_effect(tools.get(call.name))
    ]


def _has_effect(made: Tool[..., Any] | None) -> bool:
    return made is None or not (made.effect == "pure" or made.annotations.read_only)


def _told(messages: Iterable[tuple[int, Message]], name: str) -> list[Left]:
    """What users and hooks told the model, except the notes of earlier rewinds."""
    return [
        Left(step, message.text)
        for step, message in messages
        if message.role == "user" and message.origin != name and message.text
    ]


def _note(label: str, note: str, made: Sequence[str], said: Sequence[str]) -> str:
    """What the model reads after the rewind."""
    where = "the beginning of this turn" if label == START else f"the checkpoint {label!r}"
    lines = [f"You have returned to {where}. What came after it is no longer shown. Your note to yourself: {note}"]
    lines += ["These calls were made meanwhile and are not undone:", *made] if made else []
    lines += ["Meanwhile you were told:", *said] if said else []
    return "\n".join(lines)


def _lines(left: Iterable[Left], to: int) -> list[str]:
    """What was removed since a step, in the order in which it happened."""
    return [f"- {one.text}" for one in sorted(left, key=lambda one: one.step) if one.step >= to]


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"
