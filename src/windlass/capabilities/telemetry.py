"""Telemetry: OpenTelemetry spans and metrics of turns, model calls, tool calls and hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.errors import ConfigError
from windlass.events import HookRan
from windlass.messages import ModelCall, ToolCall
from windlass.states import Step
from windlass.turns import Turn

from .option_types import check_types
from .options import require, require_name, require_seconds
from .span_attributes import Extra

if TYPE_CHECKING:
    from opentelemetry.metrics import MeterProvider
    from opentelemetry.trace import TracerProvider

    from windlass import Hooks

_OUTERMOST = 1_000_000
_INNERMOST = -1_000_000


class Telemetry:
    """Trace agents with OpenTelemetry, under the names of its conventions for generative AI.

    A turn is a span `invoke_agent`, each attempt at a model call a span `chat`, each attempt at a tool call a span
    `execute_tool`; a hook has a span if it decided something, or took longer than `hooks` seconds (None: no spans of
    hooks). Each is the current span while its work runs. Sub-agents are traced, too; those in the background, and turns
    that are resumed, have a link to the earlier span. Tokens and durations are measured.

    Spans go to `tracer_provider` and metrics to `meter_provider`, by default the global ones of the moment when the
    agent is compiled. If there are none, it adds no hook to the agent. What people, models and tools said is left out
    unless `content` is true; then it is captured as the log has it, without secrets. `attributes` are added to the
    spans of turns: a mapping, or a function of the turn. Errors of providers and exporters are logged, and never reach
    a turn.
    """

    @check_types
    def __init__(
        self,
        *,
        tracer_provider: TracerProvider | None = None,
        meter_provider: MeterProvider | None = None,
        content: bool = False,
        hooks: float | None = 0.001,
        attributes: Extra | None = None,
        name: str = "telemetry",
    ) -> None:
        require_name("Telemetry", name)
        if hooks is not None:
            require_seconds("Telemetry", "hooks", hooks, zero=True)
        try:
            from .spans import Sink
        except ImportError as error:
            raise ConfigError(f"Telemetry needs opentelemetry-api ({error}): pip install 'windlass[otel]'") from error
        for option, given, method in (
            ("tracer_provider", tracer_provider, "get_tracer"),
            ("meter_provider", meter_provider, "get_meter"),
        ):
            require("Telemetry", option, given, given is None or hasattr(given, method), f"an object with {method}")
        self.name = name
        self.content = content
        self.hooks = hooks
        self.attributes = attributes
        self._sink = Sink(tracer_provider, meter_provider)

    def install(self, registrar: Hooks) -> None:
        """Register wraps of turns, steps, model calls and tool calls, and observers, if there is a provider."""
        from .late_content import FACTS
        from .turn_tracing import TurnTracing

        mask = registrar.mask if self.content else None
        tracing = TurnTracing(self._sink, self.name, self.hooks, self.attributes, mask)
        common: Any = {"inherit": True, "enabled": self._sink.connect}
        registrar.wrap(Turn, name=f"{self.name}.turn", band="early", priority=_OUTERMOST, **common)(tracing.trace_turn)
        inner: Any = {**common, "priority": _INNERMOST, "read_only": True}
        registrar.wrap(ModelCall, name=f"{self.name}.model", side_calls=True, **inner)(tracing.trace_model)
        registrar.wrap(ToolCall, name=f"{self.name}.tool", **inner)(tracing.trace_tool)
        registrar.wrap(Step, name=f"{self.name}.step", inherit=True, enabled=self._traces)(tracing.note_span)
        if self.hooks is not None:
            registrar.observe(HookRan, name=f"{self.name}.hook", wait=True, enabled=self._traces)(tracing.trace_hook)
        for fact in FACTS if self.content else ():
            name = f"{self.name}.{fact.__name__}"
            registrar.observe(fact, name=name, wait=True, enabled=self._traces)(tracing.add_content)

    def _traces(self) -> bool:
        """Whether there is a provider of tracers."""
        return self._sink.connect() and self._sink.tracer is not None

    def summary(self) -> str:
        """What is sent, for `explain`."""
        if not self._sink.connect():
            return "off: no OpenTelemetry provider is set up"
        spans = [] if self._sink.tracer is None else ["spans"]
        if spans and self.hooks is not None:
            spans.append(f"of hooks over {self.hooks * 1000:g} ms too")
        metrics = ["metrics"] if self._sink.histograms else []
        return ", ".join([*spans, *metrics, "with content" if self.content else "without content"])
