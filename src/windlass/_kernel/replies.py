"""The reply of a step: its request is judged, the model asked, the reply rewritten, recorded and
judged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage
from windlass._hooks.streams import transform_reply
from windlass.checking import is_reply, reply_of
from windlass.context.assembly import assemble, request_digest
from windlass.criteria import name_of
from windlass.decisions import Answer, Halt, Regenerate
from windlass.errors import BadReply, ContextOverflow
from windlass.events import ModelCalling, ModelReplying
from windlass.messages import (
    PARTS,
    Message,
    ModelReply,
    ModelRequest,
    Part,
    TextPart,
    ToolCallPart,
    as_reply,
    digest,
)
from windlass.outcomes import Stopped, StopReason
from windlass.records import ModelReplied, ReplyPassed, ReplyRejected
from windlass.states import Fold, StepFold, step_id
from windlass.turns import ChildWaits

from .error_handling import FailedCall, Failures
from .model_calls import ModelCalls
from .questions import WAITING, Questions
from .site import Site

if TYPE_CHECKING:
    from .compaction import Compaction


class Replies:
    """Gets the replies of a pass, one step after the other.

    `_passage` is the way of the latest reply through its hooks, from its rewrites until its gates
    have judged it. `awaits_verdict` says whether gates may still have to judge it.
    """

    __slots__ = (
        "_calling", "_calls", "_compaction", "_failures", "_injected", "_journal", "_passage",
        "_program", "_questions",
        "_replying", "_site", "_voice", "awaits_verdict",
    )  # fmt: skip

    def __init__(
        self,
        site: Site,
        calls: ModelCalls,
        questions: Questions,
        compaction: Compaction | None,
        failures: Failures,
    ) -> None:
        self._site = site
        self._journal = site.journal
        self._program = site.program
        self._calls = calls
        self._questions = questions
        self._compaction = compaction
        self._failures = failures
        self._voice = site.journal.audience.voice
        self._calling = site.hooks.at(ModelCalling)
        self._replying = site.hooks.at(ModelReplying)
        self._injected = site.injected
        self._passage: Passage | None = None
        self.awaits_verdict = self._replying is not None

    # ------------------------------------------------------------ the model call

    async def get(self, fold: Fold, number: int) -> None:
        """The request, judged by its hooks, then the reply of the model, rewritten by its own, into
        the log."""
        round_, tried, place = 1, 0, f"{fold.session}/{number}"
        request: ModelRequest | None = None
        reply: ModelReply | None = None
        if (step := fold.open) is not None:
            round_, tried = step.round, step.tried
            if (round_ > 1 or tried) and self._program.limits and self._exceeded(fold):
                return
            if tried:
                request = self._failures.take_failed_request(number, round_)
        if request is None:
            if self._compaction is not None:
                await self._compaction.run()
            request = assemble(fold, self._program, self._injected.unlogged)
            if (point := self._calling) is not None:
                calling = ModelCalling(request, self._site.turn)
                if self._questions.resumed or point.is_asked_about(calling):
                    request, reply = await self._pass_request(point, calling, place, round_)
        if request is not None and fold.going:
            try:
                reply = await self._calls.ask(request, number, round_, tried)
                if self._calls.unchecked and not is_reply(reply):
                    reply = reply_of(request.model, reply)
            except ChildWaits:  # of a wrap: an attempt that was paid for is recorded first
                self._calls.write_paid()
                self._questions.suspend()
                return
            except Exception as error:
                if not await self._relieves(error):
                    attempt = max(self._calls.number, tried + 1)
                    self._failures.note_failed_call(
                        FailedCall(error, request, number, round_, attempt)
                    )
                    raise
        if reply is None:
            return
        if self._voice is not None:
            self._voice.hold()
        if self._replying is not None:
            passage = self._passage = self._passage_of(self._replying, reply, place, round_)
            if self._replying.changing:
                rewritten: ModelReply = (await passage.rewrite()).reply
                reply = rewritten
            self.awaits_verdict = self._replying.judges or bool(passage.said)
        self._record_reply(reply, place, number, round_, request is not None)

    async def _pass_request(
        self, point: Point, calling: ModelCalling, place: str, round_: int
    ) -> tuple[ModelRequest | None, ModelReply | None]:
        """The request past its hooks."""
        passage = Passage(point, calling, self._site, _about(place, "request", round_))
        if point.changing:
            calling = await passage.rewrite()
        if point.judges or passage.said or self._questions.resumed:
            return await self._judge_request(passage, calling.request)
        return calling.request, None

    async def _relieves(self, error: Exception) -> bool:
        """Whether the request was too large and a compaction makes another try worth it."""
        if self._compaction is None or not isinstance(error, ContextOverflow):
            return False
        return await self._compaction.relieve(error)

    async def _judge_request(
        self, passage: Passage, request: ModelRequest
    ) -> tuple[ModelRequest | None, ModelReply | None]:
        """The request that may leave, or the answer that replaces it, or neither: the turn waits or
        is over."""
        verdict = await self._questions.decide(passage, lambda: request_digest(request))
        if verdict is None:
            return request, None
        if verdict is WAITING:
            self._questions.suspend()
        elif isinstance(verdict, Halt):
            self._journal.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
        elif isinstance(verdict, Answer):
            transforms = self._site.hooks.transforms.on(request)
            return None, transform_reply(transforms, as_reply(verdict.value))
        else:
            return request, None
        return None, None

    def _record_reply(
        self, reply: ModelReply, place: str, number: int, round_: int, asked: bool
    ) -> None:
        """The reply with our ids into the log, after the rewrites and before anything slow looks at
        it."""
        journal, calls = self._journal, self._calls
        fold = journal.fold
        ours = _with_ids(reply, place)
        attempt, paid = (calls.number, calls.paid) if asked else (0, False)
        if asked and calls.settles:
            calls.settle()
        if self._voice is not None:
            self._voice.accept(reply, ours, number, round_, attempt)
        changed = calls.fingerprint if paid else ""
        at = fold.tick(journal.now)
        replied = ModelReplied(number, ours, round_, attempt, paid, changed, at=at)
        if journal.mask is not None:
            self._site.arguments.hold_reply(ours)
            if fold.open is not None and any(tried.masked for tried in fold.open.attempts):
                replied = replied.replace(masked=True)  # it may be one that the log served
        journal.add(replied)
        if ours.client_calls:
            self._refuse_client_calls(ours, number)

    def _refuse_client_calls(self, reply: ModelReply, number: int) -> None:
        """End the turn: no call may be left without a result, and these cannot be made here."""
        journal, names = self._journal, ", ".join(reply.client_calls)
        why = f"the model asked for {names}, which your program would have to run, and the agent has no tool for that"
        journal.record(ReplyRejected(number, why))
        if self._voice is not None:
            self._voice.drop("the reply does not stand")
        journal.conclude(Stopped(StopReason.UNSUPPORTED_CALL, why), "")

    # ------------------------------------------------------------ the reply

    def _passage_of(self, point: Point, reply: ModelReply, place: str, round_: int) -> Passage:
        """The way of a reply through its hooks.

        Their verdict counts when the reply is in the log.
        """
        event = ModelReplying(reply, self._site.turn, round_)
        return Passage(point, event, self._site, _about(place, "reply", round_))

    async def judge(self, step: StepFold) -> bool:
        """ModelReplying: whether the reply stands.

        If not, it is asked for again, waits for a person or all is over.
        """
        point, journal, voice = self._replying, self._journal, self._voice
        assert step.reply is not None
        if point is None:
            return True
        passage, self._passage = self._passage, None
        if passage is None and any(call.decided for call in step.calls.values()):
            return True
        fresh = passage is not None and not passage.said and not self._questions.resumed
        if fresh and passage is not None and not point.is_asked_about(passage.event):
            return True
        if (
            self._program.durable or point.waits or passage is None
        ):  # before anything slow looks at it
            await journal.commit()
        if passage is None:
            if voice is not None:
                voice.hold_logged_reply(step.reply, step.number, step.round)
            place = step_id(journal.fold.session, step.number)
            passage = self._passage_of(point, step.reply, place, step.round)
        message, turn = step.reply.message, journal.fold.turn
        responded = (
            self._questions.responded_by(message.text) if turn is not None and turn.answered else ()
        )
        verdict = await self._questions.decide(passage, lambda: digest(repr(message)), responded)
        if verdict is None:
            return True
        return await self._follow_verdict(point, passage, step, verdict)

    async def _follow_verdict(
        self, point: Point, passage: Passage, step: StepFold, verdict: Any
    ) -> bool:
        """What a verdict on a reply means. Whether the reply stands."""
        journal, voice = self._journal, self._voice
        if isinstance(verdict, Regenerate) and self._passes(step, verdict):
            by = _speakers(passage, Regenerate)
            journal.record(ReplyPassed(step.number, verdict.feedback, by))
            return True
        if voice is not None and (
            verdict is WAITING or isinstance(verdict, Halt | Regenerate | Answer)
        ):
            voice.drop("the reply does not stand")
        if verdict is WAITING:
            self._questions.suspend()
        elif isinstance(verdict, Halt):
            journal.record(ReplyRejected(step.number, verdict.reason, _speakers(passage, Halt)))
            journal.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
        elif isinstance(verdict, Regenerate):
            self._reject(step, verdict, _speakers(passage, Regenerate))
        elif isinstance(verdict, Answer):
            journal.record(ReplyRejected(step.number, "answered by a person"))
            await self._respond(point, str(verdict.value), step)
        else:
            return True
        return False

    async def _respond(self, point: Point, words: str, step: StepFold) -> None:
        """A person's words take the place of the reply, and are judged like one."""
        journal, number, round_ = self._journal, step.number, step.round + 1
        transforms = self._site.hooks.transforms
        if transforms.conditional:
            request = assemble(journal.fold, self._program, self._injected.unlogged)
            transforms = transforms.on(request)
        said = transform_reply(transforms, as_reply(words))
        place = step_id(journal.fold.session, number)
        passage = self._passage_of(point, said, place, round_)
        answered = _with_ids((await passage.rewrite()).reply, place)
        if self._voice is not None:
            self._voice.hold()
            self._voice.accept(answered, answered, number, round_, 0)
        journal.record(ModelReplied(number, answered, round_, 0, False))

    def _passes(self, step: StepFold, verdict: Regenerate) -> bool:
        """Whether a rejected reply stands all the same: the bound is reached, and that is how the
        gates want it."""
        return verdict.otherwise == "pass" and len(step.rejected) >= self._bound(verdict)

    def _bound(self, verdict: Regenerate) -> int:
        """How often the reply may be asked for again."""
        bound = self._program.max_regenerations
        return bound if verdict.limit is None else min(bound, verdict.limit)

    def _reject(self, step: StepFold, verdict: Regenerate, by: tuple[str, ...]) -> None:
        self._journal.record(ReplyRejected(step.number, verdict.feedback, by))
        if len(step.rejected) >= self._bound(verdict):
            detail = f"the reply was rejected {len(step.rejected) + 1} times: {verdict.feedback}"
            self._journal.conclude(Stopped(StopReason.REGENERATION, detail), "")

    def _exceeded(self, fold: Fold) -> bool:
        """Limits hold before a retry or a regeneration too: it may be one too many."""
        state = fold.state
        votes = [(limit, limit(state)) for limit in self._program.limits]
        exceeded = [
            (limit.reason, f"{name_of(limit)}: {vote[1]}")
            for limit, vote in votes
            if vote is not None
        ]
        if exceeded:
            self._journal.conclude(Stopped(*min(exceeded, key=lambda found: found[0].rank)))
        return bool(exceeded)


