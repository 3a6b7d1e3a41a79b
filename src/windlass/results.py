"""What a run gives back."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

from .messages import Messages, Usage
from .outcomes import StopReason
from .outputs import Output
from .records import Asked, Outcome
from .slots import Slot
from .states import State

OutputT = TypeVar("OutputT")


class Result(Generic[OutputT]):
    """The end of a turn, or its suspension: what was said, how it ended, what it cost.

    Denied, stopped, suspended and failed turns are results like any other; `raise_for_error` raises for those who want
    an exception.
    """

    def __init__(
        self, state: State, output: Output[OutputT], slots: dict[str, Slot[Any]], error: BaseException | None = None
    ) -> None:
        self.state = state
        self.error = error
        self._output = output
        self._slots = slots

    @property
    def text(self) -> str:
        """The answer."""
        return self.state.text

    @property
    def output(self) -> OutputT:
        """The answer as the type the agent promised; `OutputError` if it does not fit."""
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

    def raise_for_error(self) -> Result[OutputT]:
        """Raise the error the turn ended with, if it did; else give the result itself."""
        if self.error is not None:
            raise self.error
        return self

    def __repr__(self) -> str:
        return f"Result({self.text!r}, {self.outcome!r})"
