"""One way to a verdict that may have to wait for a person: for tool calls and for every other
event.

A stage is an event with what it is about. The log has the answers of its gates and, if one of them
was an `Ask`, the question and perhaps its answer. On resume the gates of a stage whose action has
not begun are asked again, and the strictest of what was recorded and what they say now holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from msgspec import Struct

from windlass._hooks.dispatch import Passage, stage_of
from windlass._hooks.hooks import Hook
from windlass._hooks.merging import after_approval, rank_of, strictest
from windlass.decisions import Answer, Approve, Ask, Deny, Edit, Halt, Regenerate, Reject, Respond
from windlass.events import Delegating, ModelCalling, ModelReplying, TurnEnding, TurnStarting
from windlass.messages import ToolCall
from windlass.records import Answered, Asked, AskedRequest, HookDecided, Suspended
from windlass.states import Fold
from windlass.terms import people_of, stages_of, takes_one_approval, terms_of_asks
from windlass.turns import ChildWaits
from windlass.types import AnyEvent

from .journal import Journal

Answers: TypeAlias = tuple[tuple[str, Any], ...]
Asks: TypeAlias = tuple[tuple[str, Ask], ...]
Settled: TypeAlias = tuple[tuple[str, Ask | None], ...]
"""The gates whose `Ask` a person has answered, each with its `Ask`; None stands for any question of
the gate."""

TASK_ANSWERS = ("approve", "reject")
"""What people may answer to a question about a task that a hook or tool delegates."""

DO_NOT_RETRY = "A person rejected this. Do not try it again."


NOBODY_TO_ASK = (
    "Nobody can be asked here: this agent works for a hook or tool that cannot wait for a person. Delegate in a tool "
    "that is pure or idempotent, in a wrap of a model or tool call, or in a gate on an event that can ask."
)


class Waiting:
    """The verdict is not there yet: a question waits for its answer."""


WAITING = Waiting()


class Judged(Struct, frozen=True):
    """A verdict; `new` are the answers since the log was written that it is made of: none if the
    old verdict holds."""

    verdict: Any
    new: Answers = ()

    @property
    def asking(self) -> Asks:
        """The gates whose questions are new, with their questions."""
        return asks_of(self.new)


class Questions(Struct, eq=False):
    """The verdicts of one pass that a person may have to answer, and the questions that are open.

    `may_ask` is false if the pass works for a hook or tool that cannot wait for a person.
    `prior` are the verdicts that the log had when the pass began; each is served once. `_known` are
    the hooks of the agent that wrote the log, if it was another one.
    """

    _journal: Journal
    resumed: bool
    may_ask: bool = True
    _known: set[tuple[str, str, str]] | None = None
    _prior: tuple[HookDecided, ...] = ()

    def __post_init__(self) -> None:
        self._prior = prior_verdicts(self._journal.fold) if self.resumed else ()

    # ------------------------------------------------------------ verdicts

    async def decide(
        self, passage: Passage, reviewed: Callable[[], str] = str, settled: Settled = ()
    ) -> Any:
        """The verdict on an event other than a tool call: None if no gate spoke, WAITING if a
        person must answer.

        `reviewed` gives the digest of what a person would review; an answer to something else does
        not count. `settled` are gates whose question was answered with what is judged here.
        """
        try:
            if self.resumed and (prior := self._take_prior(passage)) is not None:
                return await self._decide_again(passage, reviewed, prior)
            if settled:
                verdict = (await self.judge_again(passage, None, settled)).verdict
            else:
                verdict = await passage.judge()
        except ChildWaits:
            return WAITING
        if type(verdict) is Ask and not self.may_ask:
            verdict = self.refusal(passage.point.event, verdict)
        if passage.answers:
            name, about, answers = passage.point.name, passage.about, passage.answers
            self._journal.record(HookDecided(name, about, verdict, answers, took=passage.took))
        if type(verdict) is not Ask:
            return verdict
        self.put(self.question(passage, verdict, reviewed(), asks_of(passage.answers)))
        return WAITING

    async def _decide_again(
        self, passage: Passage, reviewed: Callable[[], str], prior: HookDecided
    ) -> Any:
        """The verdict on an event that the log has one of: gates are asked again, and the strictest
        of both holds."""
        event, about = passage.point.event, passage.about
        answered = self.answer_to(about)
        if answered is not None and answered.digest != reviewed():
            answered = None
        held = prior.verdict if answered is None else after_answer(event, prior.answers, answered)
        settled = () if answered is None else asks_of(prior.answers)
        judged = await self.judge_again(passage, held, settled, self.asked_again(about))
        passage.begin_with((*prior.answers, *judged.new))
        if judged.new:
            name, answers, took = passage.point.name, passage.answers, passage.took
            self._journal.record(HookDecided(name, about, judged.verdict, answers, took=took))
        if not isinstance(judged.verdict, Ask):
            return judged.verdict
        if not self.may_ask:
            return self.refusal(event, judged.verdict)
        by = judged.asking or asks_of(prior.answers)
        self.put(self.question(passage, judged.verdict, reviewed(), by))
        return WAITING

    def _take_prior(self, passage: Passage) -> HookDecided | None:
        """What the log had to say of this stage when the pass began; it is served once."""
        event, about = passage.point.name, passage.about
        for decided in reversed(self._prior):
            if decided.event == event and decided.about == about:
                self._prior = tuple(
                    [one for one in self._prior if (one.event, one.about) != (event, about)]
                )
                return decided
        return None

    async def judge_again(
        self,
        passage: Passage,
        held: Any,
        settled: Settled,
        only: Callable[[Hook], bool] | None = None,
    ) -> Judged:
        """The strictest of the verdict that holds so far and what the gates say now; at equal rank
        the old one.

        Of a gate whose `Ask` was answered only a refusal still counts, or an `Ask` on other terms:
        a new question.
        """
        event = passage.point.event
        before = () if rank_of(event, held) is None else (("recorded", held),)
        passage.begin_with(before)
        await passage.judge(only)
        said = passage.answers[len(before) :]
        new = tuple(
            [(name, decision) for name, decision in said if _counts(event, name, decision, settled)]
        )
        passage.begin_with(new)
        verdict = strictest(event, new)
        if verdict is None or (held is not None and _rank(event, verdict) >= _rank(event, held)):
            return Judged(held)
        return Judged(verdict, new)

    def asked_again(self, about: str) -> Callable[[Hook], bool]:
        """Which gates are asked again on resume: all, except those that would meet what they wrote
        when first asked.

        A gate may say otherwise: with `on_resume="rerun"` it is always asked, with "reuse" only if
        the agent that wrote the log did not have it.
        """
        turn, known = self._journal.fold.turn, self._known
        written = turn.writers if turn is not None else ()

        def asks(hook: Hook) -> bool:
            if hook.on_resume is None:
                return (
                    not written or (stage_of(hook.event.__name__, about), hook.name) not in written
                )
            if hook.on_resume == "rerun":
                return True
            return known is not None and (hook.event.__name__, hook.kind, hook.name) not in known

        return asks

    def note_known(self, hooks: Iterable[tuple[str, str, str]]) -> None:
        """The hooks of the agent that wrote the log, by event, kind and name: it was not this
        one."""
        self._known = set(hooks)

    # ------------------------------------------------------------ questions

    @property
    def waiting(self) -> tuple[Asked, ...]:
        """The open questions."""
        turn = self._journal.visible.turn
        return turn.waiting if turn is not None else ()

    def is_waiting(self, ask_id: str) -> bool:
        """Whether a question is open."""
        return any(asked.id == ask_id for asked in self.waiting)

    def put(self, asked: Asked) -> None:
        """Ask a person, once."""
        if not self.is_waiting(asked.id):
            self._journal.record(asked)

    def suspend(self) -> None:
        """Wait for the answers to all open questions."""
        waiting = tuple(
            [asked.replace(reply=None, request=None, text=None) for asked in self.waiting]
        )
        self._journal.record_times()
        self._journal.record(Suspended(waiting, self._journal.time.take()))

    def answer_to(self, ask_id: str) -> Answered | None:
        """The latest answer to a question of this turn."""
        turn = self._journal.fold.turn
        for answered in reversed(turn.answered if turn is not None else ()):
            if answered.id == ask_id:
                return answered
        return None

    def question(
        self,
        passage: Passage,
        ask: Ask,
        digest: str,
        asks: Asks,
        *,
        call: ToolCall | None = None,
    ) -> Asked:
        """The question of an `Ask`, bound to the digest of what is asked about.

        `asks` are the gates that ask, each on its own terms. Of a gate that asked more than once
        the latest counts.
        """
        event, now = passage.point.event, self._journal.now()
        answers = event.answers if call is not None or event is not Delegating else TASK_ANSWERS
        latest = sorted(dict(asks).items())
        terms = terms_of_asks(latest or [("", ask)], now)
        return Asked(
            passage.about,
            passage.point.name,
            ask.question,
            tuple([kind for kind in ask.allow if kind in answers]),
            digest,
            tuple([name for name, _ in latest]),
            call,
            people_of(terms),
            ask.default,
            None if ask.expires is None else now + ask.expires,
            ask.details,
            ask.priority,
            () if takes_one_approval(terms) else terms,
            **({} if call is not None else _subject(passage.event)),
        )

    def refusal(self, event: type[AnyEvent], ask: Ask) -> Any:
        """What an `Ask` means where no person can be asked: what the matrix says of a rejection."""
        reason = f"{NOBODY_TO_ASK} The question was: {ask.question}"
        if event.rejected is Regenerate:
            return Regenerate(reason)
        return Halt(reason) if event.rejected is Halt else Deny(reason)

    def responded_by(self, text: str) -> Settled:
        """The gates whose question a person answered with these very words: they do not ask about
        them again."""
        turn = self._journal.fold.turn
        answered = turn.answered if turn is not None else ()
        given = [
            one for one in answered if isinstance(one.answer, Respond) and one.answer.text == text
        ]
        return tuple([(name, None) for one in given for name in one.covers])


def prior_verdicts(fold: Fold) -> tuple[HookDecided, ...]:
    """The verdicts of gates that the log has of the turn and of its open step."""
    if fold.turn is None:
        return ()
    return (*fold.turn.decided, *(fold.open.decided if fold.open is not None else ()))


def asks_of(answers: Answers) -> Asks:
    """The gates that ask, with their questions."""
    return tuple([(name, decision) for name, decision in answers if isinstance(decision, Ask)])


def _counts(event: type[AnyEvent], name: str, decision: Any, settled: Settled) -> bool:
    asked = [ask for hook, ask in settled if hook == name]
    if not asked:
        return True
    if isinstance(decision, Ask):
        return not any(ask is None or _terms(ask) == _terms(decision) for ask in asked)
    return Ask not in event.ranks or _rank(event, decision) < event.ranks.index(Ask)


def _terms(ask: Ask) -> list[Any]:
    """What makes two questions of one gate the same: who must answer."""
    return [
        stage and (frozenset(stage.approvers), stage.quorum, stage.escalate)
        for stage in stages_of(ask)
    ]


def _subject(event: Any) -> dict[str, Any]:
    """What a person reviews, if it is not a call."""
    match event:
        case ModelReplying(reply=reply):
            return {"reply": reply}
        case ModelCalling(request=request):
            tools = tuple([tool.name for tool in request.tools])
            messages, settings = tuple(request.messages), dict(request.settings)
            asked = AskedRequest(request.model, request.system, messages, tools, settings)
            return {"request": asked}
        case TurnStarting(message=message):
            return {"text": message.text}
        case Delegating(task=task):
            return {"text": f"task for agent {task.agent!r}: {task.task}"}
        case TurnEnding(text=text):
            return {"text": text}
        case _:
            return {}


def _rank(event: type[AnyEvent], decision: Any) -> int:
    rank = rank_of(event, decision)
    return len(event.ranks) if rank is None else rank


def after_answer(event: type[AnyEvent], answers: Answers, answered: Answered) -> Any:
    """The verdict once a person has answered: the next rank if approved, what the matrix says if
    rejected."""
    match answered.answer:
        case Approve() | Edit():
            return after_approval(event, answers)
        case Respond(text=text):
            return Answer(text)
        case Reject(message=message):
            reason = message or DO_NOT_RETRY
            if event.rejected is Regenerate:
                return Regenerate(reason)
            return Halt(reason) if event.rejected is Halt else Deny(reason)
