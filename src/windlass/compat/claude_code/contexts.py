"""Texts of hooks for the model, cut to what fits: the rest is in a file whose path the model reads."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs

from windlass.messages import ContentPart
from windlass.turns import Turn

from .environment import data_place
from .verdicts import Verdict

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


def limited(verdict: Verdict) -> Verdict:
    """A verdict whose reasons and messages are not too long; of longer ones the rest is in a file, too."""
    texts = (verdict.reason, verdict.stop_reason, *verdict.blocks, *verdict.messages)
    if all(len(text) <= LONGEST for text in texts):
        return verdict
    return structs.replace(
        verdict,
        reason=_limited(verdict.reason),
        stop_reason=_limited(verdict.stop_reason),
        blocks=tuple(map(_limited, verdict.blocks)),
        messages=tuple(map(_limited, verdict.messages)),
    )


def _limited(text: str) -> str:
    return text if len(text) <= LONGEST else _preview(text, PREVIEW)


def _preview(text: str, length: int) -> str:
    path = data_place("outputs") / f"{uuid.uuid4().hex}.txt"
    path.write_text(text, encoding="utf-8", errors="replace")
    path.chmod(0o600)
    return f"{text[:length]}\n[the hook wrote {len(text):,} characters; all of them are in {path}]"