def _about(place: str, what: str, round_: int) -> str:
    """The id of the request or reply of a step, with the round if there was more than one."""
    return f"{place}/{what}" if round_ == 1 else f"{place}/{what}.{round_}"


def _speakers(passage: Passage, kind: type) -> tuple[str, ...]:
    return tuple(sorted([name for name, decision in passage.answers if isinstance(decision, kind)]))


def _with_ids(reply: ModelReply, step: str) -> ModelReply:
    """The reply with our ids: the step's on the message, `step/position` on its calls.

    The vendor's rate limits are for wraps of the model call and are not recorded.
    """
    message = reply.message
    parts = message.parts
    if len(parts) == 1 and type(call := parts[0]) is ToolCallPart:
        parts = (ToolCallPart(call.name, call.json, step + "/1", call.vendor_id),)
    elif len(parts) != 1 or type(parts[0]) is not TextPart:
        parts = _numbered(parts, step)
    ours = Message("assistant", parts, message.origin, step, message.partial)
    return replace(reply, message=ours, limits=None)


def _numbered(parts: tuple[Part, ...], step: str) -> tuple[Part, ...]:
    numbered: list[Part] = []
    position = 0
    for part in parts:
        if type(part) is ToolCallPart:
            position += 1
            part = ToolCallPart(part.name, part.json, f"{step}/{position}", part.vendor_id)
        elif type(part) not in PARTS:
            raise BadReply(f"the reply has a {type(part).__name__} among its parts")
        numbered.append(part)
    return tuple(numbered)
