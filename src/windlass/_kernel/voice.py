"""The stream of a turn: facts as they happen, and words as soon as no hook can take them back."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from windlass._hooks.compiled import CompiledHooks
from windlass._hooks.streams import (
    StreamedPart,
    StreamedReply,
    Transforms,
    pieces_of,
    transform_reply,
)
from windlass.decisions import Answer, Finish, Halt
from windlass.deltas import AnyDelta, ArgumentsDelta, StreamEvent, TextDelta
from windlass.events import ModelCalled, Progressed, Retracted, TurnEnding
from windlass.masking import Mask, MaskingArguments
from windlass.messages import Message, ModelReply, ToolCallPart
from windlass.outcomes import Completed
from windlass.records import (
    Asked,
    Concluded,
    Fact,
    HookDecided,
    MessageAdded,
    MessageHeld,
    ModelAttempted,
    ModelReplied,
    Rewritten,
    SideReplied,
    SlotSet,
    StepEnded,
    ToolDecided,
)

from .channel import Channel


class Voice:
    """Turns the facts and words of a pass into one numbered stream.

    If a hook can still change a whole reply, the voice is mute: the words wait until the hook has
    answered, and so do all facts that follow them. The words of a rejected reply are never sent:
    its facts lose their words. So do the facts that are sent before a hook has judged the reply: an
    attempt inside the wraps, and the request that quotes it. `observe` tells observers which steps
    are retracted.

    For watchers, `released` has the words of the current attempt that were sent, `retractions` all
    retractions, and `progress` the latest progress of what runs.
    """

    __slots__ = (
        "_answer_is_untold", "_current_part", "_has_shown", "_held_facts", "_holds_answer",
        "_in_review", "_mask", "_masked_arguments", "_mute", "_observe", "_reply", "_reply_is_unsaid",
        "_seq", "_session", "_stream", "_streamed_reply", "_transforms", "attempt", "channel", "in_attempt",
        "progress", "released", "retractions", "round", "step",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel[StreamEvent],
        hooks: CompiledHooks,
        session: str,
        observe: Callable[[Fact], None],
        mask: Mask | None = None,
    ) -> None:
        self._mask = mask
        self._masked_arguments: dict[int, MaskingArguments] = {}
        self.channel = channel
        self._session = session
        self._observe = observe
        self._transforms = hooks.transforms
        self._seq = channel.sent
        self.released: list[AnyDelta] = []
        self.retractions: list[Retracted] = []
        self.progress: dict[tuple[str, str], Progressed] = {}
        self._held_facts: list[Fact] | None = None
        self._has_shown = self._reply_is_unsaid = self._in_review = self._answer_is_untold = False
        self._streamed_reply: ModelReply | None = None
        self._current_part: StreamedPart | None = None
        self.in_attempt = False
        self._stream: StreamedReply | None = None
        self._reply: ModelReply | None = None
        self.step = self.round = self.attempt = 0
        ending = hooks.at(TurnEnding)
        self._holds_answer = ending is not None and bool(ending.holders)
        self._mute = bool(hooks.holders)

    # ------------------------------------------------------------ facts

    def send_fact_below(self, fact: Fact, *, hides: bool) -> None:
        """A fact of an agent below; without its words if hooks there can still change them."""
        self.send_fact(without_words(fact) if hides else fact)

    def send_fact(self, fact: Fact) -> None:
        """Send a fact, or hold it until the words before it may be sent."""
        if type(fact) is Progressed:
            self.progress[fact.path, fact.about] = fact
            if self.channel.full:
                return  # a tool does not wait for a slow consumer
        if type(fact) is Asked or (self._mute and not fact.path and self._precedes_review(fact)):
            fact = without_words(fact)
        if self._held_facts is not None:
            self._held_facts.append(fact)
        elif self._holds_answer and not fact.path and _has_answer(fact):
            self._held_facts = [fact]
        else:
            self._send(fact)

    def _precedes_review(self, fact: Fact) -> bool:
        """Whether the fact has words that no hook has judged yet."""
        match fact:
            case (
                ModelAttempted() | ModelCalled() | Rewritten(event="ModelCalling" | "ModelReplying")
            ):
                return True
            case HookDecided() | ToolDecided():
                return self._holds_answer
            case _:
                return False

    def _send(self, event: Any) -> None:
        self._seq += 1
        self.channel.offer(event.replace(seq=self._seq))

    # ------------------------------------------------------------ words

    def begin_attempt(self, step: int, round_: int, attempt: int, transforms: Transforms) -> None:
        """Begin an attempt, whose words these transformers change.

        The words of an earlier attempt at the same reply are retracted.
        """
        self._release_held()
        self.retract_attempt()
        self.step, self.round, self.attempt = step, round_, attempt
        self._reply = self._streamed_reply = self._current_part = None
        self.released = []
        if self.progress:
            self.progress = {}
        self._transforms = transforms
        self._stream = StreamedReply(transforms)
        self._masked_arguments = {}
        self.in_attempt = True

    def end_attempt(self) -> None:
        """Note that the attempt has ended, with a reply or an error."""
        self.in_attempt = False

    def discard_attempt(self) -> None:
        """Discard the words of an attempt that failed."""
        self._stream = None

    def mute_replies(self) -> None:
        """Hold replies back from now on: a person may have to judge one that is in the log."""
        self._mute = True

    def note_untold_answer(self) -> None:
        """Note that no stream has sent the answer of the turn."""
        self._answer_is_untold = True

    def retract_attempt(self) -> None:
        """Retract the words of an attempt, because the model is asked again."""
        self._retract("the model is asked again")

    def feed(self, kind: type[AnyDelta], text: str, part: int, name: str = "") -> None:
        """Take a piece of the reply. A new part ends the text or reasoning before it."""
        current = self._current_part
        if current is None or current.part != part or current.kind is not kind:
            current = self._switch_to(kind, part, name)
        for piece in current.feed(text):
            if piece and not self._mute:
                self._say_piece(current, piece)

    def feed_text(self, text: str) -> None:
        """Take a piece of text without a part number: of the current text part, or a new one."""
        current = self._current_part
        if current is None:
            self.feed(TextDelta, text, 0)
        else:
            self.feed(TextDelta, text, current.part + (current.kind is not TextDelta))

    def _switch_to(self, kind: type[AnyDelta], part: int, name: str) -> StreamedPart:
        assert self._stream is not None
        if self._current_part is not None and self._current_part.kind is not ArgumentsDelta:
            self._current_part.ended = True
        self._current_part = current = self._stream.part(kind, part, name)
        return current

    def _say_piece(self, part: StreamedPart, piece: str) -> None:
        """Say a piece of a part that streams.

        Only for arguments secrets are removed here: the tool gets the whole ones.
        """
        if self._mask is not None and part.kind is ArgumentsDelta:
            if part.part not in self._masked_arguments:
                self._masked_arguments[part.part] = MaskingArguments(self._mask)
            piece = self._masked_arguments[part.part].feed(piece)
        if piece:
            self._say(part.kind, piece, part.part, part.name)

    def _say_held_arguments(self) -> bool:
        """Say what was held of arguments, now that they are whole.

        Whether what was said of them is what is recorded.
        """
        assert self._stream is not None
        fits = True
        for number, masking in self._masked_arguments.items():
            part, rest = self._stream.parts[number], masking.flush()
            fits = fits and rest is not None
            if rest:
                self._say(part.kind, rest, number, part.name)
        return fits

    def _say(self, kind: type[AnyDelta], text: str, part: int, name: str) -> None:
        if self._mask is not None:
            text = self._mask.text(text)
        self._seq += 1
        self._has_shown = True
        step, round_, attempt, seq = self.step, self.round, self.attempt, self._seq
        if kind is ArgumentsDelta:
            call = self._call_id(part)
            delta: AnyDelta = ArgumentsDelta(
                text, part, step, round_, attempt, seq, "", 0, call, name
            )
        else:
            delta = kind(text, part, step, round_, attempt, seq)
        self.released.append(delta)
        self.channel.offer(delta)

    def _call_id(self, part: int) -> str:
        """Our id of the call in a part: its place among the calls of the reply."""
        if self._stream is not None:
            streamed = self._stream.parts.items()
            calls = [at for at, current in streamed if current.kind is ArgumentsDelta]
        else:
            parts = self._reply.message.parts if self._reply is not None else ()
            calls = [at for at, current in enumerate(parts) if type(current) is ToolCallPart]
        return f"{self._session}/{self.step}/{sum(at <= part for at in calls)}"

    def complete_attempt(self, reply: ModelReply) -> ModelReply:
        """The reply after the transformers. Words that do not add up to it are retracted."""
        stream = self._stream
        assert stream is not None
        for kind, text, part, name in pieces_of(reply):
            if part not in stream.parts:
                self.feed(kind, text, part, name)
        for streamed, flushed in stream.flush():
            for piece in flushed:
                if piece and not self._mute:
                    self._say_piece(streamed, piece)
        transformed = stream.rebuild(reply)
        if not self._say_held_arguments() and transformed is not None:
            self._retract("the arguments of a call held secrets")
        elif transformed is None:
            self._retract("the pieces of the reply do not add up to it")
            transformed = transform_reply(self._transforms, reply)
        elif not self._mute:
            self._streamed_reply = transformed
        self._stream = None
        return transformed

    def hold(self) -> None:
        """Hold everything back from now on, because hooks are about to judge a reply."""
        if self._mute:
            self._release_held()
            self._held_facts = []
            self._in_review = True

    def accept(
        self, original: ModelReply, reply: ModelReply, step: int, round_: int, attempt: int
    ) -> None:
        """Take the reply as the rewrites left it; `original` is the same before it got our ids."""
        streamed = self._streamed_reply
        is_shown = streamed is not None and original.message == streamed.message
        is_shown = is_shown and attempt == self.attempt
        self.step, self.round, self.attempt = step, round_, attempt
        self._reply = reply
        self._stream = self._streamed_reply = None
        if self._mute:
            self._reply_is_unsaid = True
        elif not is_shown:
            self._retract("another reply took its place")
            self._show(reply)

    def hold_logged_reply(self, reply: ModelReply, step: int, round_: int) -> None:
        """Hold a reply of the log that hooks judge now. No stream has sent it yet."""
        self.hold()
        self.accept(reply, reply, step, round_, 1)

    def confirm(self) -> None:
        """Send the reply that the gates accept, unless hooks still have to judge the answer."""
        if not self._in_review and not self._has_shown:
            return
        self._in_review = False
        reply = self._reply
        may_be_answer = reply is not None and not reply.tool_calls
        if self._held_facts is not None and not (self._holds_answer and may_be_answer):
            self.release()
        self._has_shown = False

    def _release_held(self) -> None:
        """Send what is held before something new begins, without its words if it is in review."""
        if self._in_review:
            self._release_redacted()
        else:
            self.release()

    def release(self) -> None:
        """Send the reply that was held back, then the facts after it."""
        held, self._held_facts = self._held_facts, None
        if self._reply_is_unsaid and self._reply is not None:
            self._show(self._reply)
            self._has_shown = False
        self._reply_is_unsaid = self._in_review = False
        for fact in held or ():
            self._send(fact)

    def drop(self, reason: str) -> None:
        """Drop the reply: retract the words that were sent, and send the held facts without
        words."""
        self._retract(reason)
        self._reply = None
        self._release_redacted()

    def replace_message(self, step: int, message: Message | None) -> None:
        """Replace a step's reply by the message that entered the transcript; None drops it."""
        if self._reply is None or self.step != step:
            return
        self._reply = None if message is None else self._reply.replace(message=message)
        if self._reply_is_unsaid:
            self._reply_is_unsaid = self._reply is not None
            return
        self._retract_step(step, "a hook changed the message")
        if self._reply is not None:
            self._show(self._reply)
            self._has_shown = False

    def rewind(self, steps: Iterable[int]) -> None:
        """Retract these steps, because the turn goes back."""
        self.drop("the turn was rewound")
        for step in steps:
            self._retract_step(step, "the turn was rewound")

    def _release_redacted(self) -> None:
        held, self._held_facts = self._held_facts, None
        self._reply_is_unsaid = self._in_review = False
        for fact in held or ():
            self._send(without_words(fact))

    def _show(self, reply: ModelReply) -> None:
        for kind, text, part, name in pieces_of(reply):
            self._say(kind, text, part, name)

    def _retract(self, reason: str) -> None:
        if self._has_shown:
            self._has_shown = False
            self._retract_step(self.step, reason)

    def _retract_step(self, step: int, reason: str) -> None:
        retracted = Retracted(step, reason)
        self.released = []
        self.retractions.append(retracted)
        self._send(retracted)
        self._observe(retracted)

    # ------------------------------------------------------------ the end

    def end_turn(
        self, step: int, text: str | None, conclusion: str | None, answer: Callable[[], str]
    ) -> None:
        """Send the answer, after the hooks on the end of the turn.

        `step` is the last step of the turn, `text` the answer as those hooks changed it,
        `conclusion` a text that took the place of a reply. `answer` returns the answer of the turn,
        in case no stream has sent it.
        """
        self._retract("the turn ended before the reply was whole")
        if text is not None:
            if self._reply is not None and not self._reply.tool_calls and self._held_facts is None:
                self._has_shown = True
            self.drop("a hook changed the answer")
        else:
            self._release_held()
        final = conclusion if text is None else text
        if final is None and self._reply is None and self._answer_is_untold:
            final = answer()
        if final:
            self.step, self.round, self.attempt = max(step, self.step), 0, 0
            self._say(TextDelta, final, 0, "")
            self._has_shown = False

    def take_partial(self) -> ModelReply | None:
        """The words that were sent of a reply that was cut short; None if the attempt failed."""
        parts = self._stream.partial_parts() if self._stream is not None and self._has_shown else ()
        self._stream = None
        if not parts:
            return None
        self._has_shown = False
        message = Message("assistant", parts, partial=True)
        return ModelReply(message, finish="other", raw_finish="cancelled")

    def close(self) -> None:
        """End the stream. A reply that is still held was never accepted."""
        self.drop("the turn ended before the reply was whole")
        self.channel.note_sent(self._seq)


