"""The `explain` command: prints a compiled agent like a query plan."""

from __future__ import annotations

from typing import Any

import click

from windlass import Agent
from windlass.errors import ConfigError

from .loading import agent_argument
from .output import echo, echo_json


@click.command()
@agent_argument
@click.option("--json", "as_json", is_flag=True, help="Print the data as JSON.")
def explain(agent: Agent[Any, Any], as_json: bool) -> None:
    """Show how an agent is compiled, like a query plan.

    MODULE:AGENT is a module or a Python file and, after a colon, the name of an agent or of a function that returns
    one. The default name is `agent`. The module is imported, so its code runs. It may also be an agent file, such as
    agent.toml.
    """
    try:
        explanation = agent.explain()
    except ConfigError as error:
        raise click.UsageError(f"the agent cannot be compiled: {error}") from error
    if as_json:
        echo_json(explanation.json())
    else:
        echo(str(explanation))
