"""What a streamed turn says: facts as they happen, and words as soon as nobody can take them back any more."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from windlass._hooks.compiled import CompiledHooks
from windlass._hooks.streams import Saying, Speech, pieces_of, transform_reply
from windlass.decisions import Answer, Finish, Halt
from windlass.deltas import AnyDelta, ArgumentsDelta, StreamEvent, TextDelta
from windlass.events import ModelCalled, Retracted, TurnEnding
from windlass.messages import Message, ModelReply, ToolCallPart
from windlass.outcomes import Completed
from windlass.records import (
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

PLACES = 64
"""How many deltas and facts may wait for the consumer of a stream before the turn waits for it."""


class Voice:
    """Turns what a pass does into one numbered stream.

    Where a hook can still change a whole reply the voice is `mute`: the words wait, and with them all facts that come
    after, until the hook has spoken. A reply that does not stand is never told: its facts go without their words, and
    so do those that are told before anybody has judged (an attempt inside the wraps, the request that quotes it).
    `observe` tells those who look on of what is taken back.
    """

    __slots__ = (
        "_doubt", "_held", "_latest", "_mask", "_observe", "_said", "_seq", "_session", "_shown", "_transforms",
        "_unheard", "_unsaid", "attempt", "channel", "mute", "reply", "round", "speaking", "speech", "step",
        "withholds",
    )  # fmt: skip

    def __init__(
        self,
        channel: Channel[StreamEvent],
        hooks: CompiledHooks,
        session: str,
        observe: Callable[[Fact], None],
        mask: Callable[[str], str] | None = None,
    ) -> None:
        self._mask = mask
        self.channel = channel
        self._session = session
        self._observe = observe
        self._transforms = hooks.transforms
        self._seq = channel.sent
        self._held: list[Fact] | None = None
        self._shown = self._unsaid = self._doubt = self._unheard = False
        self._said: ModelReply | None = None
        self._latest: Saying | None = None
        self.speaking = False
        self.speech: Speech | None = None
        self.reply: ModelReply | None = None
        self.step = self.round = self.attempt = 0
        ending = hooks.at(TurnEnding)
        self.withholds = ending is not None and bool(ending.holders)
        self.mute = bool(hooks.holders)

    # ------------------------------------------------------------ facts

    def fact(self, fact: Fact) -> None:
        """Tell a fact, or keep it until the words before it may be said."""
        if self.mute and not fact.path and self._early(fact):
            fact = without_words(fact)
        if self._held is not None:
            self._held.append(fact)
        elif self.withholds and not fact.path and _answers(fact):
            self._held = [fact]
        else:
            self._offer(fact)

    def _early(self, fact: Fact) -> bool:
        """Whether it has words in it that nobody has judged yet, and perhaps never will."""
        match fact:
            case ModelAttempted() | ModelCalled() | Rewritten(event="ModelCalling" | "ModelReplying"):
                return True
            case HookDecided() | ToolDecided():
                return self.withholds
            case _:
                return False

    def _offer(self, event: Any) -> None:
        self._seq += 1
        self.channel.offer(event.replace(seq=self._seq))

    # ------------------------------------------------------------ words

    def begin(self, step: int, round_: int, attempt: int) -> None:
        """An attempt begins. What was shown of an earlier one at the same reply does not count."""
        self._let_go()
        self._retract("the model is asked again")
        self.step, self.round, self.attempt = step, round_, attempt
        self.reply = self._said = self._latest = None
        self.speech = Speech(self._transforms)
        self.speaking = True

    def finish(self) -> None:
        """The attempt is over, whatever came of it."""
        self.speaking = False

    def fail(self) -> None:
        """The attempt failed: nothing of it counts."""
        self.speech = None

    def mute_replies(self) -> None:
        """Hold replies back from here on: a person may have to judge one that the log has."""
        self.mute = True

    def note_unheard(self) -> None:
        """The turn has an answer that no stream has told."""
        self._unheard = True

    def take_back_attempt(self) -> None:
        """The attempt failed and the model is asked again: what was shown of it does not count."""
        self._retract("the model is asked again")

    def feed(self, kind: type[AnyDelta], text: str, part: int, name: str = "") -> None:
        """A piece of the reply has come. Text and reasoning are over when another part begins."""
        saying = self._latest
        if saying is None or saying.part != part or saying.kind is not kind:
            saying = self._turn_to(kind, part, name)
        for made in saying.feed(text):
            if made and not self.mute:
                self._say(kind, made, part, saying.name)

    def feed_text(self, text: str) -> None:
        """A piece of text that does not say of which part: the one that is being said, or the next."""
        saying = self._latest
        if saying is None:
            self.feed(TextDelta, text, 0)
        else:
            self.feed(TextDelta, text, saying.part + (saying.kind is not TextDelta))

    def _turn_to(self, kind: type[AnyDelta], part: int, name: str) -> Saying:
        assert self.speech is not None
        if self._latest is not None and self._latest.kind is not ArgumentsDelta:
            self._latest.over = True
        self._latest = saying = self.speech.part(kind, part, name)
        return saying

    def _say(self, kind: type[AnyDelta], text: str, part: int, name: str) -> None:
        if self._mask is not None:
            text = self._mask(text)
        self._seq += 1
        self._shown = True
        if kind is ArgumentsDelta:
            call = self._call_id(part)
            self.channel.offer(
                ArgumentsDelta(text, part, self.step, self.round, self.attempt, self._seq, "", call, name)
            )
        else:
            self.channel.offer(kind(text, part, self.step, self.round, self.attempt, self._seq))

    def _call_id(self, part: int) -> str:
        """Our id of the call that is being said: its place among the calls of the reply."""
        if self.speech is not None:
            calls = [at for at, saying in self.speech.parts.items() if saying.kind is ArgumentsDelta]
        else:
            said = self.reply.message.parts if self.reply is not None else ()
            calls = [at for at, kind in enumerate(said) if type(kind) is ToolCallPart]
        return f"{self._session}/{self.step}/{sum(at <= part for at in calls)}"

    def whole(self, reply: ModelReply) -> ModelReply:
        """The attempt gave its whole reply: what was said counts, if it adds up to that."""
        speech = self.speech
        assert speech is not None
        for kind, text, part, name in pieces_of(reply):
            if part not in speech.parts:
                self.feed(kind, text, part, name)
        for saying, flushed in speech.end():
            for made in flushed:
                if made and not self.mute:
                    self._say(saying.kind, made, saying.part, saying.name)
        said = speech.whole(reply)
        if said is None:
            self._retract("the pieces of the reply do not add up to it")
            said = transform_reply(self._transforms, reply)
        elif not self.mute:
            self._said = said
        self.speech = None
        return said

    def hold(self) -> None:
        """A reply is about to be judged: from here on nothing is told until it stands."""
        if self.mute:
            self._let_go()
            self._held = []
            self._doubt = True

    def settle(self, given: ModelReply, reply: ModelReply, step: int, round_: int, attempt: int) -> None:
        """The reply that counts, as the rewrites left it; `given` is the same before it got our ids."""
        heard = self._said is not None and given.message == self._said.message and attempt == self.attempt
        self.step, self.round, self.attempt = step, round_, attempt
        self.reply = reply
        self.speech = self._said = None
        if self.mute:
            self._unsaid = True
        elif not heard:
            self._retract("another reply took its place")
            self._show(reply)

    def recall(self, reply: ModelReply, step: int, round_: int) -> None:
        """A reply of the log is judged now: nobody has heard it yet."""
        self.hold()
        self.settle(reply, reply, step, round_, 1)

    def stands(self) -> None:
        """The gates let the reply pass. If it may be the answer, those who judge the end of the turn come first."""
        if not self._doubt and not self._shown:
            return
        self._doubt = False
        if self._held is not None and not (self.withholds and self.reply is not None and not self.reply.tool_calls):
            self.release()
        self._shown = False

    def _let_go(self) -> None:
        """Something else begins: what stands is said before it, what does not is told without its words."""
        if self._doubt:
            self._release_redacted()
        else:
            self.release()

    def release(self) -> None:
        """Say what was held back, and tell what came after."""
        held, self._held = self._held, None
        if self._unsaid and self.reply is not None:
            self._show(self.reply)
            self._shown = False
        self._unsaid = self._doubt = False
        for fact in held or ():
            self._offer(fact)

    def drop(self, reason: str) -> None:
        """The reply does not stand: what was shown is taken back, what was held is told without its words."""
        self._retract(reason)
        self.reply = None
        self._release_redacted()

    def admit(self, step: int, message: Message | None) -> None:
        """The reply of a step has entered the transcript as another message, or not at all: then nothing is said."""
        if self.reply is None or self.step != step:
            return
        self.reply = None if message is None else self.reply.replace(message=message)
        if self._unsaid:
            self._unsaid = self.reply is not None
            return
        self._take_back(step, "a hook changed the message")
        if self.reply is not None:
            self._show(self.reply)
            self._shown = False

    def rewind(self, steps: Iterable[int]) -> None:
        """The turn goes back: what was told of these steps does not count."""
        self.drop("the turn was rewound")
        for step in steps:
            self._take_back(step, "the turn was rewound")

    def _release_redacted(self) -> None:
        held, self._held = self._held, None
        self._unsaid = self._doubt = False
        for fact in held or ():
            self._offer(without_words(fact))

    def _show(self, reply: ModelReply) -> None:
        for kind, text, part, name in pieces_of(reply):
            self._say(kind, text, part, name)

    def _retract(self, reason: str) -> None:
        if self._shown:
            self._shown = False
            self._take_back(self.step, reason)

    def _take_back(self, step: int, reason: str) -> None:
        retracted = Retracted(step, reason)
        self._offer(retracted)
        self._observe(retracted)

    # ------------------------------------------------------------ the end

    def end(self, step: int, text: str | None, concluded: str | None, answer: Callable[[], str]) -> None:
        """The ending hooks have spoken. `text` is what they made of the answer, `concluded` what was said instead of a
        reply, `answer` gives the answer, which no stream may have told; `step` is the last one of the turn."""
        self._retract("the turn ended before the reply was whole")
        if text is not None:
            if self.reply is not None and not self.reply.tool_calls and self._held is None:
                self._shown = True
            self.drop("a hook changed the answer")
        else:
            self._let_go()
        said = concluded if text is None else text
        if said is None and self.reply is None and self._unheard:
            said = answer()
        if said:
            self.step, self.round, self.attempt = max(step, self.step), 0, 0
            self._say(TextDelta, said, 0, "")
            self._shown = False

    def partial(self) -> ModelReply | None:
        """What the user has seen of a reply that was cut short. Of an attempt that failed nothing counts."""
        parts = self.speech.partial() if self.speech is not None and self._shown else ()
        self.speech = None
        if not parts:
            return None
        self._shown = False
        return ModelReply(Message("assistant", parts, partial=True), finish="other", raw_finish="cancelled")

    def close(self) -> None:
        """Nothing more will be said. What is still held never stood."""
        self.drop("the turn ended before the reply was whole")
        self.channel.note_sent(self._seq)


def _answers(fact: Fact) -> bool:
    """Whether it has the answer of the turn in it, other than as the reply of a model."""
    if type(fact) is MessageAdded:
        return fact.message is not None and fact.message.role == "assistant"
    return type(fact) is Concluded


def without_words(fact: Fact) -> Fact:
    """A fact without what a model said, or what hooks made of it."""
    match fact:
        case ModelReplied(reply=reply) | ModelAttempted(reply=ModelReply() as reply) | SideReplied(reply=reply):
            return fact.replace(reply=reply.replace(message=Message("assistant", id=reply.message.id)))
        case ModelCalled():
            return fact.replace(request=None)
        case Rewritten(fields=fields):
            return fact.replace(fields=dict.fromkeys(fields))
        case HookDecided(verdict=verdict, answers=answers):
            silent = tuple([(name, _silent(decision)) for name, decision in answers])
            return fact.replace(verdict=_silent(verdict), answers=silent)
        case ToolDecided(verdict=Halt() as verdict, answers=answers):
            silent = tuple([(name, _silent(decision)) for name, decision in answers])
            return fact.replace(verdict=_silent(verdict), answers=silent)
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


def _silent(decision: Any) -> Any:
    """A decision without the answer it gives."""
    if isinstance(decision, Answer | Finish):
        return type(decision)(None)
    return Halt(decision.reason) if isinstance(decision, Halt) else decision
