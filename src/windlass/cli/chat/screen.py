"""The screen of `chat`: one prompt at the bottom that is always there, and whole lines above it.

A line of the answer that still grows is part of the prompt; it is printed above when it is complete. Nothing else
writes to the terminal, so no text is ever glued to the prompt.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path

from prompt_toolkit import PromptSession
from prompt_toolkit.formatted_text import FormattedText
from prompt_toolkit.history import FileHistory
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.patch_stdout import StdoutProxy
from rich.console import Console
from rich.text import Text

from windlass._text import visible
from windlass.cli.view import wrapped
from windlass.folders import data_folder

FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
INTERVAL = 0.1


class Screen:
    """A prompt and what stands around it. The conversation says what: `label`, `partial` and `status`."""

    def __init__(self, interrupt: Callable[[], bool]) -> None:
        self.label = "you> "
        self.partial: Callable[[], str] = str
        self.status: Callable[[], tuple[bool, str]] = lambda: (False, "")
        self._interrupt = interrupt
        self._begins_with = ""
        self._aside = ""
        self._console = Console()
        self._prompt: PromptSession[str] = PromptSession(
            self._message,
            bottom_toolbar=self._toolbar,
            key_bindings=self._keys(),
            history=FileHistory(str(history_file())),
            refresh_interval=INTERVAL,
            erase_when_done=True,
            enable_suspend=True,
        )
        self._prompt.app.min_redraw_interval = 0.02

    @contextmanager
    def open(self) -> Generator[None, None, None]:
        """Let everything that is printed inside go above the prompt."""
        above = StdoutProxy(sleep_between_writes=0.02, raw=True)
        with above, redirect_stdout(above), redirect_stderr(above):
            self._console = Console(file=sys.stdout, force_terminal=True, highlight=False, soft_wrap=True)
            yield

    async def read(self) -> str:
        """The next text that the person sends. Raises `EOFError` at Ctrl-D."""
        begins_with, self._begins_with = self._begins_with, ""
        text = await self._prompt.prompt_async(default=begins_with)
        self.write_text(f"{self.label}{text}", "bold")
        return text

    def write(self, line: Text) -> None:
        """Print a whole line above the prompt."""
        self._console.print(line)

    def write_text(self, text: str, style: str = "") -> None:
        """Print lines above the prompt. Unusual characters are escaped, and long lines broken between words."""
        for line in text.split("\n"):
            indent = " " * (len(line) - len(line.lstrip(" ")) + 2)
            for part in wrapped(visible(line), self.width, indent):
                self.write(Text(part, style=style))

    def fill(self, text: str) -> None:
        """Let the next prompt begin with a text, for the person to change."""
        self._begins_with = text
        self.redraw()

    def set_aside(self) -> None:
        """Take what the person has begun to type out of the prompt, so that it is not sent as an answer."""
        buffer = self._prompt.default_buffer
        if self._prompt.app.is_running and buffer.text:
            self._aside = buffer.text
            buffer.reset()

    def bring_back(self) -> None:
        """Let the next prompt begin with what was set aside."""
        self.fill(self._aside)
        self._aside = ""

    @property
    def width(self) -> int:
        """How many columns the terminal has."""
        return self._console.width

    def redraw(self) -> None:
        """Show a changed label or status now."""
        self._prompt.app.invalidate()

    def _message(self) -> FormattedText:
        partial = self.partial()
        return FormattedText([("", f"{partial}\n" if partial else ""), ("bold", self.label)])

    def _toolbar(self) -> FormattedText:
        works, text = self.status()
        frame = f"{FRAMES[int(time.monotonic() / INTERVAL) % len(FRAMES)]} " if works else ""
        return FormattedText([("", f"{frame}{text}"[: max(self.width - 1, 1)])])

    def _keys(self) -> KeyBindings:
        keys = KeyBindings()

        @keys.add("escape", "enter")
        def new_line(event: KeyPressEvent) -> None:
            event.current_buffer.insert_text("\n")

        @keys.add("enter")
        def send(event: KeyPressEvent) -> None:
            event.current_buffer.validate_and_handle()

        @keys.add("c-c")
        def interrupt(event: KeyPressEvent) -> None:
            if not self._interrupt():
                event.current_buffer.reset()

        return keys


def history_file() -> Path:
    """The file with what the person has typed, readable by that person alone."""
    path = data_folder() / "history"
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600))
    path.chmod(0o600)
    return path
