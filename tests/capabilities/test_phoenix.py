"""Telemetry and Arize Phoenix: a backend of the field understands the spans. `make phoenix` runs this."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from windlass import Agent, Allow, ToolCalling, tool
from windlass.capabilities import Telemetry
from windlass.messages import Usage
from windlass.testing import ScriptedModel, calls, says

PHOENIX = os.environ.get("WINDLASS_PHOENIX", "")
PATIENCE = 120.0


@pytest.fixture
def phoenix(tmp_path: Path) -> Iterator[str]:
    """The address of a Phoenix that listens on loopback only."""
    port, grpc = free_ports()
    environment = {
        **os.environ,
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PHOENIX_WORKING_DIR": str(tmp_path),
    }
    with (tmp_path / "phoenix.log").open("w") as log:
        process = subprocess.Popen([PHOENIX, "serve"], env=environment, stdout=log, stderr=log)
    address = f"http://127.0.0.1:{port}"
    try:
        until = time.monotonic() + PATIENCE
        while not is_up(address):
            assert process.poll() is None, (tmp_path / "phoenix.log").read_text()
            assert time.monotonic() < until, "Phoenix does not answer"
            time.sleep(0.5)
        yield address
    finally:
        process.terminate()
        process.wait(30)


def free_ports() -> tuple[int, int]:
    with socket.socket() as one, socket.socket() as other:
        for each in (one, other):
            each.bind(("127.0.0.1", 0))
        return one.getsockname()[1], other.getsockname()[1]


def is_up(address: str) -> bool:
    try:
        with urllib.request.urlopen(f"{address}/healthz", timeout=5):
            return True
    except OSError:
        return False


def spans_at(address: str, count: int) -> list[dict[str, Any]]:
    """The spans that Phoenix has stored; it does so a moment after it received them."""
    until = time.monotonic() + PATIENCE
    while True:
        with urllib.request.urlopen(f"{address}/v1/projects/default/spans?limit=100", timeout=30) as answer:
            spans: list[dict[str, Any]] = json.load(answer)["data"]
        if len(spans) >= count or time.monotonic() > until:
            return spans
        time.sleep(0.5)


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_phoenix_understands_kinds_parents_and_token_counts(phoenix):
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(f"{phoenix}/v1/traces")))
    child = Agent(ScriptedModel(says("mine", usage=Usage(7, 3)), name="openai:gpt-5-mini"), name="child")
    model = ScriptedModel(
        calls([("add", {"a": 1, "b": 2}), ("child", {"task": "go"})], _usage=Usage(100, 20)),
        says("done", usage=Usage(150, 10)),
        name="openai:gpt-5",
    )
    agent = Agent(model, tools=[add, child.as_tool()], name="root")
    agent.with_capability(Telemetry(tracer_provider=provider, content=True, hooks=60))
    agent.gate(ToolCalling, tool="add", name="allow_add")(lambda event: Allow())
    await agent.run("Add 1 and 2.", session="s")
    provider.shutdown()
    spans = spans_at(phoenix, 8)
    names = {span["context"]["span_id"]: span["name"] for span in spans}
    assert sorted((span["span_kind"], span["name"], names.get(span["parent_id"])) for span in spans) == [
        ("AGENT", "invoke_agent child", "execute_tool child"),
        ("AGENT", "invoke_agent root", None),
        ("LLM", "chat gpt-5", "invoke_agent root"),
        ("LLM", "chat gpt-5", "invoke_agent root"),
        ("LLM", "chat gpt-5-mini", "invoke_agent child"),
        ("TOOL", "execute_tool add", "invoke_agent root"),
        ("TOOL", "execute_tool child", "invoke_agent root"),
        ("UNKNOWN", "hook allow_add", "invoke_agent root"),
    ]
    counted = {span["name"]: span["attributes"].get("llm.token_count.total") for span in spans if span["parent_id"]}
    assert counted["chat gpt-5-mini"] == 10
    assert sum(span["attributes"].get("llm.token_count.total", 0) for span in spans) == 120 + 160 + 10
    [added] = [span["attributes"] for span in spans if span["name"] == "execute_tool add"]
    assert (added["tool.name"], added["tool.parameters.a"], added["output.value"]) == ("add", 1, "3")
    first = min([span for span in spans if span["name"] == "chat gpt-5"], key=lambda span: span["start_time"])
    assert first["attributes"]["llm.model_name"] == "gpt-5"
    assert first["attributes"]["llm.input_messages.0.message.content"] == "Add 1 and 2."
    call = "llm.output_messages.0.message.tool_calls.0.tool_call.function"
    assert first["attributes"][f"{call}.name"] == "add"
