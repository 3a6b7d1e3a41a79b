"""The `run` command: one turn of a model or an agent, for people and for programs."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any

import click
from rich.console import Console, Group
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from windlass import Agent, Result
from windlass.decisions import AnyResolution
from windlass.deltas import StreamEvent
from windlass.errors import WindlassError
from windlass.messages import Message
from windlass.sessions import new_id

from .asking import Answering, answering, login, open_questions, question_lines
from .assembling import Choice, agent_options, assemble, remembers_rules, scope_of
from .attachments import message_with
from .codes import INTERRUPTED, SUSPENDED
from .inspecting import inspect_options, inspected
from .json_lines import end_of, lines_of
from .output import echo, echo_json, is_terminal, read_input, wrap
from .temporal import TemporalTurns, temporal_options
from .turns import Turns, answer_commands, ended, exit_code
from .view import TurnView


@click.command()
@click.argument("prompt", required=False)
@agent_options
@click.option("--session", metavar="ID", help="Continue this session, or begin one with this id.")
@click.option("--file", "files", multiple=True, metavar="PATH", help="Attach a file or image; - is the standard input.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per event, and one at the end.")
@inspect_options
@temporal_options
def run(
    prompt: str | None,
    session: str | None,
    files: tuple[str, ...],
    as_json: bool,
    inspect: bool,
    breaks: tuple[str, ...],
    temporal: str | None,
    task_queue: str,
    namespace: str,
    **chosen: Any,
) -> None:
    """Run one turn, and print the answer.

    Without PROMPT, it is read from the standard input. Without PROMPT and input, --session resumes a turn that was
    interrupted or waits for an answer. On a terminal, the answer is streamed and questions are asked; elsewhere only
    the answer goes to stdout. All is kept in a store and can be continued. With --temporal, workers run the turn (see
    `windlass worker`), and this command shows it.

    Exit codes: 0 completed, 1 failed, 2 wrong usage, 3 waits for an answer, 4 stopped by a limit or a hook, 130
    cancelled.
    """
    choice = Choice(**chosen)
    message = _message(prompt, files, session)
    agent, address = assemble(choice)
    show: _Screen = _JsonLines() if as_json else _Terminal() if is_terminal() else _Plain()
    name = session or new_id()
    turns: Turns | TemporalTurns = Turns(agent, name, scope_of(choice))
    if temporal is not None:
        turns = TemporalTurns(agent, name, temporal, namespace, task_queue)
    if temporal is not None and (inspect or breaks):
        raise click.UsageError("--inspect needs a turn in this process: leave out --temporal")
    show.begin(turns.session)
    with inspected([agent], inspect=inspect, breaks=breaks), asyncio.Runner() as runner:
        try:
            result = _Run(runner, turns, show).play(message)
        except WindlassError as error:
            raise click.ClickException(str(error)) from error
        finally:
            runner.run(_close(agent))
    show.end(result)
    code = exit_code(result)
    if code == SUSPENDED:
        for line in answer_commands(result, address, choice.agent):
            echo(wrap(line), err=True)
    if code in (SUSPENDED, INTERRUPTED):
        echo(wrap(f"  continue it: {choice.command('run', turns.session)}"), err=True)
    sys.exit(code)


def _message(prompt: str | None, files: tuple[str, ...], session: str | None) -> Message | None:
    """The message of the turn; None if the session is to be resumed."""
    if prompt in (None, "-") and "-" not in files and not sys.stdin.isatty():
        prompt = read_input()
    text = (prompt or "").strip()
    if text or files:
        return message_with(text, files)
    if session is None:
        raise click.UsageError("say something: as PROMPT, on the standard input or with --file")
    return None


async def _close(agent: Agent[Any, Any]) -> None:
    await agent.aclose()
    await agent.store.close()


class _Run:
    """A turn with its questions. Ctrl-C cancels the turn; a second one breaks off the program."""

    def __init__(self, runner: asyncio.Runner, turns: Turns | TemporalTurns, screen: _Screen) -> None:
        self.runner = runner
        self.turns = turns
        self.screen = screen

    def play(self, message: Message | None) -> Result[Any]:
        """Play the turn, and ask the person at the terminal until no question is left that this person answers."""
        result = self._pass(message, None)
        while self.screen.asks and (answers := self._ask(result)):
            result = self._pass(None, answers)
        return result

    def _pass(self, message: Message | None, answers: Mapping[str, AnyResolution] | None) -> Result[Any]:
        async def work() -> Result[Any]:
            with cancelling(self.turns):
                return await self.turns.play(self.screen.show, message, answers)

        with self.screen.working():
            return self.runner.run(work())

    def _ask(self, result: Result[Any]) -> dict[str, AnyResolution]:
        answers: dict[str, AnyResolution] = {}
        by = login()
        for asked in open_questions(result.waiting_for, by):
            for line in question_lines(asked):
                echo(wrap(line))
            try:
                answer = typed(answering(asked, by, remembers=remembers_rules(self.turns.agent)))
            except (EOFError, KeyboardInterrupt):
                echo("")
                return answers
            if answer is not None:
                answers[asked.id] = answer
        return answers


def typed(asks: Answering) -> AnyResolution | None:
    """Ask at the terminal, line by line."""
    try:
        prompt = next(asks)
        while True:
            hint = f"[{prompt.default}] " if prompt.default else ""
            line = input(f"{prompt.text}{hint}")
            prompt = asks.send(line or prompt.default)
    except StopIteration as done:
        answer: AnyResolution | None = done.value
        return answer


@contextmanager
def cancelling(turns: Turns | TemporalTurns) -> Generator[None, None, None]:
    """Let the first Ctrl-C cancel the turn that runs inside. The next one interrupts it: it can be resumed."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    begun: list[asyncio.Task[bool]] = []

    def interrupt() -> None:
        if begun and task is not None:
            task.cancel()
        else:
            begun.append(loop.create_task(turns.agent.cancel(turns.session, "Ctrl-C")))

    try:
        loop.add_signal_handler(signal.SIGINT, interrupt)
    except (NotImplementedError, ValueError, RuntimeError):  # Windows, or not the main thread
        yield
        return
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGINT)


