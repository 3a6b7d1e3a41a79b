"""Asking the model: the attempts inside the wraps, what is served from the log, and the gates for
changed requests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Awaitable
from typing import TYPE_CHECKING, Any

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import cancelled
from windlass._hooks.streams import transform_reply
from windlass._hooks.wraps import Kind, passed_request
from windlass.checking import checked_reply, is_reply, reply_of
from windlass.context.budget import Meter
from windlass.decisions import Answer, Ask, Halt
from windlass.deltas import ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, HookError, ModelError, RequestRefused, name_raiser
from windlass.events import ModelCalled, ModelCalling
from windlass.messages import ModelReply, ModelRequest, as_reply, digest, stable_text
from windlass.outcomes import Stopped, StopReason, error_from_value, error_value
from windlass.protocols import Model
from windlass.records import HookDecided, ModelAttempted
from windlass.states import step_id

from .cancellation import Cancellation
from .journal import Journal
from .limits import Limits
from .site import Site

if TYPE_CHECKING:
    from .voice import Voice

_REPLY = Kind(ModelRequest, "a ModelReply, a Message or a str", is_reply, checked_reply, BadReply)


class ModelCalls:
    """Makes the model calls of a pass, one at a time, each with its attempts. Every request leaves
    through `attempt`.

    Where there are wraps, `ask` goes through them and keeps account of the attempts: only a wrap
    makes a second one or changes the request. `number` is that of the latest attempt; `paid` says
    whether it gave the reply. `unchecked` says that `ask` gives replies as the model made them, `settles`
    that `settle` has something to do, `transforming` that there are transformers.
    """

    __slots__ = (
        "_attempted", "_cancellation", "_journal", "_limits", "_onion", "_resumed", "_site", "_told", "attended",
        "error", "fingerprint", "halted", "judged", "limited", "meter", "number", "paid", "reply", "round", "said",
        "settles", "step", "transforming", "transforms", "unchecked", "voice", "wrapped",
    )  # fmt: skip

    def __init__(
        self,
        journal: Journal,
        site: Site,
        cancellation: Cancellation,
        limits: Limits,
        meter: Meter | None,
        *,
        resumed: bool,
    ) -> None:
        self._journal = journal
        self._site = site
        self._cancellation = cancellation
        self._limits = limits
        self._resumed = resumed
        self._told = journal.audience.hears(ModelCalled)
        self.voice = journal.audience.voice
        self.meter = meter
        self.transforms = site.hooks.transforms
        self.transforming = bool(self.transforms)
        self.attended = self._told or meter is not None or self.transforming
        self.paid = True
        self.step = self.round = self.number = 1
        self.fingerprint = ""
        self.limited = limits.exist("model")
        self.wrapped = bool(site.hooks.model_wraps)
        self.settles = self.wrapped and self.limited
        self.unchecked = not (self.wrapped or self.limited or self.attended)
        if self.wrapped:
            self.judged: ModelRequest | None = None
            self.halted: Halt | None = None
            self.reply: ModelReply | None = None
            self.error: Exception | None = None
            self.said: list[ModelReply] = []
            site.write_standing = self._write_standing
            self._onion = site.wrapped(
                site.hooks.model_wraps, self._innermost, _REPLY, self._guarded, self._place
            )

    def attempt(self, request: ModelRequest) -> Awaitable[object]:
        """One request to one model. Await what it replies, as the transformers leave it, and pass
        it to `reply_of`."""
        program = self._journal.program
        model = program.model if request.model is program.model_name else program.model_for(request)
        if request.output is not None and "output_mode" in request.settings:
            from windlass.models.outputs import with_output_mode

            model = with_output_mode(model, request)
        return self._observed(model, request) if self.attended else model.reply(request)

    async def _observed(self, model: Model, request: ModelRequest) -> ModelReply:
        """The same where tokens are counted, observers look on, a stream is read or transformers
        work."""
        meter = self.meter
        ours = 0 if meter is None else meter.check(request)
        if self._told:
            self._journal.fact(ModelCalled, self.step, self.number, request, self.round)
        if self.voice is not None:
            reply = await self._streamed(self.voice, model, request)
        else:
            reply = reply_of(model.name, await model.reply(request))
            reply = transform_reply(self.transforms.on(request), reply)
        if meter is not None:
            meter.learn(request.model, ours, reply.usage)
        return reply

    async def _streamed(self, voice: Voice, model: Model, request: ModelRequest) -> ModelReply:
        """The same for the consumer of a stream.

        Of attempts that run side by side the first is streamed.
        """
        if voice.in_attempt:
            reply = reply_of(model.name, await model.reply(request))
            return transform_reply(self.transforms.on(request), reply)
        voice.begin_attempt(self.step, self.round, self.number, self.transforms.on(request))
        try:
            stream = getattr(model, "stream", None)
            if stream is None:
                return voice.complete_attempt(reply_of(model.name, await model.reply(request)))
            return voice.complete_attempt(
                await self._read_stream(voice, model.name, stream(request))
            )
        except Exception:
            voice.discard_attempt()
            raise
        finally:
            voice.end_attempt()

    async def _read_stream(self, voice: Voice, model: str, pieces: object) -> ModelReply:
        """Read the pieces of a reply as they come; the last one is the whole reply."""
        if not isinstance(pieces, AsyncIterable):
            raise BadReply(
                f"the stream of model {model!r} is a {type(pieces).__name__}, not an async generator"
            )
        channel = voice.channel
        reply: ModelReply | None = None
        try:
            async for piece in pieces:
                kind = type(piece)
                if kind is str:
                    voice.feed_text(piece)
                elif kind is TextDelta or kind is ThinkingDelta or kind is ArgumentsDelta:
                    if type(piece.text) is not str or type(piece.part) is not int:
                        raise BadReply(f"model {model!r} streamed an invalid piece: {piece!r:.200}")
                    voice.feed(
                        kind, piece.text, piece.part, piece.name if kind is ArgumentsDelta else ""
                    )
                else:
                    reply = reply_of(model, piece)
                if channel.full:
                    await self._journal.audience.wait_for_consumer()
        finally:
            if (close := getattr(pieces, "aclose", None)) is not None:
                await close()
        if reply is None:
            raise BadReply(
                f"the stream of model {model!r} ended without the whole reply", retryable=True
            )
        return reply

    # ------------------------------------------------------------ inside wraps

    def ask(self, request: ModelRequest, step: int, round_: int, tried: int = 0) -> Awaitable[Any]:
        """The reply to a request that its gates let pass; pass it to `reply_of` if it is
        `unchecked`. None if a limit or a gate ended the turn instead.

        `tried` is the number of the latest attempt, if the call failed before and is made again.
        """
        if (task := self._cancellation.task) is not None and task.cancelling():
            self._cancellation.check()  # a tool or model may have swallowed it
        self.step, self.round, self.number = step, round_, tried
        if self.wrapped:
            return self._ask_in_wraps(request)
        self.number = tried + 1
        return self._attempt_limited(request) if self.limited else self.attempt(request)

    async def _attempt_limited(self, request: ModelRequest) -> ModelReply | None:
        if self._limits.stop_before("model") is not None:
            return None
        return reply_of(request.model, await self.attempt(request))

    async def _ask_in_wraps(self, request: ModelRequest) -> ModelReply | None:
        """The reply that leaves the outermost wrap; `paid` says whether it is that of the last
        attempt.

        None if the gates halted the turn over a request that a wrap had changed, whatever the wrap
        made of that.
        """
        self.judged, self._attempted = request, self.number
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
        if self.transforming and not any(given.message == said.message for said in self.said):
            return transform_reply(self.transforms.on(request), given)
        reply: ModelReply = given
        return reply

    def _write_standing(self) -> None:
        """A wrap is about to ask a model or an agent: record the latest attempt, which was paid
        for."""
        if self.judged is not None:
            self._write_reply()

    def write_paid(self) -> None:
        """The wraps were broken off: record the latest attempt, which was paid for."""
        self._write_reply()

    def settle(self) -> None:
        """The reply is about to be recorded with its cost."""
        self._limits.note_standing(None)

    def _place(self, _: ModelRequest) -> tuple[str, tuple[Any, ...]]:
        """What the wraps work on: the step, and the round if there was more than one."""
        return f"{self.step}" if self.round == 1 else f"{self.step}.{self.round}", ()

    def _annotated(self, given: ModelReply) -> bool:
        """Whether a wrap changed only what is said about the reply of the last attempt, such as its
        cost.

        It may also change the message of a reply that has an id; then the attempt is charged as the
        wrap says.
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
            self._journal.conclude(Stopped(StopReason.HALTED, halt.reason), halt.reply)
        return halt is not None

    def _guarded(self, request: ModelRequest, given: ModelReply) -> ModelReply:
        """What leaves the guard band counts as what the model said, if it was asked."""
        if self.reply is not None:
            self.reply = given
            if self.limited:
                self._limits.note_standing(given.usage)
        return given

    async def _innermost(self, request: ModelRequest) -> ModelReply:
        if (task := self._cancellation.task) is not None and task.cancelling():
            self._cancellation.check()
        self.number += 1
        if request is not self.judged:
            request = passed_request(request, self.judged)
        if self.number > 1 or request is not self.judged or self._resumed:
            if (settled := await self._before(request)) is not None:
                return settled
        else:
            self.fingerprint = ""
        if self.limited and (stopped := self._limits.stop_before("model")) is not None:
            self.halted = Halt(stopped.detail)
            raise RequestRefused(stopped.detail)
        try:
            reply = reply_of(request.model, await self.attempt(request))
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
        self._onion.accept(reply)
        if self.limited:
            self._limits.note_standing(reply.usage)
        if self.transforming:
            self.said.append(reply)
        return reply

    async def _before(self, request: ModelRequest) -> ModelReply | None:
        """What the log has is served; what the gates have not judged goes to them first."""
        if self.judged is None:
            raise HookError(
                "call_next was kept and called when the call was over", hook="", event="ModelCall"
            )
        if self.number > 1:
            self._write_attempt()
        changed = request is not self.judged
        self.fingerprint = fingerprint_of(self.judged, request) if changed else ""
        if self._resumed and (served := self._served()) is not None:
            return self._serve(served)
        if changed and (point := self._site.hooks.at(ModelCalling)) is not None:
            return await self._judge(point, request)
        return None

    def _write_attempt(self) -> None:
        """The last attempt did not stand: it is recorded, with what it cost."""
        if self.reply is not None or self.error is not None:
            error = None if self.error is None else error_value(self.error)
            number = self._attempted = self._attempted + 1
            attempted = ModelAttempted(
                self.step, self.round, number, self.fingerprint, self.reply, error
            )
            self._journal.record(attempted)
            self.reply = self.error = None
            self._limits.note_standing(None)

    def _write_reply(self) -> None:
        """A wrap raised although the last attempt gave a reply: that is recorded, as it is paid
        for."""
        if self.reply is not None:
            self._write_attempt()

    async def _judge(self, point: Point, request: ModelRequest) -> ModelReply | None:
        """A request that is not the one the gates judged: they judge again; there an `Ask` is a
        refusal."""
        journal, site = self._journal, self._site
        about = f"{step_id(journal.fold.session, self.step)}/attempt.{self.number}"
        passage = site.passage(point, ModelCalling(request, site.turn), about)
        verdict = await passage.judge()
        if passage.answers:
            journal.record(
                HookDecided("ModelCalling", about, verdict, passage.answers, took=passage.took)
            )
        if isinstance(verdict, Answer):
            return as_reply(verdict.value)
        if isinstance(verdict, Ask):
            verdict = Halt(
                f"a person cannot be asked about a request that a wrap changed: {verdict.question}"
            )
        if isinstance(verdict, Halt):
            self.halted = verdict
            raise RequestRefused(verdict.reason)
        return None

    def _served(self) -> ModelAttempted | None:
        open_step = self._journal.fold.open
        for attempt in open_step.attempts if open_step is not None else ():
            if (attempt.round, attempt.attempt, attempt.fingerprint) == (
                self.round,
                self.number,
                self.fingerprint,
            ):
                return attempt
        return None

    def _serve(self, served: ModelAttempted) -> ModelReply:
        self._attempted = served.attempt
        if served.reply is None:
            assert served.error is not None
            raise error_from_value(served.error)
        if self.transforming:
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
