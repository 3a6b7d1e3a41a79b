"""Asking the model: the attempts inside the wraps, what is served from the log, and the gates for changed requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable
from typing import Any

from windlass._hooks.dispatch import Passage, cancelled
from windlass._hooks.streams import transform_reply
from windlass._hooks.wraps import Kind, passed_request
from windlass.checking import checked_reply, is_reply, reply_of
from windlass.decisions import Answer, Ask, Halt
from windlass.deltas import ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, HookError, ModelError, name_raiser
from windlass.events import ModelCalled, ModelCalling
from windlass.messages import ModelReply, ModelRequest, as_reply, digest
from windlass.outcomes import Stopped, StopReason, error_value, recorded_error
from windlass.protocols import Model
from windlass.records import HookDecided, ModelAttempted
from windlass.states import step_id

from .segment import Segment
from .side_calls import stable_text
from .speaking import Voice

_REPLY = Kind(ModelRequest, "a ModelReply, a Message or a str", is_reply, checked_reply, BadReply)


class RequestRefused(ModelError):
    """Gates refused a request that a wrap had changed; the turn ends whatever the wrap does with this."""


class ModelCaller:
    """Makes the model calls of a segment where somebody wraps them, counts tokens, looks on, listens or transforms.

    They are made one at a time, each with its attempts. Every request leaves through `attempt`. Where there are wraps,
    `ask` goes through them to it and keeps account of the attempts: only a wrap makes a second one or changes the
    request.
    """

    __slots__ = (
        "_attempted", "_onion", "attended", "error", "fingerprint", "halted", "judged", "limited", "meter", "number",
        "paid", "reply", "round", "said", "segment", "step", "transforms", "voice", "wrapped",
    )  # fmt: skip

    def __init__(self, segment: Segment) -> None:
        self.segment = segment
        self.voice = segment.voice
        self.meter = segment.meter
        self.transforms = segment.hooks.transforms
        self.attended = segment.listens or self.meter is not None or bool(self.transforms)
        self.paid = True
        self.number = 1
        self.fingerprint = ""
        self.wrapped = segment.program.wraps_models
        if self.wrapped:
            self.judged: ModelRequest | None = None
            self.halted: Halt | None = None
            self.reply: ModelReply | None = None
            self.error: Exception | None = None
            self.said: list[ModelReply] = []
            self.limited = segment.limited("model")
            self._onion = segment.wrapped(
                segment.hooks.model_wraps, self._innermost, _REPLY, self._guarded, self._place
            )

    def attempt(self, request: ModelRequest, step: int) -> Awaitable[Any]:
        """One request to one model: what it replies, as the transformers leave it."""
        model = self.segment.model(request)
        return self._attended(model, request, step) if self.attended else model.reply(request)

    async def _attended(self, model: Model, request: ModelRequest, step: int) -> ModelReply:
        """The same where somebody counts tokens, looks on, listens or transforms."""
        meter, segment = self.meter, self.segment
        ours = 0 if meter is None else meter.check(request)
        if segment.listens:
            segment.fact(ModelCalled, step, self.number, request, self.round)
        if self.voice is not None:
            reply = await self._aloud(self.voice, model, request, step)
        else:
            reply = transform_reply(self.transforms, reply_of(model.name, await model.reply(request)))
        if meter is not None:
            meter.learn(request.model, ours, reply.usage)
        return reply

    async def _aloud(self, voice: Voice, model: Model, request: ModelRequest, step: int) -> ModelReply:
        """The same for somebody who listens. Of attempts that run side by side the first is heard."""
        if voice.speaking:
            return transform_reply(self.transforms, reply_of(model.name, await model.reply(request)))
        voice.begin(step, self.round, self.number)
        try:
            stream = getattr(model, "stream", None)
            if stream is None:
                return voice.whole(reply_of(model.name, await model.reply(request)))
            return voice.whole(await self._heard(voice, model.name, stream(request)))
        except Exception:
            voice.speech = None
            raise
        finally:
            voice.speaking = False

    async def _heard(self, voice: Voice, model: str, pieces: object) -> ModelReply:
        """The model is heard while it speaks; its last word is the whole reply."""
        if not isinstance(pieces, AsyncIterable):
            raise BadReply(f"the stream of model {model!r} is a {type(pieces).__name__}, not an async generator")
        handover = voice.handover
        reply: ModelReply | None = None
        try:
            async for piece in pieces:
                kind = type(piece)
                if kind is str:
                    voice.feed_text(piece)
                elif kind is TextDelta or kind is ThinkingDelta or kind is ArgumentsDelta:
                    if type(piece.text) is not str or type(piece.part) is not int:
                        raise BadReply(f"model {model!r} streamed an invalid piece: {piece!r:.200}")
                    voice.feed(kind, piece.text, piece.part, piece.name if kind is ArgumentsDelta else "")
                else:
                    reply = reply_of(model, piece)
                if handover.full:
                    await self.segment.wait_for_consumer(handover.room())
        finally:
            if (close := getattr(pieces, "aclose", None)) is not None:
                await close()
        if reply is None:
            raise BadReply(f"the stream of model {model!r} ended without the whole reply", retryable=True)
        return reply

    # ------------------------------------------------------------ inside wraps

    async def ask(self, request: ModelRequest, step: int, round_: int, tried: int = 0) -> ModelReply | None:
        """The reply that leaves the outermost wrap; `paid` says whether it is that of the last attempt.

        `tried` is the number of the latest attempt, if the call failed before and is made again.

        None if the gates halted the turn over a request that a wrap had changed, whatever the wrap made of that.
        """
        self.round = round_
        if not self.wrapped:
            self.number = tried + 1
            given = await self.attempt(request, step)
            return given if self.attended or is_reply(given) else reply_of(request.model, given)
        self.judged, self.step = request, step
        self.number = self._attempted = tried
        self.reply = self.error = None
        if self.said:
            self.said = []
        onion = self._onion
        first, inner = onion.first, onion.inner
        try:
            given = await first(request, inner)
            if (given is None or given is not self.reply) and not is_reply(given):
                given = onion.checked(given)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, Exception):
                self._write_reply()
            if not isinstance(error, Exception) or not self._halted():
                onion.raised(error)
            return None
        finally:
            self.judged = None
        if self.halted is not None and self._halted():
            return None
        self.paid = given is self.reply or self._annotated(given)
        if not self.paid:
            self._write_attempt()
        if self.transforms and not any(given.message == said.message for said in self.said):
            return transform_reply(self.transforms, given)
        reply: ModelReply = given
        return reply

    def _place(self, _: ModelRequest) -> tuple[str, tuple[Any, ...]]:
        """What the wraps work on: the step, and the round if there was more than one."""
        return f"{self.step}" if self.round == 1 else f"{self.step}.{self.round}", ()

    def _annotated(self, given: ModelReply) -> bool:
        """Whether a wrap changed only what is said about the reply of the last attempt, such as its cost.

        It may also change the message of a reply that has an id; then the attempt is charged as the wrap says.
        """
        reply = self.reply
        if reply is not None and given.message is not reply.message and given.response_id:
            if given.response_id == reply.response_id:
                self.reply = reply.replace(usage=given.usage)
            return False
        return reply is not None and given.message is reply.message

    def _halted(self) -> bool:
        """Whether the gates halted the turn over a changed request: then it is concluded."""
        halt, self.halted = self.halted, None
        if halt is not None:
            self.segment.conclude(Stopped(StopReason.HALTED, halt.reason), halt.reply)
        return halt is not None

    def _guarded(self, request: ModelRequest, given: ModelReply) -> ModelReply:
        """What leaves the guard band counts as what the model said, if it was asked."""
        if self.reply is not None:
            self.reply = given
            if self.limited:
                self.segment.standing = given.usage
        return given

    async def _innermost(self, request: ModelRequest) -> ModelReply:
        self.segment.refuse_cancelled()
        self.number += 1
        self.fingerprint = ""
        if request is not self.judged:
            request = passed_request(request, self.judged)
        if (self.number > 1 or request is not self.judged or self.segment.resumed) and (
            settled := await self._before(request)
        ) is not None:
            return settled
        if self.limited and (stopped := self.segment.stopped_before("model")) is not None:
            self.halted = Halt(stopped.detail)
            raise RequestRefused(stopped.detail)
        try:
            given = await self.attempt(request, self.step)
            reply = given if self.attended or is_reply(given) else reply_of(request.model, given)
        except Exception as error:
            name_raiser(error, "")
            self._write_attempt()
            self.error = error
            raise
        except asyncio.CancelledError as cancel:
            if cancelled():
                raise
            self._write_attempt()
            self.error = unasked(request.model)
            raise self.error from cancel
        if self.reply is not None or self.error is not None:  # of one that ran beside this one
            self._write_attempt()
        self.reply = reply
        if self.limited:
            self.segment.standing = reply.usage
        if self.transforms:
            self.said.append(reply)
        return reply

    async def _before(self, request: ModelRequest) -> ModelReply | None:
        """What the log has is served; what the gates have not judged goes to them first."""
        segment = self.segment
        if self.judged is None:
            raise HookError("call_next was kept and called when the call was over", hook="", event="ModelCall")
        if self.number > 1:
            self._write_attempt()
        changed = request is not self.judged
        self.fingerprint = fingerprint_of(self.judged, request) if changed else ""
        if segment.resumed and (served := self._served()) is not None:
            return self._serve(served)
        if changed and segment.hooks.model_calling is not None:
            return await self._judge(request)
        return None

    def _write_attempt(self) -> None:
        """The last attempt did not stand: it is recorded, with what it cost."""
        if self.reply is not None or self.error is not None:
            error = None if self.error is None else error_value(self.error)
            number = self._attempted = self._attempted + 1
            self.segment.record(ModelAttempted(self.step, self.round, number, self.fingerprint, self.reply, error))
            self.reply = self.error = None
            self.segment.standing = None

    def _write_reply(self) -> None:
        """A wrap raised although the last attempt gave a reply: that is recorded, as it is paid for."""
        if self.reply is not None:
            self._write_attempt()

    async def _judge(self, request: ModelRequest) -> ModelReply | None:
        """A request that is not the one the gates judged: they judge again; there an `Ask` is a refusal."""
        segment = self.segment
        point = segment.hooks.model_calling
        assert point is not None
        about = f"{step_id(segment.fold.session, self.step)}/attempt.{self.number}"
        passage = Passage(point, ModelCalling(request, segment.turn), segment, about)
        verdict = await passage.judge()
        if passage.answers:
            segment.record(HookDecided("ModelCalling", about, verdict, passage.answers, took=passage.took))
        if isinstance(verdict, Answer):
            return as_reply(verdict.value)
        if isinstance(verdict, Ask):
            verdict = Halt(f"nobody can be asked about a request that a wrap changed: {verdict.question}")
        if isinstance(verdict, Halt):
            self.halted = verdict
            raise RequestRefused(verdict.reason)
        return None

    def _served(self) -> ModelAttempted | None:
        open_step = self.segment.fold.open
        for attempt in open_step.attempts if open_step is not None else ():
            if (attempt.round, attempt.attempt, attempt.fingerprint) == (self.round, self.number, self.fingerprint):
                return attempt
        return None

    def _serve(self, served: ModelAttempted) -> ModelReply:
        self._attempted = served.attempt
        if served.reply is None:
            assert served.error is not None
            raise recorded_error(served.error)
        if self.transforms:
            self.said.append(served.reply)
        return served.reply


def unasked(model: str) -> ModelError:
    """The error of a model that raised a CancelledError although nobody cancelled the turn."""
    text = f"model {model!r} raised CancelledError, but nobody cancelled the turn"
    return ModelError(text, retryable=True)


def fingerprint_of(judged: ModelRequest, request: ModelRequest) -> str:
    """What tells a changed request from the judged one: only the fields that a wrap changed."""
    fields = ("system", "model", "tools", "settings", "output")
    changed = [field for field in fields if getattr(request, field) is not getattr(judged, field)]
    texts = [f"{field}={stable_text(getattr(request, field))}" for field in changed]
    if request.messages is not judged.messages:
        texts.append(f"messages={stable_text(list(request.messages))}")
    return digest(*texts) if texts else ""
