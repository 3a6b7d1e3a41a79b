"""The `hooks` commands: try permission rules on calls, and check a policy, without running anything."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import click
import msgspec

from windlass import Agent
from windlass.errors import ConfigError
from windlass.messages import ToolCall

from .loading import agent_option
from .output import echo, echo_json

_RULES = click.option(
    "--rules", "policy", required=True, type=click.Path(path_type=Path), help="The policy: a .toml, .yaml or .yml file."
)


@click.group()
def hooks() -> None:
    """Try permission rules on calls, and check a policy. Nothing runs."""


@hooks.command("test")
@_RULES
@click.option("--call", "texts", required=True, multiple=True, help="A call: a tool and its arguments as JSON.")
@click.option("--expect", type=click.Choice(["allow", "ask", "deny"]), help="Exit with 1 unless this is the verdict.")
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
def test_(policy: Path, texts: tuple[str, ...], expect: str | None, as_json: bool) -> None:
    """Print the verdict of a policy on calls, and the rule that gave it.

    A call is written like 'bash {"command": "git status"}'. The call does not run. A problem with the rules is
    printed, too.
    """
    rules = _load(policy, quiet=as_json)
    verdicts = [(call, rules.check(call)) for call in map(_call, texts)]
    if as_json:
        rows = [
            {
                "tool": call.name,
                "decision": found.decision,
                "rule": None if found.rule is None else repr(found.rule),
                "why": found.why,
                "command": found.command,
            }
            for call, found in verdicts
        ]
        echo_json(json.dumps(rows, ensure_ascii=False, indent=2))
    else:
        for _, found in verdicts:
            echo(str(found))
    if expect is not None and any(found.decision != expect for _, found in verdicts):
        raise SystemExit(1)


@hooks.command()
@_RULES
@agent_option("The agent whose tools the rules are about: names rules that match none of them.")
def check(policy: Path, agent: Agent[Any, Any] | None) -> None:
    """Check a policy: list rules that never count or match nothing. Exits with 1 if there are any."""
    rules = _load(policy, quiet=True)
    problems = rules.problems() if agent is None else rules.warnings(agent.tools)
    for problem in problems:
        echo(problem)
    if problems:
        raise SystemExit(1)
    echo(rules.summary())


def _load(policy: Path, *, quiet: bool) -> Any:
    from windlass.capabilities import Permissions

    try:
        rules = Permissions.load(policy, log_problems=False)
    except ConfigError as error:
        raise click.ClickException(str(error)) from error
    for problem in [] if quiet else rules.problems():
        echo(f"warning: {problem}", err=True)
    return rules


def _call(text: str) -> ToolCall:
    name, arguments = [*re.split(r"\s+", text.strip(), maxsplit=1), ""][:2]
    example = """'bash {"command": "ls"}'"""
    if not name or name.startswith("{"):
        raise click.UsageError(f"--call needs a tool and its arguments, such as {example}, not {text!r}")
    try:
        decoded = msgspec.json.decode(arguments or "{}", type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeEncodeError) as error:
        raise click.UsageError(
            f"--call {text!r}: the arguments must be a JSON object, as in {example}: {error}"
        ) from error
    return ToolCall("call", name).replace(arguments=decoded)
