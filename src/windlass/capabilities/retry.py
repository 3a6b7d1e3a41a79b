"""Retry: repeats failed model and tool calls, with backoff."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import TYPE_CHECKING, Any

from windlass.decisions import Fail
from windlass.errors import NotDone, RequestRefused, UnsafeRetry, is_transient
from windlass.events import Erring
from windlass.messages import ModelCall, ModelReply, ModelRequest, ToolCall, ToolResult
from windlass.randomness import random_fraction
from windlass.turns import Turn
from windlass.types import CallModel, CallTool

from .option_types import check_types
from .options import Errors, error_test, require, require_count, require_name, require_seconds

if TYPE_CHECKING:
    from windlass import Hooks


_GIVEN_UP = "windlass_given_up"
"""Marks the error of the last attempt."""


class Retry:
    """Make failed model calls again, at most `attempts` times in all, and calls of some tools.

    By default errors that may pass are retried: rate limits, overload, time-outs, lost connections. `on` names other
    errors: classes, categories of the error policy, or a function of an error. `tools` names tools whose calls are
    retried, too: a name, a pattern, a list, or a mapping from these to the number of attempts. An unsafe call is never
    repeated once it has started, unless the tool says that nothing happened. `models` limits it to some models; False
    leaves model calls alone.

    Before attempt n + 1 it waits for a random time of up to `delay * factor ** (n - 1)` seconds, at most `cap`; with
    `jitter=False`, for exactly that time. If the vendor asks for a wait, it waits at least that long. If that is more
    than `cap`, it gives up at once. The agent's error policy makes no further attempt. Several of them around the same
    call share one count: together they make as many attempts as the one with the most would make alone.
    """

    @check_types
    def __init__(
        self,
        attempts: int = 3,
        *,
        on: Errors | None = None,
        models: bool | str | Sequence[str] = True,
        tools: str | Sequence[str] | Mapping[str, int] = (),
        delay: float = 0.5,
        factor: float = 2.0,
        cap: float = 60.0,
        jitter: bool = True,
        name: str = "retry",
    ) -> None:
        require_name("Retry", name)
        require_count("Retry", "attempts", attempts)
        require_seconds("Retry", "delay", delay, zero=True)
        require_seconds("Retry", "cap", cap, zero=True)
        require("Retry", "factor", factor, type(factor) in (int, float) and factor >= 1, "a number, 1 or more")
        self.name = name
        self.attempts = attempts
        self.models = models
        self.tools = tools if isinstance(tools, Mapping) else dict.fromkeys(_names(tools), attempts)
        for tool, times in self.tools.items():
            require_count("Retry", f"tools[{tool!r}]", times)
        self.delay, self.factor, self.cap, self.jitter = delay, factor, cap, jitter
        self._matches = None if on is None else error_test("Retry", on)

    def install(self, registrar: Hooks) -> None:
        """Register the wraps, and the gate that lets the error policy make no more attempts."""
        if self.models is not False:
            only: Any = {} if self.models is True else {"model": self.models}
            registrar.wrap(ModelCall, name=self.name, read_only=True, **only)(self._retry_model)
            registrar.gate(Erring, name=f"{self.name}.give_up")(self._give_up)
        for tool, attempts in self.tools.items():
            wrap = registrar.wrap(ToolCall, name=f"{self.name}.{tool}", tool=tool, read_only=True)
            wrap(_bound(self._retry_tool, attempts))

    def summary(self) -> str:
        """What it does, for `explain`."""
        models = [] if self.models is False else [f"{self.attempts} attempts at a model call"]
        return ", ".join([*models, *[f"{count} at {tool}" for tool, count in self.tools.items()]])

    async def _retry_model(self, request: ModelRequest, call_next: CallModel, turn: Turn[Any]) -> ModelReply:
        with _AttemptsAt(f"{turn.turn_ref}/{turn.steps}/{request.model}") as attempts:
            while True:
                try:
                    attempts.begin()
                    return await call_next(request)
                except Exception as error:
                    step = turn.state.open
                    made = attempts.fail() + (0 if step is None else step.tried)  # the error policy may have made some
                    matches = self._matches or is_transient
                    wait = self._wait(error, made, self.attempts, matches)
                    if wait is None:
                        if made >= self.attempts and matches(error):
                            error.__dict__[_GIVEN_UP] = True
                        raise
                await turn.sleep(wait)

    def _give_up(self, event: Erring) -> Fail | None:
        """The policy may make attempts after errors that are not retried here, but none after the last one here."""
        return Fail() if event.error.__dict__.get(_GIVEN_UP) else None

    async def _retry_tool(self, attempts: int, call: ToolCall, call_next: CallTool, turn: Turn[Any]) -> ToolResult:
        with _AttemptsAt(call.id) as count:
            while True:
                try:
                    count.begin()
                    return await call_next(call)
                except Exception as error:
                    wait = self._wait(error, count.fail(), attempts, self._matches or _passes)
                    if wait is None:
                        raise
                    tool = turn.tools.get(call.name)
                    refused = tool is not None and not tool.repeatable and not isinstance(error, NotDone)
                if not refused:  # otherwise the next attempt is refused at once, and the model reads why
                    await turn.sleep(wait)

    def _wait(
        self, error: BaseException, made: int, attempts: int, matches: Callable[[BaseException], bool]
    ) -> float | None:
        """Seconds to wait after `made` attempts; None if there is no further attempt."""
        if made >= attempts or isinstance(error, RequestRefused | UnsafeRetry) or not matches(error):
            return None
        asked = getattr(error, "retry_after", None) or 0.0
        if asked > self.cap:
            return None
        wait = min(self.cap, self.delay * self.factor ** min(made - 1, 60))
        if self.jitter:  # also after a wait that all clients were asked for
            return float(asked + random_fraction() * self.delay if asked else random_fraction() * wait)
        return float(max(asked, wait))


class _Attempts:
    """The failed attempts at one call, counted by the innermost of the retries around it."""

    def __init__(self, place: str) -> None:
        self.place = place
        self.failed = 0
        self._counted = False

    def begin(self) -> None:
        """An attempt begins. A retry further inside may make several of it, and counts them."""
        self._counted = False

    def fail(self) -> int:
        """An attempt failed. Returns how many have."""
        if not self._counted:
            self.failed += 1
            self._counted = True
        return self.failed


_current: ContextVar[_Attempts | None] = ContextVar("windlass_retry", default=None)


class _AttemptsAt:
    """Entering it gives the attempts at a call, shared with the retries around it."""

    __slots__ = ("_place", "_token")

    def __init__(self, place: str) -> None:
        self._place = place
        self._token: Token[_Attempts | None] | None = None

    def __enter__(self) -> _Attempts:
        outer = _current.get()
        if outer is not None and outer.place == self._place:
            return outer
        made = _Attempts(self._place)
        self._token = _current.set(made)
        return made

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            _current.reset(self._token)


def _passes(error: BaseException) -> bool:
    """Whether another attempt at a tool call may succeed."""
    return isinstance(error, NotDone) or is_transient(error)


def _names(tools: str | Sequence[str]) -> list[str]:
    return [tools] if isinstance(tools, str) else list(tools)


def _bound(retry: Callable[..., Any], attempts: int) -> Callable[..., Any]:
    async def retry_tool(call: ToolCall, call_next: CallTool, turn: Turn[Any]) -> ToolResult:
        result: ToolResult = await retry(attempts, call, call_next, turn)
        return result

    return retry_tool
