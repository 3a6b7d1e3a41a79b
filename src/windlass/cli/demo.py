"""The `demo` command: one agent lives through the lifecycle, shown as it happens."""

from __future__ import annotations

import asyncio
import textwrap
from collections.abc import Iterator
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from windlass import (
    Agent,
    Approve,
    Ask,
    Deny,
    Hooks,
    ModelReplying,
    Pipeline,
    Regenerate,
    Retracted,
    Stopping,
    TextDelta,
    TokenLimit,
    ToolCalling,
    TurnStarting,
    Usage,
    Veto,
    tool,
)
from windlass import records as r
from windlass.deltas import StreamEvent
from windlass.outcomes import Stopped
from windlass.testing import ScriptedModel, calls, says

SESSION = "shop"
WIDTH = 80
MARGIN = 20
STYLES = {
    "user": "bold", "says": "bold", "deny": "red", "stopped": "red", "veto": "red", "reject": "red", "ask": "yellow",
    "waits": "yellow", "taken back": "yellow", "answer": "cyan", "child": "magenta", "inject": "blue",
    "result": "green", "ended": "green",
}  # fmt: skip
READ_NEXT = {
    "docs/start.md": "from nothing to an agent of your own",
    "docs/guides/which-verb.md": "which of the six verbs to use for what",
    "docs/guides/streaming.md": "what you have just watched",
    "docs/guides/testing.md": "scripted models, and a test for every hook",
    "docs/design.md": "how it works; the loop fits on one screen",
    "examples/": "small complete programs",
}

hooks = Hooks()


# ---------------------------------------------------------------- the hooks of the story


@hooks.inject(TurnStarting)
def calendar(event: TurnStarting) -> str:
    """inject: tells the model what it should know"""
    return "Today is Friday. Refunds take three days."


@hooks.gate(ToolCalling, tool="delete_*")
def keep_invoices(event: ToolCalling) -> Deny:
    """gate: denies a call; the model reads why"""
    return Deny("Invoices are kept for ten years.")


@hooks.gate(ToolCalling, tool="refund")
def large_sums(event: ToolCalling) -> Ask | None:
    """gate: asks a person; the turn waits in the log"""
    euros = event.call.arguments["euros"]
    return Ask(f"Refund {euros} euros?") if euros > 50 else None


@hooks.gate(ModelReplying, live=True)
def no_promises(event: ModelReplying) -> Regenerate | None:
    """gate: sends a reply back; live, so it is taken back"""
    return Regenerate("Promise nothing.") if "promise" in event.reply.text else None


@hooks.gate(Stopping)
def be_polite(event: Stopping) -> Veto | None:
    """gate: vetoes the end of the turn, once"""
    return None if event.stop_active else Veto("Say good-bye, too.")


@hooks.transform
class HideCards:
    """transform: hides card numbers while they are spoken"""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str) -> Iterator[str]:
        """Let go of whole words only: the last one may go on."""
        self.held += text
        *words, self.held = self.held.split(" ")
        for word in words:
            yield f"{_hidden(word)} "

    def flush(self) -> Iterator[str]:
        """The last word."""
        yield _hidden(self.held)


def _hidden(word: str) -> str:
    digits = sum(letter.isdigit() for letter in word)
    return word if digits < 12 else "".join("•" if letter.isdigit() else letter for letter in word)


# ---------------------------------------------------------------- the tools and the agents


@tool(effect="pure", inline=True)
def find_order(number: int) -> str:
    """Find an order."""
    return f"order {number}: a kettle, 80 euros, sent on Monday"


@tool(inline=True)
def delete_customer(name: str) -> str:
    """Delete all that is known of a customer."""
    raise AssertionError(f"{name} must not be deleted")


@tool(inline=True)
def refund(order: int, euros: int) -> str:
    """Give a customer money back."""
    return f"{euros} euros for order {order} are on their way"


def make_agent(delay: float) -> Agent[Any, str]:
    """A clerk who may ask a courier, with models that follow a script."""
    courier = Agent(
        ScriptedModel(
            calls("find_order", number=4711, _delay=delay), says("It stands in the rain in Oslo.", delay=delay)
        ),
        tools=[find_order],
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
        tools=[find_order, delete_customer, refund, courier.as_tool(description="Ask the courier about a parcel.")],
        name="clerk",
        criteria=[TokenLimit(1500)],
        pipeline=Pipeline.minimal().with_hooks(hooks),
    )


def _speaks(text: str, delay: float) -> Any:
    words = text.split(" ")
    return says(chunks=[word + " " for word in words[:-1]] + words[-1:], delay=delay, chunk_delay=delay / 8)


