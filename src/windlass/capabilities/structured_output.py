"""StructuredOutput: says how the typed answer of an agent is obtained and repaired."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from windlass.errors import ConfigError
from windlass.messages import Messages, ModelRequest
from windlass.models.outputs import TOOL, takes_output
from windlass.outputs import FEEDBACK, OutputMode

from .option_types import check_types
from .options import require_count, require_name

if TYPE_CHECKING:
    from windlass import Assembly, Hooks

THROUGH_TOOL = f"{{error}}. Call {TOOL} again with the whole answer."
"""What the model reads about an answer that it gave through the tool."""


class StructuredOutput:
    """Say how the typed answer of `Agent(output=…)` is obtained.

    - `mode="auto"`: as the vendor offers it, and through a tool where it offers nothing.
    - `mode="native"`: only as the vendor offers it; a model that cannot is refused when the agent is compiled.
    - `mode="tool"`: the model calls the tool `final_answer` with the answer.
    - `mode="prompt"`: the schema stands in the system text.

    An answer that does not fit is asked for again at most `repairs` times, by default as often as
    `Agent(max_regenerations=…)` allows. The model reads `feedback`, in which `{error}` is what is wrong. An answer that
    was cut off is not asked for again: the turn stops with the reason `length`.
    """

    @check_types
    def __init__(
        self,
        mode: OutputMode = "auto",
        *,
        repairs: int | None = None,
        feedback: str | None = None,
        name: str = "structured_output",
    ) -> None:
        require_name("StructuredOutput", name)
        if repairs is not None:
            require_count("StructuredOutput", "repairs", repairs, least=0)
        if feedback is not None and "{error}" not in feedback:
            raise ConfigError("StructuredOutput: feedback must contain {error}, or the model cannot know what is wrong")
        self.name = name
        self.mode: OutputMode = mode
        self.repairs = repairs
        self.feedback = feedback or (THROUGH_TOOL if mode == "tool" else FEEDBACK)

    def install(self, registrar: Hooks) -> None:
        """Set the rule, and check it when the agent is compiled."""
        registrar.output(mode=self.mode, repairs=self.repairs, feedback=self.feedback)
        registrar.check(self._problem)

    def summary(self) -> str:
        """The mode and the repairs, for `explain`."""
        repairs = "as many repairs as regenerations" if self.repairs is None else f"at most {self.repairs} repairs"
        return f"mode {self.mode}, {repairs}"

    def _problem(self, assembly: Assembly) -> str | None:
        most = assembly.bounds["max_regenerations"]
        if self.repairs is not None and self.repairs > most:
            return (
                f"repairs={self.repairs} is more than Agent(max_regenerations={most}) allows; raise max_regenerations"
            )
        if self.mode in ("auto", "tool") and TOOL in assembly.tools:
            return f"the agent has a tool named {TOOL!r}, which this needs itself: rename yours"
        if self.mode == "native" and not takes_output(assembly.model, _request(assembly.model.name, assembly)):
            return f"model {assembly.model.name!r} cannot be given a schema with these tools; use mode='auto'"
        return None


def _request(model: str, assembly: Assembly) -> ModelRequest:
    tools = tuple([one.shown for one in assembly.tools.values()])
    settings: Mapping[str, Any] = assembly.settings
    return ModelRequest("", Messages(), tools, model, settings, output={"type": "object"})
