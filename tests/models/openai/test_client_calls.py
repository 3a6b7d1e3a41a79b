"""Calls of Responses that your program would have to run: they end the turn, and say so."""

from __future__ import annotations

from typing import Any

import pytest
from tests.models.openai.serving import Server
from tests.models.openai.test_responses import answer, events, text

from windlass import Agent, ModelReplying
from windlass.models import open_model
from windlass.outcomes import Completed, Stopped, StopReason
from windlass.records import ReplyRejected

CALLS: list[dict[str, Any]] = [
    {
        "type": "local_shell_call",
        "id": "item_7",
        "call_id": "c",
        "action": {"type": "exec", "command": ["ls"], "env": {}},
    },
    {
        "type": "shell_call",
        "id": "item_7",
        "call_id": "c",
        "environment": {"type": "local"},
        "action": {"commands": ["ls"]},
    },
    {"type": "computer_call", "id": "item_7", "call_id": "c", "action": {"type": "click"}},
    {"type": "apply_patch_call", "id": "item_7", "call_id": "c", "operation": {}},
    {"type": "custom_tool_call", "id": "item_7", "call_id": "c", "name": "sql", "input": "select 1"},
    {"type": "tool_search_call", "id": "item_7", "call_id": "c", "execution": "client", "arguments": {}},
    {"type": "mcp_approval_request", "id": "item_7", "server_label": "s", "name": "t", "arguments": "{}"},
    {"type": "telepathy_call", "id": "item_7", "call_id": "c", "thought": "a new kind of call"},
]
RUN = [
    {"type": "shell_call", "id": "item_7", "environment": {"type": "container_reference", "container_id": "c"}},
    {"type": "tool_search_call", "id": "item_7", "arguments": {}},
    {"type": "telepathy_call", "id": "item_7"},
    {"type": "mcp_call", "id": "item_7", "server_label": "s", "name": "t", "arguments": "{}", "output": "o"},
]


SPENT = {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15}


def streamed(*items: dict[str, Any]) -> bytes:
    told = [{"type": "response.output_item.done", "output_index": at, "item": one} for at, one in enumerate(items)]
    return events(*told, {"type": "response.completed", "response": answer(*items, usage=SPENT)}, done=False)


@pytest.mark.parametrize("streaming", [False, True], ids=["run", "stream"])
@pytest.mark.parametrize("hooked", [False, True], ids=["plain", "hooked"])
@pytest.mark.parametrize("item", CALLS, ids=[item["type"] for item in CALLS])
async def test_a_call_that_nobody_here_can_run_ends_the_turn_and_is_named(
    item: Any, hooked: bool, streaming: bool
) -> None:
    server = Server(
        streamed(text("So:"), item) if streaming else answer(text("So:"), item, usage=SPENT), answer(text("Hi."))
    )
    agent = Agent(open_model("openai-responses:gpt-5", client=server.client))
    if hooked:
        agent.gate(ModelReplying)(lambda event: None)
    if streaming:
        async with agent.stream("x", session="s") as stream:
            async for _ in stream:
                pass
        result = stream.result
    else:
        result = await agent.run("x", session="s")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is StopReason.UNSUPPORTED_CALL
    named = "custom_tool_call 'sql'" if item["type"] == "custom_tool_call" else item["type"]
    assert f"the model asked for {named}, which your program would have to run" in result.outcome.detail
    assert result.usage.requests == 1
    assert result.usage.total == 15
    state = await agent.state("s")
    assert [message.role for message in state.messages] == ["user"]
    assert any(isinstance(record, ReplyRejected) for record in await agent.store.read("s"))
    assert isinstance((await agent.run("y", session="s")).outcome, Completed)
    assert item["id"] not in str(server.asked[1]["input"])


@pytest.mark.parametrize("item", RUN, ids=[item["type"] for item in RUN])
async def test_what_the_vendor_has_run_does_not_end_the_turn(item: Any) -> None:
    server = Server(answer(item, text("So.")))
    result = await Agent(open_model("openai-responses:gpt-5", client=server.client)).run("x")
    assert isinstance(result.outcome, Completed)
    assert result.text == "So."
