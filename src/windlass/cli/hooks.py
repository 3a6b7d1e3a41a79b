"""The `hooks` commands: try hooks of Claude Code and permission rules, check both, and trust hooks."""

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

from .claude_hooks import doctor, find, fire, plugin_option, project_option, settings_option, trust_hooks
from .loading import agent_option
from .output import echo, echo_json

_POLICY = "The policy: a .toml, .yaml or .yml file."
_RULES = click.option("--rules", "policy", required=True, type=click.Path(path_type=Path), help=_POLICY)


@click.group()
def hooks() -> None:
    """Try hooks of Claude Code and permission rules, check both, and trust the hooks of a project."""


hooks.add_command(doctor)
hooks.add_command(trust_hooks)


@hooks.command("test")
@click.argument("event", required=False)
@click.option("--tool", metavar="NAME", help="The tool that the event is about, as Claude Code calls it: Bash, Write.")
@click.option(
    "--input",
    "given",
    default="{}",
    metavar="JSON",
    help="The input of the tool, or all that the hook reads; - reads it from standard input.",
)
@project_option
@settings_option
@plugin_option
@click.option("--strict", is_flag=True, help="Let hooks that are broken block.")
@click.option("--rules", "policy", type=click.Path(path_type=Path), help=_POLICY)
@click.option("--call", "texts", multiple=True, help="A call: a tool and its arguments as JSON. Goes with --rules.")
@click.option("--expect", type=click.Choice(["allow", "ask", "deny"]), help="Exit with 1 unless this is the verdict.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def test_(
    event: str | None,
    policy: Path | None,
    texts: tuple[str, ...],
    expect: str | None,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Fire an event at the hooks of Claude Code, or try a policy on calls.

    With EVENT, such as PreToolUse, its hooks run, and each is shown: command, exit code, output, what it decided, and
    why that had an effect or not. No tool runs. Hooks of a project run only if they are trusted, or in a file that you
    name with --settings.

    With --rules, the verdict of a policy on each --call is printed, and the rule that gave it. A call is written like
    'bash {"command": "git status"}'. Nothing runs. A problem with the rules is printed, too.
    """
    if event is not None:
        if policy is not None or texts:
            raise click.UsageError("give either EVENT, or --rules with --call")
        _test_event(event, as_json=as_json, expect=expect, **chosen)
    elif policy is None:
        raise click.UsageError("name an EVENT such as PreToolUse, or a policy with --rules and --call")
    elif not texts:
        raise click.UsageError("--rules needs a --call")
    else:
        _test_rules(policy, texts, expect, as_json=as_json)


def _test_event(
    event: str,
    *,
    tool: str | None,
    given: str,
    project: Path,
    files: tuple[Path, ...],
    plugins: tuple[Path, ...],
    strict: bool,
    expect: str | None,
    as_json: bool,
) -> None:
    found = find(project, files, plugins)
    decision = fire(event, tool, given, found, project=project, strict=strict, as_json=as_json)
    if expect is not None and decision != expect:
        raise SystemExit(1)


def _test_rules(policy: Path, texts: tuple[str, ...], expect: str | None, *, as_json: bool) -> None:
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
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def check(policy: Path, agent: Agent[Any, Any] | None, as_json: bool) -> None:
    """Check a policy: list rules that never count or match nothing. Exits with 1 if there are any."""
    rules = _load(policy, quiet=True)
    problems = rules.problems() if agent is None else rules.warnings(agent.tools)
    if as_json:
        echo_json(json.dumps({"summary": rules.summary(), "problems": problems}, ensure_ascii=False, indent=2))
    else:
        for line in problems or [rules.summary()]:
            echo(line)
    if problems:
        raise SystemExit(1)


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
