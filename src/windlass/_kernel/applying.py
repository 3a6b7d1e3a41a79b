"""How a step ends: its messages enter the transcript past the guard's door, and StepEnding runs."""

from __future__ import annotations

import asyncio

from msgspec import Struct

from windlass._hooks.dispatch import Passage, failed_hook
from windlass.decisions import Deny, Halt, Rewind
from windlass.errors import HookError
from windlass.events import StepEnding
from windlass.messages import Message, Messages, TextPart, ToolCallPart, ToolResult, ToolResultPart, text_result, user
from windlass.outcomes import Stopped, StopReason, error_value
from windlass.records import HeldReleased, HookFailed, ModelReplied, ReplyRejected, Rewound, StepEnded
from windlass.states import CallFold, Fold, Step, StepFold, step_id

from .delegating import end_children
from .returning import close
from .segment import Segment
from .shielding import shielded
from .stages import add_message, admit, decide, handled, inject

ENDED_BY_ERROR = "the turn ended with an error"
"""What a model reads of a call that an error closed; what the error says may be what a hook would have withheld."""


class Applier(Struct, frozen=True):
    """Applies a finished step to the state. A suspended step stays open."""

    segment: Segment

    async def apply(self, fold: Fold, step: StepFold) -> None:
        segment, turn = self.segment, fold.turn
        if turn is None or turn.outcome is not None:
            return
        concluded, reason = turn.concluded, "The step ended before this call had a result."
        if concluded is not None and isinstance(concluded, Stopped) and concluded.reason is StopReason.LENGTH:
            reason = f"{concluded.detail}."
        await end_step(segment, None, reason)
        if not segment.commit_now():
            await segment.commit()


async def end_step(
    segment: Segment, error: BaseException | None = None, reason: str = "The turn ended before this call."
) -> None:
    """MessageAdding, the record that ends the step, what hooks added beside, then StepEnding."""
    fold, hooks, program = segment.fold, segment.hooks, segment.program
    step, number = fold.open, fold.steps + 1
    messages = None
    failures: list[HookError] = []
    if hooks.model_replying is not None or segment.voice is not None:
        _settle_reply(segment, reason)
        step = fold.open
    if step is not None:
        for call in step.calls.values():
            if call.result is None:  # also one that a replaced executor has forgotten
                await close_calls(segment, reason)
                break
        if hooks.message_adding is not None:
            messages = await _admitted(segment, step.messages(), step_id(fold.session, number), failures)
    segment.add(StepEnded(number, messages, segment.active(), at=fold.at))
    if fold.turn is not None and fold.turn.held:
        await release(segment)
    if (point := hooks.step_ending) is not None:
        ending = _ending(segment, Step(number, None) if step is None else step.step(), error)
        await (shielded(ending) if point.waits else ending)
    if program.handlers:
        await handled(segment, program.handlers.get("after_step", ()))
    if failures:
        raise failures[0]


async def release(segment: Segment) -> None:
    """Let in the messages that hooks and tools have added."""
    held = segment.fold.turn.held if segment.fold.turn is not None else ()
    failures: list[HookError] = []
    for item in held:
        try:
            await add_message(segment, item.message, item.by)
        except HookError as error:  # it stays out, and nobody is asked about it again while the turn closes
            failures.append(error)
    if held:
        segment.record(HeldReleased(len(held)))
    if failures:
        raise failures[0]


async def _admitted(
    segment: Segment, messages: tuple[Message, ...], about: str, failures: list[HookError]
) -> tuple[Message, ...] | None:
    """The step's messages as the guard lets them in; None if it left them as they are.

    One on which a hook fails stays out: nobody is asked about it again while the turn closes.
    """
    admitted: list[Message] = []
    for message in messages:
        try:
            verdict = await admit(segment, message, f"{about}/{message.role}")
        except HookError as error:
            failures.append(error)
            verdict = Deny(failed_hook(error))
        if isinstance(verdict, Deny | Halt):
            withheld = _withheld(message, verdict.reason)
            admitted += [withheld] if withheld is not None else []
        else:
            admitted.append(verdict)
    if tuple(admitted) == messages:
        return None
    if segment.voice is not None and (said := _spoken(tuple(admitted))) != _spoken(messages):
        segment.voice.admit(segment.fold.steps + 1, said)
    return tuple(admitted)


def _spoken(messages: tuple[Message, ...]) -> Message | None:
    """The reply among the messages of a step."""
    return next((message for message in messages if message.role == "assistant"), None)


def _withheld(message: Message, reason: str) -> Message | None:
    """A message that was not let in. Calls and results stay paired: their words are replaced by the reason."""
    if message.role == "tool":
        results = [p for p in message.parts if isinstance(p, ToolResultPart)]
        return message.replace(parts=tuple([p.replace(content=(TextPart(reason),), status="denied") for p in results]))
    calls = tuple([part for part in message.parts if isinstance(part, ToolCallPart)])
    return message.replace(parts=calls) if calls else None


