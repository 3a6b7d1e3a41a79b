"""How a command finds the agent that its user names."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import click

from windlass import Agent

F = TypeVar("F", bound=Callable[..., Any])
ScopeFactory: TypeAlias = Callable[[str], Any]
DEFAULT_ATTRIBUTE = "agent"
DEFAULT_SCOPE = "scope"


class CannotLoad(Exception):
    """There is no such agent; the message says why, for the user to read."""


def load_agent(target: str) -> Agent[Any, Any]:
    """The agent at `module:attribute` or `path/to/file.py:attribute`; without an attribute it is `agent`.

    The attribute is an agent, or something that is called without arguments and returns one. Modules of the current
    directory can be named. What they print goes to stderr: what is on stdout is the command's.
    """
    with redirect_stdout(sys.stderr):
        return _load(target)


def _load(target: str) -> Agent[Any, Any]:
    where, attribute, found = _found(target, DEFAULT_ATTRIBUTE)
    return found if isinstance(found, Agent) else _made(found, f"{where}:{attribute}")


def _found(target: str, default: str) -> tuple[str, str, Any]:
    """Where something is, its name there, and what it is."""
    where, attribute = _split(target, default)
    _importable(Path.cwd())
    module = _file(where) if where.endswith(".py") or "/" in where or "\\" in where else _module(where)
    found: Any = module
    for name in attribute.split("."):
        try:
            found = getattr(found, name)
        except AttributeError:
            raise CannotLoad(f"{where!r} has no {attribute!r}{_hint(module)}") from None
    return where, attribute, found


def _split(target: str, default: str) -> tuple[str, str]:
    where, _, attribute = target.rpartition(":")
    if where and re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", attribute):
        return where, attribute
    return target.removesuffix(":"), default


def _module(name: str) -> ModuleType:
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", name):
        raise CannotLoad(f"{name!r} is neither the name of a module nor the path of a Python file")
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise CannotLoad(f"there is no module {error.name!r} here or among the installed ones") from None
        raise _broken(name, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(name, error) from error


def _file(path: str) -> ModuleType:
    """The module of a file. It finds its neighbours, as a script does."""
    file = Path(path).resolve()
    if not file.is_file():
        raise CannotLoad(f"there is no file {path!r}")
    name = file.stem if file.stem.isidentifier() and file.stem not in sys.modules else f"_windlass_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CannotLoad(f"{path!r} is no Python file")
    _importable(file.parent)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _broken(path, error) from error
    return module


def _importable(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _broken(where: str, error: BaseException) -> CannotLoad:
    return CannotLoad(f"{where!r} cannot be imported: {_told(error)}")


def _told(error: BaseException) -> str:
    """An error of the user's code: what it is, and the last line it came from."""
    traceback = error.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    at = "" if traceback is None else f" ({traceback.tb_frame.f_code.co_filename}:{traceback.tb_lineno})"
    return f"{type(error).__name__}: {error}{at}"


def _hint(module: ModuleType) -> str:
    agents = sorted(name for name, value in vars(module).items() if isinstance(value, Agent))
    return f"; agents there: {', '.join(agents)}" if agents else ""


def _made(found: Any, target: str) -> Agent[Any, Any]:
    """The agent that a callable makes."""
    if not callable(found):
        raise CannotLoad(f"{target!r} is no agent but {_a(found)}")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise CannotLoad(f"{target!r} cannot be called without arguments: {error}") from None
    except ValueError:
        pass  # nobody knows its parameters
    try:
        made = found()
    except (Exception, SystemExit) as error:
        raise CannotLoad(f"{target!r} failed: {_told(error)}") from error
    if inspect.iscoroutine(made):
        made.close()
    if not isinstance(made, Agent):
        raise CannotLoad(f"{target!r} returned no agent but {_a(made)}")
    return made


def _a(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def agent_argument(command: F) -> F:
    """Give a command the argument `agent`: its user writes `module:agent`, the command gets the agent."""
    return click.argument("agent", metavar="MODULE:AGENT", callback=_loaded)(command)


def agent_option(text: str) -> Callable[[F], F]:
    """Give a command the option `--agent`, with a text of help: its user writes `module:agent`."""
    return click.option("--agent", metavar="MODULE:AGENT", callback=_loaded, help=text)


def scope_option(command: F) -> F:
    """Give a command the option `--scope`: its user names a function, the command gets it."""
    return click.option(
        "--scope",
        metavar="MODULE:FUNCTION",
        callback=_loaded_scope,
        help="A function that is given the session's id and makes the scope of its turn.",
    )(command)


async def make_scope(factory: ScopeFactory | None, session: str) -> Any:
    """The scope of a session, made by what the user has named."""
    if factory is None:
        return None
    try:
        made = factory(session)
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        raise click.ClickException(f"--scope failed: {_told(error)}") from error


def _loaded_scope(ctx: click.Context, param: click.Parameter, value: str | None) -> ScopeFactory | None:
    if value is None:
        return None
    try:
        with redirect_stdout(sys.stderr):
            _, _, found = _found(value, DEFAULT_SCOPE)
    except CannotLoad as error:
        raise click.BadParameter(str(error), ctx, param) from error
    if not callable(found):
        raise click.BadParameter(f"{value!r} is no function but {_a(found)}", ctx, param)
    factory: ScopeFactory = found
    return factory


def _loaded(ctx: click.Context, param: click.Parameter, value: str | None) -> Agent[Any, Any] | None:
    try:
        return None if value is None else load_agent(value)
    except CannotLoad as error:
        raise click.BadParameter(str(error), ctx, param) from error
