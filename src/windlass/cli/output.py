"""The only place of the command line that prints: whatever a log contains, a terminal shows it and does not obey it."""

from __future__ import annotations

import logging
import os
import shutil
import sys
import textwrap
import traceback
from collections.abc import Generator
from contextlib import contextmanager
from io import TextIOWrapper
from types import TracebackType

import click

from windlass._text import inert, inert_json, visible
from windlass.errors import WindlassError

from .codes import BROKEN_PIPE, BUG, INTERRUPTED

HANGING = " " * 8
"""What continued lines begin with. Other lines are indented less, so a long text cannot pass for a line of its own."""

CUT = "…(+N) stands for N characters: repeat the command with --full to see them"
"""The hint after a text that has cut parts."""


def echo(text: str, *, err: bool = False) -> None:
    """Print text. Unusual characters are escaped, line breaks stay."""
    _print(inert(text), err=err)


def echo_json(text: str) -> None:
    """Print JSON. Unusual characters are escaped as JSON escapes them, so it parses to the same value."""
    _print(inert_json(text))


def echo_columns(*columns: str) -> None:
    """Print columns for another program, separated by tabs."""
    click.echo("\t".join([visible(column) for column in columns]))


def echo_styled(text: str) -> None:
    """Print text with the styles of `styled`. Its other parts must be `visible`."""
    click.echo(text)


def echo_exactly(text: str) -> None:
    """Print text for another program, without a line break and byte for byte; on a terminal, as JSON is printed."""
    _print(inert_json(text) if is_terminal() else text, end="")


def page(text: str, hint: str = "", *, styled: bool = False) -> None:
    """Print text, and a hint after it; on a terminal that it does not fit, through a pager.

    With `styled`, the text has styles of `Paint`, and its other parts must be `visible`.
    """
    if hint and is_terminal():
        hint = textwrap.fill(hint, max(shutil.get_terminal_size().columns, 20))
    shown = "\n\n".join([text if styled else inert(text), *([inert(hint)] if hint else [])])
    if is_terminal() and shown.count("\n") + 2 > shutil.get_terminal_size().lines:
        click.echo_via_pager(shown if shown.endswith("\n") else f"{shown}\n")
    else:
        _print(shown)


def _print(text: str, *, err: bool = False, end: str = "\n") -> None:
    """Print a text in pieces: a reader that has ended is noticed at the next piece."""
    text += end
    for at in range(0, len(text), _PIECE):
        click.echo(text[at : at + _PIECE], nl=False, err=err)


_PIECE = 32_768


def terminal_width() -> int | None:
    """The width of the terminal on which a person reads the output; None in a pipe, where nothing is cut."""
    return max(shutil.get_terminal_size().columns, 20) if is_terminal() else None


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


def read_input() -> str:
    """The text on the standard input."""
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise click.UsageError("the standard input is not text; attach a file with --file PATH") from error


def is_terminal() -> bool:
    """Whether a person reads the output on a terminal."""
    return sys.stdout is not None and sys.stdout.isatty()


@contextmanager
def working(text: str) -> Generator[None, None, None]:
    """Show on a terminal, on stderr, that long work goes on in the block."""
    if sys.stderr is None or not sys.stderr.isatty():
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
def errors_as_exit_codes(*, debug: bool) -> Generator[None, None, None]:
    """Print an error without a traceback, and exit with the code for its kind. With `debug`, unexpected ones stay."""
    try:
        yield
    except click.Abort as error:
        if isinstance(error.__context__, KeyboardInterrupt):
            raise click.exceptions.Exit(INTERRUPTED) from None
        raise
    except KeyboardInterrupt:
        click.echo(err=True)
        raise click.exceptions.Exit(INTERRUPTED) from None
    except BrokenPipeError:
        _forget_output()
        raise click.exceptions.Exit(BROKEN_PIPE) from None
    except (click.ClickException, click.exceptions.Exit):
        raise
    except Exception as error:
        if debug:
            raise
        if isinstance(error, WindlassError):
            raise click.ClickException(str(error)) from error
        if isinstance(error, OSError):
            where = f": {error.filename}" if error.filename is not None else ""
            raise click.ClickException(f"{error.strerror or error}{where}") from error
        raise Unexpected(error) from error


class Unexpected(click.ClickException):
    """An error that Windlass should have prevented or translated."""

    exit_code = BUG

    def __init__(self, error: Exception) -> None:
        text = f"unexpected {type(error).__name__}: {error}" if str(error) else f"unexpected {type(error).__name__}"
        super().__init__(f"{text}\nThis is a bug. Show where it is with: windlass --debug COMMAND …")


def _forget_output() -> None:
    """Let nothing that is still buffered raise again when Python ends: the reader of the output is gone."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):
        pass


@contextmanager
def survives_any_encoding() -> Generator[None, None, None]:
    """Escape what the encoding of the output cannot have. A closed input is empty."""
    if sys.stdin is None:  # closed by the shell: there is nothing to read
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper) and stream.errors in ("strict", "surrogateescape"):
            stream.reconfigure(errors="backslashreplace")
    yield


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
