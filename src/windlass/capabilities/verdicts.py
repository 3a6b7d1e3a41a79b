"""What permissions say about a call: the decision, the rule that gave it, and why."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from .commands import Command
from .rules import KINDS, Kind, Rule


class Verdict(Struct, frozen=True):
    """What permissions say about a call: the decision, the rule that gave it (None if no rule matches), and why.

    `command` is the part of a shell command that the rule is about.
    """

    decision: Kind
    rule: Rule | None = None
    why: str = ""
    command: str = ""

    def __str__(self) -> str:
        by = "no rule matches" if self.rule is None else f"rule {self.rule!r}"
        about = f", about {self.command!r}" if self.command else ""
        return f"{self.decision}: {by}{about}" + (f" ({self.why})" if self.why else "")


def strictest(verdicts: Sequence[Verdict]) -> Verdict:
    """The strictest verdict; of several, the first."""
    return max(verdicts, key=lambda verdict: KINDS.index(verdict.decision))


def doubt_about(part: Command | None) -> str:
    """Why a rule may be about a call."""
    if part is None:
        return "the path cannot be resolved"
    return "it may run other code" if part.hidden else "what it expands to or runs is unknown"


def reason_of(verdict: Verdict) -> str:
    """What the model reads."""
    about = f" {verdict.command!r}" if verdict.command else ""
    if verdict.rule is None:
        return f"The permissions allow no such call{about}."
    return f"The rule {verdict.rule.text!r} forbids{about or ' this call'}."
