"""Fires an event without an agent, for people who want to see what each hook does and why that has an effect or not."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from .aliases import ALSO
from .answers import Answer
from .engine import Engine, Firing
from .handlers import HookRun, Payload
from .matchers import Subject, condition_holds, matches
from .protocol import EVENTS, TOOL_EVENTS
from .responses import sample_response
from .settings import Handler
from .sources import Found
from .verdicts import Verdict, merge

SESSION = "00000000-0000-4000-8000-000000000000"


class Row(Struct, frozen=True):
    """One hook of the settings for an event: how it ran, or why it did not."""

    handler: Handler
    skipped: str = ""
    run: HookRun | None = None


class Trial(Struct, frozen=True):
    """What came of firing an event: a row for each hook, what they decide together, what is in `CLAUDE_ENV_FILE`."""

    event: str
    input: Mapping[str, Any]
    rows: tuple[Row, ...]
    verdict: Verdict
    env: str = ""

    @property
    def decision(self) -> str:
        """What the hooks say about the call or the event: `"allow"`, `"deny"`, `"ask"`, `"defer"` or nothing."""
        answers = {one.get("behavior") for one in self.verdict.requests}
        request = next((one for one in ("deny", "allow") if one in answers), "")
        return self.verdict.permission or ("deny" if self.verdict.blocks else request)


def sample_input(event: str, given: Mapping[str, Any], project: str) -> dict[str, Any]:
    """The input of an event, with harmless values for all that is not given."""
    own: dict[str, Any] = dict(_SAMPLES.get(event, {}))
    if event in TOOL_EVENTS:
        own = {"tool_name": "Bash", "tool_input": {}, **own, **given}
        if event == "PostToolUse":
            own = {"tool_response": sample_response(own["tool_name"], own["tool_input"]), **own}
        if event != "PermissionRequest":
            own = {"tool_use_id": "toolu_test", **own}
    return {
        "session_id": SESSION,
        "transcript_path": "",
        "cwd": project,
        "permission_mode": "default",
        **own,
        **given,
        "hook_event_name": event,
    }


_SAMPLES: dict[str, dict[str, Any]] = {
    "SessionStart": {"source": "startup"},
    "SessionEnd": {"reason": "other"},
    "Setup": {"trigger": "init"},
    "UserPromptSubmit": {"prompt": "Hello"},
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
    """Fire an event. Hooks in the background are waited for; what they decide has no effect."""
    with tempfile.TemporaryDirectory(prefix="windlass-hooks-") as folder:
        data = sample_input(event, given, project)
        for name in ("transcript_path", "agent_transcript_path"):
            if data.get(name) == "":
                data[name] = _empty_file(folder, f"{name}.jsonl")
        env_file = _empty_file(folder, "env.sh")
        field = EVENTS[event].matches
        value = str(data.get(field, "")) if field else ""
        cwd = data["cwd"] if isinstance(data["cwd"], str) else project
        subject = _subject(event, data, cwd, project)
        mine = tuple([structs.replace(one, background=False) for one in found.handlers if one.event == event])
        behind = {_key(one) for one in found.handlers if one.background and one.type == "command"}
        chosen = structs.replace(found, handlers=mine)
        engine = Engine(chosen, closed=closed, workers=None, model=None, finished=lambda run, payload: None)
        payload = Payload(data, str(data["session_id"]), project, cwd, env_file)
        try:
            verdict = await engine.fire(Firing(event, value, payload, subject), None)
        finally:
            await engine.close()
        runs = [_in_background(run) if _key(run.handler) in behind else run for run in verdict.runs]
        ran = {_key(run.handler): run for run in runs}
        rows = [_row(one, ran, value, subject) for one in found.handlers if one.event == event]
        return Trial(event, data, tuple(rows), merge(runs), _text_of(env_file))


def _key(handler: Handler) -> str:
    return f"{handler.source.path}:{handler.place}"


def _in_background(run: HookRun) -> HookRun:
    """The run of a hook for which nobody would have waited: its context and message come later, and that is all."""
    said = run.answer
    kept = Answer(context=said.context, message=said.message, error=said.error, notes=said.notes)
    if run.handler.rewakes and run.output is not None and run.output.exit == 2:
        why = "it runs in the background, and wakes the model with what is on stderr"
    elif said != kept:
        why = "it runs in the background, so its decision has no effect"
    else:
        return structs.replace(run, background=True)
    return structs.replace(run, background=True, answer=structs.replace(kept, notes=(*said.notes, why)))


def _empty_file(folder: str, name: str) -> str:
    path = Path(folder, name)
    path.touch()
    return str(path)


def _text_of(path: str) -> str:
    return Path(path).read_text(encoding="utf-8", errors="replace")


def _subject(event: str, data: Mapping[str, Any], cwd: str, project: str) -> Subject | None:
    given = data.get("tool_input")
    if event not in TOOL_EVENTS or not isinstance(given, Mapping):
        return None
    name = str(data.get("tool_name", ""))
    return Subject(name, given, cwd, project, ALSO.get(name, ""))


def _row(handler: Handler, ran: Mapping[str, HookRun], value: str, subject: Subject | None) -> Row:
    run = ran.get(_key(handler))
    if run is not None:
        return Row(handler, run=run)
    values = [value] if subject is None or not subject.also else [value, subject.also]
    if not any(matches(handler.matcher, handler.event, one) for one in values):
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
