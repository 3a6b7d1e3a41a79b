"""The grammar of a simulated model: what it may say, which tools it may call and how, and how it may fail."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from windlass.errors import (
    ConfigError,
    ConnectionFailed,
    ModelError,
    ModelTimeout,
    Overloaded,
    RateLimited,
    ServerError,
)
from windlass.messages import ModelRequest, ToolSpec

from .values import Drawn, drawn, fitting

ERRORS: dict[str, type[ModelError]] = {
    kind.__name__: kind for kind in (RateLimited, Overloaded, ServerError, ConnectionFailed, ModelTimeout)
}
"""The errors of a vendor that a simulated model raises."""

MESSAGES, SAYS = ("Please help.", "Go on."), ("Done.", "I could not do that.")
"""What users and models say if a grammar does not tell; the first of each if a case does not tell."""

Reply: TypeAlias = dict[str, Any]
"""A reply as a choice: `say`, `calls`, `error`, `cut` (after so many pieces)."""


class MayCall(Struct, frozen=True):
    """A tool that a model may call, made by `may_call`."""

    tool: str
    weight: float
    arguments: dict[str, Any]


def may_call(tool: str, /, *, _weight: float = 1.0, **arguments: Any) -> MayCall:
    """The model may call this tool. An argument is a value, or draws one: `may_call("book", seat=between(1, 9))`.

    Arguments that are not given are drawn to fit the tool's schema. A call with twice the weight comes twice as often.
    """
    return MayCall(tool, _weight, arguments)


class Grammar:
    """What a simulated model may reply, and what its users say.

    - `calls`: what it may call, each made by `may_call`. By default, every tool that a request offers, with arguments
      that fit its schema.
    - `says`: the texts it may answer with. A request with an output schema gets a value that fits it.
    - `messages`: what the user may say.
    - `turns`: how many turns a session has, from and to.
    - `steps`: how many replies with calls a turn has before the model answers, from and to.
    - `parallel`: how many calls a reply may have.
    - `wrong`: how often a call is invalid: an unknown tool, or arguments that are not JSON or do not fit.
    """

    def __init__(
        self,
        *calls: MayCall,
        says: Sequence[str] = SAYS,
        messages: Sequence[str] = MESSAGES,
        turns: tuple[int, int] = (1, 2),
        steps: tuple[int, int] = (0, 6),
        parallel: int = 3,
        wrong: float = 0.02,
    ) -> None:
        for name, (low, high), least in (("turns", turns, 1), ("steps", steps, 0)):
            if not least <= low <= high:
                raise ConfigError(
                    f"Grammar({name}=({low}, {high})): give two numbers, from and to, of at least {least}"
                )
        if not says or not messages:
            raise ConfigError("Grammar needs at least one text in `says` and one in `messages`")
        if parallel < 1:
            raise ConfigError(f"Grammar(parallel={parallel}) must be at least 1")
        self.calls = calls
        self.says = tuple(says)
        self.messages = tuple(messages)
        self.turns = turns
        self.steps = steps
        self.parallel = parallel
        self.wrong = wrong


class Speaker:
    """Draws what a grammar allows."""

    def __init__(self, grammar: Grammar) -> None:
        self._grammar = grammar

    def check_tools(self, tools: Sequence[str]) -> None:
        """Raise if the model may call a tool that nobody has."""
        for call in self._grammar.calls:
            if call.tool not in tools:
                known = ", ".join(tools) or "none"
                raise ConfigError(f"may_call({call.tool!r}): the agent has no such tool; it has: {known}")

    def reply(self, random: Random, request: ModelRequest, steps: int) -> Reply:
        """A reply to a request: with calls for so many steps of a turn, then a text."""
        if request.output is not None and (request.side or not request.tools):
            return {"say": msgspec.json.encode(fitting(request.output)(random)).decode()}
        offers = self._offers(request.tools)
        if offers and _replies(request) < steps:
            weights = [offer[2] for offer in offers]
            several = random.randint(1, self._grammar.parallel) if random.random() < 0.5 else 1
            chosen = random.choices(offers, weights, k=several)
            return {"calls": [self._call(random, *offer) for offer in chosen]}
        if request.output is not None:
            return {"say": msgspec.json.encode(fitting(request.output)(random)).decode()}
        return {"say": random.choice(self._grammar.says)}

    def arguments(self, random: Random, spec: ToolSpec) -> dict[str, Any]:
        """Arguments of a tool."""
        offer = next((offer for offer in self._offers((spec,)) if offer[0] is spec), None)
        return {} if offer is None else self._arguments(random, spec, offer[1])

    def _offers(self, tools: Sequence[ToolSpec]) -> list[tuple[ToolSpec, dict[str, Any], float]]:
        if not self._grammar.calls:
            return [(tool, {}, 1.0) for tool in tools]
        specs = {tool.name: tool for tool in tools}
        return [(specs[call.tool], call.arguments, call.weight) for call in self._grammar.calls if call.tool in specs]

    def _call(self, random: Random, spec: ToolSpec, given: dict[str, Any], weight: float) -> list[Any]:
        if random.random() < self._grammar.wrong:
            return random.choice([["nowhere", {}], [spec.name, '{"'], [spec.name, {"odd": [1]}]])
        return [spec.name, self._arguments(random, spec, given)]

    def _arguments(self, random: Random, spec: ToolSpec, given: dict[str, Drawn | Any]) -> dict[str, Any]:
        schema = spec.schema
        properties = {name: of for name, of in schema.get("properties", {}).items() if name not in given}
        arguments: dict[str, Any] = fitting({**schema, "type": "object", "properties": properties})(random)
        return {**arguments, **{name: msgspec.to_builtins(drawn(value, random)) for name, value in given.items()}}


def _replies(request: ModelRequest) -> int:
    """How often the model has spoken in this turn, by the request."""
    count = 0
    for message in reversed(request.messages):
        if message.role == "user" and not message.origin:
            break
        count += message.role == "assistant"
    return count
