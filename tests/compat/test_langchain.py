"""LangChain's chat models and tools in an agent."""

import sys
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
from langchain.tools import InjectedState, ToolRuntime
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.tools import ToolException
from langchain_core.tools import tool as langchain_tool

from windlass import Agent, Failed, TextDelta, ThinkingDelta, ToolCalling, Usage
from windlass.compat.langchain import LangChainModel, langchain_tools
from windlass.decisions import Deny
from windlass.errors import BadRequest, ConfigError, ModelError, Overloaded, RateLimited
from windlass.messages import ThinkingPart
from windlass.testing import ScriptedModel, calls, says


class Chat(GenericFakeChatModel):
    """A chat model with a script, which keeps what it is sent."""

    sent: list[Any]
    bound: list[Any]
    options: list[Any]

    def _generate(self, messages: Any, *given: Any, **options: Any) -> Any:
        self.sent.append(list(messages))
        return super()._generate(messages, *given, **options)

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        self.bound.append(tools)
        self.options.append(options)
        return self


def chat(*messages: AIMessage | Exception) -> Chat:
    def script() -> Iterator[AIMessage]:
        for message in messages:
            if isinstance(message, Exception):
                raise message
            yield message

    return Chat(messages=script(), sent=[], bound=[], options=[])


@langchain_tool
def look(name: str, times: int = 1) -> str:
    """Look something up."""
    if name == "nothing":
        raise ToolException("there is nothing")
    return f"{name} is {7 * times}"


def called(**arguments: Any) -> AIMessage:
    return AIMessage("", tool_calls=[{"name": "look", "args": arguments, "id": "c1", "type": "tool_call"}])


async def test_a_chat_model_calls_tools_in_our_loop() -> None:
    used = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7, "input_token_details": {"cache_read": 3}}
    model = chat(called(name="x"), AIMessage("It is 7.", usage_metadata=used))  # type: ignore[arg-type]
    agent = Agent(LangChainModel(model), tools=langchain_tools([look]), system="Be brief.")
    result = await agent.run("What is x?")
    assert result.text == "It is 7."
    assert [(m.type, m.content) for m in model.sent[1]] == [
        ("system", "Be brief."), ("human", "What is x?"), ("ai", ""), ("tool", "x is 7")
    ]  # fmt: skip
    assert model.sent[1][2].tool_calls[0]["id"] == model.sent[1][3].tool_call_id == "c1"
    assert model.bound[0][0]["function"]["parameters"]["properties"]["name"] == {"type": "string"}
    assert result.usage == Usage(5, 2, 3, requests=2)


async def test_text_streams_in_pieces() -> None:
    agent = Agent(LangChainModel(chat(AIMessage("one two three"))))
    stream = agent.stream("go")
    assert len([event async for event in stream if isinstance(event, TextDelta)]) > 1
    assert stream.result.text == "one two three"


async def test_an_error_of_the_chat_model_is_a_model_error() -> None:
    outcome = (await Agent(LangChainModel(chat(RuntimeError("no key")))).run("go")).outcome
    assert isinstance(outcome, Failed)
    with pytest.raises(ModelError, match="RuntimeError: no key"):
        await LangChainModel(chat(RuntimeError("no key"))).reply(_request())


def _request() -> Any:
    from windlass.messages import Messages, ModelRequest, user

    return ModelRequest("", Messages([user("go")]))


async def test_tools_pass_our_gates_and_fail_as_ours_do() -> None:
    model = ScriptedModel(calls([("look", {"name": "x", "times": 2}), ("look", {"name": "y"})]), says("ok"))
    agent = Agent(model, tools=langchain_tools([look], effect="pure"))

    @agent.gate(ToolCalling, tool="look")
    def no_y(event: Any) -> Any:
        return Deny("no y") if event.call.arguments["name"] == "y" else None

    result = await agent.run("go")
    assert [one.text for one in result.steps[0].results] == ["x is 14", "Denied: no y"]
    failing = Agent(ScriptedModel(calls("look", name="nothing"), says("ok")), tools=langchain_tools([look]))
    assert (await failing.run("go")).steps[0].results[0].is_error


async def test_the_model_reads_what_a_tool_wants_it_to_read() -> None:
    model = ScriptedModel(calls([("look", {"name": "nothing"}), ("look", {"name": "x", "times": "many"})]), says("ok"))
    result = await Agent(model, tools=langchain_tools([look])).run("go")
    first, second = [one.text for one in result.steps[0].results]
    assert "there is nothing" in first
    assert "times: Input should be a valid integer" in second


async def test_an_artifact_is_the_data_of_a_result() -> None:
    @langchain_tool(response_format="content_and_artifact")
    def rows(name: str) -> Any:
        """Find rows."""
        return "2 rows", {"rows": [1, 2]}

    result = await Agent(ScriptedModel(calls("rows", name="x"), says("ok")), tools=langchain_tools([rows])).run("go")
    [found] = result.steps[0].results
    assert (found.text, found.data) == ("2 rows", {"rows": [1, 2]})


async def test_thinking_is_sent_back_as_it_came() -> None:
    blocks: list[Any] = [
        {"type": "thinking", "thinking": "hm", "signature": "sig"},
        {"type": "text", "text": "I look.", "citations": [{"type": "char_location"}]},
    ]
    calling = AIMessage(
        blocks,
        tool_calls=called(name="x").tool_calls,
        response_metadata={"model_provider": "anthropic", "stop_reason": "tool_use"},
    )
    model = chat(calling, AIMessage("It is 7."))
    result = await Agent(LangChainModel(model), tools=langchain_tools([look])).run("What is x?")
    assert model.sent[1][1].content == blocks
    assert model.sent[1][1].response_metadata == {"model_provider": "anthropic"}
    assert result.messages[1].parts[0] == ThinkingPart("hm", "sig", vendor="anthropic")


