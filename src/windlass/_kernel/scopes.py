"""The types of scope that agents declare: who needs one, and whether the caller's fits them all."""

from __future__ import annotations

from typing import Any, get_args

from windlass.errors import ConfigError

from .program import Program


def require_scopes(parent: Program, declared: Any, child: Program) -> None:
    """What a child needs, its parent needs too, for the parent hands its scope down."""
    for name, needed in child.scopes:
        if declared is not None and not _fits(declared, needed):
            raise ConfigError(
                f"agent {parent.name!r} declares scope={_shown(declared)} and hands it down to agent {name!r}, which "
                f"declares scope={_shown(needed)}"
            )
    new = [scope for scope in child.scopes if scope not in parent.scopes]
    parent.scopes = (*parent.scopes, *new)


def check_scope(program: Program, scope: Any) -> None:
    """Raise unless a scope is what the agent and those below it have declared. Nothing has happened yet."""
    for name, needed in program.scopes:
        if not isinstance(scope, needed):
            whose = "" if name == program.name else f", a sub-agent of {program.name!r},"
            given = "none was given" if scope is None else f"a value of type {type(scope).__name__} was given"
            raise ConfigError(
                f"agent {name!r}{whose} needs a scope of type {_shown(needed)}, and {given}: pass scope=… "
                "(on the command line, --scope MODULE:FUNCTION)"
            )


def _fits(given: Any, needed: Any) -> bool:
    """Whether instances of one type may be instances of another; what cannot be told now is told when it is run."""
    try:
        return all(issubclass(member, needed) for member in get_args(given) or (given,))
    except TypeError:
        return True


def _shown(declared: Any) -> str:
    return declared.__name__ if isinstance(declared, type) else str(declared)
