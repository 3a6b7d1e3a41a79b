"""Where the oldest part of a history ends that a strategy may replace."""

from __future__ import annotations

from typing import TypeAlias

from windlass.context.compaction import Window
from windlass.errors import ConfigError

from .triggers import Messages, Tokens, Trigger, is_number

Keep: TypeAlias = Messages | Tokens

AGAIN = 1.1
"""A strategy that has done its work waits until the request has grown by so much, whatever its trigger says."""


def oldest(
    window: Window, name: str, keep: Keep, trigger: Trigger, target: float, *, added: int, forced: bool
) -> tuple[int, int] | None:
    """The oldest messages, to be replaced by one with `added` tokens; None if nothing can be cut, or nothing is new.

    The last ones that `keep` names stay, and beyond these as many as fit into the target: a part of what the trigger
    names. What is `forced` goes as far as `keep` lets it.
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


def settled(window: Window, name: str) -> bool:
    """Whether little has come since this strategy last did its work."""
    done = next((shown for shown in reversed(window.compactions) if shown.by == name), None)
    return done is not None and window.tokens < done.tokens * AGAIN


def as_keep(owner: str, keep: Keep | int, trigger: Trigger) -> Keep:
    """What stays at the end. Refused if the trigger would be due again at once."""
    if type(keep) is int:
        keep = Messages(keep)
    if not isinstance(keep, Messages | Tokens):
        raise ConfigError(f"{owner}: keep={keep!r}: give Messages(…) or Tokens(…)")
    if type(trigger) is type(keep) and keep.count >= trigger.count:
        raise ConfigError(f"{owner}: keep={keep!r} must be less than trigger={trigger!r}, or it is due all the time")
    return keep


def check_target(owner: str, target: float) -> None:
    """A part of what there was."""
    if not (is_number(target) and 0 <= target < 1):
        raise ConfigError(f"{owner}: target={target!r}: give a part of what the trigger names, from 0 to below 1")


def check_text(owner: str, what: str, text: object) -> None:
    """A text that is not empty."""
    if not isinstance(text, str) or not text.strip():
        raise ConfigError(f"{owner}: {what}={text!r}: give a text")
