"""How a turn begins: the session is opened, the message judged and let in, with what is injected
beside it."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from windlass._hooks.dispatch import Passage
from windlass._hooks.hooks import Hook
from windlass.context.assembly import join_sections
from windlass.decisions import Answer, Deny, Halt
from windlass.errors import HookError
from windlass.events import MessageAdding, SessionStarting, Setup, ToolCalling, TurnStarting
from windlass.messages import Message, TextPart, ToolSpec, assistant, digest, render
from windlass.outcomes import Completed, Stopped, StopReason
from windlass.records import InboxTaken, MessageAdded, Rewritten, SessionOpened, TurnStarted
from windlass.turns import Writes

from .cancellation import Cancellation
from .entry import Entry
from .injections import Injections
from .journal import Journal
from .opening import withheld
from .questions import WAITING, Questions
from .site import Site


class TurnStart(Struct, eq=False):
    """Opens sessions and turns. `parent` is the session of the agent above, if there is one."""

    _site: Site
    _entry: Entry
    _questions: Questions
    _injections: Injections
    _cancellation: Cancellation
    _parent: str = ""
    _judged: bool = False

    def __post_init__(self) -> None:
        at = self._site.hooks.at
        self._judged = bool(at(SessionStarting) or at(TurnStarting) or at(MessageAdding))

    @property
    def _journal(self) -> Journal:
        return self._site.journal

    async def open(self, message: Message) -> None:
        """Open the session, if it is not open, and the turn."""
        if self._journal.fold.background:
            self._site.background.go_on()
        if self._judged:
            self._journal.open_turn(self._started(message))
            self._take_slots()
        if (halt := await self._open_session()) is None:
            await self._open_turn(message)
        else:
            self._refuse(message, halt)

    def begin_failed(self, message: Message) -> None:
        """Record that a turn began which failed while it was opened.

        What hooks would have judged is not stored.
        """
        self._begin(message, kept_out=self._judged)

    def _refuse(self, message: Message, refusal: Halt | Deny) -> None:
        """The user message is not let in: the log has only its length."""
        self._begin(message, kept_out=True)
        self._halt(refusal)

    def _halt(self, refusal: Halt | Deny) -> None:
        reply = refusal.reply if isinstance(refusal, Halt) else None
        self._journal.conclude(Stopped(StopReason.HALTED, refusal.reason), reply)

    # ------------------------------------------------------------ the session

    async def _open_session(self) -> Halt | None:
        """Record that the session is opened, if it is new or goes on under another pipeline.

        A refused one is not. The options of a turn are no part of it.
        """
        site, journal = self._site, self._journal
        program, fold = site.program, journal.fold
        if program.base is not None:
            await program.keep()
            program = program.base
        if fold.opened is not None:
            if fold.pipeline != program.digest or fold.ended:
                journal.write(SessionOpened("resumed", program.name, program.digest))
                await program.keep()
            return None
        system = tools = sections = None
        if (point := site.hooks.at(SessionStarting)) is not None:
            setup = Setup(program.system, program.specs)
            passage = site.passage(point, SessionStarting(setup, site.turn), fold.session)
            changed: Setup = (await passage.rewrite()).setup
            self._check_tools(changed)
            verdict = await self._questions.decide(passage)
            if isinstance(verdict, Halt):
                return verdict
            added: list[TextPart] = [part for item in await passage.inject() for part in item.parts]  # type: ignore[misc]
            sections = (*self._sections_of(changed.system), *added)
            system = join_sections(sections)
            if system == program.system:
                system = sections = None
            tools = None if changed.tools == program.specs else changed.tools
        self._record_opened(system, tools, sections)
        if not program.kept:
            await program.keep()
        return None

    def _record_opened(
        self,
        system: str | None,
        tools: tuple[ToolSpec, ...] | None,
        sections: tuple[TextPart, ...] | None,
    ) -> None:
        """Record that a session is opened, with what hooks have changed of the agent's."""
        program = self._site.program
        name, pipeline = program.name, (program.base or program).digest
        self._journal.write(
            SessionOpened("new", name, pipeline, system, tools, "", sections, self._parent)
        )

    def _check_tools(self, setup: Setup) -> None:
        """Refuse a tool that hooks have added and nothing can execute: no tool, no wrap, no gate
        that might answer."""
        program, hooks = self._site.program.base or self._site.program, self._site.hooks
        calling = hooks.at(ToolCalling)
        answering = () if calling is None else (*calling.changing, *calling.gates, *calling.costly)
        serving = [*hooks.tool_wraps, *answering]
        for spec in setup.tools if setup.tools != program.specs else ():
            if spec.name not in program.tools and not any(
                may_serve(hook, spec.name) for hook in serving
            ):
                names = self._rewriters("tools")
                raise HookError(
                    f"rewrite {names!r} added tool {spec.name!r} on SessionStarting, which nothing can execute: "
                    "give the agent a tool of that name, or a wrap or gate that answers its calls",
                    hook=names,
                    event="SessionStarting",
                )

    def _sections_of(self, system: str) -> tuple[TextPart, ...]:
        """The sections of the system text, each with its origin, after rewrites: what they changed
        is theirs."""
        program = self._site.program
        if system == program.system or self._journal.opening is None:
            return program.sections
        by = self._rewriters("system")
        if program.system and system.startswith(f"{program.system}\n\n"):
            return (*program.sections, TextPart(system[len(program.system) + 2 :], by))
        return (TextPart(system, by),) if system else ()

    def _rewriters(self, field: str) -> str:
        """The hooks that changed a field of what the session starts with."""
        opening = self._journal.opening
        pending = [] if opening is None else opening.records
        return ", ".join(
            [one.hook for one in pending if isinstance(one, Rewritten) and field in one.fields]
        )

    # ------------------------------------------------------------ the turn

    def _started(self, message: Message, kept_out: bool = False) -> TurnStarted:
        journal, fold = self._journal, self._journal.fold
        number, opening = fold.turns + 1, journal.opening
        at = journal.tick() if opening is None else opening.began
        size = 0
        if kept_out:
            message, size = withheld(message), max(len(message.text), 1)
        program = journal.program
        options = None if program.base is None else program.options
        return TurnStarted(number, message, f"{fold.session}/t{number}", size, options, at=at)

    def _begin(self, message: Message, kept_out: bool = False) -> None:
        """Record that a turn has started, and then what its hooks wrote before."""
        journal, entry = self._journal, self._entry
        was_opening = journal.opening is not None
        written, adopted = journal.begin_turn(self._started(message, kept_out))
        if self._cancellation.stop is not None:
            self._cancellation.note()
        if entry.steering is not None:
            journal.record(InboxTaken(entry.steering, entry.inbox_kind))
        if entry.slots and not was_opening:
            self._take_slots()
        for record in written:
            if any(record is one for one in adopted):
                journal.adopt(record)
            else:
                journal.record(record)

    def _take_slots(self) -> None:
        """Set the slots that the caller gave, except those that take nothing from callers."""
        for name, value in self._entry.slots.items():
            slot = self._site.slot(name)
            if slot.input:
                writes = Writes("caller")
                writes.slots[name] = (slot, value)
                self._site.keep(writes)

    async def _open_turn(self, message: Message) -> None:
        """Rewrites first, so that the log holds what they made of the message; then the gates judge
        that."""
        passage = door = verdict = refusal = None
        if self._judged:
            about = f"{self._journal.fold.session}/t{self._journal.fold.turns + 1}"
            passage, door = self._passages(message, about)
            if passage is not None:
                message = (await passage.rewrite()).message
            if door is not None:
                door.show(message=message)
                message = (await door.rewrite()).message
                if passage is not None:
                    passage.show(message=message)
            verdict, refusal = await self._judge(passage, door, message)
        if refusal is None:
            self._begin(message)
            await self._let_in(passage, verdict)
        else:
            self._refuse(message, refusal)

    async def go_on(self) -> None:
        """The turn was suspended, or died, before its message was let in; the log holds what
        rewrites made of it."""
        turn = self._journal.fold.turn
        assert turn is not None
        about = f"{self._journal.fold.session}/t{turn.number}"
        passage, door = self._passages(turn.message, about)
        verdict, refusal = await self._judge(passage, door, turn.message)
        if refusal is None:
            await self._let_in(passage, verdict)
        else:
            self._halt(refusal)

    def _passages(self, message: Message, about: str) -> tuple[Passage | None, Passage | None]:
        """The way of the message through TurnStarting, and through the guard's door."""
        site = self._site
        passage = door = None
        if (point := site.hooks.at(TurnStarting)) is not None:
            passage = site.passage(point, TurnStarting(message, site.turn), about)
        if (point := site.hooks.at(MessageAdding)) is not None:
            door = site.passage(point, MessageAdding(message, site.turn), about + "/message")
        return passage, door

    async def _judge(
        self, passage: Passage | None, door: Passage | None, message: Message
    ) -> tuple[Any, Halt | Deny | None]:
        """What TurnStarting says of the message, and the refusal that keeps it out, there or at the
        guard's door."""
        decide = self._questions.decide
        verdict = None if passage is None else await decide(passage, lambda: digest(message.text))
        if isinstance(verdict, Halt):
            return verdict, verdict
        at_door = None if door is None or verdict is WAITING else await decide(door)
        return verdict, at_door if isinstance(at_door, Halt | Deny) else None

    async def _let_in(self, passage: Passage | None, verdict: Any) -> None:
        """The user message into the transcript, with what is injected beside it; unless a person
        has to answer."""
        journal, transcript = self._journal, self._injections.transcript
        if verdict is WAITING:
            self._questions.suspend()
            return
        answered = isinstance(verdict, Answer)
        items = [] if passage is None or answered or not passage.injects else await passage.inject()
        for item in items:
            if not item.durable:
                await self._injections.take_in(item)
        at = journal.fold.at if passage is None else 0.0  # no hook has taken any time
        journal.record(MessageAdded(at=at))
        if journal.fold.turn is not None and journal.fold.turn.held:
            await transcript.add_held()
        if answered:
            text = "".join(getattr(part, "text", "") for part in render(verdict.value))
            await transcript.add(assistant(text), "answer")
            if journal.audience.voice is not None:
                journal.audience.voice.note_untold_answer()
            journal.conclude(Completed())
        for item in items:
            if item.durable:
                await self._injections.take_in(item)


def may_serve(hook: Hook, tool: str) -> bool:
    """Whether a hook may answer calls of a tool that does not exist: no rewrite can, nor one for
    another tool."""
    elsewhere = isinstance(hook.tool, str) and hook.tool.isidentifier() and hook.tool != tool
    return hook.kind != "rewrite" and not elsewhere
