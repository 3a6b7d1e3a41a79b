"""Hooks of Claude Code on the command line: try them, find what is wrong with them, and trust them."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass._text import inert, visible
from windlass.trust import distrust

from .output import echo, echo_json, read_input
from .stores import report_errors

if TYPE_CHECKING:
    from windlass.compat.claude_code.handlers import HookRun
    from windlass.compat.claude_code.sources import Found
    from windlass.compat.claude_code.trials import Row, Trial

_SHOWN = 2_000

project_option = click.option(
    "--project",
    default=".",
    show_default="the current folder",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of the project whose hooks are meant.",
)
settings_option = click.option(
    "--settings",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A settings file, instead of those that are found.",
)
plugin_option = click.option(
    "--plugin",
    "plugins",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="The folder of a plugin with hooks.",
)


def find(project: Path, files: tuple[Path, ...], plugins: tuple[Path, ...], *, trusts: bool = False) -> Found:
    """The hooks of a project, or of the files that the user named. Named files need no trust."""
    from windlass.compat.claude_code.sources import Places, find_hooks

    if not files:
        return report_errors(lambda: find_hooks(Places.of(project, plugins=plugins), trusts=trusts))
    return report_errors(lambda: find_hooks(Places.of(project, named=files, plugins=plugins).only_named()))


# ---------------------------------------------------------------- test


def fire(
    event: str, tool: str | None, given: str, found: Found, *, project: Path, strict: bool, as_json: bool
) -> str | None:
    """Fire an event, and print what each hook does and why that has an effect or not. Returns what they decide."""
    from windlass.compat.claude_code.protocol import EVENTS, TOOL_EVENTS
    from windlass.compat.claude_code.trials import try_event

    if event not in EVENTS:
        raise click.UsageError(f"there is no event {event!r}; the events are {', '.join(EVENTS)}")
    data = _object(given)
    if tool is not None and event not in TOOL_EVENTS:
        raise click.UsageError(f"--tool goes with {', '.join(TOOL_EVENTS)}")
    if event in TOOL_EVENTS:
        whole = data if "tool_input" in data or "hook_event_name" in data else {"tool_input": data}
        data = {"tool_name": "Bash", "tool_input": {}, **whole, **({} if tool is None else {"tool_name": tool})}
    where = os.path.realpath(project)
    trial = asyncio.run(try_event(found, event, data, project=where, closed=strict))
    if as_json:
        echo_json(json.dumps(_as_json(trial, found), ensure_ascii=False, indent=2))
        return trial.decision or None
    for path in found.untrusted:
        echo(f"not trusted, so its hooks do not run: {visible(str(path))} (windlass hooks trust)")
    for row in trial.rows:
        for line in _lines(event, row):
            echo(line)
    if not trial.rows:
        echo(f"there are no hooks for {event}")
    for line in trial.env.splitlines():
        echo(f"variable  {visible(line)}")
    echo(f"together: {_together(trial)}")
    return trial.decision or None


def _object(text: str) -> dict[str, Any]:
    try:
        data = json.loads(read_input() if text == "-" else text)
    except ValueError as error:
        raise click.UsageError(f"--input must be a JSON object: {error}") from error
    if not isinstance(data, dict):
        raise click.UsageError('--input must be a JSON object, such as \'{"command": "ls"}\'')
    return data


def _lines(event: str, row: Row) -> list[str]:
    handler = row.handler
    lines = [f"{handler.place}  {visible(handler.name)[:200]}", f"  from      {visible(str(handler.source))}"]
    if row.run is None:
        return [*lines, f"  skipped   {visible(row.skipped)}"]
    return [*lines, *_run_lines(event, row.run)]


def _run_lines(event: str, run: HookRun) -> list[str]:
    from windlass.compat.claude_code.trials import effect_of

    output, lines = run.output, list[str]()
    if output is not None:
        code = "no exit code" if output.exit is None else f"exit code {output.exit}"
        lines.append(f"  ran       {code}, {run.seconds * 1000:.0f} ms")
        for name, text in (("stdout", output.stdout), ("stderr", output.stderr)):
            if text.strip():
                shown = inert(text.strip()[:_SHOWN]).replace("\n", "\n            ")
                lines.append(f"  {name}    {shown}")
    lines.append(f"  effect    {visible(effect_of(event, run.answer))}")
    if run.why:
        lines.append(f"  why       {visible(run.why)}")
    return lines


def _together(trial: Trial) -> str:
    verdict = trial.verdict
    blocked = "block" if verdict.blocks and verdict.permission is None else ""
    words = [blocked or trial.decision, "stop the agent" if verdict.stops else ""]
    found = ", ".join([word for word in words if word]) or "no decision"
    requests = [one.get("message") for one in verdict.requests if one.get("behavior") == trial.decision]
    reason = verdict.reason or verdict.feedback or verdict.stop_reason or next(filter(None, requests), "")
    return f"{found}: {visible(reason)}" if reason else found


def _as_json(trial: Trial, found: Found) -> dict[str, Any]:
    verdict = trial.verdict
    return {
        "event": trial.event,
        "input": trial.input,
        "hooks": [_row_as_json(trial.event, row) for row in trial.rows],
        "verdict": {
            "permission": verdict.permission,
            "blocked": bool(verdict.blocks),
            "reason": verdict.reason or verdict.feedback,
            "context": list(verdict.context),
            "messages": list(verdict.messages),
            "stops": verdict.stops,
            "stop_reason": verdict.stop_reason,
            "updated_input": verdict.input,
            "updated_output": verdict.output,
            "decision": trial.decision or None,
            "requests": list(verdict.requests),
        },
        "env": trial.env,
        "untrusted": [str(path) for path in found.untrusted],
    }


def _row_as_json(event: str, row: Row) -> dict[str, Any]:
    from windlass.compat.claude_code.trials import effect_of

    handler = row.handler
    said: dict[str, Any] = {
        "place": handler.place,
        "source": str(handler.source.path),
        "type": handler.type,
        "matcher": handler.matcher,
        "command": handler.name,
    }
    if row.run is None:
        return {**said, "skipped": row.skipped}
    answer, output = row.run.answer, row.run.output
    ran: Mapping[str, Any] = (
        {}
        if output is None
        else {
            "exit": output.exit,
            "stdout": output.stdout,
            "stderr": output.stderr,
            "timed_out": output.timed_out,
        }
    )
    return {
        **said,
        **ran,
        "ms": round(row.run.seconds * 1000, 1),
        "permission": answer.permission,
        "blocked": answer.blocked,
        "reason": answer.reason,
        "context": list(answer.context),
        "message": answer.message,
        "stops": answer.stops,
        "stop_reason": answer.stop_reason,
        "updated_input": answer.input,
        "updated_output": answer.output,
        "request": answer.request,
        "background": row.run.background,
        "effect": effect_of(event, answer),
        "why": row.run.why,
    }


# ---------------------------------------------------------------- doctor and trust


@click.command()
@project_option
@settings_option
@plugin_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def doctor(project: Path, files: tuple[Path, ...], plugins: tuple[Path, ...], as_json: bool) -> None:
    """Say which hooks of Claude Code cannot do what they seem to be meant for, and how to mend each.

    Nothing runs. Exits with 1 if anything was found.
    """
    from windlass.compat.claude_code.doctor import examine

    found = find(project, files, plugins, trusts=True)
    problems = examine(found, Path(os.path.realpath(project)))
    if as_json:
        rows = [{name: getattr(one, name) for name in ("source", "place", "text", "remedy")} for one in problems]
        echo_json(json.dumps({"hooks": len(found.handlers), "problems": rows}, ensure_ascii=False, indent=2))
        raise click.exceptions.Exit(1 if problems else 0)
    for problem in problems:
        echo(f"{visible(problem.source)}: {problem.place}")
        echo(f"  {visible(problem.text)}")
        if problem.remedy:
            echo(f"  → {visible(problem.remedy)}")
    count = len(found.handlers)
    if problems:
        echo(f"{len(problems)} problems in {count} hooks")
        raise click.exceptions.Exit(1)
    echo(f"{count} hooks, and nothing to mend")


@click.command("trust")
@project_option
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--remove", is_flag=True, help="Trust the hooks of the project no longer.")
def trust_hooks(project: Path, yes: bool, remove: bool) -> None:
    """Trust the hooks of a project, as they are now: its settings, and the scripts that they name.

    What they run is printed first. If one of the files changes, its hooks do not run until you trust it again. Files
    that these scripts use themselves are not checked.
    """
    from windlass.compat.claude_code.sources import project_files, trust_project

    where = Path(os.path.realpath(project))
    files = project_files(where)
    if not files:
        raise click.UsageError(f"there are no settings with hooks in {where / '.claude'}")
    if remove:
        for path in files:
            report_errors(lambda path=path: distrust(path))  # type: ignore[misc]
            echo(f"not trusted any more: {visible(str(path))}")
        return
    found = find(project, (), (), trusts=True)
    for handler in found.handlers:
        if handler.source.scope in ("project", "local"):
            matcher = f" ({visible(handler.matcher)})" if handler.matcher else ""
            echo(f"  {handler.event}{matcher} runs {visible(handler.name)}")
    for path in files:
        echo(f"  file {visible(str(path))}")
    if not yes and not click.confirm("Trust them?", default=False):
        raise click.exceptions.Exit(1)
    for path in report_errors(lambda: trust_project(where)):
        echo(f"trusted: {visible(str(path))}")
