"""SelfCritique: at the end of a turn, the answer is checked against what the tools really returned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.decisions import Veto
from windlass.events import Stopping
from windlass.messages import ToolCallPart, ToolResultPart
from windlass.outcomes import StopReason
from windlass.turns import Turn

from .answer_gates import require_bounds
from .critiques import approves, critique_data, spending
from .option_types import check_types
from .options import require_count, require_name
from .reviewers import AnyCritic, Reviewer, reviewer_of, start_of, task_of

if TYPE_CHECKING:
    from windlass import Hooks

CRITERIA = """The evidence is what the tools returned. Is the task done? Does the evidence support everything that the
answer claims? An answer that claims what no tool has shown needs a revision."""
DEFAULT = "The answer is not supported by the results of the tools. Check it again."


class SelfCritique:
    """When a turn is about to end, let a model check the answer against the results of the tools.

    By default it is the agent's own model, in a context of its own: it sees the task, the calls with their results, and
    the answer, but no reasoning and no system text. `critic` is another model, or an agent with `output=Critique`. If
    it does not approve, with a score of at least `accept`, the turn goes on with its feedback, at most `rounds` times;
    then the turn ends, and the outcome names this capability (`objections`). `evidence` is how many characters of
    calls and results it sees: of longer ones the middle is left out. With `only_with_tools=True` turns without tool
    calls are not checked. If the critic cannot be reached, the turn ends, and the outcome is marked `unreviewed`.
    """

    @check_types
    def __init__(
        self,
        critic: AnyCritic | None = None,
        criteria: str | None = None,
        *,
        rounds: int = 1,
        accept: int | None = None,
        evidence: int = 20_000,
        only_with_tools: bool = False,
        name: str = "self_critique",
    ) -> None:
        require_name("SelfCritique", name)
        require_bounds("SelfCritique", rounds, accept)
        require_count("SelfCritique", "evidence", evidence)
        if isinstance(critic, Reviewer):
            self.reviewer = reviewer_of("SelfCritique", critic, criteria)
        else:
            self.reviewer = Reviewer(critic, CRITERIA if criteria is None else criteria, same_model=True)
        self.name = name
        self.rounds, self.accept, self.evidence, self.only_with_tools = rounds, accept, evidence, only_with_tools

    def install(self, registrar: Hooks) -> None:
        """Bring the critic, and register the gate."""
        judge = self.reviewer.bind(registrar)

        @registrar.check
        def has_room(assembly: Any) -> str | None:
            bound = assembly.bounds["max_vetoes"]
            return None if self.rounds <= bound else f"rounds={self.rounds}, but Agent(max_vetoes={bound}) allows fewer"

        async def check_evidence(event: Stopping, turn: Turn[Any]) -> Veto | None:
            calls = _calls_of(turn)
            answer = turn.state.text
            if self.only_with_tools and not calls:
                return None
            texts = {"task": task_of(turn), "evidence": _evidence(calls, self.evidence), "answer": answer}
            try:
                found = await judge(texts, turn)
            except Exception as error:
                self._note(turn, critique_data(error))
                raise
            self._note(turn, critique_data(found))
            return None if approves(found, self.accept) else Veto(found.feedback or DEFAULT, self.rounds)

        registrar.gate(Stopping, name=self.name, when=_is_completed, costly=True)(check_evidence)

    def summary(self) -> str:
        """Who checks, and how often, for `explain`."""
        return f"by {self.reviewer.name}, with the results of tools; vetoes: at most {self.rounds}"

    def _note(self, turn: Turn[Any], data: dict[str, Any]) -> None:
        vetoes = turn.state.turn.vetoes if turn.state.turn is not None else 0
        turn.note(self.name, {"round": vetoes + 1, **data, "spent": spending(turn)})


def _is_completed(event: Stopping) -> bool:
    return event.reason is StopReason.COMPLETED


def _calls_of(turn: Turn[Any]) -> list[tuple[ToolCallPart, ToolResultPart | None]]:
    """The calls of this turn with their results, from the transcript."""
    parts = [part for message in turn.context[start_of(turn) :] for part in message.parts]
    results = {part.call_id: part for part in parts if isinstance(part, ToolResultPart)}
    return [(part, results.get(part.id)) for part in parts if isinstance(part, ToolCallPart)]


def _evidence(calls: list[tuple[ToolCallPart, ToolResultPart | None]], room: int) -> str:
    """The calls and results as text, the middle of each cut out where they are too long."""
    if not calls:
        return "No tool was called."
    share = max(room // (2 * len(calls)), 40)
    lines = [
        f"{call.name} {_cut(call.json, share)}\n{_status(result)}: {_cut(result.text if result else '', share)}"
        for call, result in calls
    ]
    return "\n\n".join(lines)


def _status(result: ToolResultPart | None) -> str:
    return "no result" if result is None else result.status


def _cut(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    half = room // 2
    return f"{text[:half]} … {len(text) - 2 * half} characters … {text[-half:]}"
