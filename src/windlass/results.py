"""What a run returns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from .deltas import StreamEvent, TextDelta
from .errors import ConfigError, NotFinished, OutputError, TurnCancelled
from .events import Retracted
from .messages import Messages, Usage
from .outcomes import Cancelled, Completed, Failed, Stopped, StopReason, error_from_value
from .outputs import Output
from .records import Asked, Outcome, Record
from .slots import Slot
from .states import State, usage_by

if TYPE_CHECKING:
    from .steps import StepReport
    from .why import Why

OutputT = TypeVar("OutputT")


class Result(Generic[OutputT]):
    """The end of a turn, or its suspension: its text, its outcome and its cost.

    Stopped, suspended and failed turns are results like any other. Reading `text` or `output` of a turn without one
    raises an error that says why; `partial_text`, `state.text` and `repr` never raise.
    """

    def __init__(
        self,
        state: State,
        output: Output[OutputT],
        slots: dict[str, Slot[Any]],
        error: BaseException | None = None,
        records: Iterable[Record] = (),
    ) -> None:
        self.state = state
        self.error = error
        self._output = output
        self._slots = slots
        self._records = tuple(records)

    @property
    def text(self) -> str:
        """The answer. For a stopped turn, it is the text that the user got.

        Raises the turn's own error if it failed, `NotFinished` if it waits for people, `TurnCancelled` if it was
        cancelled.
        """
        if not isinstance(self.outcome, Completed | Stopped):
            self._raise()
        return self.state.text

    @property
    def partial_text(self) -> str:
        """The text so far, whatever the outcome. Never raises."""
        return self.state.text

    @property
    def output(self) -> OutputT:
        """The answer as the agent's `output` type. Raises an error that says why unless the turn is `Completed`."""
        outcome = self.outcome
        if isinstance(outcome, Stopped):
            why = f"{outcome.reason.value}: {outcome.detail}" if outcome.detail else outcome.reason.value
            raise OutputError(f"the turn was stopped and has no output ({why})") from self.error
        return self._output.parse(self.text)

    @property
    def outcome(self) -> Outcome:
        """How the turn ended."""
        outcome = self.state.outcome
        assert outcome is not None, "a result without an outcome"
        return outcome

    @property
    def stop_reason(self) -> StopReason:
        """The one reason why the turn ended."""
        reason = self.state.stop_reason
        assert reason is not None, "a result without an outcome"
        return reason

    @property
    def waiting_for(self) -> tuple[Asked, ...]:
        """The questions that wait for an answer."""
        return self.state.waiting

    @property
    def usage(self) -> Usage:
        """What the turn spent, and agents in the background whose results came in this turn.

        If an earlier turn started such an agent, its limits had to allow for it: then `state.turn.usage`, which limits
        of this turn look at, does not count it.
        """
        turn = self.state.turn
        if turn is None:
            return Usage()
        return sum([child.charged for child in turn.reported], turn.usage) if turn.reported else turn.usage

    @property
    def usage_by(self) -> Mapping[str, Usage]:
        """What hooks and tools spent with `turn.ask` and `turn.delegate`, by their names. It is part of `usage`."""
        return usage_by(self.state.turn, reported=True)

    @property
    def messages(self) -> Messages:
        """The transcript of the session."""
        return self.state.messages

    @property
    def session_id(self) -> str:
        """The id of the session."""
        return self.state.session

    @property
    def slots(self) -> dict[str, Any]:
        """The values of the slots, except those with `output=False`."""
        return {name: slot.load(self.state.slots) for name, slot in self._slots.items() if slot.output}

    @property
    def steps(self) -> tuple[StepReport, ...]:
        """The steps of the turn, as its log tells them: reply, calls, results, votes and times of each."""
        from .steps import steps_of

        return steps_of((*self._records, *self.state.pending))

    def why(self) -> Why:
        """Explains the turn from its log: why it ended, who decided what, and what was changed."""
        from .why import Why

        return Why(self.session_id, (*self._records, *self.state.pending))

    def raise_for_error(self) -> Result[OutputT]:
        """Raise the error that the turn ended with, if there is one; otherwise return the result itself."""
        if isinstance(self.outcome, Failed):
            self._raise()
        if self.error is not None:
            raise self.error
        return self

    def _raise(self) -> NoReturn:
        """Raise the reason for a missing answer: the error itself if this process has it, else the one from the log."""
        match self.outcome:
            case Failed(error=error):
                raise error_from_value(error) if self.error is None else self.error
            case Cancelled(reason=reason):
                text = f"the turn was cancelled: {reason}" if reason else "the turn was cancelled"
                raise TurnCancelled(text, reason=reason) from self.error
            case _:
                asked = "; ".join([f"{asked.id} ({asked.question})" for asked in self.waiting_for])
                raise NotFinished(
                    f"the turn of session {self.session_id!r} waits for answers: {asked or 'no question is open'}. "
                    "Answer with agent.resume(…, answers=…)",
                    waiting_for=self.waiting_for,
                ) from self.error

    def __repr__(self) -> str:
        return f"Result({self.partial_text!r}, {self.outcome!r})"


class Stream(Generic[OutputT]):
    """A turn while it runs: `async for event in stream` yields deltas and facts, numbered in one sequence.

    To leave it early, use `async with agent.stream(…) as stream`, which ends the turn when the block is left, or call
    `aclose`. A `break` alone ends the turn only if nothing else refers to the stream. `result` is available when the
    stream has been read to its end.
    """

    def __init__(
        self,
        events: AsyncGenerator[StreamEvent, None],
        results: list[Result[OutputT]],
        output: Output[OutputT] | None = None,
    ) -> None:
        typed = output is not None and output.schema is not None
        self._output = output
        self._text: list[str] | None = [] if typed else None
        self._events = self._read(events) if typed else events
        self._results = results

    async def _read(self, events: AsyncGenerator[StreamEvent, None]) -> AsyncGenerator[StreamEvent, None]:
        """Pass the events on, and keep the text of the reply that is being streamed."""
        place = (0, 0, 0)
        try:
            async for event in events:
                if type(event) is TextDelta:
                    if place != (place := (event.step, event.round, event.attempt)):
                        self._text = []
                    assert self._text is not None
                    self._text.append(event.text)
                elif type(event) is Retracted and event.step == place[0] and not event.path:
                    self._text = []
                yield event
        finally:
            await events.aclose()

    @property
    def partial(self) -> Any:
        """The output as far as it was streamed: plain JSON values, not validated yet; None before the first one.

        It is complete and of the agent's `output` type only in `result.output`. Raises `ConfigError` if the agent has
        no output type.
        """
        if self._text is None or self._output is None:
            raise ConfigError("stream.partial needs an agent with an output type: Agent(…, output=Invoice)")
        self._text = ["".join(self._text)]
        return self._output.partial(self._text[0])

    def __aiter__(self) -> AsyncGenerator[StreamEvent, None]:
        return self._events

    async def __anext__(self) -> StreamEvent:
        return await anext(self._events)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Leave the stream. A turn that is not over is cancelled and closed."""
        await self._events.aclose()

    @property
    def result(self) -> Result[OutputT]:
        """The result of the turn, once the stream has been read to its end."""
        if not self._results:
            raise ConfigError("the stream has no result yet: read it to its end")
        return self._results[0]


def count_asked(result: Result[Any], asked: Asked) -> int:
    """How often a question was asked in a turn."""
    records = result._records  # pyright: ignore[reportPrivateUsage]
    return sum([isinstance(record, Asked) and record.id == asked.id for record in records])