# ---------------------------------------------------------------- what is shown


class _Screen:
    """Shows a turn. `asks` says whether a person can be asked."""

    asks = False

    def begin(self, session: str) -> None:
        """Show which session it is."""

    def show(self, event: StreamEvent) -> None:
        """Show one event."""

    @contextmanager
    def working(self) -> Generator[None, None, None]:
        """Show that something happens, as long as the block runs."""
        yield

    def end(self, result: Result[Any]) -> None:
        """Show how the turn ended."""


class _JsonLines(_Screen):
    def begin(self, session: str) -> None:
        echo_json(json.dumps({"type": "session", "session": session}, ensure_ascii=False))

    def show(self, event: StreamEvent) -> None:
        for line in lines_of(event):
            echo_json(json.dumps(line, ensure_ascii=False))

    def end(self, result: Result[Any]) -> None:
        echo_json(json.dumps(end_of(result), ensure_ascii=False))


class _Live(_Screen):
    """A view with a line of status at the bottom, on a terminal."""

    def __init__(self, console: Console, write: Callable[[Text], None]) -> None:
        self.console = console
        self.view = TurnView(write, lambda: console.width)
        self.spinner = Spinner("dots")

    def show(self, event: StreamEvent) -> None:
        self.view.show(event)

    @contextmanager
    def working(self) -> Generator[None, None, None]:
        if not self.console.is_terminal:
            yield
            return
        live = Live(console=self.console, get_renderable=self._draw, refresh_per_second=10, transient=True)
        with live:
            yield
        self.view.close()

    def _draw(self) -> Group:
        self.spinner.update(text=Text(self.view.status, style="dim", overflow="ellipsis", no_wrap=True))
        return Group(*([Text(self.view.partial)] if self.view.partial else []), self.spinner)


class _Terminal(_Live):
    """Streams the answer, and asks."""

    def __init__(self) -> None:
        console = Console(highlight=False, soft_wrap=True)
        super().__init__(console, console.print)
        self.asks = sys.stdin.isatty()

    def end(self, result: Result[Any]) -> None:
        echo(wrap(ended(result)), err=True)


class _Plain(_Live):
    """Prints the answer at the end; on stderr, a terminal shows the status."""

    def __init__(self) -> None:
        super().__init__(Console(stderr=True, highlight=False), lambda line: None)

    def end(self, result: Result[Any]) -> None:
        if text := result.partial_text:
            echo(text.replace("\r\n", "\n").expandtabs())
        echo(ended(result), err=True)
