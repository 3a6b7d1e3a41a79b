"""The `resume` command: resumes a turn that waits for an answer or was interrupted."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import click

from windlass import Agent, Result
from windlass._text import visible, visible_id
from windlass.outcomes import Failed

from .completing import session_argument
from .json_lines import end_of
from .loading import ScopeFactory, agent_argument, make_scope, scope_option
from .output import echo, echo_json, working, wrap
from .stores import report_errors, require_file


@click.command()
@agent_argument
@session_argument
@scope_option
@click.option("--takeover", is_flag=True, help="Take the session over from a process that is working on it.")
@click.option("--json", "as_json", is_flag=True, help="Print how the turn ended as JSON, as the last line of `run`.")
def resume(agent: Agent[Any, Any], session: str, scope: ScopeFactory | None, takeover: bool, as_json: bool) -> None:
    """Resume a turn that waits for an answer or was interrupted.

    Answer first with `windlass approve`. The agent must use the store that has the session. If the agent declares a
    scope, as in Agent(scope=Desk), --scope is required. A session that another process is working on is refused; with
    --takeover, that process can write no more, and what it had begun is in doubt.
    """

    require_file(agent.store)

    async def work() -> Result[Any]:
        try:
            return await agent.resume(session, scope=await make_scope(scope, session), takeover=takeover)
        finally:
            await agent.aclose()
            await agent.store.close()

    with working("resumes"):
        result = report_errors(lambda: asyncio.run(work()))
    name = visible_id(session)
    if as_json:
        echo_json(json.dumps(end_of(result), ensure_ascii=False))
    if isinstance(result.outcome, Failed):
        raise click.ClickException(f"{name}: {result.outcome.error.type}: {result.outcome.error.message}")
    if as_json:
        return
    echo(result.partial_text.replace("\r\n", "\n").expandtabs())
    echo(f"{name}: {result.stop_reason}", err=True)
    for asked in result.waiting_for:
        echo(wrap(f"open question: {visible_id(asked.id)}  {visible(asked.question)}"), err=True)
