"""The `chat` command: a conversation with a model or an agent on a terminal."""

from __future__ import annotations

import asyncio
import os
import sys
from typing import Any

import click

from windlass import Agent
from windlass.cli.assembling import Choice, agent_options, assemble, scope_of
from windlass.cli.inspecting import inspect_options, inspected
from windlass.cli.stores import report_errors
from windlass.cli.turns import Turns
from windlass.sessions import new_id


@click.command()
@agent_options
@click.option("--session", metavar="ID", help="Continue this session, or begin one with this id.")
@click.option("-c", "--continue", "latest", is_flag=True, help="Continue the latest session of the store.")
@inspect_options
def chat(session: str | None, latest: bool, inspect: bool, breaks: tuple[str, ...], **chosen: Any) -> None:
    """Talk to a model or an agent on a terminal.

    Enter sends, Esc and then Enter begins a new line, Ctrl-C cancels the turn, Ctrl-D leaves. While the agent works,
    what you type reaches it after its current step. /help lists all commands. Everything is kept in a store: a
    conversation that was left or killed is continued with --session or --continue.
    """
    if session is not None and latest:
        raise click.UsageError("use one of --session and --continue")
    if not _is_terminal():
        raise click.UsageError("chat needs a terminal; in a pipe, use windlass run")
    try:
        from prompt_toolkit.utils import is_dumb_terminal

        from .conversation import Conversation
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("prompt_toolkit"):
            raise
        raise click.ClickException("chat needs prompt_toolkit: pip install 'windlass[chat]'") from error
    if is_dumb_terminal():
        kind = os.environ.get("TERM", "")
        raise click.UsageError(f"chat needs a terminal that can move its cursor, but TERM={kind}; use windlass run")
    choice = Choice(**chosen)
    agent, _ = assemble(choice)
    scope = scope_of(choice)

    async def work() -> None:
        try:
            name = session or (await _latest(agent) if latest else new_id())
            await Conversation(Turns(agent, name, scope), choice).hold()
        finally:
            await agent.aclose()
            await agent.store.close()

    with inspected([agent], inspect=inspect, breaks=breaks):
        report_errors(lambda: asyncio.run(work()))


async def _latest(agent: Agent[Any, Any]) -> str:
    for info in await agent.store.find(limit=100):
        if not info.parent and info.status != "erased":
            return info.session
    raise click.ClickException("there is no session to continue")


def _is_terminal() -> bool:
    return sys.stdin.isatty() and sys.stdout.isatty()
