"""What hooks inject: kept for its turn or step, counted, and asked for again on resume if it is not
in the log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from windlass._hooks.dispatch import Passage
from windlass.context.budget import Counter
from windlass.events import StepEnding, StepStarting, ToolCalling, ToolReturning, TurnStarting
from windlass.messages import Message, ToolCall, ToolCallPart, ToolResult, ToolResultPart
from windlass.records import Injected
from windlass.states import Fold, step_id

if TYPE_CHECKING:
    from .journal import Journal
    from .site import Site
    from .transcript import Transcript

STEP_EVENTS = ("StepStarting", "StepEnding", "Resuming")
"""Where parts are injected for one step and go with it."""


class InjectionLedger(Struct, eq=False):
    """The injections that the requests of a session carry, of the turn and of each step, added up
    as they come.

    `unlogged` are parts that hooks keep out of the log.
    """

    _fold: Fold
    _counter: Counter
    unlogged: tuple[Injected, ...] = ()
    _history: list[Message] | None = None
    _known: int = 0
    _lasting: set[str] | None = None
    _turn: Any = False  # no turn was looked at
    _used: tuple[int, int] = (0, 0)
    _size: int = 0
    _texts: set[str] | None = None
    _of_steps: dict[str, list[Injected]] = {}

    def add_unlogged(self, *items: Injected) -> None:
        """Parts that a hook keeps out of the log."""
        self.unlogged = (*self.unlogged, *items)

    def size(self) -> int:
        """About how many injected tokens the next request carries."""
        self._update()
        of_step = self._of_steps.get(self._step(), ())
        return self._size + sum([self._tokens(item) for item in of_step])

    def contains(self, item: Injected, beside: Sequence[Injected]) -> bool:
        """Whether models are shown the same already, for as long as this would be.

        A child sees only its own.
        """
        if is_for_child(item, self._fold.session) or item.event == "SessionStarting":
            return False
        self._update()
        text = _text_of(item)
        there = [other for other in beside if other.durable or not item.durable]
        if self._lasts(text) or any(_text_of(other) == text for other in there):
            return True
        if item.durable:
            return False
        of_step = self._of_steps.get(self._step(), ())
        return text in (self._texts or ()) or any(
            _text_of(other) == text for other in of_step if not other.durable
        )

    def _step(self) -> str:
        return step_id(self._fold.session, self._fold.steps + 1)

    def _begin(self, turn: Any) -> None:
        self._turn = turn
        self._used, self._size = (0, 0), 0
        self._texts, self._of_steps = set(), {}

    def _update(self) -> None:
        """Count what came since the ledger was last read."""
        turn, unlogged = self._fold.turn, self.unlogged
        injected: tuple[Injected, ...] = () if turn is None else turn.injected
        given = len(injected), len(unlogged)
        if turn is not self._turn or given[0] < self._used[0] or given[1] < self._used[1]:
            self._begin(turn)
        if given != self._used:
            for item in (*injected[self._used[0] :], *unlogged[self._used[1] :]):
                self._add(item)
            self._used = given

    def _add(self, item: Injected) -> None:
        if is_for_child(item, self._fold.session):
            return
        if item.event in STEP_EVENTS:
            self._of_steps.setdefault(item.about, []).append(item)
        else:
            self._size += self._tokens(item)
            if not item.durable and self._texts is not None:
                self._texts.add(_text_of(item))

    def _tokens(self, item: Injected) -> int:
        parts: Any = item.parts
        return self._counter.parts(parts)

    def _lasts(self, text: str) -> bool:
        """Whether a hook has put the same into the history that models are shown."""
        items, length, _ = self._fold.shown.shared
        lasting = self._lasting
        if lasting is None or items is not self._history or length < self._known:
            self._history, self._known = items, 0
            self._lasting = lasting = set()
        new = islice(items, self._known, length)
        lasting |= {_text_of(message) for message in new if message.origin is not None}
        self._known = length
        return text in lasting


def _text_of(item: Injected | Message) -> str:
    """What some parts say, whatever their origin."""
    parts: Any = item.parts
    return repr([part.replace(origin=None) if hasattr(part, "origin") else part for part in parts])


def is_for_child(item: Injected, session: str) -> bool:
    """Whether parts were injected for an agent below this session."""
    return item.event == "Delegating" and not item.about.startswith(f"{session}/t")


class Injections(Struct, eq=False):
    """Asks hooks for what they inject and brings it into the state."""

    _journal: Journal
    _site: Site
    transcript: Transcript

    async def inject(self, passage: Passage, about: str) -> None:
        """What hooks inject here: transient parts are recorded for their turn or step, durable ones
        become messages."""
        if passage.injects:
            for item in await passage.inject(about):
                await self.take_in(item)

    async def take_in(self, item: Injected) -> None:
        """One injection into the state."""
        if item.durable:
            assert not isinstance(item.parts, str)
            await self.transcript.add(Message("user", item.parts, origin=item.hook), item.hook)
        else:
            self.put(item)

    async def inject_beside(self, passage: Passage, call: str) -> None:
        """What hooks inject beside the result of a call; durable parts join the result when it
        comes."""
        if passage.injects:
            for item in await passage.inject(call):
                self.put(item)

    def put(self, item: Injected) -> None:
        """Record parts, or only that the hook is asked again on resume, if they stay out of the
        log."""
        if item.record or item.durable:
            self._journal.record(item)
        else:
            self._site.injected.add_unlogged(item)
            self._journal.record(item.replace(parts=()))

    def add_unlogged(self, item: Injected) -> None:
        """Parts that stay out of the log, where it says so already."""
        self._site.injected.add_unlogged(item)

    # ------------------------------------------------------------ on resume

    async def inject_again(self, passage: Passage, about: str) -> None:
        """Ask hooks once more whose parts for this place are not in the log."""
        turn, event = self._journal.visible.turn, passage.point.name
        unlogged = {
            item.hook
            for item in (turn.injected if turn is not None else ())
            if not item.record and (item.event, item.about) == (event, about)
        }
        if unlogged:
            again = await passage.inject(about, only=lambda hook: hook.name in unlogged)
            self._site.injected.add_unlogged(*[item for item in again if not item.durable])

    async def inject_for_task(self, passage: Passage, about: str) -> None:
        """What hooks inject for a child to which a hook or tool gives a task, unless the log has it: a process may have
        died before the child was started."""
        turn, event = self._journal.visible.turn, passage.point.name
        told = {
            item.hook
            for item in (turn.injected if turn is not None else ())
            if (item.event, item.about) == (event, about)
        }
        if told:
            await self.inject_for_child(passage, about)
        if passage.injects:
            for item in await passage.inject(about, only=lambda hook: hook.name not in told):
                if item.hook not in told:
                    self.put(item)

    async def inject_for_child(self, passage: Passage, about: str) -> None:
        """Ask hooks once more whose parts for a child are not in the log, unless that was done."""
        if not any(item.about == about for item in self._site.injected.unlogged):
            await self.inject_again(passage, about)

    async def inject_unlogged(self) -> None:
        """Ask the hooks of this turn whose parts are not in the log, once for each place that still
        counts."""
        turn = self._journal.fold.turn
        assert turn is not None
        places = dict.fromkeys(
            [(item.event, item.about) for item in turn.injected if not item.record]
        )
        returned = dict(_returned(self._journal.fold)) if places else {}
        for event, about in places:
            if (passage := self._passage(event, about, returned)) is not None:
                await self.inject_again(passage, about)

    def _passage(
        self, event: str, about: str, returned: dict[str, tuple[ToolCall, ToolResult]]
    ) -> Passage | None:
        """An event of the turn, as its hooks saw it; None if what they would inject there is not
        shown any more."""
        point = self._site.hooks.named(event)
        if point is None:
            return None
        fold, turn = self._journal.fold, self._site.turn
        assert fold.turn is not None
        number = fold.steps + 1
        is_next = about == step_id(fold.session, number) and (
            fold.open is None or fold.open.reply is None
        )
        last = fold.state.turn.last if fold.state.turn is not None else None
        match event:
            case "TurnStarting":
                return self._site.passage(point, TurnStarting(fold.turn.message, turn), about)
            case "StepStarting" if is_next:
                return self._site.passage(point, StepStarting(number, turn), f"{about}/start")
            case "StepEnding" if is_next and last is not None:
                return self._site.passage(point, StepEnding(last, turn), f"{about}/end")
            case "ToolCalling" if about in returned:
                return self._site.passage(point, ToolCalling(returned[about][0], turn), about)
            case "ToolReturning" if about in returned:
                return self._site.passage(point, ToolReturning(*returned[about], turn), about)
            case _:
                return None


def _returned(fold: Fold) -> Iterator[tuple[str, tuple[ToolCall, ToolResult]]]:
    """The calls of the turn that have their result, by id."""
    assert fold.turn is not None
    calls: dict[str, ToolCall] = {}
    for message in fold.messages[fold.turn.start :]:
        for part in message.parts:
            if isinstance(part, ToolCallPart):
                calls[part.id] = ToolCall(part.id, part.name, part.json, part.vendor_id)
            elif isinstance(part, ToolResultPart) and part.call_id in calls:
                yield part.call_id, (calls[part.call_id], ToolResult(part.content, part.status))
    for state in fold.open.calls.values() if fold.open is not None else ():
        if state.result is not None:
            yield state.call.id, (state.call, state.result)
