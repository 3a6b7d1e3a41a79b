"""Agents with real MCP servers: two from npm and one written with the SDK, over pipes and over HTTP."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from windlass import Deny, ImagePart, Progressed, ToolCalling
from windlass.mcp import MCP
from windlass.testing import calls

from .plays import agent_with, result_of, results_of

NODE = str(Path(sys.executable).parent / "node")


async def test_tools_of_the_server_with_everything(everything: list[str]) -> None:
    script = [
        calls("every__echo", message="hi"),
        calls("every__get-sum", a=2, b=3),
        calls("every__get-tiny-image"),
        calls("every__get-structured-content", location="New York"),
        calls("every__get-annotated-message", messageType="error", includeImage=True),
        calls("every__get-resource-reference", resourceType="Text", resourceId=1),
        calls("every__get-resource-links", count=2),
    ]
    async with agent_with(MCP("every", command=everything), script=script) as agent:
        echo, total, image, weather, message, embedded, links = await results_of(agent)
    assert echo.text == "Echo: hi"
    assert "5" in total.text
    assert any(isinstance(part, ImagePart) and part.media_type == "image/png" for part in image.content)
    assert set(weather.data) == {"temperature", "conditions", "humidity"}
    assert "Error" in message.text
    assert len(embedded.content) >= 2
    assert "[resource " in links.text


async def test_resources_and_prompts_of_the_server_with_everything(everything: list[str]) -> None:
    mcp = MCP("every", command=everything)
    script = [calls("every__list_resources"), calls("every__read_resource", uri="demo://resource/dynamic/text/1")]
    async with agent_with(mcp, script=script) as agent:
        listed, read = await results_of(agent)
        names = [prompt.name for prompt in await mcp.prompts()]
        messages = await mcp.prompt("args-prompt", city="Bern")
        (part,) = await mcp.read("demo://resource/dynamic/text/1")
    assert "demo://resource/" in listed.text
    assert read.status == "ok"
    assert read.text
    assert "args-prompt" in names
    assert messages[0].role == "user"
    assert "Bern" in messages[0].text
    assert part.text


async def test_the_filesystem_server_reads_and_its_hints_count_if_trusted(npm: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    command = [NODE, str(npm / "server-filesystem" / "dist" / "index.js"), str(tmp_path)]
    wary = agent_with(MCP("fs", command=command))
    assert {tool.effect for name, tool in wary.tools.items() if "_resource" not in name} == {"unsafe"}
    assert not any(tool.annotations.read_only for tool in wary.tools.values())
    trusting = MCP("fs", command=command, trust_hints=True, effects={"write_file": "idempotent"})
    script = [calls("fs__read_text_file", path=str(tmp_path / "a.txt"))]
    async with agent_with(trusting, script=script) as agent:
        assert agent.tools["fs__read_text_file"].effect == "pure"
        assert agent.tools["fs__read_text_file"].annotations.read_only
        assert agent.tools["fs__write_file"].effect == "idempotent"
        assert agent.tools["fs__edit_file"].effect == "unsafe"
        (result,) = await results_of(agent)
    assert result.text == "alpha"
    await wary.aclose()


async def test_the_server_with_everything_over_http(everything_http: str) -> None:
    result = await result_of(MCP("every", url=everything_http), "every__echo", message="over HTTP")
    assert result.text == "Echo: over HTTP"


async def test_a_server_of_the_sdk_over_http(plain_http: str) -> None:
    result = await result_of(MCP("plain", url=plain_http), "plain__add", a=4)
    assert result.text == "5"


async def test_defaults_of_the_schema_are_filled_in_before_hooks_see_a_call(plain: Callable[..., MCP]) -> None:
    seen = []
    async with agent_with(plain(), script=[calls("plain__add", a=4), calls("plain__add", a="four")]) as agent:

        @agent.gate(ToolCalling)
        def look(event: ToolCalling) -> None:
            seen.append(event.call.arguments)

        good, bad = await results_of(agent)
    assert seen == [{"a": 4, "b": 1}]
    assert good.text == "5"
    assert bad.status == "error"
    assert "'four' is not of type 'integer' - at `$.a`" in bad.text


async def test_a_gate_refuses_a_call_before_the_server_gets_it(plain: Callable[..., MCP]) -> None:
    async with agent_with(plain(), script=[calls("plain__store", text="x")]) as agent:

        @agent.gate(ToolCalling, tool="plain__store")
        def refuse(event: ToolCalling) -> Deny:
            return Deny("not today")

        (result,) = await results_of(agent)
    assert result.status == "denied"


async def test_an_error_of_a_tool_is_a_result_with_that_status(plain: Callable[..., MCP]) -> None:
    result = await result_of(plain(), "plain__fail")
    assert result.status == "error"
    assert "Error executing tool fail" in result.text


async def test_progress_of_a_call_reaches_the_stream(plain: Callable[..., MCP]) -> None:
    async with agent_with(plain(), script=[calls("plain__work")]) as agent:
        told = [event async for event in agent.stream("Go.") if isinstance(event, Progressed)]
    assert [(one.done, one.total, one.text) for one in told] == [(n, 3, f"step {n}") for n in (1, 2, 3)]


async def test_a_cancelled_call_reaches_the_server_and_the_session_goes_on(plain: Callable[..., MCP]) -> None:
    mcp = plain(timeout=1.0)
    async with agent_with(mcp, script=[calls("plain__wait"), calls("plain__count_cancelled")]) as agent:
        waited, counted = await results_of(agent)
    assert waited.status == "interrupted"
    assert counted.text == "1"


async def test_only_some_tools_without_a_prefix(plain: Callable[..., MCP]) -> None:
    agent = agent_with(plain(tools=["a*", "store"], prefix=False, resources=False), script=[calls("add", a=1)])
    async with agent:
        assert list(agent.tools) == ["add", "store"]
        (result,) = await results_of(agent)
    assert result.text == "2"
