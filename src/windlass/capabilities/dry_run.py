"""DryRun: tools say what they would do, and do nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from windlass.decisions import Answer
from windlass.events import ToolCalling
from windlass.messages import ToolCall

from .option_types import check_types
from .options import require_name

if TYPE_CHECKING:
    from windlass import Hooks

Describe = Callable[[ToolCall], str]


class DryRun:
    """Answer calls with what they would do instead of running the tools, here and in sub-agents.

    Pure tools run, because they change nothing; with `pure=False` they do not run either. `describe` has, by the name
    of a tool, a function that says what a call would do. `tools` limits it to some tools.
    """

    @check_types
    def __init__(
        self,
        *,
        tools: Any = None,
        pure: bool = True,
        describe: Mapping[str, Describe] | None = None,
        name: str = "dry_run",
    ) -> None:
        require_name("DryRun", name)
        describe = dict(describe or {})
        self.name = name
        self.tools = tools
        self.pure = pure
        self.describe = describe

    def install(self, registrar: Hooks) -> None:
        """Register the gate, which sub-agents inherit."""
        only: Any = {} if self.tools is None else {"tool": self.tools}
        registrar.gate(ToolCalling, name=self.name, inherit=True, **only)(self._answer)
        registrar.check(lambda assembly: self._unknown(assembly.tools))

    def summary(self) -> str:
        """What it answers, for `explain`."""
        return "tools do not run" if not self.pure else "only pure tools run"

    def _answer(self, event: ToolCalling) -> Answer | None:
        call, tool = event.call, event.tool
        if tool is None or getattr(tool, "agent", None) is not None or (self.pure and tool.effect == "pure"):
            return None  # a sub-agent works, and its tools are dry
        told = self.describe.get(call.name)
        return Answer(f"Dry run, nothing was done: {told(call) if told is not None else _words(call)}")

    def _unknown(self, tools: Mapping[str, Any]) -> str | None:
        unknown = [tool for tool in self.describe if tool not in tools]
        return f"describe names {', '.join(map(repr, unknown))}, but there is no such tool" if unknown else None


def _words(call: ToolCall) -> str:
    """A call as Python would write it."""
    return f"{call.name}({', '.join(f'{name}={value!r}' for name, value in call.arguments.items())})"
