"""Critiques: the verdict that a critic returns, and the notes about it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, to_builtins

from windlass.errors import text_of
from windlass.turns import Turn

NOTED = 1000
"""How many characters of a feedback a note has."""


class Critique(Struct, frozen=True):
    """What a critic says about an answer.

    `verdict` is "approve", "revise" or "reject", `score` is from 0 to 10, and `feedback` says what to change.
    """

    verdict: Literal["approve", "revise", "reject"]
    score: Annotated[int, Meta(ge=0, le=10)]
    feedback: str = ""


def approves(critique: Critique, accept: int | None) -> bool:
    """Whether a critic approves, with at least the score that is wanted."""
    return critique.verdict == "approve" and (accept is None or critique.score >= accept)


def critique_data(critique: Critique | Exception) -> dict[str, Any]:
    """A critique for a note, or why there is none."""
    if isinstance(critique, Critique):
        return {**to_builtins(critique), "feedback": critique.feedback[:NOTED]}
    return {"unreviewed": f"{type(critique).__name__}: {text_of(critique)}"[:NOTED]}


def spending(turn: Turn[Any]) -> dict[str, Any]:
    """What a hook has spent in this turn so far on its critics, for a note."""
    usage = turn.usage_by.get(turn.by)
    if usage is None:
        return {"requests": 0, "tokens": 0, "usd": None}
    return {"requests": usage.requests, "tokens": usage.total, "usd": usage.cost}
