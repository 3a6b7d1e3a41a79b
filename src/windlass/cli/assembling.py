"""Makes the agent of `run` and `chat` from options of the command line: a model, or an agent that the user names."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from windlass import Agent
from windlass._text import inert, visible
from windlass.agent_files import find_agent_file, load_found_agent
from windlass.agent_files.references import CannotLoad
from windlass.capabilities import RememberedRules, Summarize
from windlass.composition import load_capability
from windlass.errors import CompiledError
from windlass.protocols import Capability
from windlass.stores import MemoryStore

from .loading import ScopeFactory, load_agent, load_scope
from .output import echo
from .stores import own_address, report_errors
from .workspaces import TOOLS, add_tools

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
REMEMBERS = "remembered_rules"


class Choice(NamedTuple):
    """What the user chose: a model with options, or an agent."""

    model: str | None = None
    agent: str | None = None
    system: str = ""
    capabilities: tuple[str, ...] = ()
    store: str | None = None
    scope: str | None = None
    tools: str = "none"
    yolo: bool = False
    claude_hooks: str | None = None

    def command(self, name: str, session: str) -> str:
        """The command that continues a session with the same choice, as the user can type it."""
        words = ["windlass", name]
        for option in ("agent", "model", "system", "store", "scope"):
            if value := getattr(self, option):
                words += [f"--{option}", value]
        for capability in self.capabilities:
            words += ["--capability", capability]
        words += ["--tools", self.tools] if self.tools != "none" else []
        words += ["--yolo"] if self.yolo else []
        if self.claude_hooks:
            words += ["--claude-hooks", self.claude_hooks]
        return visible(shlex.join([*words, "--session", session]))


def agent_options(command: F) -> F:
    """Add the options that choose the agent to a command."""
    options = (
        click.option(
            "-m",
            "--model",
            envvar="WINDLASS_MODEL",
            show_envvar=True,
            help="A model, such as openai:gpt-5 or local:smollm2.",
        ),
        click.option(
            "--agent",
            metavar="MODULE:AGENT",
            help="An agent of your own instead of a model. It brings its own tools and hooks.",
        ),
        click.option("--system", default="", help="The system text. Only with --model."),
        click.option(
            "--tools",
            type=click.Choice(TOOLS),
            default="none",
            show_default=True,
            help="Let the model read the files of this folder, or also change them and run commands, which you are "
            "asked about. Only with --model.",
        ),
        click.option(
            "--yolo",
            is_flag=True,
            help="Do not ask about --tools write. Only where commands are isolated from the rest of the machine.",
        ),
        click.option(
            "--capability",
            "capabilities",
            multiple=True,
            metavar="'NAME KEY=VALUE…'",
            help="Add a capability of an installed package, with its options as JSON or text.",
        ),
        click.option(
            "--store",
            show_default="WINDLASS_STORE, otherwise sessions.db in your data folder",
            help="The store of the sessions: sqlite:///FILE or postgresql://…",
        ),
        click.option(
            "--scope",
            metavar="MODULE:FUNCTION",
            help="A function that takes the session's id and returns the scope of its turn.",
        ),
        click.option(
            "--claude-hooks",
            type=click.Choice(["compat", "strict"]),
            help="Run the hooks of Claude Code of the user and of this folder, if they are trusted.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command


class Assembled(NamedTuple):
    """An agent, and the address of its store; None if the agent brought its own store."""

    agent: Agent[Any, Any]
    address: str | None


def assemble(choice: Choice) -> Assembled:
    """The agent that the user chose, with a store that keeps its sessions."""
    found = find_agent_file() if choice.agent is None and choice.model is None else None
    made = report_errors(lambda: _chosen(choice, found))
    report_errors(lambda: [made.agent.with_capability(read_capability(text)) for text in choice.capabilities])
    if choice.claude_hooks is not None:
        report_errors(lambda: made.agent.with_capability(_claude_hooks(choice.claude_hooks)))
    measured(made.agent)
    return made


def measured(agent: Agent[Any, Any]) -> Agent[Any, Any]:
    """The agent, whose turns record how long hooks took. One that is compiled already stays as it is."""
    with suppress(CompiledError):
        agent.with_measured_hooks()
    return agent


def _claude_hooks(mode: Any) -> Capability:
    """The hooks of Claude Code. What they have for the user goes to stderr."""
    from windlass.compat.claude_code import ClaudeCodeHooks

    return ClaudeCodeHooks.load(mode=mode, on_message=lambda text: echo(f"hook: {inert(text)}", err=True))


def _chosen(choice: Choice, found: Path | None) -> Assembled:
    if choice.agent is not None:
        return _named(choice.agent, choice)
    return _own(choice) if found is None else _found(found, choice)


def scope_of(choice: Choice) -> ScopeFactory | None:
    """The function that makes scopes, if the user named one."""
    return None if choice.scope is None else _loaded(load_scope, choice.scope, "--scope")


def _loaded(load: Callable[[str], T], target: str, option: str) -> T:
    try:
        return load(target)
    except CannotLoad as error:
        raise click.BadParameter(str(error), param_hint=option) from error


def _own(choice: Choice) -> Assembled:
    if choice.model is None:
        raise click.UsageError(
            "name a model with -m (or WINDLASS_MODEL) or an agent with --agent, for example: -m local:smollm2"
        )
    address = choice.store or os.environ.get("WINDLASS_STORE") or own_address()
    agent: Agent[Any, Any] = Agent(choice.model, system=choice.system, store=address)
    add_tools(agent, choice.tools, yolo=choice.yolo)
    agent.with_capability(RememberedRules())
    agent.with_capability(Summarize())
    return Assembled(agent, address)


def _named(target: str, choice: Choice) -> Assembled:
    _check_is_whole(choice, "an agent")
    return _stored(_loaded(load_agent, target, "--agent"), choice)


def _found(file: Path, choice: Choice) -> Assembled:
    """The agent of a file in the current folder that the user trusts."""
    _check_is_whole(choice, str(file))
    echo(f"using {file}", err=True)
    return _stored(load_found_agent(file), choice)


def _check_is_whole(choice: Choice, what: str) -> None:
    """Refuse options that make an agent of a model."""
    for option, given, its in (
        ("--system", choice.system, "system text"),
        ("--tools", choice.tools != "none", "tools"),
        ("--yolo", choice.yolo, "rules"),
    ):
        if given:
            raise click.UsageError(f"{option} goes with --model: {what} has its own {its}")


def _stored(agent: Agent[Any, Any], choice: Choice) -> Assembled:
    if not isinstance(agent.store, MemoryStore):
        if choice.store is not None:
            raise click.UsageError("--agent has its own store: leave out --store")
        return Assembled(agent, None)
    address = choice.store or os.environ.get("WINDLASS_STORE") or own_address()
    try:
        return Assembled(agent.with_store(address), address)
    except CompiledError:
        echo("the agent has run already: its sessions stay in memory and end with this process", err=True)
        return Assembled(agent, None)


def shared_agent(target: str, store: str | None) -> Assembled:
    """An agent that the user names, with a store that processes share: its own, or the one that the user names."""
    agent = _loaded(load_agent, target, "MODULE:AGENT")
    address = store or os.environ.get("WINDLASS_STORE")
    if isinstance(agent.store, MemoryStore) and address is None:
        raise click.UsageError("name the store that the processes share: --store sqlite:///FILE or postgresql://…")
    made = report_errors(lambda: _stored(agent, Choice(store=store)))
    measured(made.agent)
    return made


def read_capability(text: str) -> Capability:
    """The capability of `'name key=value …'`. A value is JSON, or else a text."""
    try:
        name, *given = shlex.split(text)
        options = {key: _value(value) for key, value in [word.split("=", 1) for word in given]}
    except ValueError as error:
        raise click.BadParameter(f"{text!r} is not a name with KEY=VALUE options", param_hint="--capability") from error
    return load_capability(name, options)


def _value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def remembers_rules(agent: Agent[Any, Any]) -> bool:
    """Whether the agent keeps the rules that people make while they approve."""
    capabilities = agent.explain().data["capabilities"]
    return any(capability["name"] == REMEMBERS for capability in capabilities)
