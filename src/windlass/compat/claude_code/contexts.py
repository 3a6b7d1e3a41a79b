"""Texts of hooks for the model, cut to what fits: the rest is in a file whose path the model reads."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from windlass.messages import ContentPart
from windlass.turns import Turn

from .environment import data_place

LONGEST = 10_000
"""Longer texts go to a file."""
PREVIEW = 2_000


def without(content: Iterable[ContentPart], origin: str) -> tuple[ContentPart, ...]:
    """The parts of a result without those that hooks of an origin have put beside it."""
    return tuple([part for part in content if not is_of(part, origin)])


def is_of(value: object, origin: str) -> bool:
    """Whether a part or message comes from the hooks of an origin."""
    return str(getattr(value, "origin", None) or "").startswith(f"{origin}.")


def fitted(texts: Sequence[str], turn: Turn[Any]) -> list[str]:
    """The texts, with those that are too long replaced by a preview and the path of a file with all of it."""
    fitting = [text if len(text) <= LONGEST else _preview(text, PREVIEW) for text in texts]
    if fitting and turn.tokens("\n".join(fitting)) > turn.reserve:
        fitting = [text if len(text) <= 400 else _preview(text, 200) for text in fitting]
    while len(fitting) > 1 and turn.tokens("\n".join(fitting)) > turn.reserve:
        fitting.pop()
    return fitting


def _preview(text: str, length: int) -> str:
    path = data_place("outputs") / f"{uuid.uuid4().hex}.txt"
    path.write_text(text, encoding="utf-8", errors="replace")
    path.chmod(0o600)
    return f"{text[:length]}\n[the hook wrote {len(text):,} characters; all of them are in {path}]"
