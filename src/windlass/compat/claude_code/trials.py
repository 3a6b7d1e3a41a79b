"""Fires an event without an agent, for people who want to see what each hook does and why that has an effect or not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from .answers import Answer
from .engine import Engine, Firing
from .handlers import HookRun, Payload
from .matchers import Subject, condition_holds, matches
from .protocol import EVENTS, TOOL_EVENTS
from .settings import Handler
from .sources import Found
from .verdicts import Verdict

SESSION = "00000000-0000-4000-8000-000000000000"


class Row(Struct, frozen=True):
    """One hook of the settings for an event: how it ran, or why it did not."""

    handler: Handler
    skipped: str = ""
    run: HookRun | None = None


class Trial(Struct, frozen=True):
    """What came of firing an event: a row for each hook, and what they decide together."""

    event: str
    input: Mapping[str, Any]
    rows: tuple[Row, ...]
    verdict: Verdict


def sample_input(event: str, given: Mapping[str, Any], project: str) -> dict[str, Any]:
    """The input of an event, with harmless values for all that is not given."""
    own: dict[str, Any] = dict(_SAMPLES.get(event, {}))
    if event in TOOL_EVENTS:
        own = {"tool_name": "Bash", "tool_input": {}, "tool_use_id": "toolu_test", **own}
    if "tool_input" in given and "tool_response" in own and "tool_response" not in given:
        own["tool_response"] = {"stdout": "", "stderr": "", "interrupted": False, "isImage": False}
    return {
        "session_id": SESSION,
        "transcript_path": "",
        "cwd": project,
        "permission_mode": "default",
        "hook_event_name": event,
        **own,
        **given,
    }


_SAMPLES: dict[str, dict[str, Any]] = {
    "SessionStart": {"source": "startup"},
    "SessionEnd": {"reason": "other"},
    "Setup": {"trigger": "init"},
    "UserPromptSubmit": {"prompt": "Hello"},
    "PostToolUse": {"tool_response": ""},
    "PostToolUseFailure": {"error": "Exit code 1", "is_interrupt": False},
    "PermissionRequest": {"permission_suggestions": []},
    "PostToolBatch": {"tool_calls": []},
    "Notification": {"message": "Claude needs your permission to use Bash", "notification_type": "permission_prompt"},
    "SubagentStart": {"agent_id": "agent-1", "agent_type": "general"},
    "SubagentStop": {
        "stop_hook_active": False,
        "agent_id": "agent-1",
        "agent_type": "general",
        "agent_transcript_path": "",
        "last_assistant_message": "Done.",
    },
    "Stop": {"stop_hook_active": False, "last_assistant_message": "Done."},
    "StopFailure": {"error": "unknown", "last_assistant_message": "the request failed"},
    "PreCompact": {"trigger": "auto", "custom_instructions": None},
    "PostCompact": {"trigger": "auto", "compact_summary": ""},
}


async def try_event(found: Found, event: str, given: Mapping[str, Any], *, project: str, closed: bool) -> Trial:
    """Fire an event. Hooks that would go on in the background are waited for."""
    with tempfile.TemporaryDirectory(prefix="windlass-hooks-") as folder:
        data = sample_input(event, given, project)
        for name in ("transcript_path", "agent_transcript_path"):
            if data.get(name) == "":
                data[name] = _empty_file(folder, f"{name}.jsonl")
        env_file = _empty_file(folder, "env.sh")
        field = EVENTS[event].matches
        value = str(data.get(field, "")) if field else ""
        subject = _subject(event, data, project)
        mine = tuple([structs.replace(one, background=False) for one in found.handlers if one.event == event])
        chosen = structs.replace(found, handlers=mine)
        engine = Engine(chosen, closed=closed, workers=None, model=None, finished=lambda run, payload: None)
        payload = Payload(data, SESSION, project, project, env_file)
        try:
            verdict = await engine.fire(Firing(event, value, payload, subject), None)
        finally:
            await engine.close()
        ran = {f"{run.handler.source.path}:{run.handler.place}": run for run in verdict.runs}
        rows = [_row(one, ran, value, subject) for one in found.handlers if one.event == event]
        return Trial(event, data, tuple(rows), verdict)


def _empty_file(folder: str, name: str) -> str:
    path = Path(folder, name)
    path.touch()
    return str(path)


def _subject(event: str, data: Mapping[str, Any], project: str) -> Subject | None:
    given = data.get("tool_input")
    if event not in TOOL_EVENTS or not isinstance(given, Mapping):
        return None
    return Subject(str(data.get("tool_name", "")), given, project, project)


def _row(handler: Handler, ran: Mapping[str, HookRun], value: str, subject: Subject | None) -> Row:
    run = ran.get(f"{handler.source.path}:{handler.place}")
    if run is not None:
        return Row(handler, run=run)
    if not matches(handler.matcher, handler.event, value):
        return Row(handler, f"its matcher {handler.matcher!r} does not match {value!r}")
    if handler.condition is not None:
        if subject is None:
            return Row(handler, f"a hook with 'if' never runs on {handler.event}")
        if not condition_holds(handler.condition, subject):
            return Row(handler, f"its condition {handler.condition!r} does not hold")
    return Row(handler, "it is the same as one before it, and runs once")


def effect_of(event: str, answer: Answer) -> str:
    """What an answer does, in words."""
    rules = EVENTS[event]
    said = [
        f"{answer.permission}s the call" if answer.permission == "defer" else "",
        {"deny": "denies the call", "allow": "allows the call", "ask": "asks a person"}.get(
            answer.permission or "", ""
        ),
        "blocks" if answer.blocked and rules.guards and answer.permission is None else "",
        "tells the model why" if answer.blocked and rules.exit2 == "feedback" else "",
        "stops the agent" if answer.stops else "",
        "replaces the input" if answer.input is not None else "",
        "replaces the output" if answer.replaces_output else "",
        "answers the question" if answer.request is not None else "",
        f"adds {sum(map(len, answer.context))} characters of context" if answer.context else "",
        "has a message for the user" if answer.message else "",
        "goes on in the background" if answer.asynchronous else "",
    ]
    words = _joined(said)
    return f"{words}: {answer.reason}" if answer.reason and words else words or "nothing"


def _joined(texts: Iterable[str]) -> str:
    return ", ".join([text for text in texts if text])
