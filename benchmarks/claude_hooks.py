"""What a hook of Claude Code costs beyond its own process: `python benchmarks/claude_hooks.py`.

For each command, three things are measured in turn, many times: the process alone (started with its input by
`subprocess.run`), a turn with the hook on every call, and the same turn without it. The overhead is what a call with
the hook takes longer than one without, less the process alone. Hooks that are Python scripts are also run in workers.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = 2
ROUNDS = 40
INPUT = json.dumps({"hook_event_name": "PreToolUse", "tool_name": "Bash", "tool_input": {"command": "ls"}}).encode()
SCRIPT = "import json, sys\ndata = json.load(sys.stdin)\nsys.exit(2 if 'rm' in data['tool_input']['command'] else 0)\n"
COMMANDS = {
    "bash: true": "true",
    "bash: cat": "cat",
    "bash and jq": "jq -r .tool_input.command >/dev/null",
    "python3": f"{sys.executable} guard.py",
}


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["WINDLASS_HOME"] = os.environ["CLAUDE_CONFIG_DIR"] = f"{folder}/home"
        project = Path(folder, "project")
        project.mkdir()
        (project / "guard.py").write_text(SCRIPT)
        print(f"{CALLS} calls a turn, {ROUNDS} rounds, the lowest in ms\n")
        print(f"{'hook':24} {'process':>8} {'call':>8} {'plain call':>10} {'overhead':>9}")
        for name, command in COMMANDS.items():
            if shutil.which(command.split()[0]) is not None:
                _print_row(name, command, project, workers=False)
        _print_row("python3, in a worker", COMMANDS["python3"], project, workers=True)


def _print_row(name: str, command: str, project: Path, *, workers: bool) -> None:
    process, hooked, plain = asyncio.run(_measure(command, project, workers))
    own = 0.0 if workers else process
    shown = "–" if workers else f"{process:.2f}"
    print(f"{name:24} {shown:>8} {hooked:8.2f} {plain:10.2f} {hooked - plain - own:9.2f}", flush=True)


async def _measure(command: str, project: Path, workers: bool) -> tuple[float, float, float]:
    from windlass.compat.claude_code import ClaudeCodeHooks

    handler = {"type": "command", "command": command}
    settings = {"hooks": {"PreToolUse": [{"matcher": "Bash", "hooks": [handler]}]}}
    hooks = ClaudeCodeHooks.load(project, settings=[settings], python_workers=workers)
    times: tuple[list[float], list[float], list[float]] = ([], [], [])
    for _ in range(ROUNDS):
        times[0].append(_each(lambda: _process(command, project)))
        for kept, capabilities in ((times[1], [hooks]), (times[2], [])):
            kept.append(await _turn(capabilities))
    return min(times[0]), min(times[1]), min(times[2])


def _process(command: str, project: Path) -> None:
    subprocess.run(["bash", "-c", command], input=INPUT, capture_output=True, cwd=project, check=False)


def _each(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    for _ in range(CALLS):
        work()
    return (time.perf_counter() - began) * 1000 / CALLS


async def _turn(capabilities: list[Any]) -> float:
    """The milliseconds of one call, with all that a step takes."""
    from windlass import Agent, tool
    from windlass.testing import ScriptedModel, calls, says

    @tool(inline=True)
    def shell(command: str) -> str:
        """Run a command."""
        return command

    model = ScriptedModel(*[calls("shell", command="ls")] * (CALLS + 1), says("Done."), calls("shell", command="ls"))
    agent: Agent[Any, Any] = Agent(model, tools=[shell], capabilities=capabilities, max_steps=CALLS + 5)
    agent.compile()
    began = time.perf_counter()
    result = await agent.run("Go.")
    taken = (time.perf_counter() - began) * 1000 / (CALLS + 1)
    assert len([step for step in result.steps if step.results]) == CALLS + 1
    return taken


if __name__ == "__main__":
    sys.exit(main())
