"""The conformance kit of Agent Hooks 0.1: all 75 vectors, over a host that buffers and one that does not."""

from typing import Any

import pytest
from agent_hooks.ctk.runner import load_vectors, run_vector

from .hosts import BufferedHost, IncrementalHost, StreamingBufferedHost, TerminatingHost

VECTORS = load_vectors(None)
INCREMENTAL = [vector for vector in VECTORS if "incremental_output" in vector["capabilities"]]
BUFFERED = [vector for vector in VECTORS if vector not in INCREMENTAL]
POSTURES = [vector for vector in VECTORS if "run_outcome_by_posture" in vector["expect"]]


def test_the_kit_has_all_its_vectors() -> None:
    assert (len(BUFFERED), len(INCREMENTAL), len(POSTURES)) == (71, 4, 13)
    unchecked = [
        vector for vector in VECTORS if {"released_output", "persisted_must_not_contain"} & set(vector["expect"])
    ]
    assert [vector for vector in unchecked if vector not in INCREMENTAL] == []


def names(vectors: list[dict[str, Any]]) -> list[str]:
    return [vector["id"] for vector in vectors]


@pytest.mark.parametrize("host", [BufferedHost, StreamingBufferedHost])
@pytest.mark.parametrize("vector", BUFFERED, ids=names(BUFFERED))
async def test_a_buffered_host_conforms(vector: dict[str, Any], host: type[BufferedHost]) -> None:
    result = await run_vector(host(), vector)
    assert result.status == "pass", (result.detail, result.failures)


@pytest.mark.parametrize("vector", POSTURES, ids=names(POSTURES))
async def test_a_host_whose_turns_end_on_failures_at_tool_calls_conforms(vector: dict[str, Any]) -> None:
    result = await run_vector(TerminatingHost(), vector)
    assert result.status == "pass", (result.detail, result.failures)


@pytest.mark.parametrize("vector", INCREMENTAL, ids=names(INCREMENTAL))
async def test_an_incremental_host_conforms(vector: dict[str, Any]) -> None:
    host = IncrementalHost()
    result = await run_vector(host, vector)
    assert result.status == "pass", (result.detail, result.failures)
    # The kit does not look at these two.
    assert host.released == vector["expect"]["released_output"]
    assert host.persisted.startswith(b"SQLite format 3")
    for text in vector["expect"].get("persisted_must_not_contain", ()):
        assert text.encode() not in host.persisted
