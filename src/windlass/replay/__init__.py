"""Replays recorded sessions against an agent: what would its hooks decide today? No model and no tool is called."""

from .diffs import Row, SessionDiff, diff
from .findings import Difference, Report, SessionReplay, Summary, Unjudged
from .runs import Replay, replay

__all__ = [
    "Difference",
    "Replay",
    "Report",
    "Row",
    "SessionDiff",
    "SessionReplay",
    "Summary",
    "Unjudged",
    "diff",
    "replay",
]
