"""Conversations from and for other programs, for `sessions import` and `sessions export`."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import click

from windlass.errors import ConfigError, SessionUnknown
from windlass.protocols import Store

from .output import echo

FORMATS = ("openai", "openai_responses", "anthropic", "langchain")
EXPORTS = (*FORMATS, "otel", "eval", "inspect", "case")

IMPORTER = "windlass sessions import"
"""The name of the agent that imports: a replay asks no other agent about what it let in."""


async def exported(store: Store, session: str, form: str) -> list[str]:
    """A session in the format of another program, as JSON lines."""
    from windlass.compat import conversations
    from windlass.states import fold

    records = await store.read(session)
    if not records:
        raise SessionUnknown(f"there is no session {session!r}", session=session)
    if form == "otel":
        return _lines(conversations.otel_events(session, records))
    if form == "eval":
        return _lines(conversations.eval_lines(session, records))
    if form == "inspect":
        return _lines(conversations.eval_lines(session, records, form="inspect"))
    if form == "case":
        return _lines([conversations.case_of_session(session, records)])
    given: Any = form
    left_out: list[str] = []
    lines = _lines(conversations.write_conversation(given, fold(session, records).messages, left_out=left_out))
    _tell(left_out)
    return lines


def _tell(left_out: Iterable[str]) -> None:
    """Say on stderr what is missing."""
    for what in left_out:
        echo(f"left out: {what}", err=True)


def _lines(values: list[Any]) -> list[str]:
    return [json.dumps(value, separators=(",", ":")) for value in values]


async def import_conversation(store: Store, form: str, text: str, name: str | None) -> str:
    """Make a conversation the history of a new session, and return its id."""
    from windlass import Agent
    from windlass.compat.conversations import read_conversation

    if name is None:
        raise click.UsageError(f"a conversation in the format {form!r} has no id: pass --as ID")
    given: Any = form
    conversation = read_conversation(given, _parsed(text))
    await Agent(_NoModel(), name=IMPORTER, store=store).import_history(name, conversation.messages)
    _tell(conversation.left_out)
    if conversation.system:
        echo("the system text is left out: give it to the agent that continues the session", err=True)
    return name


def _parsed(text: str) -> Any:
    """A JSON value, or JSON lines."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    try:
        return [json.loads(line) for line in text.split("\n") if line.strip()]
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the file is neither JSON nor JSON lines: {error}") from error


class _NoModel:
    """Stands for the model of an agent that only imports."""

    name = "none"

    async def reply(self, request: Any) -> Any:
        raise ConfigError("this agent has no model")
