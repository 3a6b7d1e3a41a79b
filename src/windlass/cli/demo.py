"""The `demo` command: one agent goes through the whole lifecycle, printed as it happens."""

from __future__ import annotations

import asyncio
import shlex
import textwrap
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from windlass import Agent, Approve, Deny, Pipeline, Retracted, TextDelta, TokenLimit, Usage
from windlass import records as r
from windlass._text import printable, visible
from windlass.deltas import StreamEvent
from windlass.errors import ConfigError, StoreError
from windlass.outcomes import Failed, Stopped
from windlass.protocols import Model, Store
from windlass.stores import SQLiteStore
from windlass.testing import ScriptedModel, calls, says

from . import demo_shop as shop
from .demo_with_model import make_agent as make_agent_with
from .demo_with_model import plan, true_sum

SESSION = "shop"
WIDTH = 80
MARGIN = 20
STYLES = {
    "user": "bold", "says": "bold", "deny": "red", "stopped": "red", "failed": "red", "veto": "red", "reject": "red",
    "ask": "yellow", "waits": "yellow", "taken back": "yellow", "answer": "cyan", "child": "magenta", "inject": "blue",
    "rewrite": "blue", "result": "green", "ended": "green",
}  # fmt: skip
NEXT = {
    "windlass demo --keep demo.db": "keep this, then see it with: windlass ui demo.db",
    "windlass doctor": "what your machine has, and what it lacks",
    "windlass local install": "fetch a small model that needs no key",
    "windlass init": "write an agent of your own after four questions",
    "windlass chat": "talk to it; windlass ui shows what it did",
    "windlass help": "all commands",
}


def make_agent(delay: float, store: Store | None = None) -> Agent[Any, str]:
    """A clerk that can ask a courier; both models follow a script."""
    courier = Agent(
        ScriptedModel(
            calls("find_order", number=4711, _delay=delay), says("It stands in the rain in Oslo.", delay=delay)
        ),
        tools=[shop.find_order],
        name="courier",
    )
    card = "4000-1234-5678-9010"
    model = ScriptedModel(
        calls("delete_customer", name="ann", _delay=delay),
        calls("courier", task="Where is parcel 4711?", _delay=delay),
        calls("refund", order=4711, euros=80, _delay=delay),
        _speaks("I promise that it will never happen again, and that", delay),
        _speaks(f"Your parcel is lost. 80 euros go back to your card {card} in three days.", delay),
        _speaks("Good-bye, and sorry for the kettle.", delay),
        calls("find_order", number=4712, _delay=delay, _usage=Usage(input=900, output=20)),
        calls("find_order", number=4713, _delay=delay, _usage=Usage(input=950, output=20)),
        name="clerk's model",
    )
    return Agent(
        model,
        tools=[
            shop.find_order,
            shop.delete_customer,
            shop.refund,
            courier.as_tool(description="Ask the courier about a parcel."),
        ],
        name="clerk",
        criteria=[TokenLimit(1500)],
        pipeline=Pipeline.minimal().with_hooks(shop.hooks),
        store=store,
        measure_hooks=store is not None,
    )


def _speaks(text: str, delay: float) -> Any:
    words = text.split(" ")
    return says(chunks=[word + " " for word in words[:-1]] + words[-1:], delay=delay, chunk_delay=delay / 8)


# ---------------------------------------------------------------- the view


