"""The exit codes of all commands."""

from __future__ import annotations

COMPLETED, FAILED, USAGE, SUSPENDED, STOPPED, NOTHING, BUG, INTERRUPTED, BROKEN_PIPE = 0, 1, 2, 3, 4, 5, 70, 130, 141

MEANINGS: tuple[tuple[int, str, str], ...] = (
    (COMPLETED, "done", "The command did what it was asked for."),
    (FAILED, "no", "It failed, or the answer is no: a turn failed, a check found something, a verdict changed."),
    (USAGE, "usage", "Wrong usage: an unknown option, a missing file. `diff` and `replay`: it cannot be decided."),
    (SUSPENDED, "waits", "`run`: the turn waits for an answer."),
    (STOPPED, "stopped", "`run`: a limit or a hook stopped the turn before the model was done."),
    (NOTHING, "nothing", "`replay`: there was no session to replay."),
    (BUG, "bug", "An unexpected error: a bug. `windlass --debug COMMAND` shows its traceback."),
    (INTERRUPTED, "interrupted", "Ctrl-C; `run`: the turn was cancelled."),
    (BROKEN_PIPE, "broken pipe", "The program that read the output has ended, as with `| head`."),
)
"""Each code: its name, and what it means. Codes of one command are named with it."""
