"""The `init` command: writes an agent file after four questions."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import click

from windlass._text import visible
from windlass.agent_files import json_schema
from windlass.agent_files.found import NAMES, trust_agent_file
from windlass.errors import ConfigError
from windlass.folders import data_folder
from windlass.models import check_model_name
from windlass.models.local.weights import COMMAND, KNOWN, found

from .output import echo
from .stores import report_errors
from .workspaces import PLANS, READS

_RULES = """
[capabilities.permissions]
band = "guard"
allow = {allow}
unmatched = "ask"

[capabilities.remembered_rules]
"""
TOOLS = {
    "nothing": "",
    "read": '\n[workspace]\nroot = "."\nwrite = false\nshell = false\n',
    "write": '\n[workspace]\nroot = "."\nwrite = true\n\n[capabilities.planning]\n'
    + _RULES.format(allow=json.dumps([*READS, *PLANS])),
}
STORES = {"user": "user", "folder": "sqlite:///windlass.db", "memory": "memory:"}
MEANING = {
    "nothing": "no tools",
    "read": "read and search files",
    "write": "also change files and run commands; you are asked about each",
    "user": "in your data folder",
    "folder": "in windlass.db, in this folder",
    "memory": "nowhere: they end with the process",
}


@click.command()
@click.argument("file", default="agent.toml", type=click.Path(dir_okay=False, path_type=Path))
@click.option("--name", help="The name of the agent.")
@click.option("--model", help="The model, such as openai:gpt-5 or local:smollm2.")
@click.option(
    "--may", type=click.Choice([*TOOLS]), help="What it may do in this folder; writing and commands are asked about."
)
@click.option("--store", type=click.Choice([*STORES]), help="Where sessions are stored.")
@click.option("--yes", is_flag=True, help="Do not ask; take the defaults for what is not given.")
def init(file: Path, **given: Any) -> None:
    """Write an agent file, by default agent.toml, after four questions.

    A file that exists is not changed. The new file is trusted, because you made it.
    """
    if file.exists():
        raise click.ClickException(f"{file} exists already, and is not changed")
    ask = _Questions(given.pop("yes"), given)
    name = ask.answer("name", "What is the agent's name?", file.absolute().parent.name or "agent")
    model = ask.answer("model", "Which model?", os.environ.get("WINDLASS_MODEL") or "local:smollm2", check=_check_model)
    may = ask.answer("may", "What may it do in this folder?", "read", choices=[*TOOLS])
    store = ask.answer("store", "Where are its sessions stored?", "user", choices=[*STORES])
    lines = [f"#:schema {_schema_file().as_uri()}", f"name = {_text(name)}", f"model = {_text(model)}"]
    lines += ['system = "You are a helpful assistant."', f"store = {_text(STORES[store])}", TOOLS[may]]
    lines += ["[capabilities.summarize]"]
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write("\n".join(lines).rstrip() + "\n")
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror or error}") from error
    report_errors(lambda: trust_agent_file(file))
    shown = visible(shlex.quote(str(file)))
    named = "" if str(file) in NAMES else f" --agent {shown}"
    echo(f"wrote {shown}")
    if model == "local:smollm2" and found(KNOWN["smollm2"]) is None:
        echo(f"  install the model:  {COMMAND}")
    echo(f"  talk to the agent:  windlass chat{named}")
    echo(f"  look at it:         windlass explain {shown}")


class _Questions:
    """Asks what the user has not given as an option."""

    def __init__(self, quiet: bool, given: dict[str, str | None]) -> None:
        self.quiet = quiet
        self.given = given

    def answer(
        self, option: str, question: str, default: str, *, choices: list[str] | None = None, check: Any = None
    ) -> str:
        known = self.given[option] or (default if self.quiet else None)
        if known is not None:
            return str(check(known) if check else known)
        for choice in choices or ():
            echo(f"  {choice:8} {MEANING[choice]}")
        kind = click.Choice(choices) if choices else None
        return str(click.prompt(question, default=default, type=kind, value_proc=check))


def _check_model(name: str) -> str:
    try:
        check_model_name(name)
    except ConfigError as error:
        raise click.UsageError(str(error)) from error
    return name


def _schema_file() -> Path:
    """The schema for editors, written to the user's data folder."""
    file = report_errors(data_folder) / "agent-file.schema.json"
    file.write_text(json.dumps(json_schema(), indent=2), encoding="utf-8")
    return file


def _text(value: str) -> str:
    """A text in TOML."""
    escaped = "".join([one if one.isprintable() else f"\\U{ord(one):08x}" for one in value.replace("\\", "\\\\")])
    return '"' + escaped.replace('"', '\\"') + '"'
