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
from windlass._text import visible, visible_id
from windlass.approvals import call_text, expired, open_questions, resolve, top_session
from windlass.decisions import AnyResolution, Approve, Edit, Reject, Respond
from windlass.errors import StoreError
from windlass.protocols import Store
from windlass.records import Asked

from .loading import agent_option
from .output import echo, page, wrap
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
    """Answer a question of a session. Without QUESTION, list the open questions, each with the whole call.

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
        asking = {name for name, asked in await store.approvals() if asked.id == question}
        if agent is None:
            await resolve(store, session, question, answer)
        else:
            await agent.resolve(session, question, answer)
        return await top_session(store, session, asking)

    top = with_store(where, work)
    echo(f"{type(answer).__name__.lower()}: saved for the next resume of {visible_id(top)}")


def _login() -> str | None:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a user without a name
        return None


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
    async def work(store: Store) -> tuple[list[tuple[str, Asked]], list[str]]:
        found: list[tuple[str, Asked]] = []
        damaged: list[str] = []
        for name in [session] if session is not None else await _asking(store):
            try:
                found += await open_questions(store, name)
            except StoreError as error:
                damaged.append(str(error))
        asking: dict[tuple[str, str], list[str]] = {}
        for name, asked in found:
            asking.setdefault((asked.id, asked.digest), []).append(name)
        tops = [await top_session(store, name, asking[asked.id, asked.digest]) for name, asked in found]
        return [item for item, top in zip(found, tops, strict=True) if item[0] == top], damaged

    found, damaged = with_store(where, work)
    if found:
        page("\n".join([wrap(line) for name, asked in found for line in _question(name, asked)]))
    elif not damaged:
        echo("no open questions")
    if damaged:
        raise click.ClickException("\n".join(damaged))


async def _asking(store: Store) -> list[str]:
    """The sessions that may have open questions."""
    try:
        names = [name for name, _ in await store.approvals()]
    except StoreError:  # the list of questions is damaged, but the logs have them too
        names = [info.session for info in await store.find() if info.waiting]
    return list(dict.fromkeys(names))


def _question(session: str, asked: Asked) -> Iterable[str]:
    """A question in lines. Nothing is cut: a person who approves must be able to see all of it."""
    yield f"{visible_id(session)}  {visible_id(asked.id)}  {visible(asked.question)}"
    if asked.call is not None:
        yield f"    {call_text(asked.call)}"
    yield f"    answers: {', '.join(map(visible, asked.allow))}"
    if asked.approvers is not None:
        yield f"    approvers: {', '.join(map(visible_id, asked.approvers))}"
    if asked.expires_at is not None:
        past = "expired" if expired(asked, time.time()) else "expires"
        yield f"    {past}: {_local_time(asked.expires_at)}, then it counts as {visible(asked.default)}"


def _local_time(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "at a time out of range"
