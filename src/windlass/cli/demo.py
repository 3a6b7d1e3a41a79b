"""The `demo` command: one agent lives through the lifecycle, told line by line from its log."""

from __future__ import annotations

import asyncio
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from windlass import Agent, Allow, Approve, Ask, Deny, Edit, Hooks, Pipeline, ToolCall, ToolCalling, TurnStarting, tool
from windlass import records as r
from windlass.testing import ScriptedModel, calls, says

SESSION = "demo"
STYLES = {"deny": "red", "ask": "yellow", "wait": "yellow", "model": "bold", "allow": "green", "answer": "cyan"}
READ_NEXT = {
    "README.md": "the first ten lines to write yourself",
    "docs/guides/which-verb.md": "which of the six verbs to use for what",
    "docs/guides/approvals.md": "questions, answers, and how a turn goes on",
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
    """adds what the model should know"""
    return "Today is Friday. The office is closed on Monday."


@hooks.rewrite(ToolCalling, tool="list_files")
def tidy_path(event: ToolCalling) -> ToolCall:
    """changes a call before anybody judges it"""
    return event.call.replace(arguments={"folder": event.call.arguments["folder"].strip("./")})


@hooks.gate(ToolCalling, tool="delete_*")
def keep_files(event: ToolCalling) -> Deny:
    """denies a call; the model reads why and goes on"""
    return Deny("Reports are kept for ten years.")


@hooks.gate(ToolCalling, tool="send_mail")
def ask_first(event: ToolCalling) -> Ask:
    """asks a person; the turn waits for the answer"""
    return Ask(f"Send this mail to {event.call.arguments['to']}?")


def make_agent(delay: float) -> Agent[Any, str]:
    """An agent whose model follows a script."""
    mails = [("send_mail", {"to": name, "text": "Reports are tidy."}) for name in ("team", "everyone")]
    model = ScriptedModel(
        calls("list_files", folder="./reports/", _delay=delay),
        calls("delete_file", path="reports/2019.csv", _delay=delay),
        calls(mails, _delay=delay),
        says("All reports are still there, and two mails are out.", delay=delay),
    )
    return Agent(model, tools=[list_files, delete_file, send_mail], pipeline=Pipeline.minimal().with_hooks(hooks))


def lines_of(record: r.Record) -> list[tuple[str, str]]:
    """What a record tells: a word for what happened, and a sentence."""
    match record:
        case r.TurnStarted(message=message):
            return [("user", message.text)]
        case r.Injected(hook=hook, parts=parts):
            return [("inject", f"{hook}: {' '.join(getattr(part, 'text', '…') for part in parts)}")]
        case r.ModelReplied(reply=reply):
            return [("model", f"calls {part.name} {part.json}") for part in reply.tool_calls] or [("model", reply.text)]
        case r.Rewritten(hook=hook, fields=fields):
            return [("rewrite", f"{hook}: {', '.join(str(value) for value in fields.values())}")]
        case r.ToolDecided(verdict=Deny(reason=reason), answers=answers):
            return [("deny", f"{', '.join(name for name, _ in answers)}: {reason}")]
        case r.ToolDecided(verdict=Allow(), answers=answers):
            return [("allow", "as answered" if answers else "nobody objects")]
        case r.Asked(by=by, question=question):
            return [("ask", f"{', '.join(by)}: {question}")]
        case r.Suspended(waiting_for=waiting):
            return [("wait", f"{len(waiting)} questions are open. What is needed to go on is in the log.")]
        case r.Resumed():
            return [("resume", "The same loop goes on where it stood.")]
        case r.Answered(answer=Edit(arguments=arguments), by=by):
            return [("answer", f"{by} edits: to={arguments['to']!r}")]
        case r.Answered(by=by):
            return [("answer", f"{by} approves")]
        case r.ToolReturned(result=result):
            return [("result", result.text)]
        case r.TurnEnded(outcome=outcome):
            return [("end", type(outcome).__name__)]
        case _:
            return []


async def tell(console: Console, delay: float) -> None:
    """The story: a turn, the answers of a person, the rest of the turn. After every step the log is read on."""
    agent, told = make_agent(delay), 0

    async def go_on(message: str | None = None, answers: dict[str, Approve | Edit] | None = None) -> None:
        nonlocal told
        async for _ in agent.iterate(message, session=SESSION, answers=answers):
            for record in await agent.store.read(SESSION, told):
                told += 1
                label = f"step {record.step}" if isinstance(record, r.ModelReplied) else ""
                for what, text in lines_of(record):
                    console.print(Text.assemble((f"{label:<9}", "dim"), (f"{what:<9}", STYLES.get(what, "")), text))
                    label = ""

    await go_on("Tidy up the reports, then mail the team and the customers.")
    first, second = (await agent.state(SESSION)).waiting
    await asyncio.sleep(delay)
    edited = Edit({"to": "customers", "text": "Reports are tidy."}, by="ann")
    await go_on(answers={first.id: Approve(by="ann"), second.id: edited})
    console.print(f"\nAll of this was read from the log: {told} records, and nothing beside them.")


@click.command()
def demo() -> None:
    """Watch an agent work, without a key or a network."""
    console = Console(highlight=False, soft_wrap=True)
    console.print("An agent with a scripted model, three tools and four hooks\n", style="bold")
    for verb, hook in (("inject", calendar), ("rewrite", tidy_path), ("gate", keep_files), ("gate", ask_first)):
        console.print(f"  {verb:<9}{hook.__name__:<12}{hook.__doc__}")
    console.print("\nOne turn, as its log tells it\n", style="bold")
    asyncio.run(tell(console, delay=0.2 if console.is_terminal else 0.0))
    console.print("\nWhat to read next\n", style="bold")
    for page, why in READ_NEXT.items():
        console.print(f"  {page:<27}{why}")
