"""The `submit` command: queues a message for a worker."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

import click

from windlass import Result
from windlass.engines.pool import Queue
from windlass.sessions import new_id

from .assembling import shared_agent
from .json_lines import end_of
from .output import echo, echo_json, read_input
from .stores import report_errors
from .temporal import temporal_options, temporal_runner
from .turns import ended, exit_code
from .worker import close


@click.command()
@click.argument("agent", metavar="MODULE:AGENT")
@click.argument("prompt", required=False)
@click.option("--store", help="The store that the workers share: sqlite:///FILE or postgresql://…")
@click.option("--session", metavar="ID", help="The session of the message. Without it, a new one.")
@click.option("--key", help="Submit again with the same session and key, and the message is queued only once.")
@click.option("--priority", type=click.IntRange(0, 9), default=5, show_default=True, help="9 comes first.")
@temporal_options
@click.option("--wait", is_flag=True, help="Wait for the turn to end, and print the answer.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def submit(
    agent: str,
    prompt: str | None,
    store: str | None,
    session: str | None,
    key: str | None,
    priority: int,
    temporal: str | None,
    task_queue: str,
    namespace: str,
    wait: bool,
    as_json: bool,
) -> None:
    """Queue a message for a worker, and print the session's id. With --temporal, its workers run the turn.

    Without PROMPT, it is read from the standard input. With --wait the exit codes are those of `windlass run`.
    """
    text = (prompt if prompt is not None else read_input()).strip()
    if not text:
        raise click.UsageError("say something: as PROMPT, or on the standard input")
    named, _ = shared_agent(agent, store)
    name, given = session or new_id(), key or os.urandom(8).hex()

    async def work() -> tuple[bool, Result[Any] | None]:
        try:
            if temporal is not None:
                runner = await temporal_runner(named, temporal, namespace, task_queue=task_queue)
                new = await runner.send(text, session=name, key=given, priority=priority)
                return new, await runner.result(name, given) if wait else None
            queue = Queue(named)
            new = await queue.submit(text, session=name, key=given, priority=priority)
            return new, await queue.result(name, given) if wait else None
        finally:
            await close(named)

    new, result = report_errors(lambda: asyncio.run(work()))
    if as_json:
        echo_json(json.dumps({"session": name, "key": given, "new": new}, ensure_ascii=False))
    else:
        echo(name if not wait else f"{name} {given}", err=wait)
        if not new:
            echo(f"session {name!r} was given a message with the key {given!r} before", err=True)
    if result is not None:
        _show(result, as_json=as_json)
        sys.exit(exit_code(result))


def _show(result: Result[Any], *, as_json: bool) -> None:
    if as_json:
        echo_json(json.dumps(end_of(result), ensure_ascii=False))
        return
    if text := result.partial_text:
        echo(text.replace("\r\n", "\n").expandtabs())
    echo(ended(result), err=True)
