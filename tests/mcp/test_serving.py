"""`windlass serve-mcp`: an agent as an MCP server, for the client of the SDK and for another agent."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
from mcp.client.stdio import StdioServerParameters

from mcp import Client
from windlass import Agent, Cancelled
from windlass.mcp import MCP
from windlass.testing import ScriptedModel, calls, says

from .plays import results_of

AGENT = f"{Path(__file__).with_name('serving_agent.py')}:agent"
WINDLASS = str(Path(sys.executable).parent / "windlass")


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "clerk.db"


@pytest.fixture
def clerk(store: Path) -> StdioServerParameters:
    return StdioServerParameters(command=WINDLASS, args=["serve-mcp", AGENT], env={"CLERK_STORE": str(store)})


async def test_a_turn_is_run_and_its_session_continued_by_another_process(clerk: StdioServerParameters) -> None:
    async with Client(clerk) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["run", "answer"]
        first = await client.call_tool("run", {"message": "hello"})
    assert first.content[0].text == "1: hello"
    assert first.structured_content["status"] == "completed"
    async with Client(clerk) as client:
        session = first.structured_content["session"]
        second = await client.call_tool("run", {"message": "again", "session": session})
    assert second.content[0].text == "3: again"


async def test_a_suspended_turn_names_its_question_and_goes_on_with_the_answer(clerk: StdioServerParameters) -> None:
    told = []

    async def progress(done: float, total: float | None, text: str | None) -> None:
        told.append(text)

    async with Client(clerk) as client:
        asked = await client.call_tool("run", {"message": "pay", "session": "s1"}, progress_callback=progress)
    assert not asked.is_error
    assert asked.structured_content["status"] == "suspended"
    (question,) = asked.structured_content["questions"]
    assert (question["question"], question["tool"]) == ("Pay it?", "pay")
    assert "session s1" in asked.content[0].text
    assert question["id"] in asked.content[0].text
    assert told == ["thinks"]
    async with Client(clerk) as client:
        wrong = await client.call_tool("answer", {"session": "s1", "question": "other", "decision": "approve"})
        done = await client.call_tool("answer", {"session": "s1", "question": question["id"], "decision": "approve"})
    assert wrong.is_error
    assert done.content[0].text == "Result: paid"


async def test_a_cancelled_request_cancels_the_turn(clerk: StdioServerParameters, store: Path) -> None:
    started = asyncio.Event()

    async def progress(done: float, total: float | None, text: str | None) -> None:
        if text == "calls wait":
            started.set()

    async with Client(clerk) as client:
        waiting = asyncio.ensure_future(
            client.call_tool("run", {"message": "wait", "session": "s1"}, progress_callback=progress)
        )
        await started.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        assert (await client.call_tool("run", {"message": "hello", "session": "s2"})).content[0].text == "1: hello"
        async with Agent(ScriptedModel(), store=f"sqlite:///{store}") as agent:
            async for _ in agent.watch("s1"):  # until the turn has ended, while the server lives
                pass
            assert isinstance((await agent.state("s1")).outcome, Cancelled)


async def test_without_answers_there_is_no_tool_for_them(clerk: StdioServerParameters) -> None:
    clerk.args.append("--no-answers")
    async with Client(clerk) as client:
        assert [tool.name for tool in (await client.list_tools()).tools] == ["run"]


async def test_an_agent_uses_another_agent_as_an_mcp_server(clerk: StdioServerParameters) -> None:
    server = MCP("clerk", command=[clerk.command, *clerk.args], env=clerk.env)
    async with Agent(ScriptedModel(calls("clerk__run", message="hi"), says("Done.")), capabilities=[server]) as agent:
        (result,) = await results_of(agent)
    assert result.text == "1: hi"


@pytest.fixture
def address(store: Path) -> Iterator[str]:
    environment = {**os.environ, "CLERK_STORE": str(store), "WINDLASS_MCP_TOKEN": "secret"}
    command = [WINDLASS, "serve-mcp", AGENT, "--http"]
    with subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        yield process.stderr.readline().split()[-1]
        process.terminate()
        assert process.wait(20) is not None


async def test_over_http_it_wants_the_token_and_its_own_host(address: str) -> None:
    token = {"Authorization": "Bearer secret"}
    async with httpx2.AsyncClient() as http:
        assert (await http.post(address, json={})).status_code == 401
        assert (await http.post(address, json={}, headers={"Authorization": "Bearer wrong"})).status_code == 401
        evil = await http.post(address, json={}, headers={**token, "Host": "evil.example"})
        assert evil.status_code in (400, 403, 421)
        foreign = await http.post(address, json={}, headers={**token, "Origin": "http://evil.example"})
        assert foreign.status_code == 403
    server = MCP("clerk", url=address, headers=token)
    async with Agent(ScriptedModel(calls("clerk__run", message="hi"), says("Done.")), capabilities=[server]) as agent:
        (result,) = await results_of(agent)
    assert result.text == "1: hi"
