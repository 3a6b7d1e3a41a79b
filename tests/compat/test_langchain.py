"""LangChain's chat models and tools in an agent."""

import sys
from collections.abc import Iterator
from typing import Any

import pytest
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage
from langchain_core.tools import ToolException
from langchain_core.tools import tool as langchain_tool

from windlass import Agent, Failed, TextDelta, ToolCalling, Usage
from windlass.compat.langchain import LangChainModel, langchain_tools
from windlass.decisions import Deny
from windlass.errors import ConfigError, ModelError
from windlass.testing import ScriptedModel, calls, says


class Chat(GenericFakeChatModel):
    """A chat model with a script, which keeps what it is sent."""

    sent: list[Any]
    bound: list[Any]

    def _generate(self, messages: Any, *given: Any, **options: Any) -> Any:
        self.sent.append(list(messages))
        return super()._generate(messages, *given, **options)

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        self.bound.append(tools)
        return self


def chat(*messages: AIMessage | Exception) -> Chat:
    def script() -> Iterator[AIMessage]:
        for message in messages:
            if isinstance(message, Exception):
                raise message
            yield message

    return Chat(messages=script(), sent=[], bound=[])


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
