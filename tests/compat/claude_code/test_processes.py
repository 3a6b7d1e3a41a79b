"""Processes of hooks: they end with all that they started, what they write is bounded, and nothing is left over."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from windlass import Cancelled
from windlass.compat.claude_code import processes
from windlass.testing import calls

from .plays import Project, command, on, results


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not reaped does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] not in (b"Z", b"X")
    except OSError:
        return False


async def is_gone(pid: int) -> bool:
    for _ in range(200):
        if not is_alive(pid):
            return True
        await asyncio.sleep(0.02)
    return False


async def child_begins(project: Project) -> None:
    file = project.folder / "child.pid"
    while not file.exists() or not file.read_text():  # noqa: ASYNC110
        await asyncio.sleep(0.02)


def child_of(project: Project) -> int:
    return int((project.folder / "child.pid").read_text())


@pytest.mark.parametrize("script", ["hang.sh", "escapes.py"])
@pytest.mark.parametrize(("mode", "status"), [("compat", "ok"), ("strict", "denied")])
async def test_a_hook_that_hangs_is_ended_with_its_children(project: Project, script: str, mode: Any, status: str):
    hooks = project.load(on("PreToolUse", command(script, timeout=1.5)), mode=mode)
    result = await project.play(hooks, calls("shell", command="ls"))
    assert results(result)[0].status == status
    assert "took longer than 1.5 seconds" in hooks.runs[0].why
    assert await is_gone(child_of(project))


DAEMON = """
import os, signal, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if "quiet" in sys.argv:
            os.dup2(os.open(os.devnull, os.O_RDWR), 1), os.dup2(1, 2), os.close(0)
        with open("child.part", "w") as file:
            file.write(str(os.getpid()))
        os.rename("child.part", "child.pid")
        time.sleep(600)
    os._exit(0)
os.wait()
while "stays" in sys.argv or not os.path.exists("child.pid"):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("workers", [False, True])
async def test_a_hook_that_takes_too_long_ends_with_its_daemons(project: Project, workers: bool):
    """They have left its group and its session, nobody is their parent any more, and they ignore SIGTERM."""
    (project.folder / "daemon.py").write_text(DAEMON)
    handler = command("python3 daemon.py stays quiet", timeout=3)
    hooks = project.load(on("PreToolUse", handler), python_workers=workers)
    await project.play(hooks, calls("shell", command="ls"))
    assert "took longer than 3 seconds" in hooks.runs[0].why
    assert await is_gone(child_of(project))


async def test_a_daemon_that_holds_the_output_open_is_ended_after_a_while(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processes, "LEFTOVERS", 0.3)
    (project.folder / "daemon.py").write_text(DAEMON)
    hooks = project.load(on("PreToolUse", command("python3 daemon.py; echo refused >&2; exit 2")))
    result = await project.play(hooks, calls("shell", command="ls"))
    assert results(result)[0].text == "Denied: refused"
    assert await is_gone(child_of(project))


async def test_a_worker_whose_script_writes_without_end_is_ended(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "FLOOD", 2_000_000)
    (project.folder / "flood.py").write_text("while True:\n    print('x' * 10_000)\n")
    hooks = project.load(on("PreToolUse", command("python3 flood.py")), python_workers=True)
    await project.play(hooks, calls("shell", command="ls"))
    assert "it wrote more than 2,000,000 bytes" in hooks.runs[0].why


