"""Each event of Claude Code that happens here: when it fires, what hooks read, and what their answers do."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Approve, Completed, ModelCall, Stopped, Suspended, tool
from windlass.capabilities import AtMessages, Permissions, Trim
from windlass.compat.claude_code import ClaudeCodeHooks, ToolAlias
from windlass.errors import BadRequest
from windlass.records import Noted
from windlass.testing import FunctionModel, ScriptedModel, calls, says
from windlass.tools import Workspace

from .plays import Project, command, on, results

RECORD = {event: on(event, "record.sh")[event] for event in ("SessionStart", "UserPromptSubmit", "Stop", "SessionEnd")}


def read(path: str) -> str:
    return Path(path).read_text()


async def until(reached: Callable[[], bool]) -> None:
    """Wait for what a process does; the time limit of the test is the bound."""
    while not reached():  # noqa: ASYNC110
        await asyncio.sleep(0.05)


# ---------------------------------------------------------------- prompts


async def test_plain_text_and_json_of_prompt_hooks_are_context_for_the_model(project: Project):
    hooks = project.load(on("UserPromptSubmit", "branch_context.sh", "json_context.js", "echo_input.js"))
    await project.play(hooks, message="Hello")
    assert "Branch: none" in project.text(0)
    assert "Answer in one sentence." in project.text(0)
    assert "hook_event_name" not in project.text(0)


@pytest.mark.parametrize(
    ("script", "message", "reason"),
    [
        ("no_passwords.py", "my password: x", "Do not type passwords here."),
        ("prompt_exit_2.sh", "forbidden", "that word is not allowed"),
    ],
)
async def test_a_prompt_hook_that_blocks_ends_the_turn_before_the_model_reads_it(
    project: Project, script: str, message: str, reason: str
):
    hooks = project.load(on("UserPromptSubmit", script))
    result = await project.play(hooks, message=message)
    assert isinstance(result.outcome, Stopped)
    assert result.text == reason
    assert project.requests == []
    assert (await project.play(hooks, message="fine")).outcome == Completed()


async def test_context_that_is_too_long_goes_to_a_file(project: Project):
    hooks = project.load(on("UserPromptSubmit", "long_context.py"))
    await project.play(hooks)
    text = project.text(0)
    assert len(text) < 4_000
    assert read(text.split("all of them are in ")[1].split("]")[0]).endswith("line 2999")


# ---------------------------------------------------------------- sessions


async def test_a_session_starts_with_context_and_ends(project: Project):
    settings = {**RECORD, "SessionStart": on("SessionStart", "record.sh", "session_context.py")["SessionStart"]}
    agent = project.agent(project.load(settings), says("One."), says("Two."), system="You help.")
    async with agent:
        await agent.run("first", session="s1")
        await agent.run("second", session="s1")
        async with agent.session("s1") as session:
            await session.close()
    assert [one["source"] for one in project.seen("SessionStart")] == ["startup"]
    assert [one["prompt"] for one in project.seen("UserPromptSubmit")] == ["first", "second"]
    assert [one["last_assistant_message"] for one in project.seen("Stop")] == ["One.", "Two."]
    assert [one["reason"] for one in project.seen("SessionEnd")] == ["other"]
    assert agent.model.requests[1].system == "You help.\n\nsource: startup"


async def test_a_session_that_another_process_goes_on_with_is_resumed(project: Project, tmp_path: Path):
    settings = {"SessionStart": on("SessionStart", "record.sh", "session_context.py")["SessionStart"]}
    store = f"sqlite:///{tmp_path / 'a.db'}"
    for name in ("One.", "Two."):
        async with project.agent(project.load(settings), says(name), store=store) as agent:
            await agent.run("hello", session="s1")
    assert [one["source"] for one in project.seen("SessionStart")] == ["startup", "resume"]
    assert any("source: resume" in message.text for message in agent.model.requests[0].messages)


async def test_a_matcher_picks_the_source_of_a_session(project: Project):
    hooks = project.load(on("SessionStart", "record.sh", matcher="resume|compact"))
    await project.play(hooks)
    assert project.seen("SessionStart") == []


async def test_every_input_has_the_common_fields(project: Project):
    hooks = project.load({**RECORD, **on("PreToolUse", "record.sh")}, permission_mode="acceptEdits")
    agent = project.agent(hooks, calls("shell", command="ls"), says("Done."))
    async with agent:
        await agent.run("Go.", session="a b/c")
    [start], [call] = project.seen("SessionStart"), project.seen("PreToolUse")
    assert start["session_id"] == call["session_id"]
    assert "/" not in call["session_id"]
    assert call["cwd"] == str(project.folder)
    assert call["permission_mode"] == "acceptEdits"
    assert "permission_mode" not in start
    assert call["tool_use_id"].replace("_", "").isalnum()
    assert Path(call["transcript_path"]).name == f"{call['session_id']}.jsonl"


async def test_variables_that_a_hook_sets_are_in_later_commands(project: Project):
    hooks = project.load(on("SessionStart", "sets_variables.sh"))
    workspace = Workspace(project.folder, isolation="none")
    replies = calls("shell", command='echo "the colour is $PROJECT_COLOUR"'), calls("shell", command="echo again")
    model = ScriptedModel(*replies, says("Done."))
    agent = Agent(model, capabilities=[workspace, hooks])
    async with agent:
        result = await agent.run("Go.", session="s1")
        while isinstance(result.outcome, Suspended):
            result = await agent.resume("s1", answers={one.id: Approve() for one in result.waiting_for})
    assert [step.results[0].text for step in result.steps[:2]] == ["the colour is dark blue", "again"]
    assert result.steps[0].calls[0].arguments["command"] == 'echo "the colour is $PROJECT_COLOUR"'
    assert "eval" not in str(await agent.store.read("s1"))


# ---------------------------------------------------------------- stops


async def test_a_stop_hook_reads_in_the_transcript_what_the_assistant_said(project: Project):
    hooks = project.load(on("Stop", "until_done.sh"))
    result = await project.play(hooks, says("I began."), says("Now it is DONE."))
    assert result.text == "Now it is DONE."
    assert result.messages[2].text == "not done yet: I began."


async def test_a_stop_hook_knows_that_it_has_blocked_before(project: Project):
    result = await project.play(project.load(on("Stop", "tests_once.py")), says("One."), says("Two."))
    assert result.text == "Two."
    assert result.messages[2].text == "run the tests before you stop"


async def test_context_of_a_stop_hook_lets_the_agent_go_on(project: Project):
    result = await project.play(project.load(on("Stop", "stop_context.js")), says("One."), says("Two."))
    assert [message.text for message in result.messages] == ["Go.", "One.", "You said: One.", "Two."]


@pytest.mark.parametrize(("most", "cap", "replies"), [(3, "", 4), (20, "", 9), (20, "2", 3)])
async def test_a_stop_hook_that_always_blocks_is_stopped(
    project: Project, monkeypatch: pytest.MonkeyPatch, most: int, cap: str, replies: int
):
    monkeypatch.setenv("CLAUDE_CODE_STOP_HOOK_BLOCK_CAP", cap)
    result = await project.play(
        project.load(on("Stop", "always_blocks.sh")), *[says(f"{n}.") for n in range(20)], max_vetoes=most
    )
    assert isinstance(result.outcome, Completed)
    assert result.outcome.objections == ("claude_code_hooks.Stop",)
    assert len([one for one in result.messages if one.role == "assistant"]) == replies


async def test_continue_false_beats_a_block(project: Project):
    hooks = project.load(on("Stop", "always_blocks.sh", "stops_all.py"))
    assert (await project.play(hooks, says("One."))).text == "One."


async def test_continue_false_ends_the_turn_before_the_call(project: Project):
    hooks = project.load(on("PreToolUse", "stops_all.py"))
    result = await project.play(hooks, calls("shell", command="ls"))
    assert isinstance(result.outcome, Stopped)
    assert result.text == "The budget of today is spent."
    assert project.ran == []


async def test_a_failed_turn_fires_stop_failure(project: Project):
    def down(request: Any) -> Any:
        raise BadRequest("no route")

    hooks = project.load({**on("StopFailure", "record.sh"), **on("Stop", "always_blocks.sh")})
    async with Agent(FunctionModel(down), capabilities=[hooks]) as agent:
        await agent.run("Hi")
    [seen] = project.seen("StopFailure")
    assert seen["error"] == "invalid_request"
    assert seen["last_assistant_message"] == "no route"


# ---------------------------------------------------------------- batches, sub-agents, compaction


async def test_after_all_calls_of_a_step_the_batch_is_told_once(project: Project):
    hooks = project.load(on("PostToolBatch", "counts_calls.py", "record.sh"))
    batch = calls([("shell", {"command": "ls"}), ("read", {"path": "a.txt"})])
    (project.folder / "a.txt").write_text("a\n")
    await project.play(hooks, batch)
    assert "2 calls: Bash, Read" in project.text()
    [seen] = project.seen("PostToolBatch")
    assert seen["tool_calls"][0]["tool_response"] == "ran ls"


async def test_a_batch_hook_stops_the_loop(project: Project):
    result = await project.play(project.load(on("PostToolBatch", "stops_batch.sh")), calls("shell", command="ls"))
    assert result.text == "enough for today"
    assert len(project.requests) == 1


async def test_hooks_fire_inside_sub_agents_too(project: Project):
    settings = {
        **on("SubagentStart", "child_start.sh", "record.sh"),
        **on("SubagentStop", "child_report.py"),
        **on("PreToolUse", "deny_push.py", "record.sh"),
        **RECORD,
    }
    replies = calls("shell", command="git push"), says("I may not."), says("In short: no.")

    @tool(inline=True)
    def shell(command: str) -> str:
        """Run a command."""
        return "pushed"

    child = Agent(ScriptedModel(*replies), tools=[shell], name="helper")
    result = await project.play(project.load(settings), calls("helper", task="push it"), tools=[child.as_tool()])
    assert results(result)[0].text == "In short: no."
    assert child.model.requests[0].messages[1].text == "welcome, helper"
    outer, inner = project.seen("PreToolUse")
    assert (outer["tool_name"], outer["tool_input"]["prompt"]) == ("Agent", "push it")
    assert outer["tool_input"]["subagent_type"] == "helper"
    assert "agent_id" not in outer
    assert (inner["agent_type"], inner["tool_name"]) == ("helper", "Bash")
    assert inner["session_id"] == outer["session_id"]
    assert len(project.seen("UserPromptSubmit")) == len(project.seen("SessionStart")) == 1


async def test_the_former_name_of_a_tool_still_matches(project: Project):
    child = Agent(ScriptedModel(says("Done.")), name="helper")
    hooks = project.load(on("PreToolUse", "former_block.sh", matcher="Task"))
    result = await project.play(hooks, calls("helper", task="go"), tools=[child.as_tool()])
    assert results(result)[0].status == "denied"


async def test_compaction_is_told_of_before_and_after(project: Project):
    settings = {
        **on("PreCompact", "record.sh"),
        **on("PostCompact", "record.sh"),
        **on("SessionStart", "session_context.py", matcher="compact"),
    }
    hooks, trim = project.load(settings), Trim(AtMessages(1000), 2)
    async with project.agent(hooks, *[says(f"{n}.") for n in range(4)], capabilities=[trim]) as agent:
        for _ in range(3):
            await agent.run("Go on.", session="s1")
        assert await agent.compact("s1")
        await agent.run("Go on.", session="s1")
    assert project.seen("PreCompact")[0]["trigger"] == project.seen("PostCompact")[0]["trigger"] == "manual"
    assert project.seen("PreCompact")[0]["custom_instructions"] is None
    assert any("source: compact" in message.text for message in agent.model.requests[-1].messages)


async def test_compaction_can_be_blocked(project: Project):
    hooks, trim = project.load(on("PreCompact", "no_compaction.sh")), Trim(AtMessages(1000), 2)
    async with project.agent(hooks, *[says(f"{n}.") for n in range(4)], capabilities=[trim]) as agent:
        for _ in range(3):
            await agent.run("Go on.", session="s1")
        assert await agent.compact("s1") == ()


async def test_a_hook_in_the_background_does_not_block_and_speaks_later(project: Project):
    hooks = project.load(on("PostToolUse", command("background.sh", **{"async": True}), "declares_async.sh"))

    @tool
    async def wait() -> str:
        """Wait until both have ended."""
        await until(lambda: sum(run.background and bool(run.answer.context) for run in hooks.runs) == 2)
        return "waited"

    result = await project.play(hooks, calls("shell", command="ls"), calls("wait"), tools=[wait])
    assert results(result)[0].text == "ran ls"
    assert "the check is done" in project.text()
    assert "declared and done" in project.text()


async def test_a_message_of_a_hook_in_the_background_is_for_the_model_too(project: Project):
    hooks = project.load(
        on("PreToolUse", command('echo \'{"systemMessage": "the index is ready"}\'', **{"async": True}))
    )

    @tool
    async def wait() -> str:
        """Wait until it has ended."""
        await until(lambda: bool(project.messages))
        return "waited"

    await project.play(hooks, calls("wait"), tools=[wait])
    assert project.messages == ["the index is ready"]
    assert "the index is ready" in project.text()


async def test_a_hook_in_the_background_can_wake_the_model(project: Project):
    hooks = project.load(on("PreToolUse", command("wakes.py", asyncRewake=True, rewakeMessage="Tests:")))

    model = ScriptedModel(calls("shell", command="ls"), says("Done."), says("I mend them."))
    agent = Agent(model, tools=list(project.agent(hooks).tools.values()), capabilities=[hooks])

    @agent.wrap(ModelCall)
    async def wait(request: Any, call_next: Any) -> Any:
        if len(model.requests) == 1:
            await until(lambda: any(run.background and run.output and run.output.exit == 2 for run in hooks.runs))
        return await call_next(request)

    async with agent:
        result = await agent.run("Go.")
    assert any("Tests:\nthe tests fail" in message.text for message in result.messages)


# ---------------------------------------------------------------- permissions


@pytest.mark.parametrize(
    ("asked", "status", "text"),
    [
        ("make all", "ok", "ran make all"),
        ("npm install", "ok", "ran npm install --silent"),
        ("dd if=x", "denied", "nobody allows dd if=x"),
    ],
)
async def test_permission_hooks_answer_what_a_person_would_be_asked(
    project: Project, asked: str, status: str, text: str
):
    settings = {**on("PermissionRequest", "permission_request.py"), **on("Notification", "record.sh")}
    hooks = project.load(settings)
    result = await project.play(
        hooks, calls("shell", command=asked), capabilities=[Permissions(unmatched="ask", ask=["shell"])]
    )
    [returned] = results(result)
    assert text in returned.text
    assert (returned.status == "ok") == (status == "ok")
    assert project.seen("Notification")[0]["notification_type"] == "permission_prompt"
    assert "Bash" in project.seen("Notification")[0]["message"]


async def test_a_permission_hook_with_another_answer_has_no_effect(project: Project):
    hooks = project.load(on("PermissionRequest", "wrong_request.sh"))
    result = await project.play(hooks, calls("shell", command="ls"), capabilities=[Permissions(unmatched="ask")])
    assert isinstance(result.outcome, Suspended)
    assert "must have 'decision'" in hooks.runs[0].why


async def test_allow_skips_the_question_but_no_rule(project: Project):
    hooks = project.load(on("PreToolUse", "former_approve.sh"))
    asking = [Permissions(ask=["shell(command=git *)"], unmatched="ask")]
    assert results(await project.play(hooks, calls("shell", command="ls"), capabilities=asking))[0].status == "ok"
    asking = [Permissions(ask=["shell(command=git *)"], unmatched="ask")]
    result = await project.play(hooks, calls("shell", command="git push"), capabilities=asking)
    assert isinstance(result.outcome, Suspended)
    refusing = [Permissions(deny=["shell"], unmatched="ask")]
    assert results(await project.play(hooks, calls("shell", command="ls"), capabilities=refusing))[0].status == "denied"


@pytest.mark.parametrize(
    ("scripts", "status"),
    [
        (["former_approve.sh", "ask_deploy.js", "former_block.sh"], "denied"),
        (["former_approve.sh", "defers.sh", "ask_deploy.js"], "later"),
        (["former_approve.sh", "ask_deploy.js"], "Deploy now?"),
        (["former_approve.sh", "echo_input.js"], "ok"),
    ],
)
async def test_the_strictest_of_several_hooks_wins(project: Project, scripts: list[str], status: str):
    hooks = project.load(on("PreToolUse", *scripts))
    result = await project.play(hooks, calls("shell", command="make deploy"), unmatched="ask")
    assert len(hooks.runs) == len(scripts)
    if isinstance(result.outcome, Suspended):
        assert result.outcome.waiting_for[0].question == status
    else:
        assert results(result)[0].status == status


async def test_a_call_that_a_person_approved_is_not_fired_again(project: Project):
    hooks = project.load(on("PreToolUse", "ask_deploy.js", "record.sh"))
    agent = project.agent(hooks, calls("shell", command="make deploy"), says("Done."))
    async with agent:
        result = await agent.run("Go.", session="s1")
        [asked] = result.waiting_for
        result = await agent.resume("s1", answers={asked.id: Approve()})
    assert results(result)[0].text == "ran make deploy"
    assert len(project.seen("PreToolUse")) == 1


# ---------------------------------------------------------------- several hooks, names, conditions


async def test_hooks_run_side_by_side_and_all_to_the_end(project: Project):
    pair = 'touch "$PWD/{}"; until [ -e "$PWD/{}" ]; do sleep 0.01; done'
    hooks = project.load(
        on("PreToolUse", "former_block.sh", command(pair.format("a", "b")), command(pair.format("b", "a")))
    )
    result = await project.play(hooks, calls("shell", command="ls"))
    assert results(result)[0].status == "denied"
    assert [run.output.exit for run in hooks.runs if run.output] == [0, 0, 0]


async def test_the_last_of_several_new_inputs_counts(project: Project):
    first, second = [
        f"""echo '{{"hookSpecificOutput":{{"hookEventName":"PreToolUse","updatedInput":{{"command":"{name}"}}}}}}'"""
        for name in ("first", "second")
    ]
    hooks = project.load(on("PreToolUse", command(f"cat >/dev/null; sleep 0.2; {first}"), command(second)))
    await project.play(hooks, calls("shell", command="ls"))
    assert project.ran[0]["command"] == "second"


async def test_the_same_hook_in_several_files_runs_once_and_a_plugins_copy_again(project: Project, home: Path):
    shared = {"hooks": on("PreToolUse", command("echo x >> count"))}
    project.write(shared, "settings.local.json")
    (home / "claude").mkdir()
    (home / "claude" / "settings.json").write_text(json.dumps(shared))
    plugin = project.folder / "a plugin"
    (plugin / "hooks").mkdir(parents=True)
    (plugin / "hooks" / "hooks.json").write_text(
        json.dumps({"description": "x", "hooks": on("PreToolUse", command("echo $CLAUDE_PLUGIN_ROOT >> count"))})
    )
    hooks = project.load(on("PreToolUse", command("echo x >> count")), plugins=[plugin])
    await project.play(hooks, calls("shell", command="ls"))
    assert sorted((project.folder / "count").read_text().splitlines()) == [str(plugin), "x"]


async def test_a_plugin_that_the_user_enabled_is_used(project: Project, home: Path):
    root = home / "claude" / "plugins" / "cache" / "guard"
    (root / ".claude-plugin").mkdir(parents=True)
    hooks_of_plugin = on("PreToolUse", {"type": "command", "command": "bash", "args": ["${CLAUDE_PLUGIN_ROOT}/g.sh"]})
    (root / ".claude-plugin" / "plugin.json").write_text(json.dumps({"name": "guard", "hooks": hooks_of_plugin}))
    (root / "g.sh").write_text('echo "from $CLAUDE_PLUGIN_ROOT, data $(ls -d "$CLAUDE_PLUGIN_DATA")" >&2; exit 2\n')
    listed = {"version": 2, "plugins": {"guard@market": [{"scope": "user", "installPath": str(root)}]}}
    (home / "claude" / "plugins" / "installed_plugins.json").write_text(json.dumps(listed))
    for enabled, status in ((True, "denied"), (False, "ok")):
        (home / "claude" / "settings.json").write_text(json.dumps({"enabledPlugins": {"guard@market": enabled}}))
        result = await project.play(project.load({}), calls("shell", command="ls"))
        assert results(result)[0].status == status
        assert (f"from {root}, data " in results(result)[0].text) == enabled


async def test_a_condition_decides_whether_a_hook_runs(project: Project):
    hooks = project.load(on("PreToolUse", command("former_block.sh", **{"if": "Bash(git push *)"}), matcher="Bash"))
    for asked, status in {"git status": "ok", "cd x && git push -f": "denied", "git $X": "denied"}.items():
        result = await project.play(hooks, calls("shell", command=asked))
        assert results(result)[0].status == status, asked


async def test_a_hook_with_a_condition_never_runs_away_from_tools(project: Project):
    hooks = project.load(on("Stop", command("always_blocks.sh", **{"if": "Bash"})))
    assert (await project.play(hooks, says("One."))).text == "One."
    assert hooks.runs == []


async def test_tools_of_your_own_have_the_names_that_you_give_them(project: Project):
    @tool(inline=True)
    def execute(cmd: str, folder: str = ".") -> str:
        """Execute."""
        return f"executed {cmd} in {folder}"

    aliases = {"execute": ToolAlias("Bash", {"cmd": "command"}, paths=("folder",))}
    hooks = project.load(on("PreToolUse", "dry_run.py", "record.sh", matcher="Bash"), tools=aliases)
    result = await project.play(hooks, calls("execute", cmd="git push", folder="sub"), tools=[execute])
    assert results(result)[0].text == "executed git push --dry-run in sub"
    [seen] = project.seen("PreToolUse")
    assert seen["tool_input"] == {"command": "git push", "folder": str(project.folder / "sub")}


async def test_a_hook_keeps_files_for_each_session(project: Project):
    hooks = project.load(on("PreToolUse", "third_call.sh"))
    agent = project.agent(
        hooks, *[calls("shell", command="ls")] * 3, says("Done."), calls("shell", command="ls"), says(".")
    )
    async with agent:
        result = await agent.run("Go.", session="s1")
        assert [step.results[0].status for step in result.steps if step.results] == ["ok", "ok", "denied"]
        assert results(await agent.run("Go.", session="s2"))[0].status == "ok"


async def test_all_settings_can_be_switched_off(project: Project):
    project.write({"disableAllHooks": True}, "settings.local.json")
    hooks = project.load(on("PreToolUse", "former_block.sh"))
    assert results(await project.play(hooks, calls("shell", command="ls")))[0].status == "ok"


async def test_what_a_hook_said_is_in_the_log(project: Project):
    hooks = project.load(on("PreToolUse", "exit_1.sh", "deny_push.py"))
    agent = project.agent(hooks, calls("shell", command="git push secret"), says("Done."))
    async with agent:
        await agent.run("Go.", session="s1")
    notes = [one.data for one in await agent.store.read("s1") if isinstance(one, Noted)]
    failed, denied = sorted(notes, key=lambda note: note.get("permission", ""))
    assert failed["exit"] == 1
    assert "only exit code 2 blocks" in failed["why"]
    assert denied["permission"] == "deny"
    assert denied["source"].endswith("settings.json:PreToolUse[0].hooks[1]")


async def test_a_sub_hook_of_no_event_costs_nothing(project: Project):
    hooks = project.load({})
    text = str(project.agent(hooks).explain())
    assert "PreToolUse" not in text
    assert isinstance(hooks, ClaudeCodeHooks)
