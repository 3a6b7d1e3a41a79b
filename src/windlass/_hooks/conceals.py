"""Conceals: functions that clean the texts that pass no hook before they are recorded: errors, and people's answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import structs

from windlass.decisions import AnyResolution, Edit, Reject, Respond
from windlass.errors import HookError, RegistrationError, text_of
from windlass.events import TurnFailed
from windlass.outcomes import ErrorValue, Failed, Stopped, error_from_value, error_value
from windlass.records import (
    Answered,
    Concluded,
    ErrorHandled,
    Fact,
    HookFailed,
    ModelAttempted,
    ToolAttempted,
    ToolReturned,
    TurnEnded,
)

from .hooks import is_async, parameters_of, source_of

FactT = TypeVar("FactT", bound=Fact)

_WITH_ERRORS = frozenset(
    (ErrorHandled, HookFailed, ModelAttempted, ToolAttempted, ToolReturned, TurnFailed)
)
_WITH_OUTCOMES = frozenset((Concluded, TurnEnded))
_CAUSES = 20
"""How many causes of an error are looked at."""


class Conceal:
    """A function from a text to the text that is recorded instead."""

    __slots__ = ("answers", "capability", "errors", "fn", "inherit", "name")

    def __init__(
        self,
        fn: Callable[[str], str],
        name: str | None,
        *,
        errors: bool,
        answers: bool,
        inherit: bool,
    ) -> None:
        self.fn = fn
        self.name = name or str(getattr(fn, "__name__", type(fn).__name__))
        self.errors = errors
        self.answers = answers
        self.inherit = inherit
        self.capability: str | None = None
        given: object = fn
        if not callable(given) or is_async(given):
            text = f"conceal {self.name!r} must be a plain function from a text to a text"
            raise RegistrationError(text, hook=self.name)
        names, star, required = parameters_of(fn)
        if (not names and not star) or required[1:]:
            text = f"conceal {self.name!r} ({source_of(fn)}) is called as (text)"
            raise RegistrationError(text, hook=self.name)

    def __call__(self, text: str) -> str:
        try:
            shown = self.fn(text)
            if type(shown) is not str:
                raise TypeError(f"it returned {type(shown).__name__}, not a str")
        except Exception as error:
            why = f"conceal {self.name!r} failed: {type(error).__name__}: {text_of(error)}"
            raise HookError(why, hook=self.name, event="conceal") from error
        return shown


def cleaner(
    conceals: Sequence[Conceal], mask: Callable[[Any], Any] | None
) -> Callable[[Any], Any] | None:
    """What cleans records and facts before anybody gets them; None if nothing does."""
    of_errors = [one for one in conceals if one.errors]
    if not of_errors:
        return mask
    if mask is None:
        return lambda record: concealed_record(of_errors, record)
    return lambda record: mask(concealed_record(of_errors, record))


def concealed_record(conceals: Sequence[Conceal], record: FactT) -> FactT:
    """A record or fact whose error is cleaned; the same object if there is none, or nothing changes."""
    kind = type(record)
    if kind in _WITH_ERRORS and isinstance(found := getattr(record, "error", None), ErrorValue):
        shown = _error(conceals, found)
        return record if shown is found else record.replace(error=shown)
    if kind in _WITH_OUTCOMES:
        outcome = getattr(record, "outcome", None)
        changed = _outcome(conceals, outcome)
        return record if changed is outcome else record.replace(outcome=changed)
    return record


def concealed_error(
    conceals: Sequence[Conceal], error: BaseException | None
) -> BaseException | None:
    """An exception whose text is cleaned; the same object if nothing changes in it or in its causes."""
    of_errors = [one for one in conceals if one.errors]
    cause, depth = error, 0
    while of_errors and cause is not None and depth < _CAUSES:
        text = f"{text_of(cause)} {cause.args!r} {getattr(cause, '__notes__', ())!r}"
        if _text(of_errors, text) != text:
            assert error is not None
            shown = error_from_value(_error(of_errors, error_value(error)))
            shown.__suppress_context__ = True
            return shown
        cause, depth = cause.__cause__ or cause.__context__, depth + 1
    return error


def concealed_answer(conceals: Sequence[Conceal], answer: AnyResolution) -> AnyResolution:
    """A person's answer whose words are cleaned, at any depth of edited arguments. A failure is a `HookError`."""
    for one in conceals:
        if one.answers and isinstance(answer, Edit):
            answer = structs.replace(answer, arguments=_values(one, answer.arguments))
        elif one.answers and isinstance(answer, Reject):
            answer = structs.replace(answer, message=one(answer.message))
        elif one.answers and isinstance(answer, Respond):
            answer = structs.replace(answer, text=one(answer.text))
    return answer


def concealed_answers(conceals: Sequence[Conceal], given: Mapping[str, Any]) -> Mapping[str, Any]:
    """The answers to several questions, each one answer or a list of them."""
    if not any(one.answers for one in conceals):
        return given
    return {
        ask_id: [concealed_answer(conceals, one) for one in answer]
        if isinstance(answer, list | tuple)
        else concealed_answer(conceals, answer)
        for ask_id, answer in given.items()
    }


def concealed_answered(conceals: Sequence[Conceal], answered: Answered) -> Answered:
    """An answer from an inbox, cleaned. One that others have to approve is left: they see it as it is."""
    if answered.partial:
        return answered
    return answered.replace(answer=concealed_answer(conceals, answered.answer))


def _error(conceals: Sequence[Conceal], value: ErrorValue) -> ErrorValue:
    shown = _text(conceals, value.message)
    return value if shown == value.message else value.replace(message=shown)


def _outcome(conceals: Sequence[Conceal], outcome: Any) -> Any:
    if isinstance(outcome, Failed):
        shown = _error(conceals, outcome.error)
        return outcome if shown is outcome.error else outcome.replace(error=shown)
    if (
        isinstance(outcome, Stopped)
        and (detail := _text(conceals, outcome.detail)) != outcome.detail
    ):
        return outcome.replace(detail=detail)
    return outcome


def _text(conceals: Sequence[Conceal], text: str) -> str:
    """The text of an error, cleaned. If that fails, the text is withheld."""
    for one in conceals:
        try:
            text = one(text)
        except HookError as failed:
            return f"withheld: {failed.hook!r} could not clean the text of this error"
    return text


def _values(conceal: Conceal, value: Any) -> Any:
    if isinstance(value, str):
        return conceal(value)
    if isinstance(value, list | tuple):
        return [_values(conceal, one) for one in value]
    if isinstance(value, dict):
        return {conceal(str(key)): _values(conceal, one) for key, one in value.items()}
    return value
