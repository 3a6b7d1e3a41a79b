"""Hooks of several events that work together, and hooks that are started in other ways."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from windlass import Agent, Approve, Stopped, Suspended
from windlass.cli import main
from windlass.compat.claude_code import ClaudeCodeHooks
from windlass.testing import ScriptedModel, calls, says
from windlass.tools import Workspace

from .plays import Project, command, on, results


def read(path: str | Path) -> str:
    return Path(path).read_text()


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


# ---------------------------------------------------------------- context


def adds(event: str, text: str) -> dict[str, Any]:
    """A hook that adds context."""
    answer = json.dumps({"hookSpecificOutput": {"hookEventName": event, "additionalContext": text}})
    return command(f"echo '{answer}'")


async def test_what_hooks_add_to_a_call_is_no_part_of_its_output(project: Project):
    """Hooks that look at the output read what the tool said, and so do readers of the transcript."""
    settings = {
        **on("PreToolUse", adds("PreToolUse", "look at the tests, too")),
        **on("PostToolUse", adds("PostToolUse", "the build is old"), "record.sh"),
        **on("PostToolUseFailure", "record.sh"),
        **on("PostToolBatch", "record.sh"),
        **on("Stop", command('cp "$(jq -r .transcript_path)" copy.jsonl')),
    }
    both = calls([("shell", {"command": "make"}), ("shell", {"command": "false"})])
    result = await project.play(project.load(settings), both)
    assert results(result)[0].text == "ran make\nlook at the tests, too\nthe build is old"
    assert project.seen("PostToolUse")[0]["tool_response"]["stdout"] == "ran make"
    assert project.seen("PostToolUseFailure")[0]["error"] == "Exit code 1\nit broke"
    assert project.seen("PostToolBatch")[0]["tool_calls"][0]["tool_response"] == "ran make"
    lines = [json.loads(line) for line in read(project.folder / "copy.jsonl").splitlines()]
    shown = [line["message"]["content"][0] for line in lines if line["type"] == "user"][1:]
    assert [(one["content"], one.get("is_error", False)) for one in shown] == [
        ("ran make", False), ("Exit code 1\nit broke", True)
    ]  # fmt: skip


@pytest.mark.parametrize("event", ["PreToolUse", "Stop", "UserPromptSubmit"])
async def test_a_reason_that_is_too_long_goes_to_a_file(project: Project, event: str):
    once = "[ -e once ] || { touch once; yes refused | head -c 50000 >&2; exit 2; }"
    result = await project.play(project.load(on(event, command(once))), calls("shell", command="ls"))
    text = result.text if event == "UserPromptSubmit" else project.text()
    assert len(text) < 3_000
    assert len(read(text.split("all of them are in ")[1].split("]")[0])) > 49_000


async def test_an_output_that_a_hook_replaces_has_no_escapes(project: Project):
    answer = {"hookEventName": "PostToolUse", "updatedToolOutput": {"stdout": "\x1b]0;title\x07clean\x1b[2J"}}
    hooks = project.load(on("PostToolUse", command(f"echo '{json.dumps({'hookSpecificOutput': answer})}'")))
    assert results(await project.play(hooks, calls("shell", command="ls")))[0].text == "clean"


async def test_an_output_that_a_hook_replaces_keeps_what_other_hooks_added(project: Project):
    settings = {**on("PreToolUse", adds("PreToolUse", "mind the tests")), **on("PostToolUse", "hides_token.js")}
    result = await project.play(project.load(settings), calls("shell", command="token=abc123"))
    assert results(result)[0].text == "ran token=…\nmind the tests"


async def test_context_is_no_message_of_the_user_in_the_transcript(project: Project):
    """Scripts look for what the user said last, and for what hooks made the agent do again."""
    settings = {
        **on("UserPromptSubmit", command("echo Branch: main")),
        **on("Stop", "tests_once.py", command('cp "$(jq -r .transcript_path)" copy.jsonl')),
    }
    await project.play(project.load(settings), says("One."), says("Two."), message="Fix it.")
    lines = [json.loads(line) for line in read(project.folder / "copy.jsonl").splitlines()]
    users = [(line["message"]["content"], line.get("isMeta", False)) for line in lines if line["type"] == "user"]
    assert users == [("Fix it.", False), ("run the tests before you stop", True)]
    [added] = [line["attachment"] for line in lines if line["type"] == "attachment"]
    assert added == {"type": "hook_additional_context", "content": ["Branch: main"]}


# ---------------------------------------------------------------- names of tools


@pytest.mark.parametrize(
    "options", [{"matcher": "Edit|Write"}, {"matcher": "^Edit$"}, {"matcher": "MultiEdit"}, {"if": "Edit(src/**)"}]
)
async def test_a_guard_of_edits_also_sees_several_edits_at_once(project: Project, options: dict[str, str]):
    """Claude Code has no tool for that any more, so hooks of today name `Edit` only."""
    (project.folder / "src").mkdir()
    (project.folder / "src" / "a.txt").write_text("a\n")
    condition = {"if": options["if"]} if "if" in options else {}
    guard = {**command("jq -r '.tool_name + \" \" + .tool_input.file_path' >&2; exit 2"), **condition}
    hooks = project.load(on("PreToolUse", guard, matcher=options.get("matcher")))
    result = await project.play(hooks, calls("multi_edit", path="src/a.txt", edits=[{"old": "a", "new": "b"}]))
    assert results(result)[0].text == f"Denied: MultiEdit {project.folder}/src/a.txt"


async def test_a_guard_of_other_tools_does_not_see_edits(project: Project):
    (project.folder / "a.txt").write_text("a\n")
    hooks = project.load(on("PreToolUse", command("exit 2"), matcher="NotebookEdit|Write"))
    result = await project.play(hooks, calls("multi_edit", path="a.txt", edits=[{"old": "a", "new": "b"}]))
    assert results(result)[0].status == "ok"


async def test_files_with_brackets_in_their_names_are_listed(project: Project):
    (project.folder / "[id].txt").write_text("x")
    hooks = project.load(on("PostToolUse", "record.sh", matcher="Glob|Grep"))
    await project.play(hooks, calls("glob", pattern="*.txt"), calls("grep", pattern="x", include="*.txt"))
    assert [one["tool_response"]["filenames"] for one in project.seen("PostToolUse")] == [["[id].txt"]] * 2


# ---------------------------------------------------------------- sessions, prompts, stops


async def test_sessions_end_when_the_process_leaves_them(project: Project):
    """They may go on in another process, which resumes them: each process begins and ends what it works on."""
    slow = command("sleep 60")
    hooks = project.load({event: on(event, "record.sh", slow)[event] for event in ("SessionEnd",)})
    async with project.agent(hooks, *[says("Done.")] * 3) as agent:
        for session in ("a", "b", "a"):
            await agent.run("Go.", session=session)
        assert project.seen("SessionEnd") == []
    ended = project.seen("SessionEnd")
    assert sorted((one["session_id"], one["reason"]) for one in ended) == [("a", "other"), ("b", "other")]
    assert all('"text":"Done."' in read(one["transcript_path"]) for one in ended)


async def test_a_notification_finds_the_call_in_the_transcript(project: Project):
    """The transcript is kept up to date for hooks of facts, also if no other hook runs before."""
    copy = command('cp "$(jq -r .transcript_path)" copy.jsonl')
    hooks = project.load(on("Notification", copy))
    await project.play(hooks, calls("shell", command="make all"), unmatched="ask")
    assert '"command":"make all"' in read(project.folder / "copy.jsonl")


async def test_a_session_that_was_closed_does_not_end_again(project: Project):
    hooks = project.load(on("SessionEnd", "record.sh"))
    async with project.agent(hooks, says("Done.")) as agent:
        await agent.run("Go.", session="a")
        async with agent.session("a") as session:
            await session.close()
    assert len(project.seen("SessionEnd")) == 1


async def test_why_all_was_stopped_is_told_to_the_user(project: Project):
    answer = '{"continue": false, "stopReason": "enough"}'
    hooks = project.load(on("Stop", command(f"echo '{answer}'"), "always_blocks.sh"))
    result = await project.play(hooks, says("One."))
    assert (result.text, project.messages) == ("One.", ["enough"])


@pytest.mark.parametrize(
    ("event", "answer"),
    [("PreToolUse", "block"), ("PostToolUse", "block"), ("UserPromptSubmit", "block"), ("Stop", "block")],
)
@pytest.mark.parametrize("code", [0, 2])
async def test_a_block_needs_no_reason(project: Project, event: str, answer: str, code: int):
    given = f'{{"decision": "{answer}"}}'
    once = f"[ -e once ] && exit 0; touch once; echo '{given}'; exit {code}"
    result = await project.play(project.load(on(event, command(once))), calls("shell", command="ls"))
    text = project.text() if project.requests else result.text
    assert text if event == "UserPromptSubmit" else "block" in text or "denied" in text


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


async def test_variables_belong_to_a_session_of_a_project_and_stay_when_it_is_resumed(project: Project, tmp_path: Any):
    """Hooks that set them at the start alone are not asked again."""
    store = f"sqlite:///{tmp_path / 'a.db'}"
    hooks = on("SessionStart", "sets_variables.sh", matcher="startup")

    async def colour(folder: Path, session: str) -> str:
        made = ClaudeCodeHooks.load(folder, trust=True)
        model = ScriptedModel(calls("shell", command='echo "<$PROJECT_COLOUR>"'), says("Done."))
        agent = Agent(model, capabilities=[Workspace(folder, isolation="none"), made], store=store)
        async with agent:
            result = await agent.run("Go.", session=session)
            while isinstance(result.outcome, Suspended):
                result = await agent.resume(session, answers={one.id: Approve() for one in result.waiting_for})
        return str(results(result)[0].text)

    project.write({"hooks": hooks})
    other = tmp_path / "other"
    other.mkdir()
    named = {"hooks": on("SessionStart", "true")}
    (other / ".claude").mkdir()
    (other / ".claude" / "settings.json").write_text(json.dumps(named))
    assert [await colour(project.folder, "s1") for _ in range(2)] == ["<dark blue>"] * 2
    store = f"sqlite:///{tmp_path / 'b.db'}"
    assert await colour(other, "s1") == "<>"


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


async def test_a_shell_reads_the_input_line_by_line(project: Project):
    hooks = project.load(on("PreToolUse", command("set -e; read -r line; jq -r .tool_name <<< $line >&2; exit 2")))
    result = await project.play(hooks, calls("shell", command="ls"))
    assert results(result)[0].text == "Denied: Bash"


async def test_a_program_may_be_named_by_a_relative_path(project: Project):
    hooks = project.load(on("PreToolUse", {"type": "command", "command": ".claude/hooks/former_block.sh", "args": []}))
    result = await project.play(hooks, calls("shell", command="ls"))
    assert results(result)[0].status == "denied", hooks.runs[0].why


async def test_settings_give_variables_to_hooks(project: Project, home: Any):
    told = on("PreToolUse", command('echo "$COLOUR $SIZE $LIMIT" >&2; exit 2'))
    (home / "claude").mkdir()
    given = {"env": {"COLOUR": "red", "SIZE": "big", "LIMIT": 3, "A=B": "x", "LIST": []}, "hooks": told}
    (home / "claude" / "settings.json").write_text(json.dumps(given))
    project.write({"env": {"SIZE": "small", "LD_PRELOAD": "evil"}}, "settings.local.json")
    for trust, text in ((True, "red small 3"), (False, "red big 3")):
        hooks = ClaudeCodeHooks.load(project.folder, trust=trust)
        result = await project.play(hooks, calls("shell", command="ls"))
        assert results(result)[0].text.removeprefix("Denied: ").splitlines()[-1] == text


async def test_a_plugin_reads_its_options(project: Project):
    plugin = project.folder / "guard"
    (plugin / "hooks").mkdir(parents=True)
    shell_form = command('echo "$CLAUDE_PLUGIN_OPTION_MAX_LINES" >&2; exit 2')
    exec_form = {"type": "command", "command": "bash", "args": ["-c", 'echo "$0" >&2; exit 2', "${user_config.name}"]}
    (plugin / "hooks" / "hooks.json").write_text(json.dumps({"hooks": on("PreToolUse", shell_form, exec_form)}))
    options = {"pluginConfigs": {"guard": {"options": {"max-lines": 7, "name": "$(touch pwned)"}}}}
    hooks = project.load({}, plugins=[plugin], settings=[options])
    result = await project.play(hooks, calls("shell", command="ls"))
    assert results(result)[0].text == "Denied: 7\n$(touch pwned)"
    assert not (project.folder / "pwned").exists()


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
