"""Hooks of several events that work together, and hooks that are started in other ways."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from windlass import Agent, Approve, Stopped, Suspended
from windlass.cli import main
from windlass.compat.claude_code import ClaudeCodeHooks
from windlass.testing import ScriptedModel, calls, says
from windlass.tools import Workspace

from .plays import Project, command, on, results


async def run_all(agent: Agent[Any, Any], message: str = "Go.") -> Any:
    """Run a turn and approve all it asks for."""
    async with agent:
        result = await agent.run(message, session="s1")
        while isinstance(result.outcome, Suspended):
            result = await agent.resume("s1", answers={one.id: Approve() for one in result.waiting_for})
    return result


def shelled(project: Project, hooks: ClaudeCodeHooks, *commands: str) -> Agent[Any, Any]:
    model = ScriptedModel(*[calls("shell", command=one) for one in commands], says("Done."))
    return Agent(model, capabilities=[Workspace(project.folder, isolation="none"), hooks])


# ---------------------------------------------------------------- the folder


async def test_hooks_run_where_the_shell_is(project: Project):
    (project.folder / "web" / "src").mkdir(parents=True)
    hooks = project.load({**on("PreToolUse", "cd_aware.sh"), **on("Stop", "cd_aware.sh")})
    result = await run_all(shelled(project, hooks, "cd web/src", "pwd", "cd ..", "cd /does/not/exist"))
    assert [step.results[0].status for step in result.steps[:4]] == ["ok"] * 4
    root = str(project.folder)
    cwds = (project.folder / "cwds.txt").read_text().split()
    assert list(dict.fromkeys(cwds)) == [root, f"{root}/web/src", f"{root}/web"]
    assert cwds[-1] == f"{root}/web"


async def test_a_change_of_the_folder_is_an_event(project: Project):
    (project.folder / "web").mkdir()
    hooks = project.load(on("CwdChanged", "cwd_changed.sh"))
    result = await run_all(shelled(project, hooks, "cd web", "echo here is $HERE", "true"))
    moves = [json.loads(line) for line in (project.folder / "moves.jsonl").read_text().splitlines()]
    root = str(project.folder)
    assert moves == [{"old_cwd": root, "new_cwd": f"{root}/web", "hook_event_name": "CwdChanged"}]
    assert result.steps[1].results[0].text == "here is web"


async def test_a_folder_that_is_gone_does_not_stop_hooks(project: Project):
    hooks = project.load(on("PostToolUse", "record.sh"))
    await run_all(shelled(project, hooks, "mkdir gone && cd gone", "rm -r ../gone", "true"))
    assert not (project.folder / "gone").exists()
    assert [one["cwd"] for one in project.seen("PostToolUse")] == [str(project.folder / "gone")] * 2


async def test_conditions_start_at_the_folder_of_the_shell(project: Project):
    (project.folder / "web").mkdir()
    refuse = {**command("echo no >&2; exit 2"), "if": "Write(src/**)"}
    hooks = project.load(on("PreToolUse", refuse))
    model = ScriptedModel(
        calls("shell", command="cd web"), calls("write", path="web/src/a.txt", content="x"), says("Done.")
    )
    agent = Agent(model, capabilities=[Workspace(project.folder, isolation="none"), hooks])
    result = await run_all(agent)
    assert result.steps[1].results[0].status == "denied"


# ---------------------------------------------------------------- sessions, prompts, stops


async def test_a_session_loads_context_and_variables(project: Project):
    (project.folder / ".claude" / "NOTES.md").write_text("Use tabs.\n")
    (project.folder / "bin").mkdir()
    tool = project.folder / "bin" / "own-tool"
    tool.write_text("#!/bin/sh\necho own tool\n")
    tool.chmod(0o755)
    hooks = project.load(on("SessionStart", "context_loader.sh", "env_loader.sh", matcher="startup|resume"))
    agent = shelled(project, hooks, 'echo "$NODE_ENV, $GREETING"; own-tool')
    result = await run_all(agent)
    assert "Notes:\nUse tabs." in agent.model.requests[0].system  # type: ignore[attr-defined]
    assert "Started from: startup" in agent.model.requests[0].system  # type: ignore[attr-defined]
    assert result.steps[0].results[0].text == "test, hello  there\nown tool"


async def test_prompts_get_context_or_are_blocked(project: Project):
    hooks = project.load(on("UserPromptSubmit", "prompt_context.py", "skill_hint.js"))
    await project.play(hooks, message="Deploy it -u")
    assert "Think step by step." in project.text(0)
    assert "use the skill 'release'" in project.text(0)
    result = await project.play(hooks, message="Tell me the Secret")
    assert isinstance(result.outcome, Stopped)
    assert result.text == "the prompt speaks of a secret"


async def test_a_stop_waits_until_the_work_is_finished(project: Project):
    (project.folder / ".claude" / "unfinished").touch()
    result = await project.play(project.load(on("Stop", "stop_until_clean.sh")), says("One."), says("Two."))
    assert [message.text for message in result.messages][1:] == [
        "One.", "there is unfinished work in .claude/unfinished", "Two."
    ]  # fmt: skip


@pytest.mark.parametrize(("replies", "rounds"), [(["a", "b <promise>DONE</promise>"], 1), (["a", "b", "c", "d"], 2)])
async def test_a_loop_goes_on_until_the_promise_or_its_limit(project: Project, replies: list[str], rounds: int):
    state = project.folder / ".claude" / "loop.local.md"
    state.write_text("---\nround: 1\n---\n")
    result = await project.play(project.load(on("Stop", "stop_promise.sh")), *[says(text) for text in replies])
    assert not state.exists()
    assert len([m for m in result.messages if m.text.startswith("again, round")]) == rounds
    assert project.messages == [f"🔄 round {n + 2}" for n in range(rounds)]


async def test_a_stop_hook_may_end_all(project: Project):
    result = await project.play(project.load(on("Stop", "stop_continue_false.py", "always_blocks.sh")), says("One."))
    assert [message.text for message in result.messages] == ["Go.", "One."]


async def test_a_request_for_permission_is_answered(project: Project):
    hooks = project.load(on("PermissionRequest", "request_allow.js", matcher="Bash"))
    both = calls([("shell", {"command": "make"}), ("shell", {"command": "rm x"})])
    result = await project.play(hooks, both, unmatched="ask")
    assert [(one.status, "only make" in one.text) for one in results(result)] == [("ok", False), ("denied", True)]


async def test_a_guard_remembers_over_calls(project: Project):
    hooks = project.load(on("PreToolUse", "tdd_guard.py", matcher="Edit|Write|MultiEdit"))
    replies = [calls("write", path=path, content="x") for path in ("src/a.py", "tests/test_a.py", "src/a.py")]
    result = await project.play(hooks, *replies)
    assert [step.results[0].status for step in result.steps[:3]] == ["denied", "ok", "ok"]


async def test_a_limit_of_writes_holds_for_parallel_calls(project: Project):
    hooks = project.load(on("PreToolUse", "rate_limit.py", matcher="Write"))
    three = calls([("write", {"path": f"{n}.txt", "content": "x"}) for n in range(3)])
    result = await project.play(hooks, three)
    assert sorted(one.status for one in results(result)) == ["denied", "ok", "ok"]


# ---------------------------------------------------------------- other ways to start


async def test_a_script_for_uv_runs_if_uv_is_there(project: Project, tmp_path_factory: Any, monkeypatch: Any):
    place = tmp_path_factory.mktemp("bin")
    fake = place / "uv"
    fake.write_text(f'#!/bin/sh\n[ "$1 $2" = "run --script" ] || exit 9\nshift 2\nexec {sys.executable} "$@"\n')
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{place}:/usr/bin:/bin")
    hooks = project.load(on("PostToolUse", "speak.py", {**command("uv run --script .claude/hooks/speak.py")}))
    await project.play(hooks, calls("shell", command="ls"))
    assert project.messages == ["🔊 Bash is done"]


async def test_without_uv_the_report_says_so(project: Project, monkeypatch: Any):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    hooks = project.load(on("PreToolUse", "speak.py"))
    result = await project.play(hooks, calls("shell", command="ls"))
    assert results(result)[0].status == "ok"
    assert "status code 127" in hooks.runs[0].why
    assert "uv" in hooks.runs[0].why


async def test_commands_of_all_shapes_run(project: Project):
    (project.folder / "a b").mkdir()
    spaced = project.folder / "a b" / "it's.sh"
    spaced.write_text('#!/bin/bash\necho spaced >> "$CLAUDE_PROJECT_DIR/ran"\n')
    spaced.chmod(0o755)
    given = [
        command('"$CLAUDE_PROJECT_DIR/a b/it\'s.sh"'),
        command("bash -c 'echo inner >> \"${CLAUDE_PROJECT_DIR:-.}/ran\"'"),
        command("cd .claude && echo moved >> ../ran"),
        command("FILE=ran; [[ -n $FILE ]] && { echo braces; } >> $FILE"),
        command("python3 - <<'EOF'\nopen('ran', 'a').write('here-document\\n')\nEOF"),
        {"type": "command", "command": "node", "args": ["-e", "require('fs').appendFileSync('ran', 'exec form\\n')"]},
        {"type": "command", "command": "${CLAUDE_PROJECT_DIR}/a b/it's.sh", "args": []},
    ]
    hooks = project.load(on("PreToolUse", *given))
    await project.play(hooks, calls("shell", command="ls"))
    assert [run.why for run in hooks.runs] == [""] * len(given)
    ran = sorted((project.folder / "ran").read_text().split("\n"))
    assert ran == ["", "braces", "exec form", "here-document", "inner", "moved", "spaced", "spaced"]


# ---------------------------------------------------------------- the command line and agent files

MODULE = """
from windlass import Agent, tool
from windlass.testing import FunctionModel, calls, says

