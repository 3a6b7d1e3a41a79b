"""How a turn begins, goes on and ends: the first of the composites."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage, failed_hook
from windlass._hooks.hooks import Hook
from windlass.approvals import checked_answers, stale
from windlass.context.assembly import joined
from windlass.decisions import Answer, Ask, Deny, Halt, Reject
from windlass.errors import HookError, OutputError, SessionError, StoreError
from windlass.events import MessageAdding, Resuming, SessionStarting, Setup, TurnEnding, TurnFailed, TurnStarting
from windlass.messages import Message, TextPart, ToolSpec, assistant, digest, render
from windlass.outcomes import Cancelled, Completed, Failed, Stopped, StopReason, error_value
from windlass.records import (
    Answered,
    HookDecided,
    HookFailed,
    InboxTaken,
    MessageAdded,
    Resumed,
    Rewritten,
    SessionEnded,
    SessionOpened,
    Suspended,
    TurnEnded,
    TurnStarted,
)
from windlass.states import Fold, State, over
from windlass.turns import Writes

from .applying import ENDED_BY_ERROR, abandon, keep_partial, release
from .compacting import prepare
from .delegating import check_edit
from .drifting import differences
from .inbox import fitting, from_below
from .opening import withheld
from .questions import asks_of, question, words_of_a_person
from .segment import Segment
from .shielding import shielded
from .speaking import Voice
from .stages import WAITING, add_message, begun, decide, handled, inject, may_go_on, take_in
from .unwritten import inject_unwritten


def _why_withheld(error: Exception) -> str:
    """Why an answer is withheld, for those who may not read what the hook's error says."""
    return failed_hook(error) if isinstance(error, HookError) else "the hooks of TurnEnding took too long"


