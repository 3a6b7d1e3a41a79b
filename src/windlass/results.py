"""What a run gives back."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING, Any, Generic, NoReturn, Self, TypeVar

from .deltas import StreamEvent
from .errors import ConfigError, NotFinished, OutputError, TurnCancelled
from .messages import Messages, Usage
from .outcomes import Cancelled, Completed, Failed, Stopped, StopReason, recorded_error
from .outputs import Output
from .records import Asked, Outcome, Record
from .slots import Slot
from .states import State

if TYPE_CHECKING:
    from .why import Why

OutputT = TypeVar("OutputT")


class Result(Generic[OutputT]):
    """The end of a turn, or its suspension: what was said, how it ended, what it cost.

    Stopped, suspended and failed turns are results like any other. Reading `text` or `output` of a turn that has none
    raises the reason; `partial_text`, `state.text` and `repr` never raise.
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
        """The answer. Of a turn that was stopped it is what the user was given.

        Raises the turn's own error if it failed, `NotFinished` if it waits for people, `TurnCancelled` if it was
        cancelled.
        """
        if not isinstance(self.outcome, Completed | Stopped):
            self._raise()
        return self.state.text

    @property
    def partial_text(self) -> str:
        """The text as far as it came, whatever the outcome is. Never raises."""
        return self.state.text

    @property
    def output(self) -> OutputT:
        """The answer as the type that the agent promised. Raises unless the turn is `Completed`, and says why."""
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
        """The one reason for which it ended."""
        reason = self.state.stop_reason
        assert reason is not None, "a result without an outcome"
        return reason

    @property
    def waiting_for(self) -> tuple[Asked, ...]:
        """The questions that wait for an answer."""
        return self.state.waiting

    @property
    def usage(self) -> Usage:
        """What the turn spent."""
        return self.state.turn.usage if self.state.turn is not None else Usage()

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
        """The slots that are shown to callers."""
        return {name: slot.load(self.state.slots) for name, slot in self._slots.items() if slot.output}

    def why(self) -> Why:
        """Why the turn ended as it did: who decided what, and what was changed, as the log tells it."""
        from .why import Why

        return Why(self.session_id, (*self._records, *self.state.pending))

    def raise_for_error(self) -> Result[OutputT]:
        """Raise the error the turn ended with, if it did; else give the result itself."""
        if isinstance(self.outcome, Failed):
            self._raise()
        if self.error is not None:
            raise self.error
        return self

    def _raise(self) -> NoReturn:
        """Raise why there is no answer: the error itself where this process has it, else the one of the log."""
        match self.outcome:
            case Failed(error=error):
                raise recorded_error(error) if self.error is None else self.error
            case Cancelled(reason=reason):
                text = f"the turn was cancelled: {reason}" if reason else "the turn was cancelled"
                raise TurnCancelled(text, reason=reason) from self.error
            case _:
                asked = "; ".join([f"{asked.id} ({asked.question})" for asked in self.waiting_for])
                raise NotFinished(
                    f"the turn of session {self.session_id!r} waits for answers: {asked or 'none is open'}. "
                    "Answer with agent.resume(…, answers=…)",
                    waiting_for=self.waiting_for,
                ) from self.error

    def __repr__(self) -> str:
        return f"Result({self.partial_text!r}, {self.outcome!r})"


class Stream(Generic[OutputT]):
    """A turn while it happens: `async for event in stream` gives deltas and facts, numbered in one sequence.

    Leave it by `break` only where nobody else holds it; `async with agent.stream(…) as stream` ends the turn for sure
    when the block is left, and so does `aclose`. `result` is there when the stream has been read to its end.
    """

    def __init__(self, events: AsyncGenerator[StreamEvent, None], results: list[Result[OutputT]]) -> None:
        self._events = events
        self._results = results

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
        """What the turn came to, once the stream has been read to its end."""
        if not self._results:
            raise ConfigError("the stream has no result yet: read it to its end")
        return self._results[0]


def times_asked(result: Result[Any], asked: Asked) -> int:
    """How often a question was put in a turn."""
    records = result._records  # pyright: ignore[reportPrivateUsage]
    return sum([isinstance(record, Asked) and record.id == asked.id for record in records])
