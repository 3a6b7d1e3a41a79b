"""The `approve` command: list open questions, and answer one."""

from __future__ import annotations

import getpass
import json
import time
from collections.abc import Iterable
from typing import Any

import click
from click.core import ParameterSource

from windlass import Agent
from windlass._text import one_line
from windlass.approvals import CHILD, expired, open_questions, resolve
from windlass.decisions import AnyResolution, Approve, Edit, Reject, Respond
from windlass.protocols import Store
from windlass.records import Asked

from .loading import agent_option
from .stores import store_option, with_store


@click.command()
@store_option
@agent_option("The agent that asked: use its store, and mask its secrets in the answer.")
@click.argument("session", required=False)
@click.argument("question", required=False)
@click.option("--reject", "message", help="Reject, with a message to the model.")
@click.option("--edit", "arguments", help="Approve, but with these arguments instead: a JSON object.")
@click.option("--respond", "text", help="Do not run the tool: the model reads this text as its result.")
@click.option("--by", help="Who answers; by default, your login name.")
@click.pass_context
def approve(
    ctx: click.Context,
    address: str,
    agent: Agent[Any, Any] | None,
    session: str | None,
    question: str | None,
    message: str | None,
    arguments: str | None,
    text: str | None,
    by: str | None,
) -> None:
    """Answer a question of a session. Without QUESTION, list the open questions.

    The answer waits in the session's inbox. It takes effect when the session is resumed, or at once if the session is
    running. The agent masks its secrets when it reads the answer; with --agent, they are masked before the answer is
    stored.
    """
    if agent is not None and ctx.get_parameter_source("address") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--agent has its own store: leave out --store")
    where = address if agent is None else agent.store
    if session is None or question is None:
        _list(where, session)
        return
    answer = _answer(message, arguments, text, by or _login())

    async def work(store: Store) -> str:
        asking = [name for name, asked in await store.approvals() if asked.id == question]
        if agent is None:
            await resolve(store, session, question, answer)
        else:
            await agent.resolve(session, question, answer)
        return _top(session, asking)

    top = with_store(where, work)
    click.echo(f"{type(answer).__name__.lower()}: saved for the next resume of {top}")


def _login() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return None


def _top(session: str, asking: Iterable[str]) -> str:
    """The session to resume: for a sub-agent, the topmost parent session that asks the same question."""
    known = set(asking)
    while (child := CHILD.fullmatch(session)) is not None and child[1] in known:
        session = child[1]
    return session


def _answer(message: str | None, arguments: str | None, text: str | None, by: str | None) -> AnyResolution:
    if sum(option is not None for option in (message, arguments, text)) > 1:
        raise click.UsageError("use only one of --reject, --edit and --respond, or none of them to approve")
    if message is not None:
        return Reject(message, by=by)
    if text is not None:
        return Respond(text, by=by)
    if arguments is None:
        return Approve(by=by)
    try:
        edited = json.loads(arguments)
    except ValueError as error:
        raise click.UsageError(f"--edit takes a JSON object: {error}") from error
    if not isinstance(edited, dict):
        raise click.UsageError("--edit takes a JSON object")
    return Edit(edited, by=by)


def _list(where: str | Store, session: str | None) -> None:
    async def work(store: Store) -> list[tuple[str, Asked]]:
        found = await open_questions(store, session)
        asking: dict[tuple[str, str], list[str]] = {}
        for name, asked in found:
            asking.setdefault((asked.id, asked.digest), []).append(name)
        return [(name, asked) for name, asked in found if _top(name, asking[asked.id, asked.digest]) == name]

    found = with_store(where, work)
    for name, asked in found:
        click.echo(f"{name}  {asked.id}  {one_line(asked.question)}")
        if asked.call is not None:
            click.echo(f"    {one_line(f'{asked.call.name} {asked.call.json}', 90)}")
        click.echo(f"    answers: {', '.join(asked.allow)}")
        if asked.approvers is not None:
            click.echo(f"    approvers: {', '.join(asked.approvers)}")
        if asked.expires_at is not None:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(asked.expires_at))
            past = "expired" if expired(asked, time.time()) else "expires"
            click.echo(f"    {past}: {when}, then it counts as {asked.default}")
    if not found:
        click.echo("no open questions")
