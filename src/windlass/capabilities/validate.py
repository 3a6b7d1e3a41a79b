"""Validate: checks input, answers and tool results, and lets the model correct itself."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from inspect import isawaitable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from windlass.decisions import Deny, Halt, Regenerate
from windlass.errors import ConfigError
from windlass.events import MessageAdding, ModelReplying, ToolReturning

from .option_types import check_types
from .options import require_name

if TYPE_CHECKING:
    from windlass import Hooks

Check: TypeAlias = Callable[[Any], Any]
"""A function of a message, reply or result. It returns what is wrong as a text, or None; it may be async. False and a
ValueError mean that something is wrong, too."""


class Validate:
    """Check what the user says (`input`), what the model answers (`output`) and what tools return (`results`).

    Each check is a function that returns what is wrong, or None. Invalid input ends the turn; the user reads `reply`,
    or what is wrong. After an invalid answer the model reads what is wrong and is asked again, at most
    `Agent(max_regenerations=…)` times; then the turn stops or, with `otherwise="pass"`, the answer passes and the
    outcome names this capability. An invalid result is withheld: the model reads why. `results` has a check for each
    tool, by name or pattern, or one for all tools. Only answers without tool calls are checked. An answer is held back
    until it is checked; `live=True` streams it at once, and retracts it if it is invalid.
    """

    @check_types
    def __init__(
        self,
        *,
        input: Check | None = None,
        output: Check | None = None,
        results: Check | Mapping[str, Check] | None = None,
        otherwise: Literal["stop", "pass"] = "stop",
        reply: str | None = None,
        live: bool = False,
        name: str = "validate",
    ) -> None:
        require_name("Validate", name)
        of_tools = dict(results) if isinstance(results, Mapping) else {} if results is None else {"*": results}
        if input is None and output is None and not of_tools:
            raise ConfigError("Validate() checks nothing: pass input=, output= or results=")
        self.name = name
        self.input, self.output, self.results = input, output, of_tools
        self.otherwise: Literal["stop", "pass"] = otherwise
        self.reply = reply
        self.live = live

    def install(self, registrar: Hooks) -> None:
        """Register a gate for each check."""
        if self.input is not None:
            registrar.gate(MessageAdding, name=f"{self.name}.input", when=is_input)(self._check_input)
        if self.output is not None:
            gate = registrar.gate(ModelReplying, name=f"{self.name}.output", when=_is_answer, live=self.live)
            gate(self._check_output)
        for tool, check in self.results.items():
            registrar.gate(ToolReturning, name=f"{self.name}.{tool}", tool=tool, when=_is_result)(_gate_of(check))

    def summary(self) -> str:
        """What is checked, for `explain`."""
        given = {"input": self.input, "output": self.output}
        return ", ".join([*[what for what, check in given.items() if check is not None], *self.results])

    async def _check_input(self, event: MessageAdding) -> Halt | Deny | None:
        why = await problem(self.input, event.message)
        if why is None:
            return None
        return Halt(why, reply=self.reply or why) if opens_turn(event) else Deny(why)

    async def _check_output(self, event: ModelReplying) -> Regenerate | None:
        why = await problem(self.output, event.reply)
        return None if why is None else Regenerate(why, otherwise=self.otherwise)


def is_input(event: MessageAdding) -> bool:
    """Whether a message comes from the user, and not from a hook."""
    return event.message.role == "user" and event.message.origin is None


def opens_turn(event: MessageAdding) -> bool:
    """Whether the message opens a turn; otherwise it was sent to a turn that runs."""
    state = event.turn.state
    return state.open is None and (state.turn is None or state.turn.steps == 0)


def _is_answer(event: ModelReplying) -> bool:
    return not event.reply.tool_calls


def _is_result(event: ToolReturning) -> bool:
    return not event.result.is_error


def _gate_of(check: Check) -> Callable[[ToolReturning], Any]:
    async def check_result(event: ToolReturning) -> Deny | None:
        why = await problem(check, event.result)
        return None if why is None else Deny(f"the result is invalid: {why}")

    return check_result


async def problem(check: Check | None, value: Any) -> str | None:
    """What a check says is wrong with a value."""
    if check is None:
        return None
    try:
        found = check(value)
        found = await found if isawaitable(found) else found
    except ValueError as error:
        return str(error) or "it is invalid"
    if found is None or found is True or found == "":
        return None
    if found is False:
        return "it is invalid"
    if not isinstance(found, str):
        raise TypeError(f"a check must return what is wrong as a text, or None, not {found!r:.80}")
    return found
