"""Refine: a creator and a critic work on an answer until it is good; the best version wins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.decisions import Regenerate
from windlass.errors import ModelError
from windlass.events import ModelReplying
from windlass.messages import ModelCall, ModelReply, ModelRequest, user
from windlass.turns import Turn
from windlass.types import CallModel

from .answer_gates import is_answer, require_bounds
from .critiques import Critique, approves, critique_data, spending
from .option_types import check_types
from .options import require_count, require_name
from .reviewers import AnyCritic, Judge, reviewer_of, task_of

if TYPE_CHECKING:
    from windlass import Hooks

FEEDBACK = """A reviewer says about your answer:
{feedback}
Write the whole answer again, improved. Do not mention the review."""


class Refine:
    """Let a critic judge each version of an answer, and the model improve it, at most `versions` times in all.

    The first version that the critic approves, with a score of at least `accept`, is the answer. If there is none, the
    one with the best score wins, of equal ones the latest, and the outcome names this capability (`objections`). The
    critic sees the task and the version, and nothing of how it was made. Users see only the winner; with `live=True`
    each version is streamed, and retracted if another one wins.

    If the critic cannot be reached, the best version that was judged wins, or else the first, and the outcome is marked
    `unreviewed`. If an improvement fails, the best version so far wins.
    """

    @check_types
    def __init__(
        self,
        critic: AnyCritic,
        criteria: str | None = None,
        *,
        versions: int = 3,
        accept: int | None = None,
        live: bool = False,
        name: str = "refine",
    ) -> None:
        require_name("Refine", name)
        require_count("Refine", "versions", versions)
        require_bounds("Refine", None, accept)
        self.reviewer = reviewer_of("Refine", critic, criteria)
        self.name = name
        self.versions, self.accept, self.live = versions, accept, live

    def install(self, registrar: Hooks) -> None:
        """Bring the critic; register the wrap that makes the versions, and the gate that marks the outcome."""
        judge = self.reviewer.bind(registrar)

        async def refine(request: ModelRequest, call_next: CallModel, turn: Turn[Any]) -> ModelReply:
            return await _Versions(self, judge, request, call_next, turn).best()

        def report(event: ModelReplying) -> Regenerate | None:
            ended = self._ended(event.turn)
            if ended.get("unreviewed"):
                raise ModelError(f"no review of version {ended['versions']}: {ended['unreviewed']}")
            return None if ended.get("approved", True) else Regenerate("no version was approved", "pass", limit=0)

        registrar.wrap(ModelCall, name=f"{self.name}.loop")(refine)
        gate = registrar.gate(ModelReplying, name=self.name, when=is_answer, on_error="unreviewed", live=self.live)
        gate(report)

    def summary(self) -> str:
        """Who judges, and how many versions there may be, for `explain`."""
        return f"by {self.reviewer.name}; at most {self.versions} versions, the best one wins"

    def _ended(self, turn: Turn[Any]) -> dict[str, Any]:
        """How the versions of the current step ended, from the log: a resumed turn may have them from there."""
        state = turn.state.turn
        for note in reversed(state.notes if state is not None else ()):
            if note.kind == f"{self.name}.end" and note.data["step"] == turn.steps + 1:
                return dict(note.data)
        return {}


class _Versions:
    """The versions of one answer."""

    def __init__(
        self, refine: Refine, judge: Judge, request: ModelRequest, call_next: CallModel, turn: Turn[Any]
    ) -> None:
        self.refine = refine
        self.judge = judge
        self.request = request
        self.call_next = call_next
        self.turn = turn
        self.messages = list(request.messages)
        self.winner: tuple[int, int, ModelReply] | None = None  # score, number, reply

    async def best(self) -> ModelReply:
        """The version that wins. A reply that calls tools is not an answer yet."""
        reply, number = await self.call_next(self.request), 1
        while not reply.tool_calls:
            try:
                critique = await self.judge({"task": task_of(self.turn), "answer": reply.text}, self.turn)
            except Exception as error:
                data = critique_data(error)
                self._note(number, data)
                self.winner = self.winner or (0, number, reply)
                return self._end(number, **data)
            self._note(number, critique_data(critique))
            approved = approves(critique, self.refine.accept)
            if approved or self.winner is None or critique.score >= self.winner[0]:
                self.winner = (critique.score, number, reply)
            if approved or number == self.refine.versions:
                return self._end(number, approved=approved)
            number += 1
            improved = await self._improve(number, reply, critique)
            if improved is None:
                return self._end(number - 1)
            reply = improved
        return reply

    async def _improve(self, number: int, reply: ModelReply, critique: Critique) -> ModelReply | None:
        """The next version, or None if there is none: the call failed, or the reply is empty."""
        feedback = user(FEEDBACK.format(feedback=critique.feedback or "It can be better."), origin=self.refine.name)
        self.messages += [reply.message, feedback]
        try:
            improved = await self.call_next(self.request.replace(messages=self.messages))
        except Exception as error:
            self._note(number, {"failed": critique_data(error)["unreviewed"]})
            return None
        return improved if improved.text or improved.tool_calls else None

    def _note(self, number: int, data: dict[str, Any]) -> None:
        spent = spending(self.turn)
        self.turn.note(self.refine.name, {"version": number, **data, "spent": spent})

    def _end(self, versions: int, *, approved: bool = False, **more: Any) -> ModelReply:
        """Note which version wins."""
        assert self.winner is not None
        score, winner, reply = self.winner
        data = {"step": self.turn.steps + 1, "versions": versions, "winner": winner, "score": score}
        self.turn.note(f"{self.refine.name}.end", {**data, "approved": approved, **more})
        return reply