# ---------------------------------------------------------------- the view


class View:
    """Prints a stream of events: a line for a fact, words as they come."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.column = 0
        self.events = 0

    def show(self, event: StreamEvent) -> None:
        """One event of the stream."""
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
        wrapped = textwrap.wrap(text, WIDTH - MARGIN) or [""]
        for at, line in enumerate(wrapped):
            labels = (f"{step:<8}", f"{what:<12}") if at == 0 else (" " * 8, " " * 12)
            style = STYLES.get(what.strip(), "")
            self.console.print(Text.assemble((labels[0], "dim"), (labels[1], style), line))

    def _say(self, words: str) -> None:
        """Words on one line, for as long as they fit."""
        if not self.column:
            self.console.print(Text.assemble(" " * 8, (f"{'says':<12}", STYLES["says"])), end="")
            self.column = MARGIN
        for word in words.splitlines():
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
    """What a fact tells: a word for what happened, and a sentence."""
    if fact.path:
        return _lines_of_child(fact)
    match fact:
        case r.TurnStarted(message=message):
            return [("user", message.text)]
        case r.Injected(hook=hook, parts=parts):
            return [("inject", f"{hook}: {' '.join(getattr(part, 'text', '…') for part in parts)}")]
        case r.ModelReplied(reply=reply):
            return [("calls", f"{part.name} {part.json}") for part in reply.tool_calls]
        case r.ToolDecided(verdict=Deny(reason=reason), answers=answers):
            return [("deny", f"{answers[0][0]}: {reason}")]
        case r.ToolReturned(result=result) if result.status == "ok":
            return [("result", result.text)]
        case r.Asked(by=by, question=question):
            return [("ask", f"{', '.join(by)}: {question}")]
        case r.Suspended():
            return [("waits", "for an answer. The process may end now: all it needs is in the log.")]
        case r.Answered(by=by):
            return [("answer", f"{by} approves; the same loop goes on where it stood")]
        case r.ReplyRejected(by=by, feedback=feedback):
            return [("reject", f"{', '.join(by)}: {feedback}")]
        case Retracted(reason=reason):
            return [("taken back", f"{reason}")]
        case r.StopVetoed(by=by, feedback=feedback):
            return [("veto", f"{', '.join(by)}: {feedback}")]
        case r.TurnEnded(outcome=Stopped(detail=detail)):
            return [("stopped", detail)]
        case r.TurnEnded(outcome=outcome):
            return [("ended", type(outcome).__name__)]
        case _:
            return []


def _lines_of_child(fact: Any) -> list[tuple[str, str]]:
    """The same for a sub-agent."""
    match fact:
        case r.TurnStarted(message=message):
            return [("child", f"courier: {message.text}")]
        case r.ModelReplied(reply=reply):
            return [("child", f"calls {part.name} {part.json}") for part in reply.tool_calls]
        case r.ToolReturned(result=result):
            return [("child", result.text)]
        case r.TurnEnded(outcome=outcome):
            return [("child", type(outcome).__name__)]
        case _:
            return []


async def tell(console: Console, delay: float) -> None:
    """The story: a turn, the answer of a person, the rest of the turn, and a turn that costs too much."""
    agent, view = make_agent(delay), View(console)
    message = "Where is parcel 4711? Give me my money back, and delete my data!"
    async for event in agent.stream(message, session=SESSION):
        view.show(event)
    (asked,) = (await agent.state(SESSION)).waiting
    await asyncio.sleep(3 * delay)
    async for event in agent.stream(session=SESSION, answers={asked.id: Approve(by="bob")}):
        view.show(event)
    console.print()
    async for event in agent.stream("And now look at all my other orders.", session=SESSION):
        view.show(event)
    records = len(await agent.store.read(SESSION))
    console.print(f"\n{view.events} events were streamed; {records} records in one log tell it all again.")


@click.command()
def demo() -> None:
    """Watch an agent work, without a key or a network."""
    console = Console(highlight=False, soft_wrap=True)
    console.print("A clerk with a scripted model, four tools and six hooks\n", style="bold")
    for hook in (calendar, keep_invoices, large_sums, no_promises, be_polite, HideCards):
        console.print(f"  {hook.__name__:<15}{hook.__doc__}")
    console.print("\nTwo turns, as they happen\n", style="bold")
    asyncio.run(tell(console, delay=0.25 if console.is_terminal else 0.0))
    console.print("\nWhat to read next\n", style="bold")
    for page, why in READ_NEXT.items():
        console.print(f"  {page:<27}{why}")
