"""Help that fits a screen: what does not is shortened to a line for each option, and `windlass help` has the rest."""

from __future__ import annotations

import re
from collections.abc import Iterable

import click
from click.formatting import HelpFormatter

ROWS, COLUMNS = 24, 80
"""The screen that the help of a command fits."""


GROUPS = {
    "Begin": {
        "demo": "Watch an agent, offline", "init": "Write an agent file",
        "doctor": "Check this machine", "keys": "Store vendors' keys",
        "local": "Install local models", "completion": "Complete in a shell",
    },
    "Run": {
        "run": "Run one turn", "chat": "Talk to a model or agent",
        "resume": "Continue a turn", "approve": "Answer open questions",
        "submit": "Queue a message", "worker": "Run the turns that wait",
        "serve": "Offer agents over HTTP", "serve-mcp": "Offer an agent by MCP",
    },
    "See": {
        "sessions": "List, check, move, erase", "show": "Show what happened when",
        "why": "Explain how a turn went", "diff": "Compare two sessions",
        "ui": "Open the inspector", "explain": "Show an agent's plan",
    },
    "Test": {
        "eval": "Run cases, give the rate", "simulate": "Find bugs in simulations",
        "replay": "Try hooks on past runs", "hooks": "Try and trust hooks",
        "trust": "Trust an agent file", "help": "Explain a command",
    },
}  # fmt: skip
"""The commands in two columns, so that all fit a screen."""


def overview(usage: str, summary: str) -> str:
    """All commands on one screen."""
    lines = [usage, "", summary, ""]
    for heading, commands in GROUPS.items():
        cells = [f"{name:<10} {text}" for name, text in commands.items()]
        for at, pair in enumerate(zip(cells[::2], [*cells[1::2], ""], strict=False)):
            lines.append(f"  {heading if not at else '':<7}{pair[0]:<36}{pair[1]}".rstrip())
    return "\n".join([*lines, "", *_BELOW])


_BELOW = (
    "windlass COMMAND --help    the options of a command, on one screen",
    "windlass help COMMAND      everything about it",
    "windlass help exit-codes   what scripts need to know",
    "windlass --version         windlass --debug COMMAND shows tracebacks",
)


class ScreenFormatter(HelpFormatter):
    """Formats help in full, and beside that in two shorter forms. The longest that fits a screen is taken."""

    def __init__(self, path: str, width: int | None = None) -> None:
        super().__init__(width=min(width or COLUMNS, COLUMNS))
        self.path = path
        self.shorter = (HelpFormatter(width=self.width), HelpFormatter(width=self.width))
        self._paragraphs = 0

    def getvalue(self) -> str:
        """The help: at most a screen of it."""
        full = super().getvalue()
        if full.count("\n") < ROWS:
            return full
        texts = [f"{one.getvalue()}\nEverything: windlass help {self.path}\n" for one in self.shorter]
        return next((text for text in texts if text.count("\n") < ROWS), _without_last_options(texts[-1]))

    def write_usage(self, prog: str, args: str = "", prefix: str | None = None) -> None:
        super().write_usage(prog, args, prefix)
        for one in self.shorter:
            one.write_usage(prog, args, prefix)

    def write_heading(self, heading: str) -> None:
        super().write_heading(heading)
        for one in self.shorter:
            one.write_heading(heading)

    def write_paragraph(self) -> None:
        super().write_paragraph()
        for one in self.shorter:
            one.write_paragraph()

    def indent(self) -> None:
        super().indent()
        for one in self.shorter:
            one.indent()

    def dedent(self) -> None:
        super().dedent()
        for one in self.shorter:
            one.dedent()

    def write_text(self, text: str) -> None:
        super().write_text(text)
        self._paragraphs += 1
        if self._paragraphs == 1:
            first = " ".join(text.split("\n\n")[0].split())
            self.shorter[0].write_text(first)
            self.shorter[1].write_text(_first_sentence(first))

    def write_dl(self, rows: Iterable[tuple[str, str]], col_max: int = 30, col_spacing: int = 2) -> None:
        rows = list(rows)
        super().write_dl(rows, col_max, col_spacing)
        self.shorter[0].write_dl([(name, _first_sentence(_bare(text))) for name, text in rows], col_max, col_spacing)
        names = [_name(name, col_max - 4) for name, _ in rows]
        column = max([len(name) for name in names], default=0)
        for name, (_, text) in zip(names, rows, strict=True):
            room = self.width - column - 4
            self.shorter[1].write(f"  {name:<{column}}  {_fit(text, room)}".rstrip() + "\n")


def _without_last_options(text: str) -> str:
    """The text without as many of its last options as do not fit a screen. `--help` stays."""
    lines = text.split("\n")
    end = next(at for at, line in enumerate(lines) if "--help " in line)
    del lines[end - (text.count("\n") - ROWS + 1) : end]
    return "\n".join(lines)


def _name(name: str, most: int) -> str:
    """The left column: an option and what it takes. A long list of choices is left out."""
    return name if len(name) <= most else re.sub(r" (\[[^\]]*\]|'[^']*')$", " …", name)


def _fit(text: str, room: int) -> str:
    """What an option does, in one line: its first sentence, cut between words if it must be."""
    first = _first_sentence(_bare(text))
    return first if len(first) <= room else f"{first[: room - 1].rsplit(' ', 1)[0].rstrip(',;:.')}…"


def _bare(text: str) -> str:
    """The help of an option without its default, its range and its variable."""
    return re.sub(r"\s*\[(env var|default|required|x[<>]|\d)[^\[\]]*\]$", "", " ".join(text.split()))


def _first_sentence(text: str) -> str:
    return re.split(r"(?<=[.)]) (?=[A-Z])", text, maxsplit=1)[0]


class ScreenContext(click.Context):
    """A context whose help fits a screen."""

    def make_formatter(self) -> HelpFormatter:
        return ScreenFormatter(self.command_path.partition(" ")[2], self.terminal_width)


class FullHelp(click.Context):
    """A context whose help is not shortened."""


def with_short_help(command: click.Command) -> click.Command:
    """The command, with help that fits a screen, and so for the commands below it."""
    command.context_class = ScreenContext
    if isinstance(command, click.Group):
        for one in command.commands.values():
            with_short_help(one)
    return command
