"""What hooks answer and what settings say: read by the rules of Claude Code, whatever is in them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from windlass.compat.claude_code.answers import Output, declared_async, parse_stdout, read_answer, read_verdict
from windlass.compat.claude_code.doctor import examine
from windlass.compat.claude_code.matchers import MatcherError, Subject, compile_matcher, condition_holds, matches
from windlass.compat.claude_code.protocol import EVENTS
from windlass.compat.claude_code.settings import NotSettings, Source, read_settings, settings_of
from windlass.compat.claude_code.sources import Found, Places, find_hooks

CAMPAIGN = 10_000 if os.environ.get("WINDLASS_CAMPAIGN") else 150
"""So many cases each fuzz test tries; `make campaign` sets the variable."""

SOURCE = Source("user", Path("settings.json"))


def pre_tool_use(**fields: Any) -> str:
    return json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", **fields}})


# ---------------------------------------------------------------- matchers and conditions


@pytest.mark.parametrize(
    ("matcher", "event", "value", "expected"),
    [
        (None, "PreToolUse", "Bash", True),
        ("", "PreToolUse", "Bash", True),
        ("*", "PreToolUse", "Bash", True),
        ("Bash", "PreToolUse", "Bash", True),
        ("Bash", "PreToolUse", "BashOutput", False),
        ("bash", "PreToolUse", "Bash", False),
        ("Edit|Write", "PreToolUse", "Write", True),
        ("Edit, Write", "PreToolUse", "Write", True),
        ("Edit.*", "PreToolUse", "NotebookEdit", True),
        ("^Edit$", "PreToolUse", "NotebookEdit", False),
        ("mcp__memory", "PreToolUse", "mcp__memory__read", False),
        ("mcp__memory__.*", "PreToolUse", "mcp__memory__read", True),
        ("mcp__brave-search__x", "PreToolUse", "mcp__brave-search__x", True),
        ("Task", "PreToolUse", "Agent", True),
        ("^Task$", "PreToolUse", "Agent", True),
        ("(Bash|Task).*", "PreToolUse", "Agent", True),
        ("^Task$", "PreToolUse", "TaskCreate", False),
        ("(?<name>Ba)sh", "PreToolUse", "Bash", True),
        ("Bash$", "PreToolUse", "Bash\n", False),
        ("rate-limit", "StopFailure", "rate-limit", True),
        ("(", "PreToolUse", "Bash", False),
        ("[[a]", "PreToolUse", "a", True),
        ("Bash(rm *)", "PreToolUse", "Bash", False),
    ],
)
def test_a_matcher_is_a_list_of_names_or_an_expression(matcher: str | None, event: str, value: str, expected: bool):
    assert matches(matcher, event, value) is expected


@pytest.mark.parametrize(
    ("condition", "command", "expected"),
    [
        ("Bash", "ls", True),
        ("Write", "ls", False),
        ("Bash(git *)", "git push", True),
        ("Bash(git *)", "git", True),
        ("Bash(git *)", "gitk", False),
        ("Bash(git push:*)", "git push -f", True),
        ("Bash(git push *)", "git pull", False),
        ("Bash(rm *)", "make && rm x", True),
        ("Bash(rm *)", "echo $(rm x)", True),
        ("Bash(rm *)", "A=1 B=2 rm x", True),
        ("Bash(rm *)", "echo 'rm x'", False),
        ("Bash(git push *)", "x $(date)", True),
        ("Bash(git push *)", "x $HOME", True),
        ("Bash(git *)", "if then fi (", True),
        ("Bash(npm run *:prod)", "npm run build:prod", True),
        ("Bash(npm run *:prod)", "npm run build:dev", False),
        ("two rules(a) Bash(b)", "ls", False),
    ],
)
def test_a_condition_looks_at_each_command(condition: str, command: str, expected: bool):
    assert condition_holds(condition, Subject("Bash", {"command": command}, "/p", "/p")) is expected


@pytest.mark.parametrize("name", ["Task", "Agent"])
@pytest.mark.parametrize("condition", ["Task(helper)", "Agent(helper)"])
def test_a_condition_knows_the_former_name_of_a_tool(condition: str, name: str):
    assert condition_holds(condition, Subject(name, {"subagent_type": "helper"}, "/p", "/p"))
    assert not condition_holds(condition, Subject(name, {"subagent_type": "other"}, "/p", "/p"))


@pytest.mark.parametrize(
    ("condition", "path", "expected"),
    [
        ("Edit(src/**)", "/p/src/a/b.py", True),
        ("Edit(src/**)", "/p/lib/src/b.py", False),
        ("Edit(**/src/**)", "/p/lib/src/b.py", True),
        ("Edit(*.py)", "/p/a/b/c.py", True),
        ("Edit(.env)", "/p/a/.env", True),
        ("Edit(//etc/**)", "/etc/hosts", True),
        ("Edit(/src/*.py)", "/p/src/a.py", True),
        ("Edit(src/**)", "/p/src/../etc/x", False),
        ("Edit(src/**)", "/elsewhere/src/x", False),
    ],
)
def test_a_condition_about_files_is_like_gitignore(condition: str, path: str, expected: bool):
    assert condition_holds(condition, Subject("Edit", {"file_path": path}, "/p", "/p")) is expected


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize(
    ("event", "output", "expected"),
    [
        ("PreToolUse", Output(0), (False, None, "")),
        ("PreToolUse", Output(0, "just text"), (False, None, "")),
        ("PreToolUse", Output(0, '["a"]'), (False, None, "")),
        ("PreToolUse", Output(0, '"{}"'), (False, None, "")),
        ("PreToolUse", Output(0, "{} trailing"), (False, None, "")),
        ("PreToolUse", Output(0, "{}"), (False, None, "")),
        ("PreToolUse", Output(0, "\ufeff" + pre_tool_use(permissionDecision="deny") + "\r\n"), (True, "deny", "")),
        ("PreToolUse", Output(0, pre_tool_use(permissionDecision="ask")), (False, "ask", "")),
        ("PreToolUse", Output(1, pre_tool_use(permissionDecision="deny")), (True, "deny", "")),
        ("PreToolUse", Output(2, pre_tool_use(permissionDecision="allow"), "no"), (True, "deny", "")),
        ("PreToolUse", Output(0, pre_tool_use(permissionDecision="Deny")), (False, None, "must be")),
        ("PreToolUse", Output(0, '{"decision": null}'), (False, None, "must be")),
        ("PreToolUse", Output(0, '{"continue": "false"}'), (False, None, "must be true or false")),
        ("PreToolUse", Output(0, '{"hookSpecificOutput": []}'), (False, None, "must be an object")),
        ("PostToolUse", Output(2, "", "bad"), (True, None, "")),
        ("Stop", Output(0, '{"decision": "block"}'), (True, None, "")),
        ("Notification", Output(2, "", "x"), (False, None, "no effect")),
        ("PermissionRequest", Output(2, "", "x"), (False, None, "no effect")),
        ("SessionStart", Output(2, "", "x"), (False, None, "")),
        ("PreToolUse", Output(None, failure="it was not started"), (False, None, "not started")),
    ],
)
def test_exit_codes_and_json_are_read_together(event: str, output: Output, expected: tuple[Any, ...]):
    answer = read_answer(event, output)
    blocked, permission, error = expected
    assert (answer.blocked, answer.permission) == (blocked, permission)
    assert error in answer.error if error else answer.error == ""


def test_plain_text_is_context_only_where_it_is():
    with_context = {event for event in EVENTS if read_answer(event, Output(0, "some text")).context}
    assert with_context == {"SessionStart", "UserPromptSubmit", "UserPromptExpansion", "PostModelSwitch"}


def test_continue_false_counts_only_where_it_does():
    stopping = {event for event in EVENTS if read_answer(event, Output(0, '{"continue": false}')).stops}
    assert {"PreToolUse", "PostToolUse", "Stop", "SubagentStop", "UserPromptSubmit", "SessionStart"} <= stopping
    assert not stopping & {"SessionEnd", "Notification", "PreCompact", "PostCompact", "CwdChanged", "Elicitation"}


def test_what_has_no_counterpart_here_is_reported():
    given = {"hookSpecificOutput": {"hookEventName": "SessionStart", "sessionTitle": "x", "watchPaths": []}}
    notes = read_answer("SessionStart", Output(0, json.dumps(given))).notes
    assert notes == tuple([f"hookSpecificOutput.{name} has no effect here" for name in ("sessionTitle", "watchPaths")])


@pytest.mark.parametrize("event", ["Stop", "SubagentStop"])
def test_a_broken_hook_never_keeps_an_agent_going(event: str):
    assert not read_answer(event, Output(1, "", "crashed"), closed=True).blocked
    assert read_answer("PreToolUse", Output(1, "", "crashed"), closed=True).blocked


@pytest.mark.parametrize(
    ("line", "seconds"),
    [
        ('{"async": true}', 15.0),
        ('{"async": true, "asyncTimeout": 2000}', 2.0),
        ('{"async": false}', None),
        ('{"async": "yes"}', None),
        ('{"async": true', None),
        ('{"async": true, "asyncTimeout": -1}', 15.0),
    ],
)
def test_a_hook_declares_that_it_goes_on_in_the_background(line: str, seconds: float | None):
    assert declared_async(line) == seconds


@pytest.mark.parametrize(
    "text",
    ["\x1b[31mred\x1b[0m", "\x1b]0;title\x07x", "a\rb", "\x9b2Jx", "\u202eabc", "\x1b", "\x1bP…\x1b\\x", "a\x00b"],
)
def test_no_escape_gets_out_of_a_hook(text: str):
    for where in ("systemMessage", "reason", "stopReason"):
        given = json.dumps({where: text, "decision": "block", "continue": False})
        answer = read_answer("Stop", Output(0, given))
        shown = answer.message + answer.reason + answer.stop_reason
        assert all(one.isprintable() or one in "\n\t" for one in shown), repr(shown)
    assert "\x1b" not in read_answer("PreToolUse", Output(2, "", text)).reason


# ---------------------------------------------------------------- settings


@pytest.mark.parametrize(
    ("hooks", "handlers", "problem"),
    [
        ({"PreToolUse": [{"hooks": [{"type": "command", "command": "x"}]}]}, 1, ""),
        ({"PreToolUse": [{"id": "a", "description": "b", "hooks": [{"type": "command", "command": "x"}]}]}, 1, ""),
        ({"Nope": [], "PreToolUse": [{"hooks": [{"type": "command", "command": "x"}]}]}, 1, "there is no such event"),
        ({"PreToolUse": [{"type": "command", "command": "x"}]}, 0, "it has no list of hooks"),
        ({"PreToolUse": [{"hooks": [{"type": "command"}]}]}, 0, "needs 'command'"),
        ({"PreToolUse": [{"hooks": [{"command": "x"}]}]}, 0, "it has no type"),
        (
            {"PreToolUse": [{"hooks": [{"type": "shell", "command": "x"}, {"type": "command", "command": "x"}]}]},
            1,
            "typ",
        ),
        ({"PreToolUse": [{"matcher": 3, "hooks": []}]}, 0, "its matcher is not a text"),
        ({"PreToolUse": [{"hooks": [{"type": "command", "command": "x", "timeout": "5"}]}]}, 1, "timeout is '5'"),
        ({"PreToolUse": [{"hooks": [{"type": "command", "command": "x", "if": 5}]}]}, 0, "if is 5"),
        ({"SessionStart": [{"hooks": [{"type": "prompt", "prompt": "x"}]}]}, 0, "takes no hooks of type"),
        ([], 0, "it is not an object"),
        ({"PreToolUse": {}}, 0, "it is not a list of groups"),
    ],
)
def test_a_mistake_spoils_its_entry_and_no_other(hooks: Any, handlers: int, problem: str):
    found = read_settings(json.dumps({"hooks": hooks}).encode(), SOURCE)
    assert len(found.handlers) == handlers
    assert problem in str([str(one) for one in found.problems])
    assert bool(found.problems) is bool(problem)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xfe", b"null", b"{}x", b"[" * 100_000])
def test_a_file_that_is_none_is_refused(content: bytes):
    with pytest.raises(NotSettings):
        read_settings(content, SOURCE)


# ---------------------------------------------------------------- many settings


def told(text: str) -> dict[str, Any]:
    return {"hooks": {"Stop": [{"hooks": [{"type": "command", "command": text}]}]}}


def commands_of_all(folder: Path, **levels: dict[str, Any]) -> list[str]:
    """The commands that may run with the settings of the organisation, the project, the person in it, and the user."""
    files = {
        "managed": "managed/managed-settings.json",
        "local": "project/.claude/settings.local.json",
        "project": "project/.claude/settings.json",
        "user": "user/settings.json",
    }
    for level, name in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps({**told(level), **levels.get(level, {})}))
    plugins = {"a@m": folder / "plugins" / "a", "b@m": folder / "plugins" / "b"}
    for plugin in plugins.values():
        (plugin / "hooks").mkdir(parents=True, exist_ok=True)
        (plugin / "hooks" / "hooks.json").write_text(json.dumps(told(f"plugin {plugin.name}")))
    (folder / "user" / "plugins").mkdir(exist_ok=True)
    installed = {"plugins": {name: [{"installPath": str(path)}] for name, path in plugins.items()}}
    (folder / "user" / "plugins" / "installed_plugins.json").write_text(json.dumps(installed))
    places = structs.replace(
        Places.of(folder / "project", user=folder / "user", named=[told("named")]), managed=folder / "managed"
    )
    return [handler.command for handler in find_hooks(places, trusts=True).handlers]


A, B = {"enabledPlugins": {"a@m": True}}, {"enabledPlugins": {"b@m": True}}
OWN = ["managed", "named", "local", "project", "user"]


@pytest.mark.parametrize(
    ("levels", "commands"),
    [
        ({}, OWN),
        ({"managed": A, "user": B}, [*OWN, "plugin a", "plugin b"]),
        ({"user": {"disableAllHooks": True}}, ["managed"]),
        ({"user": {"disableAllHooks": True}, "project": {"disableAllHooks": False}}, OWN),
        ({"local": {"disableAllHooks": True}, "project": {"disableAllHooks": False}}, ["managed"]),
        ({"managed": {"allowManagedHooksOnly": True}, "user": B}, ["managed"]),
        ({"managed": {"allowManagedHooksOnly": True, **A}, "user": B}, ["managed", "plugin a"]),
        ({"project": {"allowManagedHooksOnly": True}}, OWN),
        ({"project": {"enabledPlugins": {"a@m": False}}, "user": A}, OWN),
    ],
)
def test_hooks_of_all_levels_are_joined_and_switches_count_from_the_top(
    tmp_path: Path, levels: dict[str, Any], commands: list[str]
):
    assert commands_of_all(tmp_path, **levels) == commands


# ---------------------------------------------------------------- whatever comes

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner, max_size=4),
    max_leaves=12,
)
WORDS = [
    "hooks", "matcher", "type", "command", "timeout", "if", "args", "async", "url", "headers", "prompt", "decision",
    "reason", "continue", "hookSpecificOutput", "hookEventName", "permissionDecision", "updatedInput", "behavior",
    "additionalContext", "systemMessage", "stopReason", "ok", "asyncTimeout", "disableAllHooks", "enabledPlugins",
    *EVENTS,
]  # fmt: skip
VALUES = JSON | st.sampled_from(
    ["command", "http", "prompt", "block", "deny", "allow", "Bash|Edit", "PreToolUse", True]
)
OBJECTS = st.recursive(
    VALUES,
    lambda inner: st.dictionaries(st.sampled_from(WORDS), inner, max_size=6) | st.lists(inner, max_size=3),
    max_leaves=30,
)


@settings(max_examples=CAMPAIGN)
@given(st.sampled_from([*EVENTS]), OBJECTS, st.integers(-1, 300) | st.none(), st.text(max_size=50), st.booleans())
def test_no_answer_of_a_hook_breaks_the_reader(event: str, data: Any, code: int | None, stderr: str, closed: bool):
    for text in (json.dumps(data), json.dumps({"hookSpecificOutput": {"hookEventName": event, "x": data}})):
        answer = read_answer(event, Output(code, text, stderr), closed=closed)
        assert answer.permission in (None, "allow", "deny", "ask", "defer")
        assert answer.input is None or isinstance(answer.input, dict)
        if code == 2 and EVENTS[event].guards:
            assert answer.blocked
        assert re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", answer.reason + answer.message) is None


@settings(max_examples=CAMPAIGN)
@given(st.sampled_from([*EVENTS]), st.text() | st.text('{}[]":,\\ntrue\x1b0 ', max_size=40), st.integers(0, 3))
def test_no_text_breaks_the_reader(event: str, text: str, code: int):
    parse_stdout(text)
    declared_async(text)
    read_verdict(event, text, go_on=bool(code))
    answer = read_answer(event, Output(code, text, text))
    assert "\x1b" not in answer.reason + answer.error + answer.message + "".join(answer.context)


@settings(max_examples=CAMPAIGN)
@given(OBJECTS | st.dictionaries(st.sampled_from([*EVENTS, "hooks"]), OBJECTS))
def test_no_settings_break_the_reader(data: Any):
    for value in (data, {"hooks": data}, {"hooks": {"PreToolUse": [{"hooks": [data]}]}}):
        try:
            found = read_settings(json.dumps(value).encode(), SOURCE)
        except NotSettings:
            continue
        for handler in found.handlers:
            assert handler.name is not None
            hash(handler.key)
            try:
                compile_matcher(handler.matcher, handler.event)("Bash")
            except MatcherError:
                pass
            if handler.condition:
                condition_holds(handler.condition, Subject("Bash", {"command": "ls"}, "/p", "/p"))


PIECES = st.lists(
    st.sampled_from(
        [
            "$CLAUDE_PROJECT_DIR",
            '"${CLAUDE_PLUGIN_ROOT}"/',
            "/",
            "'",
            " ",
            "x.sh",
            "a" * 300,
            "\0",
            "\ud800",
            "..",
            "\n",
            "cd ",
            " && ",
            "-m ",
            "|",
            "(",
            "[",
            "*",
            "\\",
            "exit 1",
            "permissionDecision",
            "\x1b[31m",
            "A=b ",
        ]
    ),
    max_size=12,
).map("".join)


@settings(max_examples=CAMPAIGN)
@given(PIECES, st.lists(PIECES, max_size=3) | st.none(), PIECES, PIECES, st.sampled_from([*EVENTS]), st.booleans())
def test_no_command_breaks_the_doctor(
    text: str, args: list[str] | None, matcher: str, condition: str, event: str, plugin: bool
):
    handler = {"type": "command", "command": text, "if": condition, **({} if args is None else {"args": args})}
    root = Path(__file__).parent
    source = Source("plugin", root / "hooks.json", "x", root) if plugin else SOURCE
    found = settings_of({"hooks": {event: [{"matcher": matcher, "hooks": [handler]}]}}, source)
    for problem in examine(Found(found.handlers, found.problems), root):
        assert problem.text


@settings(max_examples=CAMPAIGN)
@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader_of_settings(content: bytes):
    try:
        read_settings(content, SOURCE)
    except NotSettings:
        pass