async def test_thinking_of_another_model_is_not_sent() -> None:
    first = ScriptedModel(calls("look", thinking="hm", name="x"), says("7"))
    agent = Agent(first, tools=langchain_tools([look]))
    state = (await agent.run("What is x?")).state
    model = chat(AIMessage("Still."))
    other = Agent(LangChainModel(model))
    await other.import_history("s", state.messages)
    await other.run("Sure?", session="s")
    assert model.sent[0][1].content == ""


async def test_arguments_that_are_not_json_reach_the_model_again() -> None:
    wrong: Any = {"name": "look", "args": '{"name', "id": "c1", "error": None, "type": "invalid_tool_call"}
    model = chat(AIMessage("", invalid_tool_calls=[wrong]), AIMessage("Sorry."))
    result = await Agent(LangChainModel(model), tools=langchain_tools([look])).run("go")
    assert result.steps[0].results[0].is_error
    assert model.sent[1][1].tool_calls[0]["args"] == {"INVALID_JSON": '{"name'}
    assert model.sent[1][2].tool_call_id == "c1"


async def test_a_choice_of_tools_is_put_into_words_by_the_chat_model() -> None:
    model = chat(called(name="x"), AIMessage("7"))
    agent = Agent(
        LangChainModel(model), tools=langchain_tools([look]), settings={"tool_choice": "required", "top_k": 3}
    )
    await agent.run("go")
    assert model.options[0] == {"tool_choice": "any", "top_k": 3}


async def test_blocks_are_streamed() -> None:
    class Blocks(Chat):
        def _stream(self, *given: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
            pieces: list[Any] = [
                {"type": "thinking", "thinking": "h", "index": 0}, {"type": "thinking", "thinking": "m", "index": 0},
                {"type": "thinking", "signature": "sig", "index": 0}, {"type": "text", "text": "He", "index": 1},
                {"type": "text", "text": "llo", "index": 1},
            ]  # fmt: skip
            for piece in pieces:
                yield ChatGenerationChunk(message=AIMessageChunk([piece]))

    stream = Agent(LangChainModel(Blocks(messages=iter(()), sent=[], bound=[], options=[]))).stream("go")
    deltas = [event async for event in stream if isinstance(event, TextDelta | ThinkingDelta)]
    assert [(type(delta).__name__, delta.text) for delta in deltas] == [
        ("ThinkingDelta", "h"), ("ThinkingDelta", "m"), ("TextDelta", "He"), ("TextDelta", "llo")
    ]  # fmt: skip
    assert stream.result.text == "Hello"
    assert stream.result.messages[1].parts[0] == ThinkingPart("hm", "sig", vendor="anthropic")


async def test_thinking_beside_the_content_is_thinking_too() -> None:
    class Beside(Chat):
        def _stream(self, messages: Any, *given: Any, **options: Any) -> Iterator[ChatGenerationChunk]:
            self.sent.append(list(messages))
            for thought, text in (("h", ""), ("m", ""), ("", "He"), ("", "llo")):
                extra = {"additional_kwargs": {"reasoning_content": thought}} if thought else {}
                yield ChatGenerationChunk(message=AIMessageChunk(text, **extra))

    model = Beside(messages=iter(()), sent=[], bound=[], options=[])
    agent = Agent(LangChainModel(model))
    stream = agent.stream("go", session="s")
    deltas = [event async for event in stream if isinstance(event, TextDelta | ThinkingDelta)]
    assert [(type(delta).__name__, delta.text) for delta in deltas] == [
        ("ThinkingDelta", "h"), ("ThinkingDelta", "m"), ("TextDelta", "He"), ("TextDelta", "llo")
    ]  # fmt: skip
    assert stream.result.messages[1].parts[0] == ThinkingPart("hm", vendor="langchain")
    async for _ in agent.stream("again", session="s"):
        pass
    assert model.sent[1][1].additional_kwargs == {"reasoning_content": "hm"}


@pytest.mark.parametrize(("status", "kind"), [(429, RateLimited), (400, BadRequest), (529, Overloaded)])
async def test_a_status_tells_what_kind_of_error_it_is(status: int, kind: type[ModelError]) -> None:
    class StatusError(Exception):
        status_code = status

    with pytest.raises(kind, match="StatusError: no"):
        await LangChainModel(chat(StatusError("no"))).reply(_request())


def test_what_only_langgraph_can_give_is_refused_with_advice() -> None:
    @langchain_tool
    def remember(text: str, runtime: ToolRuntime[Any, Any]) -> str:
        """Remember."""
        return text

    @langchain_tool
    def show(state: Annotated[dict[str, Any], InjectedState]) -> str:
        """Show."""
        return ""

    @langchain_tool(return_direct=True)
    def answer(text: str) -> str:
        """Answer."""
        return text

    for given, what in ((remember, "ToolRuntime"), (show, "InjectedState"), (answer, "ends the turn")):
        with pytest.raises(ConfigError, match=rf"{what}.*Middlewares\(tools="):
            langchain_tools([given])


def test_what_is_not_of_langchain_is_named() -> None:
    with pytest.raises(ConfigError, match="takes a chat model of LangChain, not a str"):
        LangChainModel("gpt")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="takes tools of LangChain"):
        langchain_tools([print])  # type: ignore[list-item]


def test_without_langchain_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("langchain_core", "windlass.compat.langchain"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "langchain_core", None)
    with pytest.raises(ConfigError, match=r"pip install 'windlass\[langchain\]'"):
        import windlass.compat.langchain  # noqa: F401