async def test_children_that_hold_the_output_open_are_ended_after_a_while(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(processes, "LEFTOVERS", 0.3)
    hooks = project.load(on("PreToolUse", "leaves_child.sh"))
    result = await project.play(hooks, calls("shell", command="ls"))
    assert results(result)[0].text == "Denied: blocked, with a child"
    assert await is_gone(child_of(project))


async def test_a_child_with_an_output_of_its_own_lives_on(project: Project):
    hooks = project.load(on("PreToolUse", "sleep 60 >/dev/null 2>&1 & echo $! > child.pid; exit 0"))
    await project.play(hooks, calls("shell", command="ls"))
    pid = child_of(project)
    assert is_alive(pid)
    os.kill(pid, 9)


async def test_a_hook_that_writes_without_end_is_ended(project: Project, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(processes, "FLOOD", 2_000_000)
    hooks = project.load(on("PreToolUse", "write_forever.sh"))
    await project.play(hooks, calls("shell", command="ls"))
    assert "it wrote more than" in hooks.runs[0].why


async def test_a_cancel_ends_the_hook(project: Project):
    hooks = project.load(on("PreToolUse", "hang.sh"))
    agent = project.agent(hooks, calls("shell", command="ls"))
    async with agent:
        turn = asyncio.ensure_future(agent.run("Go.", session="s1"))
        await child_begins(project)
        await agent.cancel("s1")
        result = await turn
    assert isinstance(result.outcome, Cancelled)
    assert await is_gone(child_of(project))


async def test_closing_the_agent_ends_hooks_in_the_background(project: Project):
    hooks = project.load(on("PostToolUse", command("hang.sh", **{"async": True})))
    agent = project.agent(hooks, calls("shell", command="ls"))
    async with agent:
        await agent.run("Go.")
        await child_begins(project)
    assert await is_gone(child_of(project))


async def test_no_descriptor_and_no_process_is_left_over(project: Project):
    hooks = project.load(on("PreToolUse", "echo_input.js", "no_rm.sh", command("hang.sh", timeout=0.2)))
    await project.play(hooks, calls("shell", command="ls"))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        await project.play(hooks, calls("shell", command="ls"))
    assert len(os.listdir("/proc/self/fd")) <= before


async def test_what_the_model_wrote_is_in_no_command(project: Project):
    """It goes to stdin as JSON, also if it looks like a part of a command."""
    evil = "'; touch pwned; echo '$(touch pwned)`touch pwned`\n\"; touch pwned #"
    hooks = project.load(on("PreToolUse", "record.sh", {"type": "command", "command": "cat", "args": ["/dev/stdin"]}))
    await project.play(hooks, calls("shell", command=evil))
    assert not (project.folder / "pwned").exists()
    assert project.seen("PreToolUse")[0]["tool_input"]["command"] == evil


@pytest.mark.parametrize("workers", [False, True])
async def test_python_hooks_in_workers_do_the_same(project: Project, workers: bool):
    settings = on("PreToolUse", "protected_files.py", "logs_list.py", command("python3 .claude/hooks/deny_push.py"))
    hooks = project.load(settings, python_workers=workers)
    replies = [
        calls("shell", command="git push"),
        calls("write", path=".env", content="x"),
        calls("shell", command="ls"),
    ]
    result = await project.play(hooks, *replies)
    first, second, third = [step.results[0] for step in result.steps if step.results]
    assert (first.status, second.status, third.status) == ("denied", "denied", "denied")
    assert "not an absolute path" in first.text
    rows = json.loads((project.folder / "logs" / "pre_tool_use.json").read_text())
    assert [row["tool_name"] for row in rows] == ["Bash", "Write", "Bash"]


FORKS = """
import os, sys
if os.fork() == 0:
    print('{"decision": "block", "reason": "from the child"}')
    sys.exit(0)
os.wait()
"""
THREADS = """
import threading, time
def late():
    time.sleep(0.1)
    print('{"decision": "block", "reason": "from a thread"}', flush=True)
threading.Thread(target=late).start()
"""


async def test_what_a_script_in_a_worker_starts_stays_its_own(project: Project):
    """Its children do not answer for it, its threads are waited for, and no later script gets what they write."""
    daemon = THREADS.replace("target=late", "target=late, daemon=True")
    for name, text in {"forks.py": FORKS, "threads.py": THREADS, "daemon.py": daemon, "quiet.py": ""}.items():
        (project.folder / name).write_text(text)
    texts = []
    for names in (["forks", "quiet", "quiet"], ["threads", "quiet"], ["daemon", "quiet"]):
        handlers = [{**command(f"python3 {name}.py"), "if": f"Bash({name})"} for name in names]
        hooks = project.load(on("PreToolUse", *handlers), python_workers=True)
        result = await project.play(hooks, *[calls("shell", command=name) for name in names])
        texts += [step.results[0].text for step in result.steps if step.results]
        assert [run.why for run in hooks.runs] == [""] * len(names)
    quiet = "ran quiet"
    assert texts == ["Denied: from the child", quiet, quiet, "Denied: from a thread", quiet, "ran daemon", quiet]


async def test_a_worker_keeps_scripts_apart_and_survives_what_they_do(project: Project):
    scripts = {
        "a.py": "import os, sys\nos.environ['LEFT'] = 'x'\nos.chdir('/')\nglobal_of_a = 1\nsys.exit(0)\n",
        "b.py": (
            "import os, sys\nassert 'LEFT' not in os.environ and os.getcwd() == os.environ['CLAUDE_PROJECT_DIR']\n"
            "assert 'global_of_a' not in globals() and __name__ == '__main__'\n"
            "os.write(2, b'low-level output')\nsys.exit(2)\n"
        ),
        "c.py": "raise SystemExit('a text means 1')\n",
        "d.py": "import os\nos._exit(3)\n",
        "e.py": "import time\ntime.sleep(60)\n",
    }
    for name, text in scripts.items():
        (project.folder / name).write_text(text)

    async def outcome(name: str, **options: Any) -> tuple[str, str]:
        hooks = project.load(on("PreToolUse", command(f"python3 {name}", **options)), python_workers=True)
        hooks_again = await project.play(hooks, calls("shell", command="ls"), calls("shell", command="ls"))
        assert len(hooks.runs) == 2
        return results(hooks_again)[0].text, hooks.runs[-1].why

    assert await outcome("a.py") == ("ran ls", "")
    assert await outcome("b.py") == ("Denied: low-level output", "")
    assert "a text means 1" in (await outcome("c.py"))[1]
    assert "its worker ended" in (await outcome("d.py"))[1]
    began = time.monotonic()
    assert "took longer" in (await outcome("e.py", timeout=0.5))[1]
    assert time.monotonic() - began < 30