@tool(inline=True)
def shell(command: str) -> str:
    "Run a command."
    return f"ran {command}"

def reply(request):
    last = request.messages[-1]
    if last.role == "tool":
        return says("It was: " + last.parts[0].text)
    return calls("shell", command=last.text.splitlines()[0])

def model():
    return FunctionModel(reply)

agent = Agent(model(), tools=[shell])
"""

AGENT_FILE = """
name = "guarded"
model = { use = "hooked:model" }
tools = ["hooked:shell"]

[capabilities.claude_code_hooks]
project_dir = "."
mode = "strict"
"""


@pytest.fixture
def runner(project: Project, monkeypatch: pytest.MonkeyPatch) -> CliRunner:
    (project.folder / "hooked.py").write_text(MODULE)
    monkeypatch.chdir(project.folder)
    monkeypatch.setenv("PYTHONPATH", str(project.folder))
    monkeypatch.setenv("WINDLASS_STORE", f"sqlite:///{project.folder / 's.db'}")
    sys.modules.pop("hooked", None)
    return CliRunner()


def test_the_command_line_runs_trusted_hooks(project: Project, runner: CliRunner):
    project.write({"hooks": on("PreToolUse", "no_rm.sh")})
    words = ["run", "--agent", "hooked.py:agent", "--claude-hooks", "compat"]
    untrusted = runner.invoke(main, [*words, "rm x"])
    assert "It was: ran rm x" in untrusted.output
    assert runner.invoke(main, ["hooks", "trust", "--yes"]).exit_code == 0
    trusted = runner.invoke(main, [*words, "rm x"])
    assert trusted.exit_code == 0, trusted.output
    assert "It was: Denied: Use the bin instead of rm: rm x" in trusted.output
    assert "It was: ran ls" in runner.invoke(main, [*words, "ls"]).output


def test_the_command_line_shows_messages_and_is_strict_if_asked(project: Project, runner: CliRunner):
    project.write({"hooks": on("PreToolUse", "crashes.py", command('echo \'{"systemMessage": "look out"}\''))})
    assert runner.invoke(main, ["hooks", "trust", "--yes"]).exit_code == 0
    compat = runner.invoke(main, ["run", "--agent", "hooked.py:agent", "--claude-hooks", "compat", "ls"])
    assert "hook: look out" in compat.output
    assert "It was: ran ls" in compat.output
    strict = runner.invoke(main, ["run", "--agent", "hooked.py:agent", "--claude-hooks", "strict", "ls"])
    assert "a broken hook blocks here" in strict.output


def test_an_agent_file_names_the_hooks(project: Project, runner: CliRunner):
    project.write({"hooks": on("PreToolUse", "no_rm.sh")})
    assert runner.invoke(main, ["hooks", "trust", "--yes"]).exit_code == 0
    (project.folder / "agent.toml").write_text(AGENT_FILE)
    words = ["run", "--agent", "agent.toml", "--store", f"sqlite:///{project.folder / 's.db'}"]
    assert "Denied: Use the bin instead of rm: rm x" in runner.invoke(main, [*words, "rm x"]).output
    assert "It was: ran ls" in runner.invoke(main, [*words, "ls"]).output
    assert "PreToolUse 1; strict" in runner.invoke(main, ["explain", "agent.toml"]).output
