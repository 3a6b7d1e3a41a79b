"""Loads the agent or the scope function that the user names on the command line."""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import click

from windlass import Agent
from windlass.agent_files.references import CannotLoad, describe_error, import_error, load_module
from windlass.errors import ConfigError

F = TypeVar("F", bound=Callable[..., Any])
ScopeFactory: TypeAlias = Callable[[str], Any]
DEFAULT_ATTRIBUTE = "agent"
DEFAULT_SCOPE = "scope"


def load_agent(target: str) -> Agent[Any, Any]:
    """The agent at `module:attribute` or `path/to/file.py:attribute`, or of an agent file, `path/to/file.toml`.

    The default attribute is `agent`. The attribute is an agent, or a callable without required arguments that returns
    one. Modules in the current directory can be imported. What they print goes to stderr: stdout is reserved for the
    command's own output.
    """
    with redirect_stdout(sys.stderr):
        return _load(target)


def _load(target: str) -> Agent[Any, Any]:
    if target.endswith(".toml"):
        from windlass.agent_files import load_agent_file

        try:
            return load_agent_file(target)
        except ConfigError as error:
            raise CannotLoad(str(error)) from error
    where, attribute, found = _resolve(target, DEFAULT_ATTRIBUTE)
    return found if isinstance(found, Agent) else _make_agent(found, f"{where}:{attribute}")


def load_target(target: str) -> Any:
    """What is at `module:attribute` or `path/to/file.py:attribute`, or the agent of an agent file."""
    if target.endswith(".toml"):
        return load_agent(target)
    with redirect_stdout(sys.stderr):
        return _resolve(target, DEFAULT_ATTRIBUTE)[2]


def _resolve(target: str, default: str) -> tuple[str, str, Any]:
    """Split a target into its module and attribute, import it, and return both names with the value."""
    where, attribute = _split(target, default)
    _add_to_path(Path.cwd())
    module = _file(where) if where.endswith(".py") or "/" in where or "\\" in where else load_module(where)
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


def _file(path: str) -> ModuleType:
    """Import a file as a module. As for a script, it can import the files next to it."""
    file = Path(path).resolve()
    if not file.is_file():
        raise CannotLoad(f"there is no file {path!r}")
    name = file.stem if file.stem.isidentifier() and file.stem not in sys.modules else f"_windlass_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise CannotLoad(f"{path!r} is not a Python file")
    _add_to_path(file.parent)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise import_error(path, error) from error
    return module


def _add_to_path(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _hint(module: ModuleType) -> str:
    agents = sorted(name for name, value in vars(module).items() if isinstance(value, Agent))
    return f"; agents in it: {', '.join(agents)}" if agents else ""


def _make_agent(factory: Any, target: str) -> Agent[Any, Any]:
    """Call a factory and check that it returns an agent."""
    if not callable(factory):
        raise CannotLoad(f"{target!r} is not an agent but {_type(factory)}")
    try:
        inspect.signature(factory).bind()
    except TypeError as error:
        raise CannotLoad(f"{target!r} cannot be called without arguments: {error}") from None
    except ValueError:
        pass  # its signature is unknown
    try:
        made = factory()
    except (Exception, SystemExit) as error:
        raise CannotLoad(f"{target!r} failed: {describe_error(error)}") from error
    if inspect.iscoroutine(made):
        made.close()
    if not isinstance(made, Agent):
        raise CannotLoad(f"{target!r} did not return an agent but {_type(made)}")
    return made


def _type(value: object) -> str:
    return f"a value of type {type(value).__name__}"


def agent_argument(command: F) -> F:
    """Add the argument `agent` to a command: the user writes `module:agent`, the command receives the agent."""
    return click.argument("agent", metavar="MODULE:AGENT", callback=_load_agent_option)(command)


def agent_option(text: str) -> Callable[[F], F]:
    """Add the option `--agent` to a command, with this help text: the user writes `module:agent`."""
    return click.option("--agent", metavar="MODULE:AGENT", callback=_load_agent_option, help=text)


def scope_option(command: F) -> F:
    """Add the option `--scope` to a command: the user names a function, the command receives it."""
    return click.option(
        "--scope",
        metavar="MODULE:FUNCTION",
        callback=_load_scope_option,
        help="A function that takes the session's id and returns the scope of its turn.",
    )(command)


async def make_scope(factory: ScopeFactory | None, session: str) -> Any:
    """The scope of a session, made by the function that the user named."""
    if factory is None:
        return None
    try:
        made = factory(session)
        return await made if inspect.isawaitable(made) else made
    except Exception as error:
        raise click.ClickException(f"--scope failed: {describe_error(error)}") from error


def load_scope(target: str) -> ScopeFactory:
    """The function at `module:function`; the default name is `scope`."""
    with redirect_stdout(sys.stderr):
        _, _, found = _resolve(target, DEFAULT_SCOPE)
    if not callable(found):
        raise CannotLoad(f"{target!r} is not a function but {_type(found)}")
    factory: ScopeFactory = found
    return factory


def _load_scope_option(ctx: click.Context, param: click.Parameter, value: str | None) -> ScopeFactory | None:
    try:
        return None if value is None else load_scope(value)
    except CannotLoad as error:
        raise click.BadParameter(str(error), ctx, param) from error


def _load_agent_option(ctx: click.Context, param: click.Parameter, value: str | None) -> Agent[Any, Any] | None:
    try:
        return None if value is None else load_agent(value)
    except CannotLoad as error:
        raise click.BadParameter(str(error), ctx, param) from error
