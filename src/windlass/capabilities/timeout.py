"""Timeout: limits how long a model call, a tool call, a step or a turn may take."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

from windlass.criteria import ActiveTimeLimit
from windlass.errors import ConfigError, HookTimeout, ModelTimeout, ToolTimeout
from windlass.messages import ModelCall, ModelReply, ModelRequest, ToolCall, ToolResult
from windlass.states import State, Step
from windlass.turns import Turn
from windlass.types import CallModel, CallTool, RunStep

from .option_types import check_types
from .options import require, require_name, require_seconds
from .suspending import once_it_waits

if TYPE_CHECKING:
    from windlass import Hooks

T = TypeVar("T")


class Timeout:
    """Limit how many seconds a `model` call, a `tool` call, a `step` or a `turn` may take, by the agent's clock.

    A model call that takes longer fails with `ModelTimeout`, which is retried: install `Retry` before it, so that each
    attempt has its own limit. The model reads that a tool took too long; if the tool is unsafe, that its outcome is
    unknown. `tools` has other limits for some tools, by name or pattern. A step that takes longer ends the turn as
    `Failed` with `HookTimeout`. A turn is stopped with the reason `time_limit`; the time it waits for people does not
    count.
    """

    @check_types
    def __init__(
        self,
        *,
        model: float | None = None,
        tool: float | None = None,
        tools: Mapping[str, float] | None = None,
        step: float | None = None,
        turn: float | None = None,
        name: str = "timeout",
    ) -> None:
        require_name("Timeout", name)
        require(
            "Timeout", "tools", tools, tools is None or isinstance(tools, Mapping), "a mapping from tools to seconds"
        )
        limits = {"model": model, "tool": tool, "step": step, "turn": turn}
        given = {what: seconds for what, seconds in limits.items() if seconds is not None}
        for what, seconds in {**given, **{f"tools[{one!r}]": limit for one, limit in (tools or {}).items()}}.items():
            require_seconds("Timeout", what, seconds)
        if not given and not tools:
            raise ConfigError("Timeout() limits nothing: pass model=, tool=, tools=, step= or turn=")
        self.name = name
        self.limits = given
        self.tools = dict(tools or {})

    def install(self, registrar: Hooks) -> None:
        """Register a wrap for each limit, and the criterion of the turn."""
        limits = self.limits
        if (model := limits.get("model")) is not None:
            registrar.wrap(ModelCall, name=f"{self.name}.model", read_only=True)(_model_wrap(model))
        for matcher, seconds in self.tools.items():
            wrap = registrar.wrap(ToolCall, name=f"{self.name}.{matcher}", tool=matcher, read_only=True)
            wrap(_tool_wrap(seconds))
        if (tool := limits.get("tool")) is not None:
            others: Any = {"tool": self._has_no_own_limit} if self.tools else {}
            wrap = registrar.wrap(ToolCall, name=f"{self.name}.tool", read_only=True, **others)
            wrap(_tool_wrap(tool))
        if (step := limits.get("step")) is not None:
            registrar.wrap(Step, name=f"{self.name}.step")(_step_wrap(step, f"{self.name}.step"))
        if (turn := limits.get("turn")) is not None:
            registrar.criterion(ActiveTimeLimit(turn))

    def _has_no_own_limit(self, call: ToolCall) -> bool:
        return not any(fnmatchcase(call.name, matcher) for matcher in self.tools)

    def summary(self) -> str:
        """The limits, for `explain`."""
        return ", ".join([f"{what} {seconds:g} s" for what, seconds in {**self.limits, **self.tools}.items()])


def _model_wrap(seconds: float) -> Any:
    async def limit_model_call(request: ModelRequest, call_next: CallModel, turn: Turn[Any]) -> ModelReply:
        return await within(seconds, call_next(request), turn, lambda: late_model(request, seconds))

    return limit_model_call


def _tool_wrap(seconds: float) -> Any:
    async def limit_tool_call(call: ToolCall, call_next: CallTool, turn: Turn[Any]) -> ToolResult:
        def late() -> ToolTimeout:
            return ToolTimeout(f"{call.name!r} took longer than {seconds:g} s")

        return await within(seconds, call_next(call), turn, late)

    return limit_tool_call


def _step_wrap(seconds: float, name: str) -> Any:
    async def limit_step(state: State, call_next: RunStep, turn: Turn[Any]) -> None:
        def late() -> HookTimeout:
            return HookTimeout(f"step {state.steps + 1} took longer than {seconds:g} s", hook=name, event="Step")

        await within(seconds, call_next(state), turn, late)

    return limit_step


def late_model(request: ModelRequest, seconds: float) -> ModelTimeout:
    """The error of a model call that took too long."""
    return ModelTimeout(f"model {request.model!r} took longer than {seconds:g} s")


async def within(seconds: float, work: Awaitable[T], turn: Turn[Any], late: Callable[[], Exception]) -> T:
    """The result of some work, or this error if it takes too long. A time-out of the work itself is left as it is."""
    limit = _Limit(turn, seconds)
    try:
        return await once_it_waits(work, limit)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise late() from error


class _Limit:
    """A time-out that is set when it is entered, and counts from when it was made."""

    __slots__ = ("_limit", "_seconds", "_turn", "_until", "_within")

    def __init__(self, turn: Turn[Any], seconds: float) -> None:
        self._turn = turn
        self._seconds = seconds
        self._until = turn.now() + seconds
        self._limit: asyncio.Timeout | None = None

    async def __aenter__(self) -> None:
        left = min(self._seconds, max(0.0, self._until - self._turn.now()))
        self._within = self._turn.timeout(left)
        self._limit = await self._within.__aenter__()

    async def __aexit__(self, *raised: Any) -> bool | None:
        return await self._within.__aexit__(*raised)

    def expired(self) -> bool:
        """Whether the time was up."""
        return self._limit is not None and self._limit.expired()
