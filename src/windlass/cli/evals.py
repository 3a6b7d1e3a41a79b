"""The `eval` command: runs the cases of a file against an agent, or against recorded sessions."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from windlass import Agent
from windlass.evals import Case, EvalRun, ModelJudge, compare, evaluate, evaluate_sessions, junit, load_cases
from windlass.protocols import Store

from .loading import ScopeFactory, agent_option, make_scope, scope_option
from .output import echo, echo_json, is_terminal
from .stores import report_errors, store_option, with_store

_FILE = click.Path(dir_okay=False, path_type=Path)


def _writable(ctx: click.Context, option: click.Parameter, path: Path | None) -> Path | None:
    """Refuse a file that cannot be written before anything is spent on a run."""
    if path is not None and not os.access(path if path.exists() else path.absolute().parent, os.W_OK):
        raise click.BadParameter(f"{str(path)!r} cannot be written")
    return path


@click.command("eval")
@click.argument("cases", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@agent_option("The agent to run the cases with. Without it, the cases name recorded sessions.")
@store_option
@scope_option
@click.option("--repeat", type=click.IntRange(1), default=1, show_default=True, help="How often each case runs.")
@click.option(
    "--concurrency", type=click.IntRange(1), default=8, show_default=True, help="How many trials run at once."
)
@click.option(
    "--timeout", type=click.FloatRange(0, min_open=True), help="Cancel a trial, or its checks, after this many seconds."
)
@click.option("--judge", metavar="MODEL", help="The model that judges, such as openai:gpt-5.")
@click.option("--tag", "tags", multiple=True, help="Run only cases with this tag. Can be repeated.")
@click.option("--case", "names", multiple=True, help="Run only the case with this name. Can be repeated.")
@click.option(
    "--save",
    type=_FILE,
    callback=_writable,
    help="Write the run to this JSON file, for --compare and other programs.",
)
@click.option("--junit", "junit_file", type=_FILE, callback=_writable, help="Write the run to this file as JUnit XML.")
@click.option("--compare", "before", type=_FILE, help="Compare with a run that --save wrote.")
@click.option(
    "--min-rate",
    type=click.FloatRange(0, 1),
    default=1.0,
    show_default=True,
    help="Exit with 1 if the pass rate is lower.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the run as JSON.")
def evals(
    cases: Path,
    agent: Agent[Any, Any] | None,
    address: str,
    scope: ScopeFactory | None,
    repeat: int,
    concurrency: int,
    timeout: float | None,
    judge: str | None,
    tags: tuple[str, ...],
    names: tuple[str, ...],
    save: Path | None,
    junit_file: Path | None,
    before: Path | None,
    min_rate: float,
    as_json: bool,
) -> None:
    """Run the cases in a YAML, JSON or JSONL file, and print the pass rate.

    With --agent, each case runs in a new session. Without it, each case names a recorded session of the store, and
    nothing is run. Exits with 1 if the pass rate is lower than --min-rate.
    """
    earlier = report_errors(lambda: EvalRun.load(before)) if before is not None else None
    found = report_errors(lambda: load_cases(cases))
    chosen = [case for case in found if _is_chosen(case, tags, names)]
    if not chosen:
        raise click.UsageError("no case has these names and tags")
    if agent is None and (live_case := next((case for case in chosen if not case.session), None)) is not None:
        raise click.UsageError(f"case {live_case.label!r} has an input, which needs an agent: pass --agent")
    judging = report_errors(lambda: ModelJudge(judge)) if judge is not None else None

    async def live() -> EvalRun:
        assert agent is not None
        async with agent:
            return await evaluate(
                agent,
                chosen,
                repeat=repeat,
                judge=judging,
                scope=None if scope is None else partial(_scope, scope),
                concurrency=concurrency,
                timeout=timeout,
                progress=_shows_bar(),
            )

    async def recorded(store: Store) -> EvalRun:
        return await evaluate_sessions(
            store, chosen, judge=judging, concurrency=concurrency, timeout=timeout, progress=_shows_bar()
        )

    run = with_store(address, recorded) if agent is None else report_errors(lambda: asyncio.run(live()))
    if save is not None:
        run.save(save)
    if junit_file is not None:
        junit_file.write_text(junit(run), "utf-8")
    if as_json:
        echo_json(run.json())
    else:
        echo(str(run))
        if earlier is not None:
            echo(f"\n{compare(earlier, run)}")
    if run.rate < min_rate:
        raise click.exceptions.Exit(1)


async def _scope(factory: ScopeFactory, case: Case) -> Any:
    return await make_scope(factory, case.label)


def _is_chosen(case: Case, tags: tuple[str, ...], names: tuple[str, ...]) -> bool:
    return (not tags or bool(set(tags) & set(case.tags))) and (not names or case.label in names)


def _shows_bar() -> bool:
    return is_terminal() and sys.stderr is not None and sys.stderr.isatty()