class TurnLifecycle(Struct):
    """Starts, finishes and, if need be, cleans up after a turn."""

    segment: Segment
    _unheard: bool = False

    # ------------------------------------------------------------ start

    async def start(self, fold: Fold) -> None:
        segment, message = self.segment, self.segment.message
        program = segment.program
        if message is None:
            await self._resume()
        elif fold.turn is None and fold.opened is None and not program.judges_openings:
            self._opened()
            if not program.kept:
                await program.keep()
            self._begin(message)
            record = segment.add
            record(MessageAdded(at=fold.at))
        else:
            await self._open(message)
        if program.timed and fold.going:
            segment.watch_time()
        if program.handlers:
            await handled(segment, program.handlers.get("before_turn", ()))
        if segment.durable and message is not None:
            await segment.commit()  # before a model is asked: the message is safe, and others find the session

    async def _open(self, message: Message) -> None:
        """Open the session, if it is not, and the turn."""
        segment = self.segment
        if segment.fold.turn is not None and not segment.fold.state.over:
            await self._supersede()
        if segment.program.judges_openings:
            segment.open_turn(self._started(message))
            self._take_slots()
        if (halt := await self._open_session()) is None:
            await self._open_turn(message)
        else:
            self._refuse(message, halt)

    def _refuse(self, message: Message, refusal: Halt | Deny) -> None:
        """The user message is not let in: the log has only its length."""
        self._begin(message, kept_out=True)
        self._halt(refusal)

    def _halt(self, refusal: Halt | Deny) -> None:
        reply = refusal.reply if isinstance(refusal, Halt) else None
        self.segment.conclude(Stopped(StopReason.HALTED, refusal.reason), reply)

    async def _open_session(self) -> Halt | None:
        """Record that the session is opened, if it is new or goes on under another pipeline. A refused one is not."""
        segment = self.segment
        program, fold = segment.program, segment.fold
        if fold.opened is not None:
            if fold.pipeline != program.digest or fold.ended:
                segment.write(SessionOpened("resumed", program.name, program.digest))
                await program.keep()
            return None
        system = tools = sections = None
        if (point := segment.hooks.session_starting) is not None:
            setup = Setup(program.system, program.specs)
            passage = Passage(point, SessionStarting(setup, segment.turn), segment, fold.session)
            changed: Setup = (await passage.rewrite()).setup
            self._check_tools(changed)
            verdict = await decide(segment, passage)
            if isinstance(verdict, Halt):
                return verdict
            added: list[TextPart] = [part for item in await passage.inject() for part in item.parts]  # type: ignore[misc]
            sections = (*self._kept_sections(changed.system), *added)
            system = joined(sections)
            if system == program.system:
                system = sections = None
            tools = None if changed.tools == program.specs else changed.tools
        self._opened(system, tools, sections)
        await program.keep()
        return None

    def _check_tools(self, setup: Setup) -> None:
        """Refuse a tool that hooks have added and nobody can execute: no tool, no wrap, no gate that might answer."""
        segment = self.segment
        program, hooks = segment.program, segment.hooks
        calling = hooks.tool_calling
        answering = () if calling is None else (*calling.changing, *calling.gates, *calling.costly)
        serving = [*hooks.tool_wraps, *answering]
        for spec in setup.tools if setup.tools != program.specs else ():
            if spec.name not in program.tools and not any(_may_serve(hook, spec.name) for hook in serving):
                pending = [] if segment.opening is None else segment.opening.records
                names = [
                    record.hook for record in pending if isinstance(record, Rewritten) and "tools" in record.fields
                ]
                raise HookError(
                    f"rewrite {', '.join(names)!r} added tool {spec.name!r} on SessionStarting, which nobody can "
                    "execute: give the agent a tool of that name, or a wrap or gate that answers its calls",
                    hook=", ".join(names),
                    event="SessionStarting",
                )

    def _opened(
        self,
        system: str | None = None,
        tools: tuple[ToolSpec, ...] | None = None,
        sections: tuple[TextPart, ...] | None = None,
    ) -> None:
        """Record that a session is opened, with what hooks have changed of the agent's."""
        segment = self.segment
        program = segment.program
        parent = "" if segment.parent is None else segment.parent.fold.session
        segment.write(SessionOpened("new", program.name, program.digest, system, tools, "", sections, parent))

    def _kept_sections(self, system: str) -> tuple[TextPart, ...]:
        """Who put what into the system text, once rewrites have seen it: what they changed is theirs."""
        program, opening = self.segment.program, self.segment.opening
        if system == program.system or opening is None:
            return program.sections
        hooks = [
            record.hook for record in opening.records if isinstance(record, Rewritten) and "system" in record.fields
        ]
        by = ", ".join(hooks)
        if program.system and system.startswith(f"{program.system}\n\n"):
            return (*program.sections, TextPart(system[len(program.system) + 2 :], by))
        return (TextPart(system, by),) if system else ()

    def _started(self, message: Message, kept_out: bool = False) -> TurnStarted:
        segment, fold = self.segment, self.segment.fold
        number, opening = fold.turns + 1, segment.opening
        at = fold.tick(segment.now) if opening is None else opening.began
        if kept_out:
            size = max(len(message.text), 1)
            return TurnStarted(number, withheld(message), f"{fold.session}/t{number}", withheld=size, at=at)
        return TurnStarted(number, message, f"{fold.session}/t{number}", at=at)

    def _begin(self, message: Message, kept_out: bool = False) -> None:
        """Record that a turn has started, and then what its hooks wrote before."""
        segment, opening = self.segment, self.segment.opening
        started = self._started(message, kept_out)
        written = segment.turn_opened()
        record = segment.record
        segment.began = True
        record(started)
        if segment.stop is not None:
            segment.note_stop()
        if segment.taken is not None:
            segment.record(InboxTaken(segment.taken, "steer"))
        if segment.given_slots and opening is None:
            self._take_slots()
        for one in (*segment.early, *written):
            record(one)

    def _take_slots(self) -> None:
        """What the caller gave for slots; those that take nothing from callers do not get it."""
        segment = self.segment
        for name, value in segment.given_slots.items():
            slot = segment.slot(name)
            if slot.input:
                writes = Writes("caller")
                writes.slots[name] = (slot, value)
                segment.keep(writes)

    async def _open_turn(self, message: Message) -> None:
        """Rewrites first, so that the log holds what they made of the message; then the gates judge that."""
        segment = self.segment
        about = f"{segment.fold.session}/t{segment.fold.turns + 1}"
        passage = door = None
        if (point := segment.hooks.turn_starting) is not None:
            passage = Passage(point, TurnStarting(message, segment.turn), segment, about)
            message = (await passage.rewrite()).message
        if (point := segment.hooks.message_adding) is not None:
            door = Passage(point, MessageAdding(message, segment.turn), segment, about + "/message")
            message = (await door.rewrite()).message
            if passage is not None:
                passage.event = replace(passage.event, message=message)
        verdict, refusal = await self._judge_turn(passage, door, message)
        if refusal is None:
            self._begin(message)
            await self._let_in(passage, verdict)
        else:
            self._refuse(message, refusal)

    async def _judge_turn(
        self, passage: Passage | None, door: Passage | None, message: Message
    ) -> tuple[Any, Halt | Deny | None]:
        """What TurnStarting says of the message, and who keeps it out, there or at the guard's door."""
        segment = self.segment
        verdict = None if passage is None else await decide(segment, passage, lambda: digest(message.text))
        if isinstance(verdict, Halt):
            return verdict, verdict
        at_door = None if door is None or verdict is WAITING else await decide(segment, door)
        return verdict, at_door if isinstance(at_door, Halt | Deny) else None

    async def _let_in(self, passage: Passage | None, verdict: Any) -> None:
        """The user message into the transcript, with what is injected beside it; unless a person has to answer."""
        segment = self.segment
        if verdict is WAITING:
            segment.suspend()
            return
        answered = isinstance(verdict, Answer)
        items = [] if passage is None or answered else await passage.inject()
        for item in items:
            if not item.durable:
                await take_in(segment, item)
        segment.record(MessageAdded())
        await release(segment)
        if answered:
            text = "".join(getattr(part, "text", "") for part in render(verdict.value))
            await add_message(segment, assistant(text), "answer")
            self._unheard = True
            segment.conclude(Completed())
        for item in items:
            if item.durable:
                await take_in(segment, item)

    async def _supersede(self) -> None:
        """A new message on a turn that is not over: its open calls are closed first, then it ends, hooks and all."""
        segment = self.segment
        await abandon(segment, "The user went on before this call had a result.")
        if segment.fold.turn is not None and segment.fold.turn.outcome is not None:
            segment.record(Resumed(segment.program.digest))
        segment.conclude(Stopped(StopReason.SUPERSEDED, "the user went on"))
        assert segment.fold.turn is not None
        await self._end(segment.fold.turn.concluded, final=True)

    # ------------------------------------------------------------ resume

    async def _resume(self) -> None:
        segment = self.segment
        now = segment.now()
        taken, checked = await self._from_elsewhere() if segment.inbox or segment.waiting else ([], [])
        if segment.delivered is None:
            checked += self._answers(checked, now)
        else:
            checked = list(segment.delivered)
        turn = segment.fold.turn
        assert turn is not None
        self._unheard = turn.concluded is not None
        drift = await self._compare()
        about = f"{segment.fold.session}/t{turn.number}/resume"
        allowed = next((answered for answered in checked if answered.id == about), None)
        verdict = await self._resuming(about, drift, allowed) if isinstance(turn.outcome, Suspended) else None
        if verdict is WAITING:
            for answered in checked:
                segment.record_answer(answered)
            for record in taken:
                segment.record(record)
            if segment.fold.pending:
                segment.suspend()
            return
        for answered in checked if not isinstance(verdict, Halt) else [allowed] if allowed is not None else []:
            segment.record_answer(answered)
        segment.record(Resumed(segment.program.digest, drift))
        if isinstance(verdict, Halt):
            await abandon(segment, f"The turn was halted: {verdict.reason}")
            segment.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
            return
        for record in taken:
            segment.record(record)
        if turn.cancel is not None:  # a fork may have been cut right there
            segment.conclude(Cancelled(turn.cancel))
        await segment.commit()
        if turn.concluded is not None:  # and whoever concluded it died before the step was closed
            await abandon(segment, "the turn had ended")
        if not turn.admitted:
            if segment.fold.going:
                await self._go_on_starting()
        elif segment.fold.going:
            await self._pick_up()

    async def _pick_up(self) -> None:
        """What the one who died had still to do: unwritten injections, and the vote on a step that had ended."""
        segment, fold = self.segment, self.segment.fold
        turn = fold.turn
        assert turn is not None
        await inject_unwritten(segment)
        voted = turn.evaluated if turn.evaluated is not None and turn.evaluated.step == fold.steps else None
        if fold.open is None and turn.steps and not begun(fold):
            await segment.resolver.resolve(fold, voted or await segment.evaluator.evaluate(fold))

    async def _compare(self) -> tuple[str, ...]:
        """What differs from the agent that the turn was recorded with. Gates that are new since then are asked."""
        segment, program = self.segment, self.segment.program
        if segment.fold.pipeline == program.digest:
            return ()
        data = await program.store.pipeline(segment.fold.pipeline)
        rows = [] if data is None else msgspec.json.decode(data)["hooks"]
        segment.known = {(row["event"], row["kind"], row["name"]) for row in rows}
        await program.keep()
        return differences(data, program.description)

    async def _go_on_starting(self) -> None:
        """The turn was suspended, or died, before its message was let in; the log holds what rewrites made of it."""
        segment = self.segment
        turn = segment.fold.turn
        assert turn is not None
        about = f"{segment.fold.session}/t{turn.number}"
        passage = door = None
        if (point := segment.hooks.turn_starting) is not None:
            passage = Passage(point, TurnStarting(turn.message, segment.turn), segment, about)
        if (point := segment.hooks.message_adding) is not None:
            door = Passage(point, MessageAdding(turn.message, segment.turn), segment, about + "/message")
        verdict, refusal = await self._judge_turn(passage, door, turn.message)
        if refusal is None:
            await self._let_in(passage, verdict)
        else:
            self._halt(refusal)

    async def _resuming(self, about: str, drift: tuple[str, ...], answered: Answered | None) -> Any:
        """Resuming: hooks may stop the turn or ask again before it goes on; `answered` says what a person told."""
        segment, fold = self.segment, self.segment.fold
        point = segment.hooks.resuming
        if answered is not None and isinstance(answered.answer, Reject):
            return Halt(answered.answer.message or "a person stopped the turn")
        if answered is not None:
            return None
        if segment.is_waiting(about):
            return WAITING
        if point is None:
            return None
        passage = Passage(point, Resuming(fold.state, segment.turn, drift), segment, about)
        await passage.rewrite()
        verdict = await passage.judge()
        if passage.answers:
            segment.record(HookDecided("Resuming", about, verdict, passage.answers, took=passage.took))
        if isinstance(verdict, Ask):
            segment.ask_person(question(segment, passage, verdict, "", asks_of(passage.answers)))
            return WAITING
        if may_go_on(verdict):
            asked = fold.open is not None and fold.open.reply is not None
            await inject(segment, passage, f"{fold.session}/{fold.steps + 1 + asked}")
        return verdict

    async def _from_elsewhere(self) -> tuple[list[InboxTaken], list[Answered]]:
        """The answers that came through the inbox, or through that of an agent below whose question is open here, too.

        One that fits no question that is open counts for nothing.
        """
        segment, store = self.segment, self.segment.program.store
        entries = [
            entry for entry in await store.take(segment.fold.session, segment.fold.inbox) if entry[1] == "answer"
        ]
        given = [data for kind, data in await from_below(store, segment.fold) if kind == "answer"]
        heard: dict[str, Answered] = {}
        for data in (*given, *[data for _, _, data in entries]):
            if (found := fitting(segment, data)) is not None:
                heard.setdefault(found.id, found)
        return [InboxTaken(key, kind) for key, kind, _ in entries], list(heard.values())

    def _answers(self, heard: list[Answered], now: float) -> list[Answered]:
        """The answers that the caller gave, and the defaults of questions that nobody has answered in time.

        `now` is from before the inbox was read: an answer that came until then has been heard.
        """
        segment = self.segment
        known = {answered.id for answered in heard}
        if again := known & segment.answers.keys():
            raise stale(segment.fold.session, min(again), "it has been answered already")
        waiting = [asked for asked in segment.waiting if asked.id not in known]
        fits = partial(check_edit, segment.program)
        return checked_answers(segment.fold.session, waiting, dict(segment.answers), now, fits)

    # ------------------------------------------------------------ finish

    async def finish(self, fold: Fold) -> State:
        segment = self.segment
        segment.ends()
        turn = fold.turn
        if turn is not None and turn.concluded is not None and turn.outcome is None:
            program = segment.program
            quiet = segment.hooks.turn_ending is None and segment.voice is None and not program.handlers
            if quiet and program.read_output is None and not turn.held:
                self._note_end(turn.concluded, None, False)
            else:
                await self._end(turn.concluded)
        return fold.state if segment.settle_now() else await segment.settle()

    def _end(self, outcome: Any, *, final: bool = False) -> Coroutine[Any, Any, None]:
        """The ending hooks, which nobody breaks off, then the record. A `final` end does not wait for anybody."""
        point = self.segment.hooks.turn_ending
        ending = self._end_now(outcome, final)
        return shielded(ending) if point is not None and point.waits else ending

    async def _end_now(self, outcome: Any, final: bool) -> None:
        segment = self.segment
        text: str | None = None
        if segment.hooks.turn_ending is not None:
            ended = await self._ending(outcome)
            if ended is None and not final:
                segment.suspend()
                return
            outcome, text = ended or (outcome, "")
        await release(segment)
        if isinstance(outcome, Completed) and (why := self._misfit(text)):
            outcome, text = Stopped(StopReason.WITHHELD, why), ""
        if segment.voice is not None and not final:
            self._last_words(segment.voice, text)
        if segment.program.handlers:
            await handled(segment, segment.program.handlers.get("after_turn", ()))
        self._note_end(outcome, text, final)

    def _misfit(self, text: str | None) -> str:
        """Why the final text is not of the type that the agent promised; nothing if it is."""
        segment = self.segment
        read = segment.program.read_output
        try:
            if read is not None:
                read(segment.state.text if text is None else text)
        except OutputError as error:
            return f"{error}; to end a turn with another text, answer Halt(reason, reply=…)"
        return ""

    def _last_words(self, voice: Voice, text: str | None) -> None:
        """The stream ends with what was not heard of the answer yet."""
        fold = self.segment.fold
        turn = fold.turn
        assert turn is not None
        voice.end(fold.steps if turn.steps else 0, text, turn.text, fold.state.text if self._unheard else "")

    def _note_end(self, outcome: Any, text: str | None, final: bool) -> None:
        """Record that the turn has ended, and the session with it if it has no name."""
        segment = self.segment
        if segment.listens and isinstance(outcome, Failed):
            segment.fact(TurnFailed, outcome.error)
        record, fold = segment.add, segment.fold
        record(TurnEnded(outcome, text, segment.active(), at=fold.tick(segment.now)))
        if segment.ephemeral and not final:
            record(SessionEnded(at=fold.at))
        elif segment.program.compactors:
            prepare(segment)

    async def _ending(self, outcome: Any) -> tuple[Any, str | None] | None:
        """TurnEnding: the outcome and the text, if a hook changed it. None if a person has to be asked first."""
        segment = self.segment
        turn = segment.fold.turn
        point = segment.hooks.turn_ending
        assert turn is not None
        assert point is not None
        before = segment.state.text
        about = f"{segment.fold.session}/t{turn.number}/end"
        passage = Passage(point, TurnEnding(outcome, before, segment.turn), segment, about)
        try:
            async with asyncio.timeout(segment.program.ending_timeout):
                text: str = (await passage.rewrite()).text
                if text != before and isinstance(outcome, Completed) and (why := self._misfit(text)):
                    raise self._blame(about, why)
                verdict = await decide(segment, passage, lambda: digest(text))
                if isinstance(verdict, Answer):
                    text, verdict = await self._respond(point, outcome, str(verdict.value), about)
        except Exception as error:
            verdict = Deny(_why_withheld(error))
            text = ""
            who = getattr(error, "hook", "") or "TurnEnding"
            segment.record(HookFailed(who, "TurnEnding", error_value(error), effect="withheld"))
        if verdict is WAITING:
            return None
        if isinstance(verdict, Deny):
            if isinstance(outcome, Failed | Cancelled):
                return outcome, ""
            return Stopped(StopReason.WITHHELD, verdict.reason), ""
        marked = turn.unreviewed
        if marked and isinstance(outcome, Completed | Stopped):
            outcome = outcome.replace(unreviewed=marked)
        return outcome, None if text == before else text

    def _blame(self, about: str, why: str) -> HookError:
        """The error of the hooks that changed the final text to one that does not fit."""
        pending = self.segment.fold.pending
        hooks = [record.hook for record in pending if isinstance(record, Rewritten) and record.about == about]
        by = ", ".join(hooks) or "TurnEnding"
        return HookError(f"rewrite {by!r} changed the final text: {why}", hook=by, event="TurnEnding")

    async def _respond(self, point: Point, outcome: Any, words: str, about: str) -> tuple[str, Any]:
        """A person's words for the answer, and the verdict on them: hooks look at them as at any other answer."""
        segment = self.segment
        passage = Passage(point, TurnEnding(outcome, words, segment.turn), segment, f"{about}/response")
        text: str = (await passage.rewrite()).text
        verdict = await decide(segment, passage, lambda: digest(text), words_of_a_person(segment, words))
        return (str(verdict.value), None) if isinstance(verdict, Answer) else (text, verdict)

    # ------------------------------------------------------------ the way out when all else fails

    async def failed(self, fold: Fold, error: BaseException) -> State:
        """Close the turn after a cancel or a breakdown: every call gets a result, ending hooks run, then it is over.

        A cancel from outside is raised on; one from inside, an end of time and anything else is the outcome. A conflict
        or a stale answer is the caller's to know.
        """
        segment = self.segment
        by_itself = segment.ends() and isinstance(error, asyncio.CancelledError)
        if isinstance(error, SessionError):
            raise error
        segment.failure = None if by_itself else error
        state = await shielded(self._close(error), patience=3 * segment.program.ending_timeout)
        if not isinstance(error, Exception) and not by_itself:
            raise error
        return state

    async def _close(self, error: BaseException) -> State:
        segment = self.segment
        if isinstance(error, StoreError):
            segment.give_up(error)
        if isinstance(error, Exception):
            outcome: Failed | Cancelled | Stopped = Failed(error_value(error))
        else:
            outcome = segment.stop or Cancelled(str(error))
        try:
            if over(segment.fold):
                if segment.began or segment.message is None:
                    return await segment.settle()
                self._begin(segment.message, kept_out=segment.program.judges_openings)
            if not isinstance(outcome, Failed):
                keep_partial(segment)
            segment.request_cancel(outcome)
            segment.conclude(outcome)
            failed = isinstance(error, Exception)
            await abandon(segment, ENDED_BY_ERROR if failed else f"the turn ended: {error}", error)
            await self._end(segment.fold.turn.concluded if segment.fold.turn else outcome)
            return await segment.settle()
        except StoreError:  # what cannot be stored is still told to the caller
            segment.conclude(outcome)
            turn = segment.fold.turn
            if turn is not None and (turn.outcome is None or isinstance(error, StoreError)):
                segment.record(TurnEnded(outcome, "", segment.active()))
            return segment.state
        except Exception as another:
            segment.record(TurnEnded(outcome, "", segment.active()))
            segment.record(HookFailed("", "TurnEnding", error_value(another), effect="the turn was closed without"))
            return await segment.settle()


def _may_serve(hook: Hook, tool: str) -> bool:
    """Whether a hook may answer calls of a tool that does not exist: no rewrite can, nor one for another tool."""
    elsewhere = isinstance(hook.tool, str) and hook.tool.isidentifier() and hook.tool != tool
    return hook.kind != "rewrite" and not elsewhere
