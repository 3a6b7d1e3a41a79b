"""One step: StepStarting, the request, the reply, and the calls it asks for. An open step goes on where it stood."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec.structs import replace

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage
from windlass._hooks.streams import transform_reply
from windlass.checking import is_reply, reply_of
from windlass.context.assembly import assemble
from windlass.criteria import name_of
from windlass.decisions import Answer, Halt, Regenerate
from windlass.errors import BadReply, ContextOverflow, ToolError
from windlass.events import ModelCalling, ModelReplying, StepStarted, StepStarting
from windlass.messages import PARTS, Message, ModelReply, ModelRequest, Part, TextPart, ToolCallPart, as_reply, digest
from windlass.outcomes import Stopped, StopReason
from windlass.records import ModelReplied, ReplyRejected
from windlass.states import Fold, StepFold, step_id
from windlass.tools import Tool

from .calling import ModelCaller
from .compacting import compact, relieve
from .continuing import cut_off
from .inbox import take_inbox
from .questions import words_of_a_person
from .segment import FailedCall, Segment
from .side_calls import request_digest
from .stages import WAITING, begun, decide, handled, inject


class Runner:
    """Runs a step, or goes on with an open one."""

    __slots__ = (
        "_passage", "alone", "begins", "caller", "calling", "limited", "replying", "segment",
    )  # fmt: skip

    def __init__(self, segment: Segment) -> None:
        program, hooks = segment.program, segment.hooks
        self.segment = segment
        self.caller = ModelCaller(segment) if program.calls_models or segment.listens else None
        self.begins = program.begins_steps or (segment.listens and _is_heard(segment))
        self.alone = not program.compactors
        self.limited = segment.limited("model") and not program.wraps_models  # inside wraps, before each attempt
        self.calling = hooks.model_calling
        self.replying = hooks.model_replying
        self._passage: Passage | None = None

    async def run(self, fold: Fold) -> StepFold:
        """Take the step to its end: a reply that stands, then its calls; or to where the turn waits or is over."""
        segment = self.segment
        if segment.inbox:
            await take_inbox(segment)
        number = segment.stepping = fold.steps + 1
        if self.begins and fold.open is None and not (segment.resumed and begun(fold)):
            await self._begin(number)
        while fold.going:
            step = fold.open
            if step is None or step.reply is None:
                await self._get_reply(fold, number)
                if segment.listens:
                    await segment.told()
            elif self.replying is None or await self._judge_reply(step):
                if self._may_execute(fold):
                    await segment.executor.execute(fold)
                break
        return fold.open or StepFold(number)

    async def _get_reply(self, fold: Fold, number: int) -> None:
        """The request, judged by its hooks, then the reply of the model, rewritten by its own, into the log."""
        segment, step = self.segment, fold.open
        round_, tried = (1, 0) if step is None else (step.round, step.tried)
        if (round_ > 1 or tried) and segment.program.limits and self._exceeded(fold):
            return
        request = self._failed_request(step) if tried and step is not None else None
        reply: ModelReply | None = None
        if request is None:
            if not self.alone:
                await compact(segment)
            request = assemble(fold, segment.program, segment.unrecorded)
            if self.calling is not None:
                request, reply = await self._judge_request(self.calling, request)
        if request is not None:
            reply = await self._ask_model(fold, request, number, round_, tried)
        if reply is None:
            return
        if segment.voice is not None:
            segment.voice.hold()
        if self.replying is not None:
            passage = self._passage = self._passage_of(self.replying, reply)
            if self.replying.changing:
                reply = (await passage.rewrite()).reply
        self._take(reply, number, round_, request is not None)

    async def _ask_model(
        self, fold: Fold, request: ModelRequest, number: int, round_: int, tried: int
    ) -> ModelReply | None:
        """What the model replies to a request that its gates let pass; None if the turn is over instead."""
        segment, program, caller = self.segment, self.segment.program, self.caller
        if self.limited and fold.going:
            segment.stopped_before("model")
        if not fold.going:
            return None
        if (task := segment.task) is not None and task.cancelling():  # a tool or model may have swallowed it
            segment.refuse_cancelled()
        try:
            if caller is not None:
                return await caller.ask(request, number, round_, tried)
            model = program.model if request.model is program.model_name else segment.model(request)
            reply: object = await model.reply(request)
            return reply if is_reply(reply) else reply_of(model.name, reply)
        except Exception as error:
            if isinstance(error, ContextOverflow) and await relieve(segment, error):
                return None
            attempt = tried + 1 if caller is None else max(caller.number, tried + 1)
            segment.failed_call = FailedCall(error, request, number, round_, attempt)
            raise

    def _may_execute(self, fold: Fold) -> bool:
        """The reply stands: whether its calls are made."""
        segment, step = self.segment, fold.open
        if self.replying is not None:
            segment.passed = fold.steps + 1
        if segment.voice is not None:
            segment.voice.stands()
        if step is None or step.reply is None or not step.calls or not fold.going:
            return False
        if (task := segment.task) is not None and task.cancelling():  # a hook may have swallowed it
            segment.refuse_cancelled()
        return step.reply.finish != "length" or not self._is_cut_off(step.reply)

    def _failed_request(self, step: StepFold) -> ModelRequest | None:
        """The request of a model call that failed in this process and is made again: it was judged."""
        failed, self.segment.failed_call = self.segment.failed_call, None
        same = failed is not None and (failed.step, failed.round) == (step.number, step.round)
        return failed.request if failed is not None and same else None

    def _is_cut_off(self, reply: ModelReply) -> bool:
        """Whether a call in the reply was cut off at the limit of tokens: then none runs, and the turn stops."""
        program = self.segment.program
        for call in reply.tool_calls:
            if not _is_readable(call, program.tools.get(call.name)):
                detail = f"the call of {call.name!r} {cut_off(program.settings)}"
                self.segment.conclude(Stopped(StopReason.LENGTH, detail))
                return True
        return False

    def _exceeded(self, fold: Fold) -> bool:
        """Limits hold before a retry or a regeneration too: it may be one too many."""
        segment, state = self.segment, fold.state
        votes = [(limit, limit(state)) for limit in segment.program.limits]
        exceeded = [(limit.reason, f"{name_of(limit)}: {vote[1]}") for limit, vote in votes if vote is not None]
        if exceeded:
            segment.conclude(Stopped(*min(exceeded, key=lambda found: found[0].rank)))
        return bool(exceeded)

    async def _begin(self, number: int) -> None:
        segment = self.segment
        segment.fact(StepStarted, number)
        if segment.program.handlers:
            await handled(segment, segment.program.handlers.get("before_step", ()))
        if (point := segment.hooks.step_starting) is None or not segment.fold.going:
            return
        about = step_id(segment.fold.session, number)
        passage = Passage(point, StepStarting(number, segment.turn), segment, about + "/start")
        if point.changing:
            await passage.rewrite()
        verdict = await decide(segment, passage)
        if isinstance(verdict, Halt):
            segment.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
        elif passage.injects:
            await inject(segment, passage, about)

    # ------------------------------------------------------------ the reply

    async def _judge_request(
        self, point: Point, request: ModelRequest
    ) -> tuple[ModelRequest | None, ModelReply | None]:
        """The request that may leave, or the answer that makes it needless, or neither: the turn waits or is over."""
        segment = self.segment
        passage = Passage(point, ModelCalling(request, segment.turn), segment, self._about("request"))
        if point.changing:
            request = (await passage.rewrite()).request
        verdict = await decide(segment, passage, lambda: request_digest(request))
        if verdict is WAITING:
            segment.suspend()
        elif isinstance(verdict, Halt):
            segment.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
        elif isinstance(verdict, Answer):
            return None, transform_reply(segment.hooks.transforms, as_reply(verdict.value))
        else:
            return request, None
        return None, None

    def _passage_of(self, point: Point, reply: ModelReply) -> Passage:
        """The way of a reply through its hooks. What they have to say of it counts when it is in the log."""
        return Passage(point, ModelReplying(reply, self.segment.turn), self.segment, self._about("reply"))

    def _about(self, what: str) -> str:
        """The id of the request or reply: the step's, with the round if there was more than one."""
        fold = self.segment.fold
        about = f"{fold.session}/{fold.steps + 1}/{what}"
        return about if fold.open is None or fold.open.round == 1 else f"{about}.{fold.open.round}"

    def _take(self, reply: ModelReply, number: int, round_: int, asked: bool) -> None:
        """The reply with our ids into the log, after the rewrites and before anybody slow looks at it."""
        segment, caller, fold = self.segment, self.caller, self.segment.fold
        ours = _with_ids(reply, f"{fold.session}/{number}")
        attempt, paid, changed = 1 if asked else 0, asked, ""
        if asked and fold.open is not None:
            attempt += fold.open.tried
        if asked and caller is not None:
            attempt, paid, changed = caller.number, caller.paid, caller.fingerprint if caller.paid else ""
            if caller.wrapped:
                segment.standing = None
        if segment.voice is not None:
            segment.voice.settle(reply, ours, number, round_, attempt)
        segment.add(ModelReplied(number, ours, round_, attempt, paid, changed, at=fold.tick(segment.now)))
        if ours.client_calls:
            self._refuse_client_calls(ours, number)

    def _refuse_client_calls(self, reply: ModelReply, number: int) -> None:
        """End the turn: no call may be left without a result, and nobody here can make these."""
        segment, names = self.segment, ", ".join(reply.client_calls)
        why = f"the model asked for {names}, which your program would have to run, and Windlass has no tool for that"
        segment.record(ReplyRejected(number, why))
        if segment.voice is not None:
            segment.voice.drop("the reply does not stand")
        segment.conclude(Stopped(StopReason.UNSUPPORTED_CALL, why), "")

    async def _judge_reply(self, step: StepFold) -> bool:
        """ModelReplying: whether the reply stands. If not, it is asked for again, waits for a person or all is over."""
        segment = self.segment
        point = segment.hooks.model_replying
        assert point is not None
        assert step.reply is not None
        passage, self._passage = self._passage, None
        if passage is not None and not point.judges and not passage.said:
            return True
        if passage is None and any(call.decided for call in step.calls.values()):
            return True
        if segment.durable or point.waits or passage is None:  # before anybody slow looks at it
            await segment.commit()
        voice = segment.voice
        if passage is None:
            if voice is not None:
                voice.recall(step.reply, step.number, step.round)
            passage = self._passage_of(point, step.reply)
        message = step.reply.message
        turn = segment.fold.turn
        written = words_of_a_person(segment, message.text) if turn is not None and turn.answered else ()
        verdict = await decide(segment, passage, lambda: digest(repr(message)), written)
        if voice is not None and (verdict is WAITING or isinstance(verdict, Halt | Regenerate | Answer)):
            voice.drop("the reply does not stand")
        if verdict is WAITING:
            segment.suspend()
        elif isinstance(verdict, Halt):
            segment.record(ReplyRejected(step.number, verdict.reason, _speakers(passage, Halt)))
            segment.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
        elif isinstance(verdict, Regenerate):
            self._reject(step, verdict, _speakers(passage, Regenerate))
        elif isinstance(verdict, Answer):
            segment.record(ReplyRejected(step.number, "answered by a person"))
            await self._respond(point, str(verdict.value), step)
        else:
            return True
        return False

    async def _respond(self, point: Point, words: str, step: StepFold) -> None:
        """A person's words take the place of the reply, and are judged like one."""
        segment, number, round_ = self.segment, step.number, step.round + 1
        said = transform_reply(segment.hooks.transforms, as_reply(words))
        passage = self._passage_of(point, said)
        answered = _with_ids((await passage.rewrite()).reply, f"{segment.fold.session}/{number}")
        if segment.voice is not None:
            segment.voice.hold()
            segment.voice.settle(answered, answered, number, round_, 0)
        segment.record(ModelReplied(number, answered, round_, 0, False))

    def _reject(self, step: StepFold, verdict: Regenerate, by: tuple[str, ...]) -> None:
        segment = self.segment
        bound = segment.program.max_regenerations
        segment.record(ReplyRejected(step.number, verdict.feedback, by))
        if len(step.rejected) >= bound:
            detail = f"the reply was rejected {len(step.rejected) + 1} times: {verdict.feedback}"
            segment.conclude(Stopped(StopReason.REGENERATION, detail), "")


