"""Tools that a vendor defines and your program runs: called like any other tool, and answered in the vendor's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.models.anthropic.serving import Server as AnthropicServer
from tests.models.openai.serving import Server, events, heard
from tests.models.openai.test_chat import answer as chat_answer
from tests.models.openai.test_chat import chunk
from tests.models.openai.test_client_calls import SPENT, streamed
from tests.models.openai.test_responses import answer, text
from tests.models.openai.test_responses import events as response_events

from windlass import Agent, Approve, Ask, Deny, ImagePart, Suspended, ToolCalling, ToolError, tool
from windlass.errors import ToolDefinitionError
from windlass.messages import Messages, ModelRequest, ToolSpec, user
from windlass.models import open_model
from windlass.models.openai.client_tools import BLANK
from windlass.outcomes import Completed, Stopped, StopReason

VENDOR = "openai-responses"
RAN: list[Any] = []


@tool(native={VENDOR: {"type": "shell"}})
def shell(commands: list[str], timeout_ms: int | None = None, max_output_length: int | None = None) -> str:
    """Run commands."""
    RAN.append(commands)
    return "a.txt"


@tool(native={VENDOR: {"type": "local_shell"}})
def run(command: list[str], env: dict[str, str] | None = None, working_directory: str | None = None) -> str:
    """Run a command."""
    RAN.append(command)
    return "a.txt"


@tool(native={VENDOR: {"type": "computer_use_preview", "display_width": 9, "display_height": 9}})
def computer(action: dict[str, Any], pending_safety_checks: list[dict[str, Any]] | None = None) -> ImagePart:
    """Act on the screen."""
    RAN.append(action)
    return ImagePart(b"png")


@tool(native={VENDOR: {"type": "apply_patch"}})
def apply_patch(type: str, path: str, diff: str = "") -> str:
    """Change a file."""
    RAN.append((type, path))
    if path == "none":
        raise ToolError("there is no such file")
    return "done"


GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}


@tool(native={VENDOR: {"type": "custom", "format": GRAMMAR}, "openai": {"type": "custom"}})
def sql(input: str) -> str:
    """Ask the database."""
    RAN.append(input)
    return "1 row"


CHECK = {"id": "k", "code": "malicious", "message": "Take care."}
SCREENSHOT = {"type": "computer_screenshot", "image_url": "data:image/png;base64,cG5n"}
EXIT = {"type": "exit", "exit_code": 0}
# The tool, the call, its definition on the wire, the arguments that ran, and the answer.
CASES: dict[str, tuple[Any, dict[str, Any], dict[str, Any], Any, dict[str, Any]]] = {
    "shell": (
        shell,
        {"type": "shell_call", "id": "sh_1", "call_id": "c1", "status": "completed", "environment": {"type": "local"},
         "action": {"commands": ["ls"], "timeout_ms": None, "max_output_length": 100}},
        {"type": "shell"}, ["ls"],
        {"type": "shell_call_output", "call_id": "c1",
         "output": [{"stdout": "a.txt", "stderr": "", "outcome": EXIT}]},
    ),
    "local_shell": (
        run,
        {"type": "local_shell_call", "id": "ls_1", "call_id": "c1", "status": "completed",
         "action": {"type": "exec", "command": ["ls"], "env": {}, "timeout_ms": None}},
        {"type": "local_shell"}, ["ls"],
        {"type": "local_shell_call_output", "id": "c1", "output": "a.txt"},
    ),
    "computer": (
        computer,
        {"type": "computer_call", "id": "cu_1", "call_id": "c1", "status": "completed",
         "action": {"type": "click", "x": 1, "y": 2}, "pending_safety_checks": [CHECK]},
        {"type": "computer_use_preview", "display_width": 9, "display_height": 9}, {"type": "click", "x": 1, "y": 2},
        {"type": "computer_call_output", "call_id": "c1", "output": SCREENSHOT, "acknowledged_safety_checks": [CHECK]},
    ),
    "apply_patch": (
        apply_patch,
        {"type": "apply_patch_call", "id": "ap_1", "call_id": "c1", "status": "completed",
         "operation": {"type": "create_file", "path": "a.txt", "diff": "+a"}},
        {"type": "apply_patch"}, ("create_file", "a.txt"),
        {"type": "apply_patch_call_output", "call_id": "c1", "status": "completed", "output": "done"},
    ),
    "custom": (
        sql,
        {"type": "custom_tool_call", "id": "ctc_1", "call_id": "c1", "name": "sql", "input": 'select "a"'},
        {"type": "custom", "name": "sql", "description": "Ask the database.", "format": GRAMMAR}, 'select "a"',
        {"type": "custom_tool_call_output", "call_id": "c1", "output": "1 row"},
    ),
}  # fmt: skip


@pytest.mark.parametrize("streaming", [False, True], ids=["run", "stream"])
@pytest.mark.parametrize("case", CASES)
async def test_a_tool_that_the_vendor_defines_is_run_by_ours_and_answered_in_its_form(
    case: str, streaming: bool
) -> None:
    fn, item, definition, ran, output = CASES[case]
    said = (text("So:"), item)
    server = Server(
        streamed(*said) if streaming else answer(*said, usage=SPENT),
        streamed(text("Done.")) if streaming else answer(text("Done.")),
        answer(text("Bye.")),
    )
    RAN.clear()
    agent = Agent(open_model(f"{VENDOR}:gpt-5", client=server.client), tools=[fn])
    gated: list[Any] = []
    agent.gate(ToolCalling, tool=fn.name)(lambda event: gated.append(event.call.arguments))
    if streaming:
        async with agent.stream("Go.", session="s") as stream:
            async for _ in stream:
                pass
        result = stream.result
    else:
        result = await agent.run("Go.", session="s")
    assert isinstance(result.outcome, Completed)
    assert (result.text, RAN, len(gated)) == ("Done.", [ran], 1)
    assert server.asked[0]["tools"] == [definition]
    told = server.asked[1]["input"]
    assert told[2] == item  # the vendor's own item, unchanged
    assert told[3] == output
    assert (await agent.run("And?", session="s")).text == "Bye."
    assert server.asked[2]["input"][2:4] == [item, output]


@pytest.mark.parametrize("case", CASES)
async def test_a_stream_says_the_same_as_a_whole_reply(case: str) -> None:
    fn, item, *_ = CASES[case]
    plain = {"type": "function_call", "id": "f", "call_id": "c0", "name": "add", "arguments": "{}"}
    told: list[Any] = []
    for at, one in enumerate((plain, item, {**plain, "call_id": "c3"})):
        told.append({"type": "response.output_item.added", "output_index": at, "item": one})
        if one["type"] == "function_call":
            told.append({"type": "response.function_call_arguments.delta", "output_index": at, "delta": "{}"})
        told.append({"type": "response.output_item.done", "output_index": at, "item": one})
    whole = answer(plain, item, {**plain, "call_id": "c3"}, usage=SPENT)
    server = Server(response_events(*told, {"type": "response.completed", "response": whole}, done=False), whole)
    model: Any = open_model(f"{VENDOR}:gpt-5", client=server.client)
    request = ModelRequest("", Messages([user("Go.")]), (fn.spec,))
    _, reply = await heard(model, request)
    assert reply == await model.reply(request)
    assert (reply.finish, reply.client_calls) == ("tool_calls", ())


@pytest.mark.parametrize("case", CASES)
async def test_without_the_tool_the_turn_stops_and_names_the_call(case: str) -> None:
    _, item, *_ = CASES[case]
    server = Server(answer(item))
    tools = [] if case == "shell" else [shell]
    result = await Agent(open_model(f"{VENDOR}:gpt-5", client=server.client), tools=tools).run("Go.")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.reason is StopReason.UNSUPPORTED_CALL
    assert item["type"] in result.outcome.detail


async def test_a_denied_or_failed_call_is_answered_too() -> None:
    patch = {**CASES["apply_patch"][1], "operation": {"type": "delete_file", "path": "none"}}
    server = Server(
        answer(CASES["computer"][1]), answer(text("Oh.")),
        answer(CASES["shell"][1]), answer(text("Oh.")),
        answer(patch), answer(text("Oh.")),
    )  # fmt: skip
    agent = Agent(open_model(f"{VENDOR}:gpt-5", client=server.client), tools=[computer, shell, apply_patch])
    agent.gate(ToolCalling, tool=["computer", "shell"])(lambda event: Deny("not now"))
    for _ in range(3):
        assert (await agent.run("Go.")).text == "Oh."
    blank = {"type": "computer_screenshot", "image_url": BLANK}
    screen, said = server.asked[1]["input"][2:4]
    assert screen == {"type": "computer_call_output", "call_id": "c1", "output": blank}  # nothing is acknowledged
    assert "not now" in str(said)
    [out] = server.asked[3]["input"][2]["output"]
    assert "not now" in out["stdout"]
    assert out["outcome"] == {"type": "exit", "exit_code": 1}
    failed = server.asked[5]["input"][2]
    assert failed["status"] == "failed"
    assert "there is no such file" in failed["output"]


@pytest.mark.parametrize("case", CASES)
async def test_a_call_that_waits_for_a_person_is_run_by_another_process(case: str, tmp_path: Path) -> None:
    fn, item, _, ran, output = CASES[case]
    server = Server(answer(item), answer(text("Done.")))

    def process() -> Agent[Any, Any]:
        model = open_model(f"{VENDOR}:gpt-5", client=server.client)
        agent = Agent(model, tools=[fn], store=f"sqlite:///{tmp_path}/agent.db")
        agent.gate(ToolCalling, tool=fn.name, name="ask")(lambda event: Ask("Shall I?"))
        return agent

    RAN.clear()
    async with process() as first:
        suspended = await first.run("Go.", session="s")
        assert isinstance(suspended.outcome, Suspended)
        assert RAN == []
    async with process() as second:
        [asked] = suspended.outcome.waiting_for
        assert (await second.resume("s", answers={asked.id: Approve()})).text == "Done."
    assert [ran] == RAN
    assert server.asked[1]["input"][1:] == [item, output]


async def test_a_shell_may_answer_in_the_vendors_form() -> None:
    chunks = [{"stdout": "a", "stderr": "b", "outcome": {"type": "timeout"}}]

    @tool(native={VENDOR: {"type": "shell"}})
    def bash(commands: list[str], max_output_length: int = 0) -> list[dict[str, Any]]:
        return chunks

    server = Server(answer(CASES["shell"][1]), answer(text("Oh.")))
    await Agent(open_model(f"{VENDOR}:gpt-5", client=server.client), tools=[bash]).run("Go.")
    assert server.asked[1]["input"][2]["output"] == chunks


async def test_the_choice_of_such_a_tool_has_the_vendors_form() -> None:
    server = Server(*[answer(text("Hi."))] * 3, chat_answer(content="Hi."))
    model = open_model(f"{VENDOR}:gpt-5", client=server.client)
    tools = (shell.spec, sql.spec, ToolSpec("plain", "", {"type": "object"}))
    for name, choice in (
        ("shell", {"type": "shell"}),
        ("sql", {"type": "custom", "name": "sql"}),
        ("plain", {"type": "function", "name": "plain"}),
    ):
        await model.reply(ModelRequest("", Messages([user("Hi")]), tools, settings={"tool_choice": name}))
        assert server.asked[-1]["tool_choice"] == choice
    chat = open_model("openai:gpt-5", client=server.client)
    await chat.reply(ModelRequest("", Messages([user("Hi")]), tools, settings={"tool_choice": "sql"}))
    assert server.asked[-1]["tool_choice"] == {"type": "custom", "custom": {"name": "sql"}}
    assert server.asked[-1]["tools"][1] == {
        "type": "custom",
        "custom": {"name": "sql", "description": "Ask the database."},
    }


CUSTOM = {"id": "c1", "type": "custom", "custom": {"name": "sql", "input": 'select "a"'}}


@pytest.mark.parametrize("streaming", [False, True], ids=["run", "stream"])
async def test_a_custom_tool_of_chat_completions_is_run(streaming: bool) -> None:
    begin = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "sql", "input": ""}}
    pieces = [{"index": 0, "custom": {"input": piece}} for piece in ("select ", '"a"')]
    server = Server(
        events(*[chunk(tool_calls=[piece]) for piece in (begin, *pieces)], chunk("tool_calls"))
        if streaming
        else chat_answer("tool_calls", tool_calls=[CUSTOM]),
        events(chunk(content="Done."), chunk("stop")) if streaming else chat_answer(content="Done."),
    )
    RAN.clear()
    agent = Agent(open_model("openai:gpt-5", client=server.client), tools=[sql])
    if streaming:
        async with agent.stream("Go.") as stream:
            async for _ in stream:
                pass
        result = stream.result
    else:
        result = await agent.run("Go.")
    assert (result.text, RAN) == ("Done.", ['select "a"'])
    assert server.asked[1]["messages"][1:] == [
        {"role": "assistant", "tool_calls": [CUSTOM]},
        {"role": "tool", "tool_call_id": "c1", "content": "1 row"},
    ]


async def test_a_streamed_custom_call_says_the_same_as_a_whole_one() -> None:
    pieces = [{"index": 0, **CUSTOM, "custom": {"name": "sql", "input": "select "}}]
    pieces.append({"index": 0, "custom": {"input": '"a"'}})
    server = Server(events(*[chunk(tool_calls=[piece]) for piece in pieces], chunk("tool_calls")))
    _, reply = await heard(open_model("openai:gpt-5", client=server.client), ModelRequest("", Messages([user("Go.")])))
    [call] = reply.tool_calls
    assert (call.name, json.loads(call.json), call.vendor_id) == ("sql", {"input": 'select "a"'}, "c1")


async def test_such_a_conversation_can_move_to_another_vendor() -> None:
    responses = Server(answer(CASES["shell"][1], CASES["custom"][1] | {"call_id": "c2"}), answer(text("Done.")))
    agent = Agent(open_model(f"{VENDOR}:gpt-5", client=responses.client), tools=[shell, sql])
    history = (await agent.run("Go.")).messages
    chat = Server(chat_answer(content="Hi."))
    request = ModelRequest("", Messages([*history, user("And?")]), (shell.spec, sql.spec))
    await open_model("groq:m", client=chat.client).reply(request)
    row = chat.asked[0]["messages"]
    calls = {call["id"]: call["function"]["name"] for call in row[1]["tool_calls"]}
    assert sorted(calls.values()) == ["shell", "sql"]
    assert {message["tool_call_id"] for message in row if message["role"] == "tool"} == calls.keys()
    assert chat.asked[0]["tools"][0]["function"]["name"] == "shell"


async def test_a_call_whose_own_item_is_lost_is_made_anew() -> None:
    for case, (fn, item, _, _, output) in CASES.items():
        server = Server(answer(item), answer(text("Done.")), answer(text("Hi.")))
        agent = Agent(open_model(f"{VENDOR}:gpt-5", client=server.client), tools=[fn])
        history = [
            message.replace(parts=tuple(part for part in message.parts if type(part).__name__ != "OpaquePart"))
            for message in (await agent.run("Go.")).messages
        ]
        request = ModelRequest("", Messages([*history, user("?")]), (fn.spec,))
        await agent.model.reply(request)
        made, told = server.asked[2]["input"][1:3]
        assert made["type"] == item["type"], case
        assert made.get("call_id") == "c1"
        assert told == output


async def test_anthropic_gets_its_own_definition_and_the_call_is_a_plain_one() -> None:
    @tool(native={"anthropic": {"type": "memory_20250818"}})
    def memory(command: str, path: str = "/memories") -> str:
        """Never sent to Anthropic."""
        return "empty"

    use = {"type": "tool_use", "id": "toolu_1", "name": "memory", "input": {"command": "view"}}
    called = {"type": "message", "content": [use], "stop_reason": "tool_use"}
    done = {"type": "message", "content": [{"type": "text", "text": "Done."}], "stop_reason": "end_turn"}
    server = AnthropicServer(called, done)
    result = await Agent(server.model(cache=False), tools=[memory]).run("Go.")
    assert result.text == "Done."
    assert server.asked[0]["tools"] == [{"name": "memory", "type": "memory_20250818"}]
    assert server.asked[1]["messages"][2]["content"][0]["content"] == [{"type": "text", "text": "empty"}]


def test_a_definition_must_be_a_mapping_by_vendor() -> None:
    with pytest.raises(ToolDefinitionError, match="tool 'f': option 'native' is"):

        @tool(native={"openai-responses": "shell"})  # type: ignore[dict-item]
        def f() -> None: ...

    assert shell.spec.native == {VENDOR: {"type": "shell"}}
    assert tool(shell.fn).digest != shell.digest