class View:
    """Prints a stream of events: one line per fact, and text as it arrives."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.column = 0
        self.events = 0

    def show(self, event: StreamEvent) -> None:
        """Print one event of the stream."""
        self.events += 1
        if isinstance(event, TextDelta):
            self._say(event.text)
            return
        step = f"step {event.step}" if isinstance(event, r.ModelReplied) and not event.path else ""
        for what, text in _lines(event):
            self._end_words()
            self._line(step, what, text, indent=2 if event.path else 0)
            step = ""

    def _line(self, step: str, what: str, text: str, indent: int = 0) -> None:
        what = " " * indent + what
        wrapped = textwrap.wrap(printable(text), WIDTH - MARGIN) or [""]
        for at, line in enumerate(wrapped):
            labels = (f"{step:<8}", f"{what:<12}") if at == 0 else (" " * 8, " " * 12)
            style = STYLES.get(what.strip(), "")
            self.console.print(Text.assemble((labels[0], "dim"), (labels[1], style), line))

    def _say(self, words: str) -> None:
        """Print words on the current line, and wrap when they no longer fit."""
        if not self.column:
            self.console.print(Text.assemble(" " * 8, (f"{'says':<12}", STYLES["says"])), end="")
            self.column = MARGIN
        for word in map(visible, words.splitlines()):
            if self.column + len(word.rstrip()) > WIDTH:
                self.console.print()
                self.console.print(" " * MARGIN, end="")
                self.column = MARGIN
            self.console.print(Text(word), end="")
            self.column += len(word)

    def _end_words(self) -> None:
        if self.column:
            self.console.print()
            self.column = 0


def _lines(fact: Any) -> list[tuple[str, str]]:
    """The lines to print for a fact, each a label and a text."""
    if fact.path:
        return _lines_of_child(fact)
    match fact:
        case r.TurnStarted(message=message):
            return [("user", message.text)]
        case r.Injected(hook=hook, parts=parts):
            return [("inject", f"{hook}: {' '.join(getattr(part, 'text', '…') for part in parts)}")]
        case r.ModelReplied(reply=reply):
            return [("calls", f"{part.name} {_dense(part.json)}") for part in reply.tool_calls]
        case r.Rewritten(event="ToolCalling", hook=hook, fields=fields):
            return [("rewrite", f"{hook}: {_dense(fields.get('json', ''))}")]
        case r.ToolDecided(verdict=Deny(reason=reason), answers=answers):
            return [("deny", f"{answers[0][0]}: {reason}")]
        case r.ToolReturned(result=result) if result.status == "ok":
            return [("result", result.text)]
        case r.Asked(by=by, question=question):
            return [("ask", f"{', '.join(by)}: {question}")]
        case r.Suspended():
            return [("waits", "for an answer. The process may exit now: the log has everything.")]
        case r.Answered(by=by):
            return [("answer", f"{by} approves; the loop resumes where it stopped")]
        case r.ReplyRejected(by=by, feedback=feedback):
            return [("reject", f"{', '.join(by)}: {feedback}")]
        case Retracted(reason=reason):
            return [("taken back", f"{reason}")]
        case r.StopVetoed(by=by, feedback=feedback):
            return [("veto", f"{', '.join(by)}: {feedback}")]
        case r.TurnEnded(outcome=Stopped(detail=detail)):
            return [("stopped", detail)]
        case r.TurnEnded(outcome=Failed(error=error)):
            return [("failed", f"{error.type}: {error.message}")]
        case r.TurnEnded(outcome=outcome):
            return [("ended", type(outcome).__name__)]
        case _:
            return []


def _lines_of_child(fact: Any) -> list[tuple[str, str]]:
    """The lines to print for a fact of a sub-agent."""
    match fact:
        case r.TurnStarted(message=message):
            return [("child", f"courier: {message.text}")]
        case r.ModelReplied(reply=reply):
            return [("child", f"calls {part.name} {_dense(part.json)}") for part in reply.tool_calls]
        case r.ToolReturned(result=result):
            return [("child", result.text)]
        case r.TurnEnded(outcome=outcome):
            return [("child", type(outcome).__name__)]
        case _:
            return []


def _dense(json: str) -> str:
    """JSON on one line, with the model's extra white space removed."""
    return " ".join(json.split())


