"""AG-UI events are what the official models read, and interrupts are approvals, both ways."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui.core import Event, ResumeEntry, RunAgentInput, UserMessage
from pydantic import TypeAdapter

from windlass import Agent, Ask, ToolCalling, tool
from windlass.testing import FunctionModel, ScriptedModel, calls, says

EVENTS: TypeAdapter[Any] = TypeAdapter(Event)


def body(text: str = "", **options: Any) -> Any:
    messages = [UserMessage(id="1", role="user", content=text)] if text else []
    given = RunAgentInput(thread_id="s", run_id="r", messages=messages, **options)
    return given.model_dump(by_alias=True, exclude_none=True, mode="json")


async def events(server, sent: Any) -> list[Any]:
    response = await server.client.post("/agents/ann/ag-ui", json=sent)
    assert response.status_code == 200, response.text
    lines = [line.removeprefix("data: ") for line in response.text.splitlines() if line.startswith("data: ")]
    return [EVENTS.validate_python(json.loads(line)) for line in lines]


def asking_agent() -> Agent:
    @tool
    def send(to: str) -> str:
        """Send."""
        return f"sent to {to}"

    agent = Agent(
        ScriptedModel(calls("send", to="bob"), says("all sent", chunks=["all ", "sent"])), tools=[send], name="ann"
    )

    @agent.gate(ToolCalling)
    def ask(event):
        return Ask("really?")

    return agent


def text_of(found: list[Any]) -> str:
    return "".join(event.delta for event in found if event.type == "TEXT_MESSAGE_CONTENT")


async def test_a_run_is_text_between_its_start_and_its_end(live):
    async with live(Agent(ScriptedModel(says("hello", chunks=["hel", "lo"])), name="ann")) as server:
        found = await events(server, body("hi"))
        kinds = [event.type.value for event in found]
        assert (kinds[:2], kinds[-2:]) == (["RUN_STARTED", "TEXT_MESSAGE_START"], ["TEXT_MESSAGE_END", "RUN_FINISHED"])
        assert (text_of(found), found[-1].outcome.type) == ("hello", "success")


@pytest.mark.parametrize(
    ("status", "payload", "result"),
    [("resolved", {"answer": "Edit", "arguments": {"to": "eve"}}, "sent to eve"), ("resolved", None, "sent to bob"),
     ("cancelled", None, "")],
)  # fmt: skip
async def test_a_question_is_an_interrupt_and_its_answer_resumes_the_run(live, status, payload, result):
    async with live(asking_agent()) as server:
        first = await events(server, body("hi"))
        assert [event.type.value for event in first][1:4] == ["TOOL_CALL_START", "TOOL_CALL_ARGS", "TOOL_CALL_END"]
        (interrupt,) = first[-1].outcome.interrupts
        assert (interrupt.message, interrupt.tool_call_id) == ("really?", "s/1/1")
        answer = ResumeEntry(interrupt_id=interrupt.id, status=status, payload=payload)
        second = await events(server, body(resume=[answer]))
        (returned,) = [event for event in second if event.type == "TOOL_CALL_RESULT"]
        assert result in returned.content
        assert (status == "cancelled") == ("sent to" not in returned.content)
        assert (text_of(second), second[-1].outcome.type) == ("all sent", "success")


async def test_a_failed_turn_is_a_run_error(live):
    def fail(request):
        raise ValueError("secret path")

    async with live(Agent(FunctionModel(fail), name="ann")) as server:
        found = await events(server, body("hi"))
        assert (found[-1].type, found[-1].code) == ("RUN_ERROR", "turn_failed")
        assert "secret path" not in found[-1].message


async def test_an_invalid_answer_and_tools_of_the_front_end_are_refused(live):
    async with live(asking_agent()) as server:
        await events(server, body("hi"))
        wrong = body(resume=[ResumeEntry(interrupt_id="s/1/1", status="resolved", payload={"answer": "Perhaps"})])
        assert (await server.client.post("/agents/ann/ag-ui", json=wrong)).status_code == 400
        tools = {**body("hi"), "tools": [{"name": "f", "description": "", "parameters": {}}]}
        assert (await server.client.post("/agents/ann/ag-ui", json=tools)).status_code == 400
