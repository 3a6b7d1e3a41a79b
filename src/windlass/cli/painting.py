"""Colours and shapes for a terminal: every verdict has a shape as well as a colour, and a pipe has no colour."""

from __future__ import annotations

import os
import sys
from itertools import groupby
from typing import Any

import click

from .output import is_terminal

SHAPES = {
    "allow": "✓", "deny": "■", "ask": "◆", "changed": "▲", "inject": "+", "error": "✗", "done": "●", "live": "◉",
    "running": "◉", "interrupted": "◌", "waiting": "◆", "stopped": "■", "failed": "✗", "cancelled": "⊘", "silent": "·",
    "shadow": "□", "model": "█", "tool": "▄", "failed tool": "▄", "person": "░", "rejected": "▒", "fold": "┊",
    "dot": "·",
}  # fmt: skip
PLAIN_SHAPES = {
    "allow": "v", "deny": "#", "ask": "?", "changed": "^", "inject": "+", "error": "x", "done": "*", "live": "@",
    "running": "@", "interrupted": "o", "waiting": "?", "stopped": "#", "failed": "x", "cancelled": "/", "silent": ".",
    "shadow": "o", "model": "=", "tool": "-", "failed tool": "-", "person": ":", "rejected": "~", "fold": "|",
    "dot": "-",
}  # fmt: skip
"""For output that cannot have the others."""

COLOURS: dict[str, dict[str, Any]] = {
    "allow": {"fg": "green"}, "deny": {"fg": "red"}, "ask": {"fg": "yellow"}, "changed": {"fg": "blue"},
    "inject": {"fg": "blue"}, "error": {"fg": "magenta"}, "interrupted": {"fg": "magenta"}, "failed": {"fg": "magenta"},
    "failed tool": {"fg": "magenta"}, "waiting": {"fg": "yellow"}, "stopped": {"fg": "red"}, "model": {"fg": "cyan"},
    "rejected": {"fg": "cyan", "dim": True}, "tool": {"fg": "bright_black"}, "person": {"fg": "yellow"},
    "fold": {"dim": True}, "shadow": {"dim": True}, "silent": {"dim": True}, "live": {"fg": "cyan"},
    "running": {"fg": "cyan"},
}  # fmt: skip
"""Exceptions have a colour, work does not: what is not here keeps that of the terminal."""


class Paint:
    """Styles text if `colour` is set; `shapes` are those that the output can have."""

    def __init__(self, *, colour: bool, unicode: bool = True) -> None:
        self.colour = colour
        self.shapes = SHAPES if unicode else PLAIN_SHAPES

    def __call__(self, text: str, *, bold: bool = False, dim: bool = False, strike: bool = False) -> str:
        if not self.colour or not (bold or dim or strike) or not text:
            return text
        return click.style(text, bold=bold or None, dim=dim or None, strikethrough=strike or None)

    def tone(self, text: str, kind: str, *, bold: bool = False) -> str:
        """A text in the colour of a verdict or state."""
        style = COLOURS.get(kind, {})
        return click.style(text, **style, bold=bold or None) if self.colour and text and (style or bold) else text

    def cells(self, cells: list[str], kinds: list[str]) -> str:
        """Single cells, each in the colour of its kind."""
        pairs = groupby(zip(cells, kinds, strict=True), key=lambda pair: pair[1])
        return "".join([self.tone("".join([cell for cell, _ in group]), kind) for kind, group in pairs])


def paint_for_output() -> Paint:
    """Colours on a terminal, unless `NO_COLOR` is set or it is a dumb one; none in a pipe."""
    quiet = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    encoding = (getattr(sys.stdout, "encoding", None) or "").lower().replace("-", "").replace("_", "")
    return Paint(colour=is_terminal() and not quiet, unicode=encoding.startswith("utf"))
