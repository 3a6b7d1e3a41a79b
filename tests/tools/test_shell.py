"""The shell: it stays open, is isolated, and ends with all that it started."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass import Agent, Approve, Suspended, trust
from windlass.capabilities import Offload, Permissions
from windlass.errors import ConfigError
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, crash_points, says
from windlass.tools import Workspace, shell_tool, shells
from windlass.tools.launching import descendants

from .plays import results

ISOLATED = ["bubblewrap", "landlock"]


@pytest.fixture(params=[*ISOLATED, "none"])
def workspace(request, root) -> Workspace:
    """A workspace with each kind of isolation. They work on every machine that runs these tests."""
    return Workspace(root, isolation=request.param)


@pytest.fixture(params=ISOLATED)
def isolated(request, root) -> Workspace:
    return Workspace(root, isolation=request.param)


async def run(workspace: Workspace, *commands: str, capabilities=(), **options) -> list[str]:
    """The texts that commands give, one after another in one session. If a command is asked about, it is approved."""
    script = [calls("shell", command=command, **options) for command in commands]
    agent = Agent(ScriptedModel(*script, says("done")), capabilities=[workspace, *capabilities])
    result = await agent.run("go", session="s")
    while isinstance(result.outcome, Suspended):
        result = await agent.resume("s", answers={asked.id: Approve() for asked in result.outcome.waiting_for})
    async with agent.session("s") as session:
        await session.close()
    return [part.text for part in results(result)]


def ours() -> list[int]:
    """The processes below this one, but for the helpers of pytest."""
    return [pid for pid in descendants(os.getpid()) if b"windlass" in cmdline(pid) or b"bash" in cmdline(pid)]


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


@pytest.fixture(autouse=True)
def nothing_is_left():
    before = set(ours())
    yield
    gc.collect()  # the shells of agents that are gone
    assert set(ours()) <= before


async def test_it_passes_the_checks_for_capabilities(root):
    await check_capability(lambda: Workspace(root))


async def test_it_is_the_same_everywhere(root):
    script = (calls("shell", command="echo hello; exit 3"), calls("shell", command="pwd"), says("done"))
    await assert_same_everywhere(lambda: Agent(ScriptedModel(*script), capabilities=[Workspace(root)]))


async def test_folder_variables_and_functions_stay(workspace, root):
    """Behaviour 77: also after a pause: without isolation, each command waits for a person."""
    first, second, third = await run(
        workspace, "pwd; mkdir sub; cd sub; export A=5; f() { echo called $1; }", "pwd; echo $A; f x", "false"
    )
    assert first == str(root)
    assert second == f"{root}/sub\n5\ncalled x"
    assert third == "[exit status 1]"


async def test_sessions_have_shells_of_their_own(root):
    agent = Agent(
        ScriptedModel(calls("shell", command="A=1"), says("ok"), calls("shell", command='echo "<$A>"'), says("ok")),
        capabilities=[Workspace(root)],
    )
    async with agent.session("one") as one, agent.session("two") as two:
        await one.run("go")
        assert [part.text for part in results(await two.run("go"))] == ["<>"]
        await one.close()
        await two.close()


async def test_no_variable_of_this_process_leaks_unless_it_is_named(workspace, root, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "sk-leak")
    monkeypatch.setenv("GIVEN", "yes")
    named = Workspace(root, isolation=workspace.isolation.kind, inherit=["GIVEN"], env={"MORE": "too"})
    (text,) = await run(named, "env; tr '\\0' '\\n' < /proc/1/environ 2>/dev/null; echo $GIVEN $MORE")
    assert "sk-leak" not in text or workspace.isolation.kind == "none"
    assert text.endswith("yes too")


async def test_commands_cannot_leave_the_workspace(isolated, root, home):
    outside = root.parent / "outside"
    (home / "config").mkdir(parents=True, exist_ok=True)
    (home / "config" / "keys").write_text("sk-123")
    texts = await run(
        isolated,
        f"cat {outside}/secret; cat {home}/config/keys; cat /proc/1/root{outside}/secret",
        f"echo x > {outside}/new; echo x > /usr/new; rm -rf {outside}; ln -s {outside} l; echo x > l/new",
        "cat /etc/shadow; ls /root; mount -o remount,rw,bind / ; umount /proc; mount -t tmpfs x /usr",
        "echo inside > a; echo tmp > $TMPDIR/t; cat a $TMPDIR/t",
    )
    assert "top secret" not in texts[0]
    assert "sk-123" not in texts[0]
    assert sorted(os.listdir(outside)) == ["secret"]
    assert "new" not in os.listdir("/usr")
    assert "root:" not in texts[2]
    assert texts[3] == "inside\ntmp"
    assert (root / "a").read_text() == "inside\n"


async def test_commands_cannot_change_modes_and_times_of_files_elsewhere(isolated, root):
    secret = root.parent / "outside" / "secret"
    os.utime(secret, (1, 1))
    secret.chmod(0o600)
    await run(isolated, f"chmod 777 {secret}; touch {secret}; chmod 777 {secret.parent}; touch here && chmod 700 here")
    assert (secret.stat().st_mode & 0o777, secret.stat().st_mtime) == (0o600, 1)
    assert (root / "here").stat().st_mode & 0o777 == 0o700


async def test_programs_are_looked_for_only_where_commands_may_run_them(isolated, root, monkeypatch):
    for folder in (root.parent / "elsewhere", root / "bin"):
        folder.mkdir()
        (folder / "tool").write_text(f"#!/bin/sh\necho {folder.name}\n")
        (folder / "tool").chmod(0o755)
    path = f"{root.parent}/elsewhere:{root}/bin:{os.environ['PATH']}"
    monkeypatch.setenv("PATH", path)
    named = Workspace(root, isolation=isolated.isolation.kind)
    assert await run(named, "tool") == ["bin"]


async def test_commands_have_no_network_and_see_no_other_process(isolated):
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    network, processes, ours = await run(
        isolated,
        f"(echo > /dev/tcp/127.0.0.1/{port}) 2>/dev/null && echo connected",
        f"kill -0 {os.getpid()} && echo seen; ls /proc | grep -c '^[0-9]'",
        f"ls /proc/{os.getpid()} 2>/dev/null",
    )
    server.close()
    await server.wait_closed()
    assert "connected" not in network
    assert "seen" not in processes
    assert int(processes.splitlines()[-1].split("[")[0]) < 10
    assert "environ" not in ours or os.getpid() < 10


async def test_files_that_decide_about_agents_are_read_only_for_commands(isolated, root):
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / ".git" / "config").write_text("[core]\n")
    (root / "sub").mkdir()
    (root / "trusted.py").write_text("good")
    for name in ("windlass.toml", "sub/x.agent.toml", "windlass.db", "windlass.db-wal"):
        (root / name).write_text("good")
    trust.trust(root / "trusted.py")
    attempts = "".join(
        f"echo bad > {name}; rm -f {name}; mv {name} moved; sed -i s/good/bad/ {name}; "
        for name in ("windlass.toml", "sub/x.agent.toml", "windlass.db", "windlass.db-wal", "trusted.py", ".git/config")
    )
    await run(isolated, f"{attempts} echo bad > .git/hooks/pre-commit; mv .git other; rm -rf .git; touch .git/index")
    for name in ("windlass.toml", "sub/x.agent.toml", "windlass.db", "windlass.db-wal", "trusted.py"):
        assert (root / name).read_text() == "good"
    assert (root / ".git" / "config").read_text() == "[core]\n"
    assert os.listdir(root / ".git" / "hooks") == []
    assert (root / ".git" / "index").exists()


STUBBORN = {
    "sleeps": "SLEEP",
    "ignores SIGTERM": "trap '' TERM; while :; do SLEEP; done",
    "daemonises": "(setsid sh -c 'trap \"\" TERM; SLEEP & SLEEP' >/dev/null 2>&1 &) ; SLEEP",
    "spins": "while :; do :; done",
    "forks": "f() { SLEEP & SLEEP & }; for i in 1 2 3 4 5 6 7 8; do f; done; wait",
    "forks while it is ended": "trap '' TERM; for i in $(seq 300); do (trap '' TERM; SLEEP &); sleep 0.05; done; SLEEP",
}


@pytest.mark.parametrize("command", STUBBORN.values(), ids=STUBBORN)
async def test_a_command_that_takes_too_long_ends_with_all_its_processes(workspace, command, monkeypatch):
    """Behaviour 77: the model reads that it took too long, and the next command gets a new shell."""
    monkeypatch.setattr(shells, "GRACE", 0.2)
    late, after = await run(workspace, command.replace("SLEEP", SLEEP), "echo still here", timeout=1.5)
    assert "took longer than 1.5 seconds" in late
    assert after.startswith("[this is a new shell")
    assert after.endswith("still here")
    assert not sleepers()


SLEEP = f"sleep 7{os.getpid()}"


def sleepers() -> list[int]:
    """The processes of this test that sleep, wherever they are."""
    return [pid for pid in all_pids() if cmdline(pid).replace(b"\0", b" ").strip() == SLEEP.encode()]


def all_pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


async def test_a_cancel_ends_the_command(workspace, root):
    agent = Agent(
        ScriptedModel(calls("shell", command=f"touch started; setsid {SLEEP} & {SLEEP}"), says("done")),
        capabilities=[workspace],
    )
    running = asyncio.ensure_future(agent.run("go", session="s"))
    while not (root / "started").exists():
        if running.done() and isinstance(running.result().outcome, Suspended):
            asked = running.result().outcome.waiting_for[0]
            running = asyncio.ensure_future(agent.resume("s", answers={asked.id: Approve()}))
        await asyncio.sleep(0.01)
    assert await agent.cancel("s", "stop")
    await running
    assert not sleepers()


async def test_a_background_process_lives_until_the_session_ends(root):
    agent = Agent(
        ScriptedModel(calls("shell", command=f"{SLEEP} >/dev/null 2>&1 &"), says("ok")),
        capabilities=[Workspace(root)],
    )
    async with agent.session("s") as session:
        await session.run("go")
        while not sleepers():  # noqa: ASYNC110 - it may not have begun yet
            await asyncio.sleep(0.01)
        await session.close()
    assert not sleepers()


KILLED = """
import asyncio, os, sys
from windlass import Agent, Approve, Suspended, tool
from windlass.testing import ScriptedModel, calls, says
from windlass.tools import Workspace

