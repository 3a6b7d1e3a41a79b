"""What is refused when middlewares are put into an agent, and which of their methods run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from langchain.agents.middleware import AgentMiddleware, HumanInTheLoopMiddleware
from langgraph.types import interrupt

from windlass.errors import ConfigError

NODES = ("before_agent", "before_model", "after_model", "after_agent")
WRAPS = ("wrap_model_call", "wrap_tool_call")
_JUMPS = {
    "before_agent": ("end", "model", "tools"),
    "before_model": ("end", "model", "tools"),
    "after_model": ("end", "model", "tools"),
    "after_agent": ("end",),
}


def overrides(middleware: Any, method: str) -> bool:
    """Whether a middleware has this method, plain or async, and does not only inherit the empty one."""
    return has_own(middleware, method) or has_own(middleware, f"a{method}")


def has_own(middleware: Any, method: str) -> bool:
    """Whether the class of a middleware defines this very method. The async ones of the base class do nothing, or
    raise, so only a defined one may be called."""
    return getattr(type(middleware), method, None) is not getattr(AgentMiddleware, method)


def method_of(middleware: Any, method: str) -> tuple[Any, bool]:
    """The method to call, and whether it is async. A middleware that has only the plain one runs in a thread."""
    if has_own(middleware, f"a{method}"):
        return getattr(middleware, f"a{method}"), True
    return getattr(middleware, method), False


def jumps_of(middleware: Any, method: str) -> tuple[str, ...]:
    """Where a method may jump to, as `can_jump_to` declares it."""
    for name in (method, f"a{method}"):
        if has_own(middleware, name):
            declared = getattr(getattr(type(middleware), name), "__can_jump_to__", None)
            if declared:
                return tuple(declared)
    return ()


def checked(middlewares: Sequence[Any], *, alone: bool = True) -> tuple[Any, ...]:
    """The middlewares, if all of them can run here; `ConfigError` names the one that cannot. If they are alone, there
    must be one."""
    for one in middlewares:
        if not isinstance(one, AgentMiddleware):
            hint = f"; write {one.__name__}(…)" if isinstance(one, type) else ""
            raise ConfigError(f"Middlewares(…) takes middlewares of LangChain, not {one!r:.80}{hint}")
    names = [one.name for one in middlewares]
    if twice := {name for name in names if names.count(name) > 1}:
        raise ConfigError(
            f"Middlewares(…) has two middlewares named {min(twice)!r}, which LangChain does not allow; override `name`"
        )
    if alone and not middlewares:
        raise ConfigError("Middlewares() needs at least one middleware of LangChain")
    for one in middlewares:
        _check(one)
    return tuple(middlewares)


def _check(middleware: Any) -> None:
    for method, possible in _JUMPS.items():
        for to in jumps_of(middleware, method):
            if to not in possible:
                raise ConfigError(
                    f"{middleware.name}.{method} may jump to {to!r}, which is not possible here: the turn has ended; "
                    "veto the stop with a gate on Stopping instead"
                )
    if isinstance(middleware, HumanInTheLoopMiddleware):
        return
    for name in _interrupting(middleware):
        raise ConfigError(
            f"{middleware.name}.{name} calls interrupt(), which only LangGraph can resume: use "
            "HumanInTheLoopMiddleware, or a gate that answers Ask"
        )


def _interrupting(middleware: Any) -> list[str]:
    """The methods of a middleware that call LangGraph's `interrupt`."""
    found = []
    for kind in type(middleware).__mro__:
        if kind is AgentMiddleware:
            break
        for name, value in vars(kind).items():
            code = getattr(value, "__code__", None)
            if code is None:
                continue
            scope = {**value.__globals__, **_closure(value)}
            called = (scope.get(word) for word in (*code.co_names, *code.co_freevars))
            if any(one is interrupt or _calls_interrupt(one) for one in called):
                found.append(name)
    return found


def _closure(fn: Any) -> dict[str, Any]:
    cells = fn.__closure__ or ()
    found = {}
    for name, cell in zip(fn.__code__.co_freevars, cells, strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:
            continue
    return found


def _calls_interrupt(value: Any) -> bool:
    """Whether this is a decorated function that calls it: the decorators keep theirs in a closure."""
    code = getattr(value, "__code__", None)
    return code is not None and any(getattr(value, "__globals__", {}).get(word) is interrupt for word in code.co_names)
