"""Typed output: the schema for the model, and the parser of its text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Generic, Literal, TypeAlias, TypeVar

import msgspec
from msgspec import Struct

from ._output_types import OutputReader, reader_of
from .decisions import Regenerate
from .errors import ConfigError, OutputError
from .events import ModelReplying

T = TypeVar("T")

OutputMode: TypeAlias = Literal["auto", "native", "tool", "prompt"]
"""How a typed answer is obtained: as the vendor offers it, through a tool, or by instructions."""

_FENCE = re.compile(r"\A\s*```\w*\s*\n(.*?)\n\s*```\s*\Z", re.DOTALL)
FEEDBACK = "{error}. Reply with JSON only."
"""What the model reads about an answer that does not fit."""


class OutputRule(Struct, frozen=True):
    """How the typed answer of an agent is obtained: see `Registrar.output`."""

    mode: OutputMode | None = None
    repairs: int | None = None
    feedback: str = FEEDBACK


class Output(Generic[T]):
    """The type of `Agent(output=…)`: a type, or a JSON schema. With `str`, the text itself is the result."""

    def __init__(self, type: type[T]) -> None:
        self.type = type
        self._reader: OutputReader | None = None
        if type is not str:
            try:
                self._reader = reader_of(type)
            except TypeError as error:
                raise ConfigError(f"output={type!r} cannot be described to a model: {error}") from error
        self.schema: Mapping[str, Any] | None = None if self._reader is None else self._reader.schema

    @property
    def name(self) -> str:
        """What the type is called."""
        kind: Any = self.type
        if isinstance(kind, Mapping):
            return str(kind.get("title") or "answer")
        return getattr(kind, "__name__", str(kind))

    def parse(self, text: str) -> T:
        """The value in a text; raises an `OutputError` that the model can act on."""
        if self._reader is None:
            return text  # type: ignore[return-value]
        if not text.strip():
            raise OutputError(f"the reply is not a valid {self.name}: it has no text")
        fenced = _FENCE.match(text)
        try:
            value: T = self._reader.read(fenced[1] if fenced else text)
        except (msgspec.MsgspecError, ValueError) as error:
            raise OutputError(f"the reply is not a valid {self.name}: {error}") from error
        return value

    def partial(self, text: str) -> Any:
        """The value in the beginning of a text: plain JSON values, not validated."""
        from .partials import partial_json

        value = partial_json(text)
        return value if self._reader is None else self._reader.unwrap(value)


class OutputGate(Struct, frozen=True):
    """Judges the replies of an agent with an output type."""

    output: Output[Any]
    rule: OutputRule = OutputRule()

    def check(self, event: ModelReplying) -> Regenerate | None:
        """A gate: asks again for a final reply that does not fit, unless it was cut off: the next would be, too."""
        if event.reply.tool_calls or event.reply.finish == "length":
            return None
        try:
            self.output.parse(event.reply.text)
        except OutputError as error:
            return Regenerate(self.rule.feedback.replace("{error}", str(error)), limit=self.rule.repairs)
        return None
