"""What servers ask back during a call: approvers answer for people, and the model of the turn as a side call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from windlass import Agent, Approve, Edit, ModelCall, Reject, Respond
from windlass.mcp import MCP
from windlass.testing import FakeClock, ScriptedModel, calls, says

from .plays import agent_with, notes_of, results_of


@pytest.mark.parametrize(
    ("answer", "text", "action"),
    [
        (Edit({"city": "Bern"}), "accept: Bern", "accept"),
        (Respond("Rome"), "accept: Rome", "accept"),
        (Approve(), "decline: -", "decline"),  # a city is needed
        (Edit({"town": 3}), "decline: -", "decline"),
        (Reject("no"), "decline: -", "decline"),
        (None, "decline: -", "decline"),
        (RuntimeError("broken"), "decline: -", "decline"),
    ],
)
async def test_approvers_answer_what_a_server_asks(
    plain: Callable[..., MCP], answer: Any, text: str, action: str
) -> None:
    asked = []

    async def approver(question: Any) -> Any:
        asked.append(question)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async with agent_with(plain(elicitation=True), script=[calls("plain__ship")], approvers=[approver]) as agent:
        (result,) = await results_of(agent, "s1")
        note = (await notes_of(agent, "s1"))["mcp.elicitation"]
    assert result.text == text
    assert (note["question"], note["action"]) == ("Where to?", action)
    assert asked[0].question == "The MCP server 'plain' asks: Where to?"
    assert asked[0].details["schema"]["required"] == ["city"]


async def test_without_an_answer_in_time_a_question_is_declined_and_recorded(plain: Callable[..., MCP]) -> None:
    clock = FakeClock(auto=True)

    async def sleepy(question: Any, turn: Any) -> None:
        await turn.sleep(10_000)

    server = plain(elicitation=True, answer_timeout=60, timeout=None)
    async with agent_with(server, script=[calls("plain__ship")], approvers=[sleepy], clock=clock) as agent:
        (result,) = await results_of(agent, "s1")
        note = (await notes_of(agent, "s1"))["mcp.elicitation"]
    assert result.text == "decline: -"
    assert note["reason"]


async def test_questions_are_refused_unless_they_are_allowed(plain: Callable[..., MCP]) -> None:
    async with agent_with(plain(), script=[calls("plain__ship")], approvers=[lambda asked: Respond("Rome")]) as agent:
        (result,) = await results_of(agent)
    assert result.status == "error"


async def test_the_server_with_everything_asks_people_and_the_model(everything: list[str]) -> None:
    server = MCP("every", command=everything, elicitation=True, sampling=True)
    model = ScriptedModel(
        calls("every__trigger-sampling-request", prompt="What is a windlass?", maxTokens=50),
        says("A winch."),
        calls("every__trigger-elicitation-request"),
        says("Done."),
    )
    seen = []
    agent = Agent(model, capabilities=[server], approvers=[lambda asked: Reject("no")])

    @agent.wrap(ModelCall, side_calls=True)
    async def look(request: Any, call_next: Any) -> Any:
        seen.append(request.side)
        return await call_next(request)

    async with agent:
        sampled, asked = await results_of(agent, "s1")
        notes = await notes_of(agent, "s1")
    assert "A winch." in sampled.text
    assert "What is a windlass?" in str(model.requests[1].messages)
    assert [bool(side) for side in seen] == [False, True, False, False]
    assert asked.status == "ok"
    assert notes["mcp.elicitation"]["action"] == "decline"


async def test_sampling_is_not_offered_unless_it_is_allowed(everything: list[str]) -> None:
    async with agent_with(MCP("every", command=everything)) as agent:
        assert "every__trigger-sampling-request" not in agent.tools
