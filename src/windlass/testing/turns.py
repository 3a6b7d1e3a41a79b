"""A turn for testing a hook or a tool alone, as a plain function."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

from windlass._kernel.entry import Entry
from windlass._kernel.segment import Segment
from windlass.agent import Agent
from windlass.errors import ConfigError
from windlass.messages import Message, as_message
from windlass.outcomes import Cancelled
from windlass.ownership import Claim
from windlass.protocols import Clock, Model
from windlass.records import HistoryImported, MessageAdded, Noted, Record, SessionOpened, SlotSet, TurnStarted
from windlass.slots import Slot
from windlass.states import Fold
from windlass.turns import Asker, Turn, Writes

from .clocks import FakeClock
from .models import ScriptedModel

ScopeT = TypeVar("ScopeT")


class FakeTurn(Turn[ScopeT]):
    """A turn that has just begun. It works like the turn of a real agent, and says what a hook or tool did with it.

    `added` are messages, `notes` are facts, `told` is progress. Read a slot that the hook has set with
    `turn.get(slot)`.
    """

    __slots__ = ("_segment", "_start", "told")

    def __init__(self, segment: Segment, writes: Writes, asker: Asker) -> None:
        super().__init__(segment.site, writes, None, asker)
        self._segment = segment
        self._start = segment.fold.seq
        self.told: list[tuple[float, float | None, str]] = []

    @property
    def added(self) -> list[Message]:
        """The messages that were added with `turn.add`."""
        assert self._writes is not None
        return list(self._writes.messages)

    @property
    def records(self) -> list[Record]:
        """What was recorded since the turn was made: notes and side calls."""
        fold = self._segment.fold
        written = [*fold.written, *fold.pending]
        return written[len(written) - (fold.seq - self._start) :]

    @property
    def notes(self) -> list[tuple[str, Any]]:
        """The notes that were made with `turn.note`: kind and data."""
        return [(record.kind, record.data) for record in self.records if isinstance(record, Noted)]

    def progress(self, done: float, total: float | None = None, text: str = "") -> None:
        """Tell how far the hook or tool is. `told` has all that was told."""
        super().progress(done, total, text)
        self.told.append((done, total, text))

    @property
    def cancelled(self) -> str | None:
        """The reason given to `turn.cancel`; None if the turn was not cancelled."""
        stop = self._segment.cancellation.stop
        return stop.reason if isinstance(stop, Cancelled) else None


def fake_turn(
    *,
    scope: ScopeT | None = None,
    slots: Mapping[Slot[Any], Any] | Iterable[Slot[Any]] = (),
    model: Model | None = None,
    clock: Clock | None = None,
    message: str | Message = "go",
    history: Iterable[Message] = (),
    agent: Agent[Any, Any] | None = None,
    session: str = "test",
) -> FakeTurn[ScopeT]:
    """A turn for calling a hook or tool as a plain function: `protect(ToolCalling(call, turn), turn)`.

    `slots` are the slots that the hook uses, with values or without. `model` answers every `turn.ask`, whatever model
    the hook names. `message` opened the turn, and `history` came before it. Without a `clock` the turn has a
    `FakeClock`. To test with tools, limits and capabilities, pass an `agent`, which brings its own model, clock and
    slots.
    """
    values = dict(slots) if isinstance(slots, Mapping) else dict.fromkeys(slots, _UNSET)
    if agent is None:
        agent = Agent(model or ScriptedModel(), clock=clock or FakeClock(auto=True))
        for slot in values:
            agent.slot(slot)
    elif model is not None or clock is not None:
        raise ConfigError("fake_turn: the agent has its own model and clock; pass agent= without model= and clock=")
    program = agent._compile()  # pyright: ignore[reportPrivateUsage]
    if model is not None:
        program.models = _AnyName(model)
    fold = Fold(session)
    given = as_message(message)
    earlier = tuple(history)
    for record in (
        SessionOpened(agent=program.name, pipeline=program.digest),
        *([HistoryImported(earlier, program.name)] if earlier else ()),
        TurnStarted(1, given, f"{session}/t1"),
        MessageAdded(),
        *[SlotSet(slot.name, slot.dump(value, "fake_turn")) for slot, value in values.items() if value is not _UNSET],
    ):
        fold.add(record.replace(at=fold.tick(program.now)))
    segment = Segment(program, fold, Entry(scope=scope), Claim(session, 1, begins=True))
    return FakeTurn(segment, Writes("test"), Asker("", f"{session}/1", "test", ("test",)))


_UNSET: Any = object()


class _AnyName(dict[str, Model]):
    """Models by name: every name is the same model."""

    def __init__(self, model: Model) -> None:
        super().__init__({model.name: model})
        self._model = model

    def get(self, name: str, default: Any = None) -> Any:
        return self._model
