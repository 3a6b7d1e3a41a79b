"""What Claude wants, at whichever vendor: how it is told to think, and what may stand behind a call."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from windlass.models.history import Wire

BUDGETS = {"minimal": 1024, "low": 2048, "medium": 8192, "high": 16_384, "xhigh": 32_768, "max": 32_768}
"""Tokens to think with, for models that want to be told them and know no effort."""
_THINKING = re.compile("claude-(fable|mythos)")
"""Models that always think, and refuse to be told not to."""
_BUDGETED = re.compile(r"claude-3-7|claude-(opus|sonnet|haiku)-4(-[015]\b|-2025|@|$)|claude-4-(opus|sonnet)")


def thinking(model: str, reasoning: Any, room: int | None) -> tuple[dict[str, Any] | None, str | None]:
    """What the model is told of thinking, and the effort, of a budget in tokens, an effort in a word, yes or no, or the
    vendor's own words. `room` is how many tokens the reply may have."""
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
        within = budget if room is None else max(1024, min(budget, room // 2))
        return {"type": "enabled", "budget_tokens": within}, None
    effort = None if reasoning is True else "low" if reasoning == "minimal" else str(reasoning)
    return {"type": "adaptive"}, effort


def calls_last(blocks: list[Wire], is_call: Callable[[Wire], bool], is_thought: Callable[[Wire], bool]) -> list[Wire]:
    """The blocks of an answer, with nothing behind its calls: the results are looked for right behind those, and yet
    models may go on to search or to speak, and those of others do. Where there are thoughts behind a call all stays as
    it is: that is how Claude thinks."""
    first = next((at for at, block in enumerate(blocks) if is_call(block)), len(blocks))
    if any(is_thought(block) for block in blocks[first:]):
        return blocks
    return sorted(blocks, key=is_call)


__all__ = ["BUDGETS", "calls_last", "thinking"]
