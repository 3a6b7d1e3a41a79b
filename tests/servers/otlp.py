"""A real OTLP receiver on loopback: what telemetry sends over the wire is decoded as any backend would."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Mapping
from http.server import HTTPServer
from typing import Any, NamedTuple

import pytest
from google.protobuf.message import Message
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from oteltest import sink as oteltest
from oteltest.sink.handler import AccumulatingHandler


class Sent(NamedTuple):
    """A span as it was received. `kind` and `status` are the names of the protocol."""

    name: str
    kind: str
    trace: bytes
    id: bytes
    parent: bytes
    status: str
    attributes: Mapping[str, Any]
    links: tuple[bytes, ...]
    began: int
    ended: int


class Receiver:
    """An OTLP receiver, and providers that send to it."""

    def __init__(self, port: int, handler: AccumulatingHandler) -> None:
        self._handler = handler
        address = f"http://127.0.0.1:{port}/v1"
        self.tracers = TracerProvider(shutdown_on_exit=False)
        self.tracers.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{address}/traces")))
        reader = PeriodicExportingMetricReader(OTLPMetricExporter(f"{address}/metrics"), 3_600_000)
        self.meters = MeterProvider([reader], shutdown_on_exit=False)

    def spans(self) -> list[Sent]:
        """All spans that have arrived, by the time when they began."""
        assert self.tracers.force_flush()
        requests = [request.pbreq for request in self._handler.telemetry.trace_requests]
        spans = [
            span
            for request in requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]
        return sorted([_sent(span) for span in spans], key=lambda span: (span.began, -span.ended))

    def measurements(self) -> dict[str, list[tuple[dict[str, Any], int, float]]]:
        """The points of the histograms that have arrived, by name: attributes, count and sum."""
        assert self.meters.force_flush()
        request = self._handler.telemetry.metric_requests[-1].pbreq
        return {
            metric.name: [
                (_attributes(point.attributes), point.count, point.sum) for point in metric.histogram.data_points
            ]
            for resource in request.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }

    def close(self) -> None:
        self.tracers.shutdown()
        self.meters.shutdown()


def _sent(span: Any) -> Sent:
    return Sent(
        span.name,
        span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        span.trace_id,
        span.span_id,
        span.parent_span_id,
        span.status.StatusCode.Name(span.status.code).removeprefix("STATUS_CODE_"),
        _attributes(span.attributes),
        tuple([link.span_id for link in span.links]),
        span.start_time_unix_nano,
        span.end_time_unix_nano,
    )


def _attributes(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: Message) -> Any:
    kind = value.WhichOneof("value")
    found = getattr(value, str(kind))
    return [_value(item) for item in found.values] if kind == "array_value" else found


@pytest.fixture
def otlp(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """The receiver of `oteltest`, which by itself takes a fixed port on all interfaces and does not say when it
    listens."""
    listening, ports = threading.Event(), []

    class OnLoopback(HTTPServer):
        def __init__(self, address: Any, handler: Any) -> None:
            super().__init__(("127.0.0.1", 0), handler)
            handler.log_message = lambda *_: None
            ports.append(self.server_port)
            listening.set()

    monkeypatch.setattr(oteltest, "HTTPServer", OnLoopback)
    handler = AccumulatingHandler()
    sink = oteltest.HttpSink(handler, logging.getLogger("oteltest"))
    sink.start()
    assert listening.wait(30)
    receiver = Receiver(ports[0], handler)
    try:
        yield receiver
    finally:
        receiver.close()
        sink.stop()
