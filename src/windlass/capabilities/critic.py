"""Critic: another model, which has not seen how an answer was made, judges it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from windlass.decisions import Halt, Regenerate
from windlass.events import ModelReplying
from windlass.turns import Turn

from .answer_gates import Consequences, register_gate, require_bounds
from .critiques import approves, critique_data, spending
from .option_types import check_types
from .options import require_name
from .reviewers import AnyCritic, reviewer_of, task_of

if TYPE_CHECKING:
    from windlass import Hooks


class Critic:
    """Let another model, or an agent with tools, judge every answer before the user gets it.

    The critic sees the task and the answer, and nothing of how it was made. If it approves, the answer stands. If it
    wants a revision, the model reads the feedback and answers again, at most `rounds` times, by default
    `Agent(max_regenerations=…)`; then the last answer passes and the outcome names the critic (`objections`), or with
    `otherwise="stop"` the turn stops. If it rejects, the turn ends and the user reads `reply`; with
    `on_reject="revise"` a rejection is a wish for a revision. `accept` is the score that an approval needs.

    If the critic cannot be reached, the answer passes and the outcome is marked `unreviewed`; with `unreachable="halt"`
    the turn ends. Answers with tool calls are not judged; `when` limits it further. The text is held back until it is
    judged; `live=True` streams it at once, and retracts it.
    """

    @check_types
    def __init__(
        self,
        critic: AnyCritic,
        criteria: str | None = None,
        *,
        rounds: int | None = None,
        otherwise: Literal["stop", "pass"] = "pass",
        on_reject: Literal["halt", "revise"] = "halt",
        accept: int | None = None,
        unreachable: Literal["unreviewed", "halt"] = "unreviewed",
        reply: str | None = None,
        when: Callable[[ModelReplying], Any] | None = None,
        live: bool = False,
        name: str = "critic",
    ) -> None:
        require_name("Critic", name)
        require_bounds("Critic", rounds, accept)
        self.reviewer = reviewer_of("Critic", critic, criteria)
        self.consequences = Consequences(rounds, otherwise, on_reject, reply)
        self.name = name
        self.accept, self.unreachable, self.when, self.live = accept, unreachable, when, live

    def install(self, registrar: Hooks) -> None:
        """Bring the critic, and register the gate."""
        judge = self.reviewer.bind(registrar)
        self.consequences.bind(registrar)

        async def review(event: ModelReplying, turn: Turn[Any]) -> Halt | Regenerate | None:
            try:
                found = await judge({"task": task_of(turn), "answer": event.reply.text}, turn)
            except Exception as error:
                self._note(turn, event.round, critique_data(error))
                raise
            self._note(turn, event.round, critique_data(found))
            if approves(found, self.accept):
                return None
            return self.consequences.of(found.verdict == "reject", found.feedback)

        register_gate(registrar, self, review)

    def summary(self) -> str:
        """Who judges, and how often, for `explain`."""
        return f"by {self.reviewer.name}; {self.consequences}"

    def _note(self, turn: Turn[Any], round: int, data: dict[str, Any]) -> None:
        turn.note(self.name, {"round": round, **data, "spent": spending(turn)})
