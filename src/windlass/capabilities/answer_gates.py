"""Gates on answers: when critics are asked, and what follows from their verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from windlass.decisions import Halt, Regenerate
from windlass.events import ModelReplying

from .options import require_count

if TYPE_CHECKING:
    from windlass import Hooks


class Consequences(Struct, frozen=True):
    """What follows from a rejected answer: how often it is sent back, and what happens then."""

    rounds: int | None
    otherwise: Literal["stop", "pass"]
    on_reject: Literal["halt", "revise"]
    reply: str | None

    def __str__(self) -> str:
        then = "the answer passes with an objection" if self.otherwise == "pass" else "the turn stops"
        sent = "sent back" if self.rounds is None else f"sent back {self.rounds} times"
        return f"{sent}, then {then}"

    def bind(self, registrar: Hooks) -> None:
        """Let the assembled agent be checked: its own bound must not be lower."""

        @registrar.check
        def has_room(assembly: Any) -> str | None:
            bound = assembly.bounds["max_regenerations"]
            if self.rounds is None or self.rounds <= bound:
                return None
            return f"rounds={self.rounds}, but Agent(max_regenerations={bound}) allows fewer"

    def of(self, rejected: bool, feedback: str) -> Halt | Regenerate:
        """The decision about an answer that is not approved."""
        if rejected and self.on_reject == "halt":
            return Halt(feedback or "the critic rejected the answer", reply=self.reply)
        return Regenerate(feedback or "A critic did not approve this. Improve it.", self.otherwise, self.rounds)


def is_answer(event: ModelReplying) -> bool:
    """Whether a reply is an answer: it calls no tools. An empty one is an answer, too, and not a good one."""
    return not event.reply.tool_calls


def require_bounds(owner: str, rounds: int | None, accept: int | None) -> None:
    """Raise unless the number of rounds and the score that is wanted are legal."""
    if rounds is not None:
        require_count(owner, "rounds", rounds, least=0)
    if accept is not None:
        require_count(owner, "accept", accept)


def register_gate(registrar: Hooks, capability: Any, review: Any) -> None:
    """Register a gate on answers with the options of a capability."""
    lenient: Any = {"on_error": "unreviewed"} if capability.unreachable == "unreviewed" else {}
    when = capability.when

    def applies(event: ModelReplying) -> bool:
        return is_answer(event) and (when is None or bool(when(event)))

    gate = registrar.gate(
        ModelReplying, name=capability.name, when=applies, costly=True, live=capability.live, **lenient
    )
    gate(review)
