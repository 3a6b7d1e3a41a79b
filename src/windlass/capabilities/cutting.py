"""Decides how much of the oldest history a strategy replaces."""

from __future__ import annotations

from typing import TypeAlias

from windlass.context.compaction import Window
from windlass.errors import ConfigError

from .options import require_count
from .triggers import AtMessages, AtTokens, Trigger, is_number

Keep: TypeAlias = AtMessages | AtTokens

AGAIN = 1.1
"""After a compaction, a strategy waits until the request has grown by this factor, whatever its trigger says."""


def oldest(
    window: Window, name: str, keep: Keep, trigger: Trigger, target: float, *, added: int, forced: bool
) -> tuple[int, int] | None:
    """The range of the oldest messages to replace by one with `added` tokens; None if nothing new can be cut.

    The last messages, as `keep` says, always stay, and more of them as long as they fit the `target`, a fraction of the
    trigger's threshold. If `forced`, all messages are cut that `keep` allows.
    """
    messages = list(window.messages)
    last = len(messages) - keep.last(window)
    cuts = [cut for cut in window.cuts() if 0 < cut <= last]
    if not cuts:
        return None
    end, at, left, count = cuts[-1], 0, float(window.tokens + added), len(messages) + 1
    for cut in cuts if target and not forced else ():
        gone = [messages[one] for one in range(at, cut) if not window.stays(one)]
        at, left, count = cut, left - window.size(gone), count - len(gone)
        if not trigger.reached(left / target, count / target, window.limit):
            end = cut
            break
    new = [at for at in range(end) if messages[at].origin != name and not window.stays(at)]
    return (0, end) if new else None


def compacted_recently(window: Window, name: str) -> bool:
    """Whether the request has grown only a little since this strategy last compacted it."""
    done = next((shown for shown in reversed(window.compactions) if shown.by == name), None)
    return done is not None and window.tokens < done.tokens * AGAIN


def as_keep(owner: str, keep: Keep | int, trigger: Trigger) -> Keep:
    """Check `keep` and convert an int. Refused if the trigger would be due again at once."""
    if type(keep) is int:
        require_count(owner, "keep", keep)
        keep = AtMessages(keep)
    if not isinstance(keep, AtMessages | AtTokens):
        raise ConfigError(f"{owner}: keep={keep!r} must be AtMessages(…) or AtTokens(…)")
    if type(trigger) is type(keep) and keep.count >= trigger.count:
        raise ConfigError(f"{owner}: keep={keep!r} must be less than trigger={trigger!r}, or it is always due")
    return keep


def check_target(owner: str, target: float) -> None:
    """Raise unless `target` is a fraction."""
    if not (is_number(target) and 0 <= target < 1):
        raise ConfigError(
            f"{owner}: target={target!r} must be a fraction of the trigger's threshold, 0 or more, below 1"
        )


def check_text(owner: str, what: str, text: object) -> None:
    """Raise unless this is a text that is not empty."""
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{owner}: {what}={text!r} must be a text that is not empty")
