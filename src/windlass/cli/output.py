"""The only place of the command line that prints: whatever a log contains, a terminal shows it and does not obey it."""

from __future__ import annotations

import logging
import shutil
import sys
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from types import TracebackType

import click

from windlass._text import inert, inert_json, visible

HANGING = " " * 8
"""What continued lines begin with. Other lines are indented less, so a long text cannot pass for a line of its own."""

CUT = "…(+N) stands for N characters: repeat the command with --full to see them"
"""The hint after a text that has cut parts."""


def echo(text: str, *, err: bool = False) -> None:
    """Print text. Unusual characters are escaped, line breaks stay."""
    click.echo(inert(text), err=err)


def echo_json(text: str) -> None:
    """Print JSON. Unusual characters are escaped as JSON escapes them, so it parses to the same value."""
    click.echo(inert_json(text))


def echo_columns(*columns: str) -> None:
    """Print columns for another program, separated by tabs."""
    click.echo("\t".join([visible(column) for column in columns]))


def echo_styled(text: str) -> None:
    """Print text with the styles of `styled`. Its other parts must be `visible`."""
    click.echo(text)


def echo_exactly(text: str) -> None:
    """Print text for another program, without a line break and byte for byte; on a terminal, as JSON is printed."""
    click.echo(inert_json(text) if is_terminal() else text, nl=False)


def page(text: str, hint: str = "") -> None:
    """Print text; on a terminal that it does not fit, through a pager. A hint follows it, in a pipe on stderr."""
    if hint and not is_terminal():
        click.echo(inert(text))
        echo(hint, err=True)
        return
    shown = inert(f"{text}\n\n{hint}" if hint else text)
    if is_terminal() and shown.count("\n") + 2 > shutil.get_terminal_size().lines:
        click.echo_via_pager(shown)
    else:
        click.echo(shown)


def wrap(text: str) -> str:
    """A line of any length. On a terminal it is wrapped, and continued lines are indented; elsewhere it stays whole."""
    if not is_terminal():
        return text
    from rich.cells import chop_cells

    width = max(shutil.get_terminal_size().columns, 40)
    first, *rest = chop_cells(text, width) or [""]
    if not rest:
        return text
    return "\n".join([first, *[HANGING + line for line in chop_cells("".join(rest), width - len(HANGING))]])


def is_terminal() -> bool:
    """Whether a person reads the output on a terminal."""
    return sys.stdout.isatty()


@contextmanager
def working(text: str) -> Generator[None, None, None]:
    """Show on a terminal, on stderr, that long work goes on in the block."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(visible(text))):
        yield


# ---------------------------------------------------------------- errors


@contextmanager
def inert_errors() -> Generator[None, None, None]:
    """Escape the messages of errors that click prints."""
    try:
        yield
    except click.ClickException as error:
        message = inert(error.format_message())
        error.format_message = lambda: message  # type: ignore[method-assign]
        raise


@contextmanager
def mistakes_exit_with(code: int) -> Generator[None, None, None]:
    """Exit with this code after an error, in commands whose result has a code of its own."""
    try:
        yield
    except click.ClickException as error:
        error.exit_code = code  # type: ignore[misc]
        raise


@contextmanager
def inert_logs() -> Generator[None, None, None]:
    """Escape log messages that Python prints because the program has not set up logging, and tracebacks."""
    sys.excepthook = _print_traceback
    handler = logging.lastResort
    before = None if handler is None else handler.formatter
    try:
        if handler is not None:
            handler.setFormatter(_InertFormatter())
        yield
    finally:
        if handler is not None:
            handler.setFormatter(before)


class _InertFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return inert(super().format(record))


def _print_traceback(kind: type[BaseException], error: BaseException, at: TracebackType | None) -> None:
    click.echo(inert("".join(traceback.format_exception(kind, error, at))), err=True, nl=False)
