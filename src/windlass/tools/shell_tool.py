"""The tool that runs shell commands."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from windlass.errors import ToolError
from windlass.messages import ToolResult
from windlass.records import SessionEnded
from windlass.turns import Turn

from .definitions import tool
from .isolation import Sandbox
from .shells import Capture, Flood, Shell, Shells, end_all

MAX_SHOWN = 30_000
"""So many bytes of the output are shown if no tool can read the rest."""
MAX_KEPT = 1_000_000
"""So many bytes of the output are kept if the tool `read_result` can read them."""
_TAIL = 1_000
MAX_SECONDS = 3600.0


def clean_environment(root: str, env: Mapping[str, str], inherit: Sequence[str]) -> dict[str, str]:
    """The variables of a shell: few, and none of this process except the named ones."""
    few = {"PATH": os.environ.get("PATH") or os.defpath, "LANG": "C.UTF-8", "TERM": "dumb", "WORKSPACE": root}
    named = {name: os.environ[name] for name in inherit if name in os.environ}
    return {**few, **named, **env}


class ShellTool:
    """The tool `shell` of one agent, and its shells."""

    def __init__(
        self,
        sandbox: Sandbox,
        env: Mapping[str, str],
        limits: Mapping[str, int],
        *,
        timeout: float,
        tools: Callable[[], Mapping[str, Any]],
    ) -> None:
        self._shells = Shells(lambda: Shell(sandbox, env, limits))
        self._timeout = timeout
        self._tools = tools
        weakref.finalize(self, end_all, self._shells.open)

    @tool(destructive=True, sequential=True, open_world=True)
    async def shell(self, command: str, turn: Turn[Any], timeout: float | None = None) -> ToolResult:
        """Run a command in bash, in the workspace. The shell stays open: folder, variables and functions are kept.

        The result has the output and errors of the command. Commands cannot ask for input.

        Args:
            command: the command, or a script of several lines
            timeout: after how many seconds the command is ended; then a new shell is started
        """
        seconds = self._timeout if timeout is None else timeout
        if not 0 < seconds <= MAX_SECONDS:
            raise ToolError(f"timeout must be above 0 and at most {MAX_SECONDS:g} seconds")
        session = turn.session_id
        shell, news = self._shells.get(session, turn.now())
        if shell.busy:
            raise ToolError("the shell of this session is busy with another command")
        keeps_all = "read_result" in self._tools()
        capture = Capture(MAX_KEPT if keeps_all else MAX_SHOWN)
        status: int | None = 0
        ended = ""
        try:
            async with turn.timeout(seconds):
                status = await shell.run(command, capture)
        except TimeoutError:
            ended = f"the command took longer than {seconds:g} seconds"
        except Flood as flood:
            ended = str(flood)
        except asyncio.CancelledError:
            await self._end(session, "the command was cancelled")
            raise
        if status is None:
            ended = "the command ended the shell"
        note = f"exit status {status}" if status else ""
        if ended:
            await self._end(session, ended)
            note = f"{ended}; its processes were ended, and the next command gets a new shell in the workspace"
        before = f"[this is a new shell: {news}]\n" if news else ""
        left = {"cwd": shell.folder} if shell.folder and not ended else None
        return ToolResult.of(before + _shown(capture, note, keeps_all), data=left)

    async def _end(self, session: str, why: str) -> None:
        """End a shell, however often this task is cancelled meanwhile."""
        ending = asyncio.ensure_future(asyncio.to_thread(self._shells.end, session, why))
        cancelled = False
        while not ending.done():
            try:
                await asyncio.shield(ending)
            except asyncio.CancelledError:
                cancelled = True
        if cancelled:
            raise asyncio.CancelledError

    async def session_ended(self, fact: SessionEnded, turn: Turn[Any]) -> None:
        """End the shell of a session that is over."""
        if turn.session_id in self._shells.open:
            await asyncio.to_thread(self._shells.forget, turn.session_id)


def _shown(capture: Capture, note: str, keeps_all: bool) -> str:
    """The output with a note. Of a long output the end comes first, too: a preview shows the beginning only."""
    text = capture.text()
    end = f"[{note}]" if note else ""
    if keeps_all and len(text) > 4 * _TAIL:
        head = f"{end}\n" if end else ""
        return f"{head}[the output has {capture.total:,} bytes; its end:]\n{text[-_TAIL:]}\n[the whole output:]\n{text}"
    parts = [part for part in (text.rstrip("\n"), end) if part]
    return "\n".join(parts) or "[no output]"