def _has_answer(fact: Fact) -> bool:
    """Whether the fact contains the answer of the turn, other than as the reply of a model."""
    if type(fact) is MessageAdded:
        return fact.message is not None and fact.message.role == "assistant"
    return type(fact) is Concluded


def without_words(fact: Fact) -> Fact:
    """The fact without the words of a model, also as hooks changed them."""
    match fact:
        case (
            ModelReplied(reply=reply)
            | ModelAttempted(reply=ModelReply() as reply)
            | SideReplied(reply=reply)
        ):
            empty = Message("assistant", id=reply.message.id)
            return fact.replace(reply=reply.replace(message=empty))
        case ModelCalled():
            return fact.replace(request=None)
        case Rewritten(fields=fields):
            return fact.replace(fields=dict.fromkeys(fields))
        case (
            HookDecided(verdict=verdict, answers=answers)
            | ToolDecided(verdict=Halt() as verdict, answers=answers)
        ):
            redacted = tuple([(name, _without_answer(decision)) for name, decision in answers])
            return fact.replace(verdict=_without_answer(verdict), answers=redacted)
        case Asked():
            return fact.replace(reply=None, request=None, text=None)
        case SlotSet():
            return fact.replace(value=None)
        case MessageAdded(message=Message() as message) | MessageHeld(message=message):
            return fact.replace(message=message.replace(parts=()))
        case StepEnded():
            return fact.replace(messages=None)
        case Concluded(outcome=Completed() as outcome):
            return fact.replace(text=None, outcome=outcome.replace(value=None))
        case Concluded():
            return fact.replace(text=None)
        case _:
            return fact


def _without_answer(decision: Any) -> Any:
    """A decision without the answer it gives."""
    if isinstance(decision, Answer | Finish):
        return type(decision)(None)
    return Halt(decision.reason) if isinstance(decision, Halt) else decision
