"""What a hook answered: its exit code, stdout and stderr become one `Answer`, by the rules of Claude Code."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from .plain_text import first_line, plain_text
from .protocol import COMMON_ANSWERS, EVENTS, NEVER_FAIL_CLOSED, Event, Shape

Permission: TypeAlias = Literal["deny", "defer", "ask", "allow"]
UNEXPLAINED = "a hook blocked this without saying why"
PERMISSIONS: tuple[Permission, ...] = ("deny", "defer", "ask", "allow")
"""What a hook may say about a call, strictest first."""

LOOKS_LIKE = {
    "modifiedToolInput": "hookSpecificOutput.updatedInput",
    "updated_input": "hookSpecificOutput.updatedInput",
    "updatedInput": "hookSpecificOutput.updatedInput",
    "permissionDecision": "hookSpecificOutput.permissionDecision",
    "permission_decision": "hookSpecificOutput.permissionDecision",
    "permission": "hookSpecificOutput.permissionDecision",
    "permissionDecisionReason": "hookSpecificOutput.permissionDecisionReason",
    "additionalContext": "hookSpecificOutput.additionalContext",
    "additional_context": "hookSpecificOutput.additionalContext",
    "updatedToolOutput": "hookSpecificOutput.updatedToolOutput",
    "result": 'decision: "block"',
    "block": 'decision: "block"',
    "approve": 'decision: "approve"',
    "allow": "hookSpecificOutput.permissionDecision",
    "deny": "hookSpecificOutput.permissionDecision",
    "message": "reason or systemMessage",
    "feedback": "reason",
    "stop_reason": "stopReason",
    "system_message": "systemMessage",
    "hook_specific_output": "hookSpecificOutput",
}
"""Unknown fields that look as if they should decide something, with the field that would."""


WITHOUT_EFFECT = (
    "initialUserMessage", "sessionTitle", "watchPaths", "reloadSkills", "suppressOriginalPrompt", "classifierContext",
)  # fmt: skip
"""Fields that are about parts of Claude Code for which there is no counterpart here."""


class Output(Struct, frozen=True):
    """What came of running a hook.

    `exit` is the exit code; None if it was not started, or has no exit code as with HTTP. `failure` says why there is
    nothing to read: it could not be started, took too long, or could not be reached.
    """

    exit: int | None = 0
    stdout: str = ""
    stderr: str = ""
    failure: str = ""
    timed_out: bool = False
    cut: bool = False


class Answer(Struct, frozen=True, omit_defaults=True):
    """What a hook decided.

    - `blocked`: whether it blocks; `reason` says why, and what the model should read
    - `permission`: what it says about a call
    - `context`: texts for the model; `message`: a text for the user
    - `stops`: whether the agent must stop; `stop_reason` is for the user
    - `input`, `output`: what replaces the input or the output of a call; `replaces_output` says that there is one
    - `request`: the answer to a PermissionRequest
    - `error`: why it had no effect, although it ran or should have run: an error that Claude Code does not block for
    - `notes`: what it said that has no effect
    - `asynchronous`: it declared that it goes on in the background
    """

    blocked: bool = False
    reason: str = ""
    permission: Permission | None = None
    context: tuple[str, ...] = ()
    message: str = ""
    stops: bool = False
    stop_reason: str = ""
    input: dict[str, Any] | None = None
    output: Any = None
    replaces_output: bool = False
    request: dict[str, Any] | None = None
    error: str = ""
    notes: tuple[str, ...] = ()
    asynchronous: bool = False

    @property
    def is_silent(self) -> bool:
        """Whether it says nothing at all."""
        return self == _SILENT


_SILENT = Answer()


class Parsed(Struct, frozen=True):
    """What is on stdout: a JSON object, plain text, or a problem."""

    data: dict[str, Any] | None = None
    plain: str = ""
    problem: str = ""


def parse_stdout(text: str) -> Parsed:
    """Text that begins with `{` and ends with `}` is JSON; anything else is plain text."""
    stripped = text.strip().strip("\ufeff").strip()
    if not (stripped.startswith("{") and stripped.endswith("}")):
        return Parsed(plain=stripped)
    try:
        return Parsed(data=_object(stripped))
    except (ValueError, RecursionError) as error:
        return Parsed(problem=f"stdout looks like JSON, but it is not valid: {first_line(str(error))}")


def _object(text: str) -> dict[str, Any]:
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.ValidationError as error:
        raise ValueError(str(error)) from None
    except (msgspec.DecodeError, UnicodeError):  # msgspec refuses lone surrogates, which JavaScript accepts
        found = json.loads(text, parse_constant=_no_constant)
        assert isinstance(found, dict)
        return found


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def schema_problem(event: str, data: Mapping[str, Any]) -> str:
    """The first known field that has the wrong type or value; empty if there is none. Unknown fields are ignored."""
    problem = _object_problem(data, COMMON_ANSWERS, "")
    given = data.get("hookSpecificOutput")
    if problem or given is None:
        return problem
    name = given.get("hookEventName")
    if name != event:
        said = "has no hookEventName" if name is None else f"is for {first_line(repr(name), 60)}"
        return f"hookSpecificOutput {said}; it must have hookEventName {event!r}"
    answers = EVENTS[event].answers
    for field in EVENTS[event].required:
        if field not in given:
            return f"hookSpecificOutput must have {field!r}"
    return _object_problem(given, answers, "hookSpecificOutput.")


def _object_problem(data: Mapping[str, Any], shapes: Mapping[str, Shape], path: str) -> str:
    for field, shape in shapes.items():
        if field in data and (problem := _problem(data[field], shape, f"{path}{field}")):
            return problem
    return ""


def _problem(value: Any, shape: Shape, path: str) -> str:
    if isinstance(shape, tuple):
        legal = isinstance(value, str) and value in shape
        wanted = " or ".join([repr(one) for one in shape])
        return "" if legal else f"{path} is {_shown(value)}; it must be {wanted}"
    if isinstance(shape, Mapping):
        if not isinstance(value, dict):
            return f"{path} is {_shown(value)}; it must be an object"
        if "behavior" in shape and "behavior" not in value:
            return f"{path} must have 'behavior'"
        return _object_problem(value, shape, f"{path}.")
    return "" if _KINDS[shape][0](value) else f"{path} is {_shown(value)}; it must be {_KINDS[shape][1]}"


_KINDS: dict[str, Any] = {
    "text": (lambda value: isinstance(value, str), "a text"),
    "flag": (lambda value: isinstance(value, bool), "true or false"),
    "number": (lambda value: isinstance(value, int | float) and not isinstance(value, bool), "a number"),
    "object": (lambda value: isinstance(value, dict), "an object"),
    "list": (lambda value: isinstance(value, list), "a list"),
    "texts": (lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value), "a list of texts"),
    "any": (lambda value: True, "anything"),
}


def _shown(value: Any) -> str:
    return first_line(repr(value), 40)


# ---------------------------------------------------------------- from output to answer


def read_answer(event: str, output: Output, *, closed: bool = False) -> Answer:
    """What the output of a hook means for an event.

    With `closed`, a hook on an event that can be blocked blocks if it could not be started, took too long, exited with
    something other than 0 and 2, or answered what cannot be read. Claude Code does that for `onFailure: "block"`.
    """
    rules = EVENTS[event]
    answer = _read(event, rules, output)
    fails_closed = closed and rules.exit2 in ("block", "feedback") and event not in NEVER_FAIL_CLOSED
    if fails_closed and not answer.blocked and (why := _broken(output, answer)):
        return _refusal(event, rules, f"{why}; a broken hook blocks here")
    return answer


def _broken(output: Output, answer: Answer) -> str:
    """Why a hook counts as broken; empty if it does not."""
    if output.failure:
        return output.failure
    if answer.error:
        return answer.error
    return f"exit code {output.exit}" if output.exit not in (0, 2, None) else ""


def _refusal(event: str, rules: Event, reason: str) -> Answer:
    permission: Permission | None = "deny" if event == "PreToolUse" else None
    return Answer(blocked=True, reason=reason, permission=permission, error=reason)


def _read(event: str, rules: Event, output: Output) -> Answer:
    if output.failure:
        if output.timed_out and event == "PreModelSwitch":
            return Answer(blocked=True, reason=output.failure, error=output.failure)
        return Answer(error=output.failure)
    parsed = parse_stdout(output.stdout)
    if output.cut and output.stdout.lstrip().startswith("{"):
        parsed = Parsed(problem="stdout is too long")
    problem = parsed.problem or (schema_problem(event, parsed.data) if parsed.data is not None else "")
    if output.exit == 2:
        return _exit_2(event, rules, output, {} if problem else parsed.data or {}, problem)
    if problem:
        return Answer(error=problem)
    if parsed.data is not None:
        if parsed.data.get("async") is True:
            return Answer(asynchronous=True)
        return _from_json(event, rules, parsed.data)
    if output.exit not in (0, None):
        line = first_line(output.stderr) or "no stderr output"
        wanted = "; only exit code 2 blocks" if rules.guards else ""
        return Answer(error=f"failed with non-blocking status code {output.exit}: {line}{wanted}")
    if parsed.plain and rules.plain_context:
        return Answer(context=(plain_text(parsed.plain),))
    return _SILENT


def _exit_2(event: str, rules: Event, output: Output, data: Mapping[str, Any], problem: str) -> Answer:
    """Exit code 2: the reason in the JSON counts, or else what is on stderr."""
    said = _from_json(event, rules, data) if data else _SILENT
    notes = (*said.notes, *((problem,) if problem else ()))
    stderr = plain_text(output.stderr).strip()
    text = (said.reason if said.blocked or said.permission == "deny" else "") or stderr
    if rules.exit2 == "block":
        text = text or UNEXPLAINED
        permission: Permission | None = "deny" if event == "PreToolUse" else None
        return Answer(
            blocked=True,
            reason=text,
            permission=permission,
            context=said.context,
            message=said.message,
            stops=said.stops,
            stop_reason=said.stop_reason,
            notes=notes,
        )
    if rules.exit2 == "feedback":
        return msgspec.structs.replace(said, blocked=True, reason=text or UNEXPLAINED, notes=notes)
    if rules.exit2 == "user":
        return msgspec.structs.replace(said, message=said.message or text, notes=notes)
    ignored = f"exit code 2 has no effect on {event}"
    return Answer(request=said.request, message=said.message, error=ignored, notes=notes)


def _from_json(event: str, rules: Event, data: Mapping[str, Any]) -> Answer:
    own: Mapping[str, Any] = data.get("hookSpecificOutput") or {}
    notes = [*_odd_fields(event, data, own)]
    permission, reason = _permission(event, data, own)
    blocked = rules.decides and data.get("decision") == "block" and event != "PreToolUse"
    if data.get("decision") == "block" and not rules.decides:
        notes.append(f'decision: "block" has no effect on {event}')
    stops = data.get("continue") is False
    if stops and not rules.continues:
        stops = False
        notes.append(f"continue: false has no effect on {event}")
    if data.get("terminalSequence"):
        notes.append("terminalSequence is not sent to the terminal")
    context = own.get("additionalContext", "")
    output = own.get("updatedMCPToolOutput", own.get("updatedToolOutput"))
    return Answer(
        blocked=blocked or permission == "deny",
        reason=plain_text(reason) or (UNEXPLAINED if blocked else ""),
        permission=permission,
        context=(plain_text(context),) if context else (),
        message=plain_text(data.get("systemMessage", "")),
        stops=stops,
        stop_reason=plain_text(data.get("stopReason", "")) if stops else "",
        input=own.get("updatedInput"),
        output=output,
        replaces_output="updatedToolOutput" in own or "updatedMCPToolOutput" in own,
        request=own.get("decision") if event == "PermissionRequest" else None,
        notes=tuple(notes),
    )


def _permission(event: str, data: Mapping[str, Any], own: Mapping[str, Any]) -> tuple[Permission | None, str]:
    """What a hook says about a call, and its reason; on other events only the reason."""
    reason = data.get("reason", "")
    if event != "PreToolUse":
        return None, own.get("permissionDecisionReason", reason)
    if "permissionDecision" in own:
        return own["permissionDecision"], own.get("permissionDecisionReason", reason)
    former: dict[str, Permission] = {"block": "deny", "approve": "allow"}
    return former.get(data.get("decision", "")), own.get("permissionDecisionReason", reason)


def _odd_fields(event: str, data: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """What looks like a decision and is none. A hook that prints its input back says nothing."""
    if "hook_event_name" in data:
        return []
    found = [
        f"{field!r} is not a field of an answer and is ignored; did you mean {meant}?"
        for field, meant in LOOKS_LIKE.items()
        if field in data and field not in COMMON_ANSWERS
    ]
    found += [f"hookSpecificOutput.{field} has no effect here" for field in WITHOUT_EFFECT if field in own]
    request = own.get("decision")
    if isinstance(request, dict) and ("updatedPermissions" in request or request.get("interrupt")):
        found.append("updatedPermissions and interrupt of a PermissionRequest have no effect here")
    known = EVENTS[event].answers
    found += [
        f"hookSpecificOutput.{field} has no effect on {event}"
        for field in own
        if field not in known and field != "hookEventName" and any(field in one.answers for one in EVENTS.values())
    ]
    return found


# ---------------------------------------------------------------- hooks that declare themselves asynchronous


def declared_async(first: str) -> float | None:
    """The seconds that a hook may go on in the background, if this first line of its stdout declares it."""
    line = first.strip()
    if not (line.startswith("{") and line.endswith("}") and '"async"' in line):
        return None
    data = parse_stdout(line).data
    if data is None or data.get("async") is not True:
        return None
    given = data.get("asyncTimeout")
    if isinstance(given, bool) or not isinstance(given, int | float) or not math.isfinite(given) or given <= 0:
        return 15.0
    return min(given / 1000, 3600.0)


# ---------------------------------------------------------------- answers of models


def read_verdict(event: str, text: str, *, go_on: bool, closed: bool = False) -> Answer:
    """The answer of a prompt hook: `{"ok": true}` or `{"ok": false, "reason": "…"}`.

    On the events of tools, a refusal ends the turn unless `go_on`.
    """
    stripped = text.strip()
    start, end = stripped.find("{"), stripped.rfind("}")
    parsed = parse_stdout(stripped[start : end + 1]) if 0 <= start < end else Parsed(problem="there is no JSON in it")
    data = parsed.data or {}
    if not isinstance(data.get("ok"), bool):
        problem = f"the model did not answer with ok: {parsed.problem or first_line(stripped, 80)}"
        return read_answer(event, Output(None, failure=problem), closed=closed)
    if data["ok"]:
        return _SILENT
    given = data.get("reason")
    reason = plain_text(given) if isinstance(given, str) else "the prompt hook said no"
    rules = EVENTS[event]
    if event in ("Stop", "SubagentStop") or go_on or not rules.continues:
        permission: Permission | None = "deny" if event == "PreToolUse" else None
        return Answer(blocked=rules.exit2 in ("block", "feedback"), reason=reason, permission=permission)
    if event == "UserPromptSubmit":
        return Answer(blocked=True, reason=reason)
    return Answer(
        blocked=True,
        reason=reason,
        permission="deny" if event == "PreToolUse" else None,
        stops=True,
        stop_reason=reason,
    )
