"""What a pass over a turn is entered with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from windlass.decisions import AnyResolution
from windlass.messages import Message

_NOTHING: Mapping[str, Any] = {}


class Entry(Struct, frozen=True):
    """A message that opens a turn, or the answers with which one is resumed, and the caller's scope
    and slots.

    An `ephemeral` session has no name of its own and ends with the turn. `steering` is the inbox
    key of a message that no turn has taken, and `inbox_kind` its kind there. `resumed` says that
    the log may hold what this pass would do otherwise. `took_over` names the process from which the
    session was taken over.
    """

    message: Message | None = None
    answers: Mapping[str, AnyResolution | Sequence[AnyResolution]] = _NOTHING
    scope: Any = None
    slots: Mapping[str, Any] = _NOTHING
    ephemeral: bool = False
    steering: str | None = None
    resumed: bool = False
    took_over: str = ""
    inbox_kind: str = "steer"
