"""A conversation: what the person types, the turn that runs meanwhile, and the questions that it asks."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable
from typing import Any

import click

from windlass import Agent, Result
from windlass._text import visible, visible_id
from windlass.cli.asking import Answering, answering, login, open_questions, question_lines
from windlass.cli.assembling import Choice, remembers_rules
from windlass.cli.turns import Turns, ended
from windlass.cli.view import TurnView
from windlass.decisions import AnyResolution
from windlass.errors import SessionUnknown, WindlassError
from windlass.messages import Message, user
from windlass.records import Asked

from .commands import run_command
from .screen import Screen

LABEL = "you> "


class Conversation:
    """Talks to the person at the screen. At most one turn runs at a time."""

    def __init__(self, turns: Turns, choice: Choice) -> None:
        self.turns = turns
        self.choice = choice
        self.model: str | None = None
        self.over = False
        self.queue: deque[str] = deque()
        self.screen = Screen(self.interrupt)
        self.view = self._new_view()
        self.screen.partial = lambda: self.view.partial
        self.screen.status = self._status
        self._work: asyncio.Task[None] | None = None
        self._cancel: asyncio.Task[bool] | None = None
        self._doing = ""
        self._asking: Answering | None = None
        self._takes_commands = True
        self._questions: list[Asked] = []
        self._answers: dict[str, AnyResolution] = {}
        self._remembers = remembers_rules(turns.agent)

    async def hold(self) -> None:
        """Hold the conversation until the person leaves."""
        with self.screen.open():
            self.say(f"session {visible_id(self.turns.session)} · /help lists commands, Ctrl-D leaves", "dim")
            self.say(f"{self.turns.agent.model.name} · {_listed(self.turns.agent)}", "dim")
            await self.pick_up()
            while not self.over:
                try:
                    text = (await self.screen.read()).strip()
                except EOFError:
                    break
                if text.startswith("/") and (self._asking is None or self._takes_commands):
                    await run_command(self, text)
                elif self._asking is not None:
                    self._answer(text)
                elif text:
                    await self._take(text)
            await self._leave()

    async def _leave(self) -> None:
        if self._work is not None and not self._work.done():
            await self.turns.agent.cancel(self.turns.session, "the person left the chat")
            await asyncio.wait([self._work])
        if await self.has_begun():
            self.say(f"continue: {self.choice.command('chat', self.turns.session)}", "dim")

    async def _take(self, text: str) -> None:
        """Act on what the person typed: a message for the turn that runs, or a new turn."""
        if not self.works:
            self.begin(user(text))
        elif self._doing:
            self.queue.append(text)
        else:
            await self.turns.agent.steer(self.turns.session, text)

    # ------------------------------------------------------------ turns

    @property
    def works(self) -> bool:
        """Whether a turn or other work is running."""
        return self._work is not None and not self._work.done()

    @property
    def asks(self) -> bool:
        """Whether a question of the agent is on the screen."""
        return self._asking is not None

    async def has_begun(self) -> bool:
        """Whether the session has a log: it has none before the first message."""
        try:
            await self.turns.agent.state(self.turns.session)
        except SessionUnknown:
            return False
        return True

    async def pick_up(self) -> None:
        """Resume the turn of the session if it was interrupted, or ask what it waits for."""
        if not await self.has_begun():
            return
        state = await self.turns.agent.state(self.turns.session)
        if state.turns:
            self.say(f"{state.turns} turn{'' if state.turns == 1 else 's'} so far", "dim")
        if state.turns and not state.over:
            self.say("the last turn is not over: it goes on", "dim")
            self.begin(None)

    def begin(self, message: Message | None, answers: dict[str, AnyResolution] | None = None) -> None:
        """Start a turn, or without a message resume one."""
        self.view = self._new_view()
        self._start(self._play(message, answers))

    def work(self, doing: str, work: Awaitable[None]) -> None:
        """Do other work, such as a compaction, with its name in the status."""

        async def named() -> None:
            self._doing = doing
            try:
                await work
            finally:
                self._doing = ""

        self._start(named())

    def _start(self, work: Any) -> None:
        async def reported() -> None:
            try:
                await work
            except Exception as error:
                self.view.close()
                self.report(error)

        self._work = asyncio.create_task(reported())
        self._work.add_done_callback(lambda _: self._after())

    async def _play(self, message: Message | None, answers: dict[str, AnyResolution] | None) -> None:
        model = self.model if message is not None else None
        result = await self.turns.play(lambda event: self.view.show(event), message, answers, model)
        self.view.close()
        self._questions = open_questions(result.waiting_for, login())
        self._report(result)

    def _report(self, result: Result[Any]) -> None:
        if not result.waiting_for:
            self.say(ended(result), "dim")
        elif not self._questions:
            self.say("the turn waits for other people; /why says for whom", "yellow")

    def _after(self) -> None:
        """What comes next when a turn is over: its questions, or what was queued."""
        if self._questions:
            self.screen.set_aside()
            self._ask()
        else:
            self.send_queued()
        self.screen.redraw()

    def send_queued(self) -> None:
        """Begin a turn with what was queued first, unless one is running."""
        if self.queue and not self.works and self._asking is None:
            self.begin(user(self.queue.popleft()))

    def interrupt(self) -> bool:
        """Ctrl-C: cancel what runs, or leave questions open. Returns False if there is nothing to interrupt."""
        if self._asking is not None:
            self._stop_asking()
            self.say("the questions stay open; your next message ends that turn", "yellow")
            return True
        if not self.works or self._work is None:
            return False
        if self._doing:
            self._work.cancel()
        else:
            self._cancel = asyncio.create_task(self.turns.agent.cancel(self.turns.session, "Ctrl-C"))
        return True

    # ------------------------------------------------------------ questions

    def _ask(self) -> None:
        """Ask the next question, or go on when all are answered."""
        if not self._questions:
            answers, self._answers = self._answers, {}
            self._stop_asking()
            if answers:
                self.begin(None, answers)
            else:
                self.say("the questions stay open; /resume asks them again", "yellow")
            return
        asked = self._questions[0]
        for line in question_lines(asked):
            self.say(line, "yellow")
        self._asking = answering(asked, login(), remembers=self._remembers)
        self._show_prompt(next(self._asking))

    def _answer(self, text: str) -> None:
        """Pass on what the person typed as an answer."""
        assert self._asking is not None
        try:
            self._show_prompt(self._asking.send(text))
        except StopIteration as done:
            if done.value is not None:
                self._answers[self._questions[0].id] = done.value
            del self._questions[0]
            self._ask()

    def _show_prompt(self, prompt: Any) -> None:
        self._takes_commands = prompt.is_choice
        self.screen.label = prompt.text
        self.screen.fill(prompt.default)

    def _stop_asking(self) -> None:
        self._asking = None
        self._questions = []
        self._answers = {}
        self.screen.label = LABEL
        self.screen.bring_back()

    # ------------------------------------------------------------ what is shown

    def say(self, text: str, style: str = "") -> None:
        """Print lines of the program's own; unusual characters are escaped."""
        self.screen.write_text(text, style)

    def report(self, error: Exception) -> None:
        """Print an error; the conversation goes on. The name of one that is not Windlass's says more than its text."""
        known = isinstance(error, WindlassError | click.ClickException | ValueError)
        self.say(str(error) if known else f"{type(error).__name__}: {error}", "red")

    def _new_view(self) -> TurnView:
        return TurnView(self.screen.write, lambda: self.screen.width)

    def _status(self) -> tuple[bool, str]:
        queued = f" · {len(self.queue)} queued" if self.queue else ""
        if self.works:
            return True, (self._doing or self.view.status) + queued
        if self._asking is not None:
            return False, "waits for your answer · Ctrl-C leaves the question open"
        model = self.model or self.turns.agent.model.name
        return False, f"{visible_id(self.turns.session)} · {visible(model)}{queued}"


def _listed(agent: Agent[Any, Any]) -> str:
    """The tools of an agent, in a few words."""
    names = [*agent.tools]
    more = f" and {len(names) - 12} more" if len(names) > 12 else ""
    return f"tools: {', '.join(names[:12])}{more}" if names else "no tools"
