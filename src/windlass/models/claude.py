"""Requests to Claude at any vendor: how to set its thinking, and what may follow a call."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from windlass.models.history import Wire

BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768, "max": 32_768}
"""Thinking budgets in tokens, for models that take a budget and not an effort."""
_THINKING = re.compile("claude-(fable|mythos)")
"""Models that always think, and reject requests to switch thinking off."""
_BUDGETED = re.compile(r"claude-3-7|claude-(opus|sonnet|haiku)-4(-[015]\b|-2025|@|$)|claude-4-(opus|sonnet)")


def thinking(model: str, reasoning: Any, room: int | None) -> tuple[dict[str, Any] | None, str | None]:
    """The fields for thinking and for effort. `reasoning` is a budget in tokens, a word for the effort, a bool, or the
    vendor's own mapping; `room` is the maximum tokens of the reply."""
    if reasoning is None:
        return None, None
    if isinstance(reasoning, Mapping):
        return dict(reasoning), None
    if reasoning is False or reasoning == "none":
        return ({"type": "adaptive"}, "low") if _THINKING.search(model) else ({"type": "disabled"}, None)
    if isinstance(reasoning, int) and reasoning is not True:
        return {"type": "enabled", "budget_tokens": reasoning}, None
    if _BUDGETED.search(model):
        budget = BUDGETS.get(str(reasoning), BUDGETS["medium"])
        tokens = budget if room is None else max(1024, min(budget, room // 2))
        return {"type": "enabled", "budget_tokens": tokens}, None
    effort = None if reasoning is True else "low" if reasoning == "minimal" else str(reasoning)
    return {"type": "adaptive"}, effort


def calls_last(blocks: list[Wire], is_call: Callable[[Wire], bool], is_thought: Callable[[Wire], bool]) -> list[Wire]:
    """The blocks of an answer, with its calls last. Claude expects the results directly after the calls, but a model
    may search or speak after a call. If a thinking block follows a call, the order stays: Claude made it so."""
    first = next((at for at, block in enumerate(blocks) if is_call(block)), len(blocks))
    if any(is_thought(block) for block in blocks[first:]):
        return blocks
    return sorted(blocks, key=is_call)


__all__ = ["BUDGETS", "calls_last", "thinking"]
