"""Typed output: the schema for the model, and the parser of its text."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from ._schema import closed_schema, type_decoder, type_schema
from .decisions import Regenerate
from .errors import ConfigError, OutputError
from .events import ModelReplying

T = TypeVar("T")

_FENCE = re.compile(r"\A\s*```\w*\s*\n(.*?)\n\s*```\s*\Z", re.DOTALL)


class Output(Generic[T]):
    """The type of `Agent(output=…)`. With `str`, the text itself is the result."""

    def __init__(self, type: type[T]) -> None:
        self.type = type
        self.schema: Mapping[str, Any] | None = None
        self._decode: Callable[[str], T] | None = None
        if type is not str:
            try:
                self.schema = closed_schema(type_schema(type))
                self._decode = type_decoder(type)
            except TypeError as error:
                raise ConfigError(f"output={type!r} cannot be described to a model: {error}") from error

    def parse(self, text: str) -> T:
        """The value in a text; raises an `OutputError` that the model can act on."""
        if self._decode is None:
            return text  # type: ignore[return-value]
        name = getattr(self.type, "__name__", str(self.type))
        if not text.strip():
            raise OutputError(f"the reply is not a valid {name}: it has no text")
        fenced = _FENCE.match(text)
        try:
            return self._decode(fenced[1] if fenced else text)
        except (msgspec.MsgspecError, ValueError) as error:
            raise OutputError(f"the reply is not a valid {name}: {error}") from error

    def check(self, event: ModelReplying) -> Regenerate | None:
        """A gate: asks again for a final reply that does not fit, unless it was cut off: the next would be, too."""
        if event.reply.tool_calls or event.reply.finish == "length":
            return None
        try:
            self.parse(event.reply.text)
        except OutputError as error:
            return Regenerate(f"{error}. Reply with JSON only.")
        return None
