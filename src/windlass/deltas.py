"""Pieces of a reply while it is generated. A model yields them, transformers change them, a stream passes them on.

They are provisional until the `ModelReplied` of the same step, round and attempt. A `Retracted` voids all that was
streamed of a step so far.
"""

from __future__ import annotations

from typing import TypeAlias

from .messages import Value
from .records import Fact


class Delta(Value, frozen=True):
    """A piece of one part of a reply. The model sets `part`, the part's index in the message; the kernel sets the rest.

    `seq` is its number in the stream; facts and deltas are numbered together. `offset` is set by `agent.watch`, which
    has no `seq`: how many characters of the part came before this piece.
    """

    text: str
    part: int = 0
    step: int = 0
    round: int = 1
    attempt: int = 1
    seq: int = 0
    path: str = ""
    offset: int = 0


class TextDelta(Delta, frozen=True, tag="text_delta", tag_field="kind"):
    """A piece of the answer."""


class ThinkingDelta(Delta, frozen=True, tag="thinking_delta", tag_field="kind"):
    """A piece of the model's reasoning."""


class ArgumentsDelta(Delta, frozen=True, tag="arguments_delta", tag_field="kind"):
    """A piece of the JSON of a call's arguments. `call` is Windlass's id of the call, `name` the tool, once known."""

    call: str = ""
    name: str = ""


AnyDelta: TypeAlias = TextDelta | ThinkingDelta | ArgumentsDelta
StreamEvent: TypeAlias = AnyDelta | Fact
"""What `agent.stream` yields: `seq` counts both kinds, `path` is the session of the sub-agent it comes from."""
