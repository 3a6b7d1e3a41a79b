"""The `approve` command: list open questions, and answer one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import Any

import click
import msgspec
from click.core import ParameterSource

from windlass import Agent
from windlass._text import inert_json, visible, visible_id
from windlass.approvals import call_text, open_questions, progress, resolve, subject_lines, top_session
from windlass.decisions import AnyResolution, Approve, Edit, Reject, Respond
from windlass.errors import StoreError
from windlass.protocols import Store
from windlass.records import Asked
from windlass.terms import terms_of

from .asking import login
from .completing import complete_sessions
from .loading import agent_option
from .output import echo, echo_json, page, wrap
from .stores import store_option, with_store


@click.command()
@store_option
@agent_option("The agent that asked: use its store, and mask its secrets in the answer.")
@click.argument("session", required=False, shell_complete=complete_sessions)
@click.argument("question", required=False)
@click.option("--reject", "message", help="Reject, with a message to the model.")
@click.option("--edit", "arguments", help="Approve, but with these arguments instead: a JSON object.")
@click.option("--respond", "text", help="Do not run the tool: the model reads this text as its result.")
@click.option("--by", help="Who answers; by default, your login name.")
@click.option("--remember", metavar="RULE", help="Approve, and record a rule such as 'bash(git *)' with the answer.")
@click.option("--digest", help="Refuse the answer if the call is not the one with this digest any more.")
@click.option("--json", "as_json", is_flag=True, help="Without QUESTION: print the open questions as JSON.")
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
    remember: str | None,
    digest: str | None,
    as_json: bool,
) -> None:
    """Answer a question of a session. Without QUESTION, list the open questions, each with the whole call and with who
    has approved it. Questions with a higher priority come first.

    The answer waits in the session's inbox. It takes effect when the session is resumed, or at once if the session is
    running. The agent masks its secrets when it reads the answer; with --agent, they are masked before the answer is
    stored, and edited arguments are checked. So --edit needs --agent.
    """
    if agent is not None and ctx.get_parameter_source("address") is ParameterSource.COMMANDLINE:
        raise click.UsageError("--agent has its own store: leave out --store")
    where = address if agent is None else agent.store
    if session is None or question is None:
        _list(where, session, as_json=as_json)
        return
    if as_json:
        raise click.UsageError("--json lists questions: leave out QUESTION")
    answer = _answer(message, arguments, text, by or login(), remember, digest)
    if isinstance(answer, Edit) and agent is None:
        raise click.UsageError("--edit needs --agent MODULE:AGENT, so that the new arguments can be checked")

    async def work(store: Store) -> str:
        asking = {name for name, asked in await store.approvals() if asked.id == question}
        if agent is None:
            await resolve(store, session, question, answer)
        else:
            await agent.resolve(session, question, answer)
        return await top_session(store, session, asking)

    top = with_store(where, work)
    echo(f"{type(answer).__name__.lower()}: saved for the next resume of {visible_id(top)}")


def _answer(
    message: str | None,
    arguments: str | None,
    text: str | None,
    by: str | None,
    remember: str | None,
    digest: str | None,
) -> AnyResolution:
    options = [option for option in (message, arguments, text) if option is not None]
    if len(options) > 1:
        raise click.UsageError("use only one of --reject, --edit and --respond, or none of them to approve")
    if options and remember is not None:
        raise click.UsageError("--remember goes with an approval: leave out --reject, --edit and --respond")
    if message is not None:
        return Reject(message, by, digest)
    if text is not None:
        return Respond(text, by, digest)
    if arguments is None:
        try:
            return Approve(by, remember, digest)
        except ValueError as error:
            raise click.UsageError(f"--remember: {error}") from error
    try:
        edited = json.loads(arguments)
    except ValueError as error:
        raise click.UsageError(f"--edit takes a JSON object: {error}") from error
    if not isinstance(edited, dict):
        raise click.UsageError("--edit takes a JSON object")
    return Edit(edited, by, digest)


def _list(where: str | Store, session: str | None, *, as_json: bool) -> None:
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
    found.sort(key=lambda question: -question[1].priority)
    if as_json:
        rows = [{"session": name, **msgspec.to_builtins(asked, enc_hook=str)} for name, asked in found]
        echo_json(json.dumps(rows, ensure_ascii=False, indent=2))
    elif found:
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
    yield from [f"    {line}" for line in subject_lines(asked)]
    if asked.proposed is not None:
        yield f"    edited by {visible_id(asked.answers[0].by)}, digest {visible(asked.digest)}; first it was"
        yield f"    {call_text(asked.proposed)}"
    if asked.details:
        yield f"    details: {visible(inert_json(json.dumps(asked.details, ensure_ascii=False)))}"
    if asked.priority:
        yield f"    priority: {asked.priority}"
    yield f"    answers: {', '.join(map(visible, asked.allow))}"
    if asked.terms:
        yield from [f"    {visible_id(need.gate)}: {need}" for need in progress(asked).needs]
    elif asked.approvers is not None:
        yield f"    approvers: {', '.join(map(visible_id, asked.approvers))}"
    for terms in terms_of(asked):
        if terms.expires_at is not None:
            past = "expired" if time.time() >= terms.expires_at else "expires"
            yield f"    {past}: {_local_time(terms.expires_at)}, then it counts as {visible(terms.default)}"


def _local_time(at: float) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (OverflowError, ValueError, OSError):
        return "at a time out of range"
