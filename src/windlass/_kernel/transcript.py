"""The guard's door: every message passes MessageAdding before it enters the transcript."""

from __future__ import annotations

import inspect
from typing import Any

from msgspec import Struct

from windlass._hooks.dispatch import failed_hook
from windlass.checking import read_back
from windlass.decisions import Deny, Halt
from windlass.errors import ConfigError, HookError, text_of
from windlass.events import MessageAdding
from windlass.messages import Message, TextPart, ToolCallPart, ToolResultPart, digest
from windlass.outcomes import Stopped, StopReason
from windlass.records import HeldReleased, HistoryImported, MessageAdded, Record
from windlass.states import State

from .journal import Journal
from .questions import Questions
from .site import Site


class Transcript(Struct, eq=False):
    """Lets messages into the transcript, or keeps them out."""

    journal: Journal
    _site: Site
    _questions: Questions
    guarded: bool = False

    def __post_init__(self) -> None:
        self.guarded = self._site.hooks.at(MessageAdding) is not None

    async def admit(self, message: Any, about: str) -> Any:
        """The message as it may enter, or the `Deny` or `Halt` that keeps it out.

        A Halt concludes the turn.
        """
        point = self._site.hooks.at(MessageAdding)
        if point is None:
            return message
        event, resumed = MessageAdding(message, self._site.turn), self._questions.resumed
        if not resumed and not point.is_asked_about(event):
            return message
        passage = self._site.passage(point, event, about)
        if point.changing:
            message = (await passage.rewrite()).message
        if not point.decides and not resumed:
            return message
        verdict = await self._questions.decide(passage)
        if isinstance(verdict, Halt):
            self.journal.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
        return verdict if isinstance(verdict, Deny | Halt) else message

    async def add(self, message: Any, by: str, *why: Record) -> bool:
        """A message into the transcript. False if it was not let in.

        `why` are records that go with it: all are in the log, or none is.
        """
        fold = self.journal.fold
        place = f"{fold.session}/m{len(fold.messages) + 1}"
        admitted = await self.admit(message, f"{place}/{digest(repr(message))[:8]}")
        for record in why:
            self.journal.record(record)
        if not isinstance(admitted, Deny | Halt):
            self.journal.record(MessageAdded(admitted, by))
            return True
        return False

    async def import_history(self, messages: list[Message]) -> Halt | None:
        """The messages of an earlier history into an empty transcript, each past its hooks.

        Nothing is recorded of a history that a hook halts.
        """
        session = self.journal.fold.session
        admitted: list[Message] = []
        kept_out = 0
        for number, message in enumerate(messages, 1):
            verdict = await self.admit(message, f"{session}/m{number}/{digest(repr(message))[:8]}")
            if isinstance(verdict, Halt):
                return verdict
            kept_out += isinstance(verdict, Deny)
            entered = _withheld(message, verdict.reason) if isinstance(verdict, Deny) else verdict
            admitted += [] if entered is None else [entered]
        self.journal.record(HistoryImported(tuple(admitted), self.journal.program.name, kept_out))
        return None

    async def add_held(self) -> None:
        """Let in the messages that hooks and tools have added."""
        turn = self.journal.fold.turn
        held = turn.held if turn is not None else ()
        failures: list[HookError] = []
        for item in held:
            try:
                await self.add(item.message, item.by)
            except HookError as error:  # it stays out, and hooks are not asked about it again while the turn closes
                failures.append(error)
        if held:
            self.journal.record(HeldReleased(len(held)))
        if failures:
            raise failures[0]

    async def admit_step(
        self, messages: tuple[Message, ...], about: str
    ) -> tuple[tuple[Message, ...] | None, HookError | None]:
        """The messages of a step as they may enter, None if hooks left them as they are; and the
        first failure.

        A message on which a hook fails stays out: hooks are not asked about it again while the turn
        closes.
        """
        admitted: list[Message] = []
        failure: HookError | None = None
        for message in messages:
            try:
                verdict = await self.admit(message, f"{about}/{message.role}")
            except HookError as error:
                failure = failure or error
                verdict = Deny(failed_hook(error))
            if isinstance(verdict, Deny | Halt):
                withheld = _withheld(message, verdict.reason)
                admitted += [withheld] if withheld is not None else []
            else:
                admitted.append(verdict)
        if tuple(admitted) == messages:
            return None, failure
        voice = self.journal.audience.voice
        if voice is not None and (said := _reply_among(admitted)) != _reply_among(messages):
            voice.replace_message(self.journal.fold.steps + 1, said)
        return tuple(admitted), failure

    async def run_handlers(self, phase: str) -> None:
        """Let phase handlers go on from the state.

        A message that one adds passes the guard's door like any other.
        """
        for handler in self.journal.program.handlers.get(phase, ()):
            name = type(handler).__name__
            try:
                answer = handler.handle(self.journal.state, self._site.turn)
                made: object = await answer if inspect.isawaitable(answer) else answer
            except Exception as error:
                text = f"phase handler {name!r} failed: {type(error).__name__}: {text_of(error)}"
                raise HookError(text, hook=name) from error
            if not isinstance(made, State):
                raise ConfigError(
                    f"phase handler {name!r} returned {type(made).__name__}; it must return a State"
                )
            for record in self.journal.records_of(name, made):
                record = _readable(name, record)
                if isinstance(record, MessageAdded) and record.message is not None:
                    await self.add(record.message, record.by or name)
                else:
                    self.journal.record(record)


def _reply_among(messages: list[Message] | tuple[Message, ...]) -> Message | None:
    """The reply among the messages of a step."""
    return next((message for message in messages if message.role == "assistant"), None)


def _withheld(message: Message, reason: str) -> Message | None:
    """A message that was not let in.

    Calls and results stay paired: their words are replaced by the reason.
    """
    if message.role == "tool":
        results = [p for p in message.parts if isinstance(p, ToolResultPart)]
        return message.replace(
            parts=tuple([p.replace(content=(TextPart(reason),), status="denied") for p in results])
        )
    calls = tuple([part for part in message.parts if isinstance(part, ToolCallPart)])
    return message.replace(parts=calls) if calls else None


def _readable(handler: str, record: Record) -> Record:
    """A record that a phase handler made, as a log gives it back."""
    try:
        read: Record = read_back(record, type(record))
    except TypeError as error:
        text = f"phase handler {handler!r} made an invalid {type(record).__name__}: {error}"
        raise HookError(text, hook=handler) from None
    return read
