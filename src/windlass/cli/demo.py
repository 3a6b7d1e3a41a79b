"""The `demo` command: one agent lives through the lifecycle, told line by line from its log."""

from __future__ import annotations

import asyncio
import textwrap
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from windlass import (
    Agent,
    Allow,
    Answered,
    Approve,
    Ask,
    Asked,
    Deny,
    Edit,
    Evaluated,
    Hooks,
    Injected,
    Message,
    ModelReplied,
    Pipeline,
    Resumed,
    Suspended,
    ToolCall,
    ToolCalling,
    ToolDecided,
    ToolReturned,
    TurnEnded,
    TurnStarted,
    TurnStarting,
    tool,
)
from windlass.records import Record, Rewritten
from windlass.testing import ScriptedModel, calls, says

SESSION = "demo"
REQUEST = "Tidy up the reports, then tell the team and the customers."
STYLES = {"deny": "bold red", "ask": "bold yellow", "wait": "bold yellow", "rewrite": "magenta", "inject": "cyan"}
STYLES |= {"allow": "green", "answer": "green", "end": "bold green", "user": "bold", "model": "bold blue"}
READ_NEXT = {
    "README.md": "the first ten lines to write yourself",
    "docs/guides/which-verb.md": "which of the six verbs to use for what",
    "docs/guides/approvals.md": "questions, answers, and resuming days later",
    "docs/design.md": "how it works; the loop fits on one screen",
    "examples/": "small complete programs",
}

hooks = Hooks()


@tool(effect="pure", inline=True)
def list_files(folder: str) -> list[str]:
    """List the files of a folder."""
    return [f"{folder}/2019.csv", f"{folder}/2024.csv"]


@tool(inline=True)
def delete_file(path: str) -> str:
    """Delete a file."""
    raise AssertionError(f"{path} must not be deleted")


@tool(inline=True)
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


@hooks.inject(TurnStarting)
def calendar(event: TurnStarting) -> str:
    """adds what the model should know in this turn"""
    return "Today is Friday. The office is closed on Monday."


@hooks.rewrite(ToolCalling, tool="list_files")
def tidy_path(event: ToolCalling) -> ToolCall:
    """changes the arguments of a call before anybody judges it"""
    folder = str(event.call.arguments["folder"]).strip("./")
    return event.call.replace(arguments={"folder": folder})


@hooks.gate(ToolCalling, tool="delete_*")
def keep_files(event: ToolCalling) -> Deny:
    """denies the call; the model reads why and goes on"""
    return Deny("Reports are kept for ten years.")


@hooks.gate(ToolCalling, tool="send_mail")
def ask_first(event: ToolCalling) -> Ask:
    """asks a person; the turn waits, for days if need be"""
    return Ask(f"Send this mail to {event.call.arguments['to']}?")


def make_agent(delay: float) -> Agent[Any, str]:
    """An agent whose model follows a script."""
    mails = [("send_mail", {"to": name, "text": "Reports are tidy."}) for name in ("team", "everyone")]
    model = ScriptedModel(
        calls("list_files", folder="./reports/", _delay=delay),
        calls("delete_file", path="reports/2019.csv", _delay=delay),
        calls(mails, _delay=delay),
        says("The reports are tidy, none was deleted, and two mails are out.", delay=delay),
    )
    return Agent(model, tools=[list_files, delete_file, send_mail], pipeline=Pipeline.minimal().with_hooks(hooks))


def lines_of(record: Record) -> list[tuple[str, str]]:
    """What a record tells: a word for what happened, and a sentence."""
    match record:
        case TurnStarted(message=message):
            return [("user", message.text)]
        case Injected(hook=hook, parts=parts):
            return [("inject", f"{hook}: {Message('user', parts).text if not isinstance(parts, str) else parts}")]
        case ModelReplied(reply=reply):
            called = [("model", f"calls {part.name}({part.json})") for part in reply.tool_calls]
            return called or [("model", reply.text)]
        case Rewritten(hook=hook, fields=fields):
            return [("rewrite", f"{hook}: {', '.join(str(value) for value in fields.values())}")]
        case ToolDecided(verdict=Deny(reason=reason), answers=answers):
            return [("deny", f"{', '.join(name for name, _ in answers)}: {reason}")]
        case ToolDecided(verdict=Allow(), answers=answers):
            return [("allow", ", ".join(name for name, _ in answers) or "nobody objects")]
        case Asked(by=by, question=question):
            return [("ask", f"{', '.join(by)}: {question}")]
        case Suspended(waiting_for=waiting):
            return [("wait", f"{len(waiting)} questions are open. All is in the log; the process could end here.")]
        case Resumed():
            return [("resume", "The same loop goes on where it stood.")]
        case Answered(answer=Edit(arguments=arguments), by=by):
            return [("answer", f"{by} edits: to={arguments['to']!r}")]
        case Answered(by=by):
            return [("answer", f"{by} approves")]
        case ToolReturned(result=result, name=name):
            return [("result", f"{name}: {result.text}")]
        case Evaluated(vote=vote, reasons=reasons) if vote is not None:
            return [("vote", f"{vote.value}: {'; '.join(why for _, why in reasons)}")]
        case TurnEnded(outcome=outcome):
            return [("end", type(outcome).__name__)]
        case _:
            return []


def show(console: Console, label: str, what: str, text: str) -> None:
    """One line of the trace, its sentence wrapped beside its column."""
    margin = f"{label:<9}{what:<9}"
    wrapped = textwrap.wrap(text, min(console.width, 100) - len(margin) - 1, break_on_hyphens=False)
    body = ("\n" + " " * len(margin)).join(wrapped)
    console.print(Text.assemble((f"{label:<9}", "dim"), (f"{what:<9}", STYLES.get(what, "")), body))


async def tell(console: Console, delay: float) -> None:
    """The story: a turn, the answers of a person, the rest of the turn."""
    agent = make_agent(delay)
    seen = 0

    async def tell_new() -> None:
        nonlocal seen
        for record in await agent.store.read(SESSION, seen):
            seen += 1
            step = f"step {record.step}" if isinstance(record, ModelReplied) else ""
            for number, (what, text) in enumerate(lines_of(record)):
                show(console, "" if number else step or ("turn" if what == "user" else ""), what, text)

    async for _ in agent.iterate(REQUEST, session=SESSION):
        await tell_new()
    first, second = (await agent.state(SESSION)).waiting
    edited = Edit({"to": "customers", "text": "Reports are tidy."}, by="ann")
    await asyncio.sleep(delay)
    async for _ in agent.iterate(session=SESSION, answers={first.id: Approve(by="ann"), second.id: edited}):
        await tell_new()
    console.print(f"\n{seen} records tell all of this. Fold them, and you have the state; there is no other truth.")


@click.command()
def demo() -> None:
    """Watch an agent work, without a key or a network."""
    console = Console(highlight=False, soft_wrap=True)
    console.print("An agent with a scripted model, three tools and four hooks:\n", style="bold")
    for verb, hook in {"inject": calendar, "rewrite": tidy_path, "gate": keep_files, "gate ": ask_first}.items():
        show(console, f"  {verb}", "", f"{hook.__name__:<12}{hook.__doc__}")
    console.print("\nOne turn, as its log tells it:\n", style="bold")
    asyncio.run(tell(console, delay=0.2 if console.is_terminal else 0.0))
    console.print("\nWhat to read next\n", style="bold")
    for page, why in READ_NEXT.items():
        console.print(f"  {page:<27}{why}")