async def _ending(segment: Segment, step: Step, error: BaseException | None) -> None:
    point = segment.hooks.step_ending
    assert point is not None
    about = step_id(segment.fold.session, step.number)
    passage = Passage(point, StepEnding(step, segment.turn, error), segment, about + "/end")
    try:
        async with asyncio.timeout(segment.program.ending_timeout):
            await passage.rewrite()
            verdict = await decide(segment, passage)
    except TimeoutError as late:
        segment.record(HookFailed("StepEnding", "StepEnding", error_value(late), effect="Halt"))
        verdict = Halt(f"the hooks of StepEnding took longer than {segment.program.ending_timeout} s")
    if isinstance(verdict, Halt):
        segment.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
    elif isinstance(verdict, Rewind):
        await _rewind(segment, verdict, tuple(sorted(name for name, d in passage.answers if isinstance(d, Rewind))))
    else:
        await inject(segment, passage, step_id(segment.fold.session, step.number + 1))


async def _rewind(segment: Segment, rewind: Rewind, by: tuple[str, ...]) -> None:
    """Back to before the reply of step `to`; the note tells the model what it left behind."""
    state = segment.state
    turn = state.turn
    assert turn is not None
    first = state.steps - turn.steps + 1
    if not first <= rewind.to <= state.steps:
        detail = f"{', '.join(by)} wanted to rewind to step {rewind.to}; this turn has steps {first} to {state.steps}"
        segment.conclude(Stopped(StopReason.HALTED, detail))
        return
    if turn.rewinds >= segment.program.max_vetoes:
        segment.conclude(Stopped(StopReason.VETO_CAP, f"{', '.join(by)} rewound {turn.rewinds + 1} times"))
        return
    if segment.voice is not None:
        segment.voice.rewind(range(rewind.to, state.steps + 1))
    segment.record(Rewound(rewind.to, _first_of(state.messages, turn.start + 1, rewind.to), by))
    if rewind.note:
        await add_message(segment, user(rewind.note, origin=", ".join(by)), ", ".join(by))


def _first_of(messages: Messages, start: int, step: int) -> int:
    """The index of the first reply of this step or a later one: an earlier rewind may have cut the step itself."""
    for index in range(start, len(messages)):
        message = messages[index]
        if message.role == "assistant" and message.id and int(message.id.rsplit("/", 1)[1]) >= step:
            return index
    return len(messages)


def keep_partial(segment: Segment) -> None:
    """What the user has seen of a reply that was cut short stays, marked as partial; not if hooks would have had to
    look at it first."""
    voice, fold, point = segment.voice, segment.fold, segment.hooks.model_replying
    if voice is None or (fold.open is not None and fold.open.reply is not None):
        return
    if point is not None and (point.changing or point.speaks):
        return
    if (partial := voice.partial()) is not None:
        message = partial.message.replace(id=step_id(fold.session, voice.step))
        reply = partial.replace(message=message)
        segment.record(ModelReplied(voice.step, reply, voice.round, voice.attempt, True))


async def abandon(segment: Segment, reason: str, error: BaseException | None = None) -> None:
    """End a step that has begun and cannot go on: its calls are closed and StepEnding runs with the error."""
    if segment.fold.open is not None or segment.stepping == segment.fold.steps + 1:
        await end_step(segment, error, reason)


def _settle_reply(segment: Segment, reason: str) -> None:
    """A reply that its gates have not let pass yet does not enter the transcript; another one does."""
    step, point, voice = segment.fold.open, segment.hooks.model_replying, segment.voice
    if step is None or step.reply is None:
        return
    passed = segment.passed == step.number or any(call.decided for call in step.calls.values())
    if point is not None and point.speaks and not passed:
        segment.record(ReplyRejected(step.number, reason))
        if voice is not None:
            voice.drop(reason)
    elif voice is not None:
        voice.stands()


async def close_calls(segment: Segment, reason: str) -> None:
    """Give every open call a result: one that was started is of unknown outcome, the others did not run."""
    if segment.program.delegates:
        await end_children(segment, reason)
    step = segment.fold.open
    for call in tuple(step.calls.values()) if step is not None else ():
        if call.result is None:
            result = segment.unreturned.pop(call.proposed.id, None)
            await close(segment, call, result or closed(segment, call, reason))


def closed(segment: Segment, call: CallFold, reason: str) -> ToolResult:
    """The result of a call that will not be finished; a pure one has done nothing, whether it was started or not."""
    tool = segment.program.tools.get(call.call.name)
    if call.in_doubt and (tool is None or tool.effect != "pure"):
        return text_result(f"Interrupted, outcome unknown: it may or may not have happened. {reason}", "interrupted")
    return text_result(f"Cancelled: {reason}", "cancelled")
