"""Delegation: a tool that hands its task to another agent, and the way of such a call through its
hooks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage
from windlass._hooks.hooks import Hook
from windlass._hooks.merging import strictest
from windlass.decisions import Allow, Ask
from windlass.errors import ConfigError, ToolError
from windlass.events import Delegating, ToolCalling
from windlass.masking import Mask
from windlass.messages import Delegation, ToolCall
from windlass.records import Injected
from windlass.tools import Tool

if TYPE_CHECKING:
    from .program import Program


Compiles: TypeAlias = "Callable[[Program, tuple[str, ...] | None], Program]"
"""What makes an agent a child of another one, with these of its tools."""

AFTER_CALLS = frozenset(
    [
        "MessageAdding",
        "StepEnding",
        "Continuing",
        "Stopping",
        "SubagentStopping",
        "Erring",
        "TurnEnding",
    ]
)
"""The events that may still come when the calls of a step are over."""

FROM_CALLS = AFTER_CALLS | {"ToolCall", "ToolReturning"}
"""The events and effects that may still come when the calls of a step are decided."""


class Delegate(Tool[..., Any]):
    """An agent as a tool.

    It is `resumable`: what its session holds is not done again, so it is never in doubt. `parts`
    returns the secrets of the agent, its tools and the agents that it has declared, `result` makes a
    result of its turn.
    """

    __slots__ = ("agent", "compiled", "only", "parts", "result", "share")

    def __init__(
        self,
        agent: str,
        compiled: Compiles,
        parts: Callable[[], tuple[Mask | None, Iterable[Tool[..., Any]]]],
        result: Callable[..., Any],
        name: str | None,
        description: str | None,
        share: float | None,
        tools: Sequence[str] | None,
    ) -> None:
        async def delegate(task: str) -> str:
            """Hand a task to another agent and wait for what it says.

            Args:
                task: What to do, with all that has to be known for it.
            """
            raise ToolError(
                f"tool {self.name!r} hands its task to an agent; it works only where a turn calls it"
            )

        text = (
            description
            or f"Hand a task to the agent {agent!r}, which works on it alone and says what it found."
        )
        super().__init__(delegate, {"name": name or agent, "description": text}, {})
        number = isinstance(share, int | float) and not isinstance(share, bool)
        if share is not None and not (number and 0 < share <= 1):
            raise ConfigError(
                f"share={share!r} for agent {agent!r}: it must be a number above 0 and at most 1"
            )
        given: object = tools
        if isinstance(given, str):
            raise ConfigError(f"tools={tools!r} for agent {agent!r}: give a list of names")
        self.effect, self.in_doubt = "resumable", "rerun"
        self.agent = agent
        self.compiled = compiled
        self.parts = parts
        self.result = result
        self.share = share
        self.only = None if tools is None else tuple(tools)

    def delegation(self, task: str) -> Delegation:
        """What is handed over with a task if no hook changes it."""
        return Delegation(self.agent, task, self.share, self.only)


class Handing(Passage, kw_only=True):
    """A call that hands over a task, on its way through `ToolCalling` and then `Delegating`.

    Both may rewrite before either judges, so that all gates see the final task. `default` is what
    holds if no gate on `ToolCalling` answers; `delegation` is what is handed over, `offered` what
    it is if nobody changes it.
    """

    offered: Callable[[str], Delegation]
    second: Point | None
    default: Any
    delegation: Delegation | None = None
    delegating: Passage | None = None

    def names(self) -> tuple[str, ...]:
        """Who has answered at `Delegating`."""
        return (
            () if self.delegating is None else tuple([name for name, _ in self.delegating.answers])
        )

    def _prepare(self) -> Passage | None:
        """The second half of the way, if there is a task and somebody looks at it."""
        call: ToolCall = self.event.call
        task = call.arguments.get("task")
        if self.delegating is None and isinstance(task, str):
            given = self.delegation or self.offered(task)
            self.delegation = given if given.task == task else given.replace(task=task)
            if self.second is not None:
                event = Delegating(self.delegation, self.event.turn, self.event.tool)
                self.delegating = Passage(
                    self.second, event, self.site, self.about, heard=self.heard
                )
        return self.delegating

    async def rewrite(self) -> Any:
        await Passage.rewrite(self)
        if (delegating := self._prepare()) is not None:
            self.delegation = given = (await delegating.rewrite()).task
            call: ToolCall = self.event.call
            if call.arguments.get("task") != given.task:
                self.event = replace(
                    self.event, call=call.replace(arguments={**call.arguments, "task": given.task})
                )
        return self.event

    async def judge(self, only: Callable[[Hook], bool] | None = None) -> Any:
        verdict = await Passage.judge(self, only)
        verdict = self.default if verdict is None else verdict
        delegating = self._prepare()
        if delegating is None or not isinstance(verdict, Allow | Ask):
            return verdict
        await delegating.judge(only)
        before = self.answers or (("default", self.default),)
        self.answers = (*self.answers, *delegating.answers)
        self.took += delegating.took
        return strictest(ToolCalling, (*before, *delegating.answers))

    @property
    def injects(self) -> bool:
        return True

    async def inject(
        self, about: str | None = None, only: Callable[[Hook], bool] | None = None
    ) -> list[Injected]:
        items = await Passage.inject(self, about, only)
        if (delegating := self._prepare()) is not None:
            items += await delegating.inject(f"{self.event.call.id}/t1", only)
        return items