@tool
def die() -> str:
    os.kill(os.getpid(), 9)

async def main(root, kind, sleep):
    started = f"(trap '' TERM; setsid {sleep} >/dev/null 2>&1 &); {sleep} & sleep 0.2"
    model = ScriptedModel(calls("shell", command=started), calls("die"), says("done"))
    agent = Agent(model, tools=[die], capabilities=[Workspace(root, isolation=kind)])
    result = await agent.run("go", session="s")
    await agent.resume("s", answers={asked.id: Approve() for asked in result.outcome.waiting_for})

asyncio.run(main(*sys.argv[1:]))
"""


def test_shells_end_when_their_process_is_killed(workspace, root):
    command = [sys.executable, "-c", KILLED, root, workspace.isolation.kind, SLEEP]
    assert subprocess.run(command, capture_output=True).returncode == -9
    while sleepers():  # until the system has told them; the test's time-out is the limit
        pass


# ---------------------------------------------------------------- limits


async def test_of_a_long_output_head_and_tail_are_kept(workspace):
    (text,) = await run(workspace, "seq 1 200000")
    assert text.startswith("1\n2\n")
    assert text.endswith("\n199999\n200000")
    assert "bytes left out" in text
    assert len(text) < shell_tool.MAX_SHOWN + 100


async def test_with_offload_the_whole_output_has_a_handle(root):
    script = (
        calls("shell", command="seq 1 50000; false"),
        calls("read_result", handle="s/1/1", offset=100_000, length=50),
        says("done"),
    )
    model = ScriptedModel(*script)
    agent = Agent(model, capabilities=[Workspace(root), Offload(1000, preview=400)])
    result = await agent.run("go", session="s")
    async with agent.session("s") as session:
        await session.close()
    seen = results(type("Seen", (), {"messages": model.requests[1].messages}))[0].text
    assert seen.startswith("[exit status 1]\n[the output has 288,894 bytes; its end:]")
    assert "\n50000\n" in seen
    assert len(seen) < 4000
    assert results(result)[1].status == "ok"
    assert "\n" in results(result)[1].text


async def test_a_flood_is_ended(root, monkeypatch):
    monkeypatch.setattr(shells, "MAX_OUTPUT", 3_000_000)
    flood, after = await run(Workspace(root), "yes", "echo ok")
    assert "wrote more than 3,000,000 bytes" in flood
    assert after.endswith("ok")


async def test_a_file_has_a_size_limit(root):
    (text,) = await run(Workspace(root, max_file=100_000), "head -c 10000000 /dev/zero > big; echo $?")
    assert (root / "big").stat().st_size <= 102_400
    assert text != "0"


@pytest.mark.parametrize("command", ["x" * 70_000, "echo a\0b"])
async def test_a_command_that_cannot_be_passed_is_refused(root, command):
    first, second = await run(Workspace(root), command, "echo ok")
    assert "at most 60000 bytes" in first
    assert second == "ok"


# ---------------------------------------------------------------- isolation and rules


def test_isolation_is_stated_in_words(root):
    assert str(Workspace(root).isolation).startswith("bubblewrap. Network: none, except vsock to the host of")
    assert "not isolated" in str(Workspace(root, isolation="none").isolation)
    assert not Workspace(root, isolation="none").isolation.isolated


def test_an_isolation_that_does_not_work_is_named_and_the_next_one_is_taken(root, monkeypatch):
    monkeypatch.setattr("windlass.tools.isolation.find_bubblewrap", lambda: "/bin/false")
    with pytest.raises(ConfigError, match="bubblewrap"):
        _ = Workspace(root, isolation="bubblewrap").isolation
    assert Workspace(root).isolation.kind == "landlock"


async def test_without_isolation_every_command_is_asked_about_whatever_rules_allow(root):
    rules = Permissions(allow=["shell"])
    agent = Agent(
        ScriptedModel(calls("shell", command="touch made"), says("done")),
        capabilities=[Workspace(root, isolation="none"), rules],
    )
    result = await agent.run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    assert not (root / "made").exists()


async def test_rules_about_commands_hold(root):
    rules = Permissions(allow=["shell(ls *)", "shell(echo *)"], deny=["shell(rm *)"], unmatched="deny")
    script = [calls("shell", command=command) for command in ("echo hi", "echo a; rm -rf x", "cat a")]
    agent = Agent(ScriptedModel(*script, says("done")), capabilities=[Workspace(root), rules])
    assert [part.status for part in results(await agent.run("go"))] == ["ok", "denied", "denied"]


@pytest.mark.parametrize(
    "options",
    [{"isolation": "chroot"}, {"timeout": 0}, {"max_file": -1}, {"env": 1}, {"inherit": "PATH"}, {"write": False}],
)
def test_invalid_options_are_refused(root, options):
    with pytest.raises((ConfigError, TypeError)):
        Workspace(root, **options)


def test_an_agent_fixes_a_failing_test_although_it_is_killed_at_every_point():
    play = f"{Path(__file__).with_name('crash_plays.py')}:fix_a_test"
    report = crash_points(play, workers=2)
    assert len(report.points) > 15, report


async def test_an_agent_fixes_a_failing_test_and_every_command_is_judged(root):
    (root / "add.sh").write_text("echo $(($1 - $2))\n")
    (root / "test.sh").write_text('[ "$(bash add.sh 2 3)" = 5 ] && echo passed || echo failed\n')
    model = ScriptedModel(
        calls("shell", command="bash test.sh"),
        calls("read", path="add.sh"),
        calls("edit", path="add.sh", old="$1 - $2", new="$1 + $2"),
        calls("shell", command="bash test.sh"),
        calls("shell", command="bash test.sh; curl http://example.org"),
        calls("write", path="../outside/new", content="x"),
        says("Fixed."),
    )
    rules = Permissions(allow=["read", "edit", "write", "shell(bash test.sh)"], unmatched="deny", folder=root)
    result = await Agent(model, capabilities=[Workspace(root), rules]).run("Fix the test.")
    before, _, _, after, judged, outside = results(result)
    assert (before.text, after.text) == ("failed", "passed")
    assert judged.status == "denied"
    assert outside.status == "error"
    assert os.listdir(root.parent / "outside") == ["secret"]
    assert result.text == "Fixed."