def _is_readable(call: ToolCallPart, tool: Tool[..., Any] | None) -> bool:
    """Whether the arguments of a call are whole; where no tool is known by its name, whether they are JSON."""
    try:
        if tool is None:
            msgspec.json.decode(call.json)
        else:
            tool.complete(call.json)
    except (ToolError, msgspec.MsgspecError, ValueError):
        return False
    return True


def _is_heard(segment: Segment) -> bool:
    """Whether somebody listens to the steps as they go, here or above."""
    return segment.voice is not None or (segment.parent is not None and segment.parent.listens)


def _speakers(passage: Passage, kind: type) -> tuple[str, ...]:
    return tuple(sorted([name for name, decision in passage.answers if isinstance(decision, kind)]))


def _with_ids(reply: ModelReply, step: str) -> ModelReply:
    """The reply with our ids: the step's on the message, `step/position` on its calls."""
    message = reply.message
    parts = message.parts
    if len(parts) == 1 and type(call := parts[0]) is ToolCallPart:
        parts = (ToolCallPart(call.name, call.json, f"{step}/1", call.vendor_id),)
    elif len(parts) != 1 or type(parts[0]) is not TextPart:
        parts = _numbered(parts, step)
    return replace(reply, message=Message("assistant", parts, message.origin, step, message.partial))


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
