"""The scope types that agents declare, and the check of the caller's scope against them."""

from __future__ import annotations

from typing import Any, get_args

from windlass.errors import ConfigError

from .program import Program


def require_scopes(parent: Program, declared: Any, child: Program) -> None:
    """Add the scope types of a child to its parent, because the parent passes its scope on."""
    for name, needed in child.scopes:
        if declared is not None and not _fits(declared, needed):
            raise ConfigError(
                f"agent {parent.name!r} declares scope={_type_name(declared)} and passes it on to "
                f"agent {name!r}, which declares scope={_type_name(needed)}"
            )
    new = [scope for scope in child.scopes if scope not in parent.scopes]
    parent.scopes = (*parent.scopes, *new)


def check_scope(program: Program, scope: Any) -> None:
    """Raise unless a scope fits the agent and its sub-agents, before anything runs."""
    for name, needed in program.scopes:
        if not isinstance(scope, needed):
            whose = "" if name == program.name else f", a sub-agent of {program.name!r},"
            got = "none" if scope is None else f"a value of type {type(scope).__name__}"
            raise ConfigError(
                f"agent {name!r}{whose} needs a scope of type {_type_name(needed)}, but got {got}: "
                "pass scope=… (on the command line, --scope MODULE:FUNCTION)"
            )


def _fits(declared: Any, needed: Any) -> bool:
    """Whether one type may have instances of another. If unclear, `check_scope` decides later."""
    try:
        return all(issubclass(member, needed) for member in get_args(declared) or (declared,))
    except TypeError:
        return True


def _type_name(declared: Any) -> str:
    return declared.__name__ if isinstance(declared, type) else str(declared)