async def tell(console: Console, delay: float, store: Store | None = None) -> None:
    """Play the demo: a turn, a person's answer, the rest of the turn, and a turn that costs too much."""
    agent, view = make_agent(delay, store), View(console)
    await tell_turn(agent, view, delay)
    console.print()
    async for event in agent.stream("And now look at all my other orders.", session=SESSION):
        view.show(event)
    await _sum_up(agent, view)


async def tell_with(model: str | Model, console: Console, store: Store | None = None) -> None:
    """Play the same turn with a real model, which uses its own words."""
    agent, view = make_agent_with(model, store), View(console)
    await tell_turn(agent, view)
    await _sum_up(agent, view)
    usage = (await agent.state(SESSION)).usage
    console.print(
        f"{usage.requests} requests to {visible(agent.model.name)}: {usage.input} tokens read, {usage.output} written."
    )


async def tell_turn(agent: Agent[Any, str], view: View, delay: float = 0.0) -> None:
    """Play a turn that waits for a person's answer and is then resumed."""
    message = "Where is parcel 4711? Give me my money back, and delete my data!"
    async for event in agent.stream(message, session=SESSION):
        view.show(event)
    if waiting := (await agent.state(SESSION)).waiting:
        await asyncio.sleep(3 * delay)
        async for event in agent.stream(session=SESSION, answers={asked.id: Approve(by="bob") for asked in waiting}):
            view.show(event)


async def _sum_up(agent: Agent[Any, str], view: View) -> None:
    records = len(await agent.store.read(SESSION))
    view.console.print(f"\n{view.events} events were streamed; the log has {records} records and can replay it all.")


@click.command()
@click.option("--model", help="A real model, such as local:smollm2 or openai:…, instead of a script.")
@click.option(
    "--keep",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Keep the session in this new SQLite file, for `windlass ui` and all other commands.",
)
def demo(model: str | None, keep: Path | None) -> None:
    """Watch an agent work, without an API key or a network."""
    if keep is not None and keep.exists():
        raise click.UsageError(f"{keep} exists already; name a new file")
    console = Console(highlight=False, soft_wrap=True)
    hooks = (shop.calendar, shop.keep_invoices, shop.large_sums, shop.no_promises, shop.be_polite, shop.HideCards)
    if model is None:
        _introduce(console, "A clerk with a scripted model, four tools and six hooks", hooks)
        console.print("\nTwo turns, as they happen\n", style="bold")
        delay = 0.25 if console.is_terminal else 0.0
        _play(keep, lambda store: tell(console, delay, store))
    else:
        _introduce(console, f"A clerk with {visible(model)}, four tools and eight hooks", (*hooks, plan, true_sum))
        console.print("\nOne turn, as it happens\n", style="bold")
        try:
            _play(keep, lambda store: tell_with(model, console, store))
        except ConfigError as error:
            raise click.ClickException(str(error)) from error
    console.print("\nWhat to try next\n", style="bold")
    for command, why in _next(keep).items():
        console.print(f"  {command:<29} {why}", markup=False)


def _next(keep: Path | None) -> dict[str, str]:
    """What to try next. A session that was kept can be looked at."""
    if keep is None:
        return NEXT
    return {
        f"windlass ui {visible(shlex.quote(str(keep)))}": "see on a page what happened, and why",
        **dict(list(NEXT.items())[1:]),
    }


def _play(keep: Path | None, play: Callable[[Store | None], Awaitable[None]]) -> None:
    """Play with a store in a file, or without one."""

    async def run() -> None:
        store = None if keep is None else SQLiteStore(keep)
        try:
            await play(store)
        finally:
            if store is not None:
                await store.close()

    try:
        asyncio.run(run())
    except StoreError as error:
        raise click.ClickException(str(error)) from error


def _introduce(console: Console, title: str, hooks: tuple[Any, ...]) -> None:
    console.print(f"{title}\n", style="bold")
    for hook in hooks:
        console.print(f"  {hook.__name__:<15}{hook.__doc__}")
