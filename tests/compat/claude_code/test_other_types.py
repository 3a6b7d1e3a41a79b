"""Hooks that are no commands: requests, tools of MCP servers, and questions to a model."""

from __future__ import annotations

import json
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from windlass import Stopped
from windlass.errors import ConfigError
from windlass.testing import ScriptedModel, calls, says
from windlass.tools import tool

from .plays import Project, on, results


class Service:
    """A service on this machine that answers every request with what it was told to."""

    def __init__(self) -> None:
        self.answer: tuple[int, str] = (200, "")
        self.requests: list[tuple[dict[str, str], Any]] = []
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.requests.append((dict(self.headers), json.loads(body)))
                code, text = service.answer
                self.send_response(code)
                self.send_header("Content-Length", str(len(text.encode())))
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/hook"


@pytest.fixture
def service() -> Generator[Service, None, None]:
    made = Service()
    thread = threading.Thread(target=made.server.serve_forever)
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


DENY = json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "deny"}})


@pytest.mark.parametrize(
    ("answer", "status", "why"),
    [
        ((200, DENY), "denied", ""),
        ((200, ""), "ok", ""),
        ((204, ""), "ok", ""),
        ((403, DENY), "ok", "the webhook answered 403"),
        ((200, "denied"), "ok", "did not answer with a JSON object"),
        ((200, '{"decision": "no"}'), "ok", "decision is 'no'"),
    ],
)
async def test_a_request_is_answered_like_stdout(
    project: Project, service: Service, answer: tuple[int, str], status: str, why: str
):
    service.answer = answer
    hooks = project.load(on("PreToolUse", {"type": "http", "url": service.url}))
    result = await project.play(hooks, calls("shell", command="ls"))
    assert results(result)[0].status == status
    assert why in hooks.runs[0].why
    assert service.requests[0][1]["tool_input"] == {"command": "ls"}


async def test_a_header_has_only_the_variables_that_it_may_use(
    project: Project, service: Service, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HOOK_TOKEN", "abc")
    monkeypatch.setenv("OTHER_TOKEN", "secret")
    headers = {"Authorization": "Bearer $HOOK_TOKEN", "X-Other": "<${OTHER_TOKEN}>"}
    handler = {"type": "http", "url": service.url, "headers": headers, "allowedEnvVars": ["HOOK_TOKEN"]}
    await project.play(project.load(on("PreToolUse", handler)), calls("shell", command="ls"))
    assert service.requests[0][0]["Authorization"] == "Bearer abc"
    assert service.requests[0][0]["X-Other"] == "<>"


async def test_only_listed_addresses_are_posted_to(project: Project, service: Service):
    handler = {"type": "http", "url": service.url}
    allowed = {"allowedHttpHookUrls": ["https://hooks.example.org/*"]}
    hooks = project.load(on("PreToolUse", handler), settings=[allowed])
    await project.play(hooks, calls("shell", command="ls"))
    assert service.requests == []
    assert "allowedHttpHookUrls" in hooks.runs[0].why


@pytest.mark.parametrize(
    ("reply", "fields", "status", "text"),
    [
        ('{"ok": true}', {}, "ok", "ran ls"),
        ('Well: {"ok": false, "reason": "too risky"}', {"continueOnBlock": True}, "denied", "Denied: too risky"),
        ("I think so", {}, "ok", "ran ls"),
        ("I think so", {"onFailure": "block"}, "denied", "did not answer with ok"),
    ],
)
async def test_a_model_judges_a_call(project: Project, reply: str, fields: dict[str, Any], status: str, text: str):
    handler = {"type": "prompt", "prompt": "May this run? $ARGUMENTS", **fields}
    judge = ScriptedModel(says(reply), name="judge")
    hooks = project.load(on("PreToolUse", handler), prompt_model=judge)
    result = await project.play(hooks, calls("shell", command="ls"))
    assert (results(result)[0].status, text in results(result)[0].text) == (status, True)
    assert '"tool_input":{"command":"ls"}' in judge.requests[0].messages[-1].text


async def test_a_model_that_refuses_ends_the_turn(project: Project):
    judge = ScriptedModel(says('{"ok": false, "reason": "stop here"}'), name="judge")
    hooks = project.load(on("PreToolUse", {"type": "prompt", "prompt": "May this run?"}), prompt_model=judge)
    result = await project.play(hooks, calls("shell", command="ls"))
    assert isinstance(result.outcome, Stopped)
    assert result.text == "stop here"


class Memory:
    """Stands for an MCP server: a capability with its name and a tool."""

    name = "mcp:memory"

    def __init__(self) -> None:
        self.asked: list[str] = []

    def install(self, registrar: Any) -> None:
        @tool(inline=True, name="memory__check")
        def check(path: str) -> str:
            """Check a path."""
            self.asked.append(path)
            return json.dumps({"decision": "block", "reason": f"remembered: {path}"})

        registrar.tool(check)


async def test_a_tool_of_a_server_is_a_hook(project: Project):
    memory = Memory()
    handler = {"type": "mcp_tool", "server": "memory", "tool": "check", "input": {"path": "${tool_input.file_path}"}}
    hooks = project.load(on("PreToolUse", handler, matcher="Write"))
    result = await project.play(hooks, calls("write", path="a.txt", content="x"), capabilities=[memory])
    assert results(result)[0].text == f"Denied: remembered: {project.folder / 'a.txt'}"
    assert memory.asked == [str(project.folder / "a.txt")]


async def test_tools_of_servers_have_the_names_of_claude_code(project: Project):
    settings = on("PreToolUse", "record.sh", "former_block.sh", matcher="mcp__memory__.*")
    result = await project.play(project.load(settings), calls("memory__check", path="x"), capabilities=[Memory()])
    assert results(result)[0].status == "denied"
    assert project.seen("PreToolUse")[0]["tool_name"] == "mcp__memory__check"
    assert project.seen("PreToolUse")[0]["mcp_server"]["name"] == "memory"


async def test_a_server_that_is_not_there_blocks_only_in_the_strict_mode(project: Project):
    handler = {"type": "mcp_tool", "server": "gone", "tool": "check"}
    for mode, status in (("compat", "ok"), ("strict", "denied")):
        hooks = project.load(on("PreToolUse", handler), mode=mode)
        result = await project.play(hooks, calls("shell", command="ls"))
        assert results(result)[0].status == status


async def test_an_agent_as_a_hook_does_not_run_and_says_so(project: Project):
    hooks = project.load(on("PreToolUse", {"type": "agent", "prompt": "check"}))
    await project.play(hooks, calls("shell", command="ls"))
    assert "do not run here" in hooks.runs[0].why


def test_the_strict_mode_refuses_settings_with_mistakes(project: Project):
    with pytest.raises(ConfigError, match="did you mean PreToolUse"):
        project.load({"PreToolUs": []}, mode="strict")
    assert project.load({"PreToolUs": []}).problems
