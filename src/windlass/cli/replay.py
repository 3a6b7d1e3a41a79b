"""The `replay` command: asks an agent or a policy again what was decided in recorded sessions."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass import Agent
from windlass._progress import Report as Bar
from windlass.errors import SessionUnknown
from windlass.protocols import Store

from .completing import complete_sessions
from .loading import ScopeFactory, agent_option, make_scope, scope_option
from .output import CUT, echo, echo_json, mistakes_exit_with, page, terminal_width
from .painting import paint_for_output
from .stores import report_errors, store_option, with_store

if TYPE_CHECKING:
    from windlass.replay import Report

_DAY = 86400.0

UNJUDGED = 2
"""The exit code if there is no verdict. 1 would say that something is decided otherwise."""


class _Counted:
    """How many sessions are replayed, for the progress bar."""

    def __init__(self, total: int) -> None:
        self.done = self.failed = 0
        self.total: int | None = total


class Since(click.ParamType[float]):
    """A moment: `30d`, `12h`, or a date such as `2026-11-01`; as seconds since the epoch."""

    name = "since"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read the moment."""
        if isinstance(value, float):
            return value
        if found := re.fullmatch(r"(\d+)([dh])", value):
            return time.time() - int(found[1]) * (_DAY if found[2] == "d" else _DAY / 24)
        try:
            return datetime.fromisoformat(value).timestamp()
        except ValueError:
            self.fail(f"{value!r} is not a time: use 30d, 12h or a date such as 2026-11-01", param, ctx)


@click.command()
@click.argument("sessions", nargs=-1, shell_complete=complete_sessions)
@store_option
@agent_option("The agent whose hooks are asked.")
@click.option(
    "--rules",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Try this policy file alone: its rules take the place of the recorded ones, all other verdicts stand.",
)
@click.option(
    "--replaces",
    multiple=True,
    metavar="HOOK",
    help="With --rules: the recorded gate that the rules replace. Can be repeated.  [default: permissions]",
)
@scope_option
@click.option("--since", type=Since(), metavar="TIME", help="Only sessions used since then: 30d, 12h or a date.")
@click.option("--full", is_flag=True, help="On a terminal, print all sessions, and long values whole.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
@click.option("--markdown", is_flag=True, help="Print tables in Markdown, for a comment on a pull request.")
def replay(
    sessions: tuple[str, ...],
    address: str,
    agent: Agent[Any, Any] | None,
    rules: Path | None,
    replaces: tuple[str, ...],
    scope: ScopeFactory | None,
    since: float | None,
    full: bool,
    as_json: bool,
    markdown: bool,
) -> None:
    """Ask again what was decided in recorded SESSIONS, by default in all of them. Calls no model and no tool.

    With --agent, the gates, the rewrites of tool calls and the limits of this agent decide; with --rules, a policy file
    does. The replay of a session ends where the agent decides otherwise than the log.

    Exits with 0 if all is decided as it was, with 1 if something is decided otherwise, with 2 if a verdict could not be
    given because the log lacks what it needs, if a log could not be read, or after any other error, and with 5 if there
    was no session to replay.
    """
    if (agent is None) == (rules is None):
        raise click.UsageError("name either an agent with --agent or a policy with --rules")
    if replaces and rules is None:
        raise click.UsageError("--replaces needs --rules")
    if as_json and markdown:
        raise click.UsageError("print either --json or --markdown")
    from windlass._text import uncut
    from windlass.replay.policies import RULES

    from .replayed import painted

    replaced = None if rules is None else (*(replaces or (RULES,)), RULES)
    with mistakes_exit_with(UNJUDGED):
        judge = _judge(agent, rules)
        report = with_store(address, lambda store: _replayed(judge, store, sessions, scope, since, replaced))
    if as_json:
        echo_json(report.json())
    elif markdown:
        echo(report.markdown())
    elif (width := terminal_width()) is not None:
        text = "\n".join(painted(report, paint_for_output(), width, full=full))
        page(text, CUT if "…(+" in text else "", styled=True)
    else:
        with uncut():
            echo(str(report))
    raise SystemExit(report.summary.exit_code)


def _judge(agent: Agent[Any, Any] | None, rules: Path | None) -> Agent[Any, Any]:
    """The agent that is asked: the given one, or one that has nothing but these rules."""
    from windlass.replay.policies import agent_of_policy

    if rules is None:
        assert agent is not None
        return agent
    return report_errors(lambda: agent_of_policy(rules))


async def _replayed(
    agent: Agent[Any, Any],
    store: Store,
    sessions: Sequence[str],
    scope: ScopeFactory | None,
    since: float | None,
    replaced: Sequence[str] | None,
) -> Report:
    """Replay the sessions, with a progress bar."""
    from windlass.replay import Replay, Report

    names = await _chosen(store, sessions, since)
    report, counted = Report(), _Counted(len(names))
    bar: Bar[_Counted] = Bar(sys.stderr is not None and sys.stderr.isatty())
    try:
        scopes = None if scope is None else partial(make_scope, scope)
        async for one in Replay(agent, store, scope=scopes, replacing=replaced).sessions(names):
            report.add(one)
            counted.done += 1
            counted.failed += one.status == "failed"
            if not counted.done % 50:
                bar(counted)
    finally:
        bar.close()
    return report


async def _chosen(store: Store, sessions: Sequence[str], since: float | None) -> list[str]:
    """The ids of the sessions to replay, those that were erased left out."""
    infos = {info.session: info for info in await store.find()}
    if missing := [name for name in sessions if name not in infos]:
        raise SessionUnknown(f"there is no session {missing[0]!r}", session=missing[0])
    chosen = sessions or [name for name in await store.sessions() if name in infos]
    return [name for name in chosen if infos[name].status != "erased" and infos[name].updated >= (since or 0.0)]
