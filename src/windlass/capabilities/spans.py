"""Spans and measurements of OpenTelemetry. What goes wrong with them is logged, and never reaches a turn."""

from __future__ import annotations

import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from contextvars import Token
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from opentelemetry import context as contexts
from opentelemetry import metrics, trace
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TraceFlags

from .span_attributes import ERROR, Attributes, Value

if TYPE_CHECKING:
    from opentelemetry.context import Context
    from opentelemetry.metrics import Histogram, MeterProvider
    from opentelemetry.trace import Tracer, TracerProvider

log = logging.getLogger("windlass")

CLIENT = SpanKind.CLIENT
INTERNAL = SpanKind.INTERNAL

_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_TOKENS = (1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864)

_HISTOGRAMS: dict[str, tuple[str, str, Sequence[float]]] = {
    "gen_ai.client.operation.duration": ("s", "GenAI operation duration.", _SECONDS),
    "gen_ai.client.token.usage": ("{token}", "Number of input and output tokens used.", _TOKENS),
    "gen_ai.invoke_agent.duration": ("s", "The duration of a single agent invocation.", _SECONDS),
    "gen_ai.execute_tool.duration": ("s", "The duration of a single tool execution.", _SECONDS),
}


class Sink:
    """Where spans and measurements go: to the given providers, or to the global ones.

    `connect` looks for them. Without a real provider there is no `tracer`, or there are no `histograms`.
    """

    def __init__(self, tracer_provider: TracerProvider | None, meter_provider: MeterProvider | None) -> None:
        self._tracer_provider = tracer_provider
        self._meter_provider = meter_provider
        self.tracer: Tracer | None = None
        self.histograms: dict[str, Histogram] = {}
        self._logged: set[str] = set()

    def connect(self) -> bool:
        """Look for providers; whether there is one."""
        with self.quiet("find a provider"):
            self.tracer = _tracer(self._tracer_provider)
            self._make_histograms()
        return self.tracer is not None or bool(self.histograms)

    def _make_histograms(self) -> None:
        meters = self._meter_provider or metrics.get_meter_provider()
        if self._meter_provider is None and _is_placeholder(meters):
            self.histograms = {}
        elif not self.histograms:
            meter = meters.get_meter("windlass", _version())
            self.histograms = {
                name: meter.create_histogram(name, unit, text, explicit_bucket_boundaries_advisory=list(buckets))
                for name, (unit, text, buckets) in _HISTOGRAMS.items()
            }

    @property
    def provider(self) -> object:
        """What receives the spans: two sinks with the same one would send everything twice."""
        return self._tracer_provider or trace.get_tracer_provider()

    def start(
        self,
        name: str,
        kind: SpanKind,
        attributes: Attributes,
        began: float,
        *,
        parent: Context | None = None,
        links: Sequence[Link] = (),
    ) -> OpenSpan:
        """Start a span. Its parent is the current one, unless another context is given."""
        span: Span | None = None
        if self.tracer is not None:
            with self.quiet("start a span"):
                span = self.tracer.start_span(name, parent, kind, attributes, links, _nanoseconds(began))
        return OpenSpan(self, span, began)

    def measure(self, name: str, amount: float, attributes: Attributes) -> None:
        """Add a measurement to a histogram."""
        if (histogram := self.histograms.get(name)) is not None:
            with self.quiet("measure"):
                histogram.record(amount, attributes)

    @contextmanager
    def quiet(self, what: str) -> Generator[None, None, None]:
        """Log an error inside, once for each kind of work."""
        try:
            yield
        except Exception:
            if what not in self._logged:
                self._logged.add(what)
                log.exception("telemetry could not %s; this is logged once", what)


class OpenSpan:
    """A span under way. It is current between `enter` and `leave`, and sent once it has ended."""

    __slots__ = ("_sink", "_span", "_token", "began")

    def __init__(self, sink: Sink, span: Span | None, began: float) -> None:
        self._sink = sink
        self._span = span
        self._token: Token[Context] | None = None
        self.began = began

    @property
    def recording(self) -> bool:
        """Whether attributes are kept: not if the span was not sampled."""
        return self._span is not None and self._span.is_recording()

    @property
    def context(self) -> Context | None:
        """The context in which it is the current span."""
        return None if self._span is None else trace.set_span_in_context(self._span)

    @property
    def address(self) -> dict[str, str] | None:
        """The ids under which another process can link to it; None if it is not sent."""
        if self._span is None or not self.recording:
            return None
        found = self._span.get_span_context()
        return {"trace": trace.format_trace_id(found.trace_id), "span": trace.format_span_id(found.span_id)}

    def enter(self) -> None:
        """Make it the current span."""
        if (context := self.context) is not None:
            with self._sink.quiet("set the current span"):
                self._token = contexts.attach(context)

    def leave(self) -> None:
        """Make the span before it the current one again."""
        if self._token is not None:
            with self._sink.quiet("reset the current span"):
                contexts.detach(self._token)
            self._token = None

    def set(self, attributes: Attributes) -> None:
        """Add attributes."""
        if self._span is not None and attributes:
            with self._sink.quiet("set attributes"):
                self._span.set_attributes(attributes)

    def end(self, at: float, error: str = "") -> None:
        """End it at a time, with the type of an error if there was one."""
        if self._span is None:
            return
        with self._sink.quiet("end a span"):
            if error:
                self._span.set_attribute(ERROR, error)
                self._span.set_status(StatusCode.ERROR)
            self._span.end(_nanoseconds(max(at, self.began)))


def link_to(address: object) -> list[Link]:
    """A link to a span of an earlier process, by its ids."""
    match address:
        case {"trace": str(trace_id), "span": str(span_id)}:
            flags = TraceFlags(TraceFlags.SAMPLED)
            return [Link(SpanContext(int(trace_id, 16), int(span_id, 16), is_remote=True, trace_flags=flags))]
        case _:
            return []


def link_to_current() -> list[Link]:
    """A link to the current span, if there is one."""
    found = trace.get_current_span().get_span_context()
    return [Link(found)] if found.is_valid else []


def without_parent() -> Context:
    """The context of a span that begins a trace."""
    return contexts.Context()


def measured(attributes: dict[str, Value], error: str) -> dict[str, Value]:
    """The attributes of a measurement, with the type of an error if there was one."""
    return attributes | {ERROR: error} if error else attributes


def _tracer(given: TracerProvider | None) -> Tracer | None:
    provider = given or trace.get_tracer_provider()
    if given is None and _is_placeholder(provider):
        return None
    tracer = provider.get_tracer("windlass", _version())
    return None if isinstance(tracer, trace.NoOpTracer) else tracer


def _is_placeholder(provider: Any) -> bool:
    """Whether this is what the API offers while no SDK is set up."""
    return type(provider).__module__.startswith(("opentelemetry.trace", "opentelemetry.metrics"))


def _version() -> str | None:
    try:
        return version("windlass")
    except PackageNotFoundError:
        return None


def _nanoseconds(at: float) -> int:
    return round(at * 1_000_000) * 1000
