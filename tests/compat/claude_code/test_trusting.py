"""Hooks of a folder run only if the user trusts its settings and scripts, as they are now."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from windlass.cli import main
from windlass.compat.claude_code import ClaudeCodeHooks
from windlass.errors import ConfigError
from windlass.testing import calls

from .plays import Project, command, on, results

GUARD = on("PreToolUse", "former_block.sh")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, ["hooks", *map(str, arguments)])


async def status(project: Project, **options: object) -> str:
    hooks = project.load(GUARD, trust=False, **options)
    return results(await project.play(hooks, calls("shell", command="ls")))[0].status


async def test_hooks_of_a_folder_do_not_run_until_it_is_trusted(project: Project, caplog: pytest.LogCaptureFixture):
    assert await status(project) == "ok"
    assert "is not trusted" in caplog.text
    done = run("trust", "--project", project.folder, "--yes")
    assert done.exit_code == 0, done.output
    assert "PreToolUse runs" in done.output
    assert "former_block.sh" in done.output.split("trusted:")[-1]
    assert await status(project) == "denied"


async def test_a_script_that_changes_does_not_run_any_more(project: Project):
    project.write({"hooks": GUARD})
    run("trust", "--project", project.folder, "--yes")
    hooks = project.load(GUARD, trust=False)
    script = project.folder / ".claude" / "hooks" / "former_block.sh"
    script.write_text("#!/bin/bash\ntouch pwned\n")
    result = await project.play(hooks, calls("shell", command="ls"))
    assert results(result)[0].status == "ok"
    assert "has changed since it was trusted" in hooks.runs[0].why
    assert not (project.folder / "pwned").exists()
    assert project.load(GUARD, trust=False).untrusted == (script,)


@pytest.mark.parametrize(
    "text",
    [
        "cd .claude/hooks && ./former_block.sh",
        'cd "$CLAUDE_PROJECT_DIR/.claude/hooks"; bash former_block.sh',
        "python3 -m tools.guard",
        "PYTHONPATH=. python3 -m tools.guard --quick",
    ],
)
def test_trust_finds_scripts_in_other_folders_and_modules(project: Project, text: str):
    (project.folder / "tools").mkdir()
    (project.folder / "tools" / "guard.py").write_text("raise SystemExit(2)\n")
    project.write({"hooks": on("PreToolUse", command(text))})
    run("trust", "--project", project.folder, "--yes")
    assert not ClaudeCodeHooks.load(project.folder).untrusted
    path = "tools/guard.py" if "tools" in text else ".claude/hooks/former_block.sh"
    (project.folder / path).write_text("touch pwned\n")
    assert ClaudeCodeHooks.load(project.folder).untrusted == (project.folder / path,)


async def test_in_the_strict_mode_a_guard_that_changed_blocks(project: Project):
    project.write({"hooks": GUARD})
    run("trust", "--project", project.folder, "--yes")
    hooks = project.load(GUARD, trust=False, mode="strict")
    (project.folder / ".claude" / "hooks" / "former_block.sh").write_text("")
    result = await project.play(hooks, calls("shell", command="ls"))
    assert "has changed since it was trusted" in results(result)[0].text


def test_settings_that_change_are_not_trusted_any_more(project: Project):
    project.write({"hooks": GUARD})
    run("trust", "--project", project.folder, "--yes")
    assert not ClaudeCodeHooks.load(project.folder).untrusted
    project.write({"hooks": {**GUARD, **on("Stop", command("touch pwned"))}})
    assert ClaudeCodeHooks.load(project.folder).untrusted == (project.folder / ".claude" / "settings.json",)


async def test_settings_of_the_user_and_named_ones_need_no_trust(project: Project, home: Path):
    (home / "claude").mkdir()
    (home / "claude" / "settings.json").write_text(json.dumps({"hooks": on("PreToolUse", command("exit 2"))}))
    hooks = ClaudeCodeHooks.load(project.folder)
    assert results(await project.play(hooks, calls("shell", command="ls")))[0].status == "denied"
    (home / "claude" / "settings.json").unlink()
    hooks = ClaudeCodeHooks.load(project.folder, settings=[{"hooks": on("PreToolUse", command("exit 2"))}])
    assert results(await project.play(hooks, calls("shell", command="ls")))[0].status == "denied"


async def test_a_folder_can_be_distrusted_again(project: Project):
    assert await status(project) == "ok"
    run("trust", "--project", project.folder, "--yes")
    run("trust", "--project", project.folder, "--remove")
    assert await status(project) == "ok"


def test_nothing_is_trusted_without_an_answer(project: Project):
    project.write({"hooks": GUARD})
    assert CliRunner().invoke(main, ["hooks", "trust", "--project", str(project.folder)], input="n\n").exit_code == 1
    assert ClaudeCodeHooks.load(project.folder).untrusted
    assert run("trust", "--project", project.folder.parent).exit_code == 2


@pytest.mark.parametrize(
    ("options", "text"),
    [({"mode": "loose"}, "mode"), ({"plugins": "x"}, "plugins"), ({"name": ""}, "name")],
)
def test_wrong_options_are_refused(project: Project, options: dict[str, object], text: str):
    with pytest.raises(ConfigError, match=text):
        ClaudeCodeHooks.load(project.folder, **options)  # type: ignore[arg-type]


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path):
    with pytest.raises(ConfigError, match="no such folder"):
        ClaudeCodeHooks.load(tmp_path / "gone")


# ---------------------------------------------------------------- windlass hooks test


def fire(project: Project, hooks: object, *arguments: object) -> Result:
    file = project.folder / "try.json"
    file.write_text(json.dumps({"hooks": hooks}))
    return run("test", *arguments, "--project", project.folder, "--settings", file)


def test_it_shows_what_each_hook_did_and_why(project: Project):
    hooks = on("PreToolUse", "no_rm.sh", "exit_1.sh", command("echo_input.js"), matcher="Bash")
    hooks["PreToolUse"] += on("PreToolUse", "former_block.sh", matcher="Write")["PreToolUse"]
    done = fire(project, hooks, "PreToolUse", "--tool", "Bash", "--input", '{"command": "rm secret"}')
    assert done.exit_code == 0, done.output
    for part in (
        "ran       exit code 2",
        "stderr    Use the bin instead of rm: rm secret",
        "effect    denies the call: Use the bin",
        "only exit code 2 blocks",
        "effect    nothing",
        "skipped   its matcher 'Write' does not match 'Bash'",
        "together: deny: Use the bin instead of rm: rm secret",
    ):
        assert part in done.output


def test_it_prints_json_that_a_program_reads(project: Project):
    hooks = on("PreToolUse", "dry_run.py")
    done = fire(project, hooks, "PreToolUse", "--tool", "Bash", "--input", '{"command": "git push"}', "--json")
    answer = json.loads(done.stdout)
    assert answer["verdict"]["permission"] == "allow"
    assert answer["verdict"]["updated_input"] == {"command": "git push --dry-run"}
    assert answer["hooks"][0]["exit"] == 0
    assert answer["hooks"][0]["effect"] == "allows the call, replaces the input"


def test_other_events_take_their_fields_as_input(project: Project):
    hooks = {**on("UserPromptSubmit", "no_passwords.py"), **on("Stop", "tests_once.py")}
    done = fire(project, hooks, "UserPromptSubmit", "--input", '{"prompt": "password: x"}')
    assert "together: block: Do not type passwords here." in done.output
    assert "together: block: run the tests" in fire(project, hooks, "Stop").output
    assert "together: no decision" in fire(project, hooks, "Stop", "--input", '{"stop_hook_active": true}').output


def test_a_script_can_expect_a_decision(project: Project):
    hooks = on("PreToolUse", "former_block.sh")
    assert fire(project, hooks, "PreToolUse", "--expect", "deny").exit_code == 0
    assert fire(project, hooks, "PreToolUse", "--expect", "allow").exit_code == 1


def test_the_whole_input_of_a_hook_can_be_given(project: Project):
    """What a hook reads is what was given, whatever its place is."""
    (project.folder / "web").mkdir()
    whole = {
        "session_id": "s-7",
        "cwd": str(project.folder / "web"),
        "hook_event_name": "PostToolUse",
        "tool_name": "Write",
        "tool_input": {"file_path": "/x/a.txt", "content": "x"},
        "tool_use_id": "toolu_7",
        "agent_id": "agent-1",
    }
    told = command('cat > "$CLAUDE_PROJECT_DIR/read.json"; pwd; echo $CLAUDE_CODE_SESSION_ID')
    hooks = {event: on(event, told, matcher="Write")[event] for event in ("PreToolUse", "PostToolUse")}
    for event in hooks:
        done = fire(project, hooks, event, "--input", json.dumps(whole), "--json")
        assert json.loads(done.stdout)["hooks"][0]["stdout"] == f"{project.folder}/web\ns-7\n"
        read = json.loads((project.folder / "read.json").read_text())
        assert {**read, **whole, "hook_event_name": event} == read
        assert ("tool_response" in read) == (event == "PostToolUse")


@pytest.mark.parametrize(("tool", "ran"), [("Edit", True), ("MultiEdit", True), ("NotebookEdit", False)])
def test_a_matcher_for_edits_is_about_several_edits_too(project: Project, tool: str, ran: bool):
    hooks = on("PreToolUse", "former_block.sh", matcher="Edit|Write")
    assert ("together: deny" in fire(project, hooks, "PreToolUse", "--tool", tool).output) is ran


def test_the_input_can_come_from_standard_input(project: Project):
    file = project.folder / "try.json"
    file.write_text(json.dumps({"hooks": on("PreToolUse", "no_rm.sh")}))
    words = ["hooks", "test", "PreToolUse", "--input", "-", "--settings", str(file), "--project", str(project.folder)]
    done = CliRunner().invoke(main, words, input='{"tool_name": "Bash", "tool_input": {"command": "rm x"}}')
    assert "together: deny: Use the bin" in done.output


@pytest.mark.parametrize(("asked", "decision"), [("make all", "allow"), ("dd if=x", "deny: nobody allows dd if=x")])
def test_it_says_how_a_request_for_permission_is_answered(project: Project, asked: str, decision: str):
    hooks = on("PermissionRequest", "permission_request.py")
    given = json.dumps({"command": asked})
    assert f"together: {decision}" in fire(project, hooks, "PermissionRequest", "--input", given).output
    answer = json.loads(fire(project, hooks, "PermissionRequest", "--input", given, "--json").stdout)
    assert answer["verdict"]["decision"] == decision.partition(":")[0]


def test_what_a_hook_in_the_background_decides_has_no_effect(project: Project):
    hooks = on("PreToolUse", command("former_block.sh", **{"async": True}))
    done = fire(project, hooks, "PreToolUse")
    assert "it runs in the background, so its decision has no effect" in done.output
    assert "together: no decision" in done.output
    hooks = on("PreToolUse", command("wakes.py", asyncRewake=True))
    assert "wakes the model" in fire(project, hooks, "PreToolUse").output


def test_it_shows_the_variables_that_a_hook_sets(project: Project):
    done = fire(project, on("SessionStart", "sets_variables.sh"), "SessionStart")
    assert "variable  export PROJECT_COLOUR=" in done.output


def test_hooks_that_are_not_trusted_are_not_fired(project: Project):
    project.write({"hooks": on("PreToolUse", command("touch pwned"))})
    done = run("test", "PreToolUse", "--project", project.folder)
    assert "not trusted" in done.output
    assert not (project.folder / "pwned").exists()


def test_strict_shows_what_the_strict_mode_does(project: Project):
    hooks = on("PreToolUse", "crashes.py")
    assert "together: no decision" in fire(project, hooks, "PreToolUse").output
    assert "together: deny" in fire(project, hooks, "PreToolUse", "--strict").output


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["NoEvent"], "there is no event"),
        (["Stop", "--tool", "Bash"], "--tool goes with"),
        (["PreToolUse", "--input", "x"], "--input must be a JSON object"),
        (["PreToolUse", "--call", "bash"], "give either EVENT"),
        ([], "name an EVENT"),
    ],
)
def test_wrong_use_is_refused(project: Project, arguments: list[str], text: str):
    done = run("test", *arguments, "--project", project.folder)
    assert done.exit_code == 2
    assert text in done.stderr


def test_escapes_of_hooks_are_shown_as_text(project: Project):
    done = fire(project, on("PreToolUse", "colours.sh"), "PreToolUse")
    assert "\x1b" not in done.output


# ---------------------------------------------------------------- windlass hooks doctor

MISTAKES = [
    (on("PreToolUse", "exit_1.sh"), "it exits with 1, which blocks nothing"),
    (on("PreToolUse", "imagined.sh"), "there is no variable CLAUDE_TOOL_INPUT"),
    (on("PreToolUse", "not_executable.sh"), "not_executable.sh is not executable"),
    (on("PreToolUse", "shouts.sh"), "decision 'DENY' is not valid"),
    (on("PreToolUse", "no_event_name.sh"), "hookSpecificOutput without hookEventName is ignored"),
    (on("PreToolUse", "other_event_name.py"), "its hookEventName is PostToolUse"),
    (on("PreToolUse", "result_block.py"), '{"result": "block"} blocks nothing'),
    (on("PermissionRequest", "wrong_request.sh"), "PermissionRequest takes no permissionDecision"),
    (on("Stop", "always_blocks.sh"), "it never looks at stop_hook_active"),
    (on("PreToolUse", "no_rm.sh", matcher="bash"), "matchers are case-sensitive"),
    (on("PreToolUse", "no_rm.sh", matcher="Bash(rm *)"), "is a permission rule"),
    (on("PreToolUse", "no_rm.sh", matcher="mcp__memory"), "is the name of a server"),
    (on("PreToolUse", "no_rm.sh", matcher="*.py"), "is not a valid regular expression"),
    (on("SessionStart", "session_context.py", matcher="begin"), "'begin' never happens on SessionStart"),
    (on("Stop", "tests_once.py", matcher="Bash"), "a matcher has no effect on Stop"),
    (on("FileChanged", "record.sh"), "FileChanged never happens here"),
    (on("PreToolUse", command("no_rm.sh", timeout=5000)), "its timeout is 5000 seconds"),
    (on("PreToolUse", command("no_rm.sh", **{"async": True})), "cannot block"),
    (on("PreToolUse", command("no_rm.sh", blocking=True)), "nothing reads the field 'blocking'"),
    (on("Stop", command("tests_once.py", **{"if": "Bash"})), "a hook with 'if' never runs on Stop"),
    (on("PreToolUse", command("no_rm.sh", **{"if": "Write"}), matcher="Bash"), "so it never runs"),
    (on("PreToolUse", command('"$CLAUDE_PROJECT_DIR"/gone.sh')), "there is no file"),
    (on("PreToolUse", {"type": "agent", "prompt": "x"}), "do not run here"),
    (on("PreToolUse", "no_rm.sh", "no_rm.sh"), "it is the same as PreToolUse[0].hooks[0]"),
    ({"PreToolUs": []}, "did you mean PreToolUse?"),
]


@pytest.mark.parametrize(("hooks", "text"), MISTAKES, ids=[text[:40] for _, text in MISTAKES])
def test_the_doctor_finds_what_cannot_work(project: Project, hooks: dict[str, object], text: str):
    project.write({"hooks": hooks})
    done = run("doctor", "--project", project.folder)
    assert done.exit_code == 1
    assert text in done.output, done.output


def test_the_doctor_lets_hooks_that_only_watch_run_in_the_background(project: Project):
    project.write({"hooks": on("PreToolUse", command("keeps_log.sh", **{"async": True}))})
    assert run("doctor", "--project", project.folder).exit_code == 0


SOUND = [
    "no_rm.sh",
    "deny_push.py",
    "ask_deploy.js",
    "protected_files.py",
    "dry_run.py",
    "keeps_log.sh",
    "dev_stdin.js",
]


def test_the_doctor_finds_nothing_in_sound_hooks(project: Project):
    project.write({"hooks": {**on("PreToolUse", *SOUND, matcher="Bash|Write"), **on("Stop", "tests_once.py")}})
    done = run("doctor", "--project", project.folder)
    assert done.exit_code == 0, done.output
    assert "nothing to mend" in done.output
