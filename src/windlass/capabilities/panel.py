"""Panel: several critics judge an answer at the same time, and vote."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from windlass.decisions import Halt, Regenerate
from windlass.errors import ConfigError, ModelError
from windlass.events import ModelReplying
from windlass.turns import Turn

from .answer_gates import Consequences, register_gate, require_bounds
from .critiques import Critique, approves, critique_data, spending
from .option_types import check_types
from .options import require, require_count, require_name, require_share
from .reviewers import AnyCritic, Judge, Reviewer, reviewer_of, task_of

if TYPE_CHECKING:
    from windlass import Hooks

Consensus: TypeAlias = Literal["unanimous", "majority", "weighted"]
Opinions: TypeAlias = Sequence[tuple[Reviewer, "Critique | Exception"]]
"""What each reviewer says, or why it says nothing, in the order in which they were given."""


class Panel:
    """Let several critics judge every answer in parallel. The `consensus` decides:

    - "majority": more than half of the critics that voted approve;
    - "unanimous": all approve;
    - "weighted": the approvals have more than `threshold` of the weight of all votes.

    Without a consensus the model reads the feedback of all critics that do not approve, and answers again. If there is
    the same consensus to reject, the turn ends. `rounds`, `otherwise`, `on_reject`, `reply`, `accept`, `when` and
    `live` are those of `Critic`.

    `absent` is the rule for critics that cannot be reached. With "abstain" the others decide, if at least `quorum` of
    them voted, by default more than half of the panel. With "object" each counts as a vote against the answer. With
    "unreviewed", the default of "unanimous", an answer that the others approve passes as unreviewed. Without a quorum
    the answer is unreviewed: it passes and the outcome says so, or with `unreachable="halt"` the turn ends.
    """

    @check_types
    def __init__(
        self,
        *critics: AnyCritic,
        consensus: Consensus = "majority",
        threshold: float = 0.5,
        absent: Literal["abstain", "object", "unreviewed"] | None = None,
        quorum: int | None = None,
        rounds: int | None = None,
        otherwise: Literal["stop", "pass"] = "pass",
        on_reject: Literal["halt", "revise"] = "halt",
        accept: int | None = None,
        unreachable: Literal["unreviewed", "halt"] = "unreviewed",
        reply: str | None = None,
        when: Callable[[ModelReplying], Any] | None = None,
        live: bool = False,
        name: str = "panel",
    ) -> None:
        require_name("Panel", name)
        require_bounds("Panel", rounds, accept)
        self.reviewers = tuple([reviewer_of("Panel", critic, None) for critic in critics])
        names = [reviewer.name for reviewer in self.reviewers]
        if len(names) < 2 or len(set(names)) != len(names):
            raise ConfigError(f"Panel: give two or more critics, each with a name of its own, not {names}")
        require_share("Panel", "threshold", threshold)
        if quorum is not None:
            require_count("Panel", "quorum", quorum)
            require("Panel", "quorum", quorum, quorum <= len(names), f"at most {len(names)}, the number of critics")
        self.consequences = Consequences(rounds, otherwise, on_reject, reply)
        self.name = name
        self.consensus, self.threshold = consensus, threshold
        self.absent = absent or ("unreviewed" if consensus == "unanimous" else "abstain")
        self.quorum = len(names) // 2 + 1 if quorum is None else quorum
        self.accept, self.unreachable, self.when, self.live = accept, unreachable, when, live

    def install(self, registrar: Hooks) -> None:
        """Bring the critics, and register the gate."""
        judges = [(reviewer, reviewer.bind(registrar)) for reviewer in self.reviewers]
        self.consequences.bind(registrar)

        async def review(event: ModelReplying, turn: Turn[Any]) -> Halt | Regenerate | None:
            texts = {"task": task_of(turn), "answer": event.reply.text}
            async with asyncio.TaskGroup() as group:
                asked = [(reviewer, group.create_task(_opinion(judge, texts, turn))) for reviewer, judge in judges]
            opinions = [(reviewer, task.result()) for reviewer, task in asked]
            for reviewer, said in opinions:
                turn.note(f"{self.name}.vote", {"round": event.round, "critic": reviewer.name, **critique_data(said)})
            outcome = self.count(opinions)
            turn.note(self.name, {"round": event.round, "outcome": outcome, "spent": spending(turn)})
            if outcome == "unreviewed":
                silent = [reviewer.name for reviewer, said in opinions if isinstance(said, Exception)]
                raise ModelError(f"no review: {', '.join(silent)} could not be reached")
            if outcome == "approve":
                return None
            return self.consequences.of(outcome == "reject", self._feedback(opinions))

        register_gate(registrar, self, review)

    def summary(self) -> str:
        """Who votes, and how, for `explain`."""
        names = ", ".join([reviewer.name for reviewer in self.reviewers])
        return f"{names}; {self.consensus}; absent critics: {self.absent}; {self.consequences}"

    def count(self, opinions: Opinions) -> Literal["approve", "revise", "reject", "unreviewed"]:
        """The consensus of these opinions."""
        votes = [(reviewer, said) for reviewer, said in opinions if isinstance(said, Critique)]
        absent = len(opinions) - len(votes)
        if not votes or (self.absent == "abstain" and len(votes) < self.quorum):
            return "unreviewed"
        against = [reviewer for reviewer, said in opinions if self.absent == "object" and isinstance(said, Exception)]
        everyone = [*[reviewer for reviewer, _ in votes], *against]
        if self._agree([reviewer for reviewer, said in votes if approves(said, self.accept)], everyone):
            return "unreviewed" if absent and self.absent == "unreviewed" else "approve"
        rejected = self._agree([reviewer for reviewer, said in votes if said.verdict == "reject"], everyone)
        return "reject" if rejected else "revise"

    def _agree(self, some: Sequence[Reviewer], everyone: Sequence[Reviewer]) -> bool:
        weigh = SHARES[self.consensus]
        share = sum(map(weigh, some), Fraction()) / sum(map(weigh, everyone))
        return share == 1 if self.consensus == "unanimous" else share > self._threshold

    @property
    def _threshold(self) -> Fraction:
        return _exactly(self.threshold if self.consensus == "weighted" else 0.5)

    def _feedback(self, opinions: Opinions) -> str:
        """What all critics say that do not approve, in the order in which they were given."""
        lines = [
            f"{reviewer.name}: {said.feedback or said.verdict}"
            for reviewer, said in opinions
            if isinstance(said, Critique) and not approves(said, self.accept)
        ]
        return "\n".join(lines)


def _exactly(number: float) -> Fraction:
    """A number as it is written: as floats, 0.1 and 0.2 are more than 0.3."""
    return Fraction(str(number))


SHARES: Mapping[str, Callable[[Reviewer], Fraction]] = {
    "unanimous": lambda reviewer: Fraction(1),
    "majority": lambda reviewer: Fraction(1),
    "weighted": lambda reviewer: _exactly(reviewer.weight),
}
"""How much a vote counts."""


async def _opinion(judge: Judge, texts: Mapping[str, str], turn: Turn[Any]) -> Critique | Exception:
    try:
        return await judge(texts, turn)
    except Exception as error:
        return error
