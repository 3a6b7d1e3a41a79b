"""The official openai client talks to an agent as to a model."""

from __future__ import annotations

import openai
import pytest
from tests.server.conftest import TOKEN

from windlass import Agent, Ask, ToolCalling, TurnEnding, tool
from windlass.messages import ImagePart, Message, ModelReply, TextPart, ToolCallPart
from windlass.testing import FunctionModel, ScriptedModel, calls, says


@tool
def send(to: str) -> str:
    """Send."""
    return f"sent to {to}"


def echo(request):
    """Answer with all that was said so far."""
    return says(" | ".join(f"{message.role}: {message.text}" for message in request.messages))


def asking_agent() -> Agent:
    agent = Agent(ScriptedModel(*[calls("send", to="bob")] * 9), tools=[send], name="ann")

    @agent.gate(ToolCalling)
    def ask(event):
        return Ask("really?")

    return agent


def client_of(server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key=TOKEN)


HI = [{"role": "user", "content": "hi"}]


async def test_agents_are_models(live):
    async with live(Agent(FunctionModel(echo), name="ann")) as server, client_of(server) as client:
        assert [model.id async for model in await client.models.list()] == ["ann"]
        assert (await client.models.retrieve("ann")).id == "ann"
        with pytest.raises(openai.NotFoundError, match="bob"):
            await client.chat.completions.create(model="bob", messages=HI)


async def test_a_chat_completion_is_the_answer_of_a_turn_with_its_whole_usage(live):
    model = ScriptedModel(calls("send", to="bob"), says("all sent"))
    async with live(Agent(model, tools=[send], name="ann")) as server, client_of(server) as client:
        done = await client.chat.completions.create(model="ann", messages=HI)
        assert done.choices[0].message.content == "all sent"
        assert done.choices[0].message.tool_calls is None
        assert done.choices[0].finish_reason == "stop"
        assert (done.usage.prompt_tokens, done.usage.total_tokens) == (20, 20 + done.usage.completion_tokens)


async def test_a_streamed_completion_has_the_same_text_and_usage(live):
    model = ScriptedModel(says("hello", chunks=["hel", "lo"]), says("hello", chunks=["hel", "lo"]))
    async with live(Agent(model, name="ann")) as server, client_of(server) as client:
        options = {"include_usage": True}
        stream = await client.chat.completions.create(model="ann", messages=HI, stream=True, stream_options=options)
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "hello"
        assert chunks[-1].usage.prompt_tokens == 10
        async with client.chat.completions.stream(model="ann", messages=HI) as helper:
            final = await helper.get_final_completion()
        assert final.choices[0].message.content == "hello"


async def test_the_clients_history_and_instructions_reach_the_agent(live):
    async with live(Agent(FunctionModel(echo), name="ann")) as server, client_of(server) as client:
        messages = [{"role": "system", "content": "be kind"}, *HI, {"role": "assistant", "content": "hello"},
                    {"role": "user", "content": [{"type": "text", "text": "again"}]}]  # fmt: skip
        done = await client.chat.completions.create(model="ann", messages=messages)
        assert done.choices[0].message.content == "user: be kind | user: hi | assistant: hello | user: again"


async def test_a_session_keeps_the_history_so_that_only_new_words_count(live):
    async with live(Agent(FunctionModel(echo), name="ann")) as server, client_of(server) as client:
        await client.chat.completions.create(model="ann", messages=HI, user="s")
        messages = [*HI, {"role": "assistant", "content": "user: hi"}, {"role": "user", "content": "more"}]
        for how in ({"user": "s"}, {"extra_headers": {"X-Windlass-Session": "s"}}):
            done = await client.chat.completions.create(model="ann", messages=messages, **how)
            assert done.choices[0].message.content.startswith("user: hi | assistant: user: hi | user: more")


async def test_an_image_reaches_the_model(live):
    seen = []

    def look(request):
        seen.extend(request.messages[-1].parts)
        return says("nice")

    content = [{"type": "text", "text": "look"},
               {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]  # fmt: skip
    async with live(Agent(FunctionModel(look), name="ann")) as server, client_of(server) as client:
        await client.chat.completions.create(model="ann", messages=[{"role": "user", "content": content}])
        assert isinstance(seen[1], ImagePart)
        assert seen[1].data == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    "options",
    [{"n": 2}, {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}]}, {"logprobs": True},
     {"response_format": {"type": "json_object"}},
     {"messages": [{"role": "tool", "content": "x", "tool_call_id": "1"}]},
     {"messages": []}, {"messages": [{"role": "assistant", "content": "x"}]}],
)  # fmt: skip
async def test_what_an_agent_cannot_do_is_refused_and_not_ignored(live, options):
    async with live(Agent(FunctionModel(echo), name="ann")) as server, client_of(server) as client:
        with pytest.raises(openai.BadRequestError):
            await client.chat.completions.create(**{"model": "ann", "messages": HI, **options})
        assert await server.server.agents[0].store.sessions() == []


async def test_a_suspended_turn_is_an_error_that_names_session_and_question_and_is_not_repeated(live):
    async with live(asking_agent()) as server, client_of(server) as client:
        with pytest.raises(openai.UnprocessableEntityError, match="waits for answers: s/1/1") as error:
            await client.chat.completions.create(model="ann", messages=HI, user="s")
        assert (error.value.body["session"], error.value.body["questions"]) == ("s", ["s/1/1"])
        with pytest.raises(openai.UnprocessableEntityError):
            await client.responses.create(model="ann", input="hi")
        with pytest.raises(openai.APIError, match="waits for answers: t/1/1"):
            async for _ in await client.chat.completions.create(model="ann", messages=HI, user="t", stream=True):
                pass
        with pytest.raises(openai.APIError, match="waits for answers: u/1/1"):
            async for _ in await client.responses.create(model="ann", input="hi", conversation="u", stream=True):
                pass
        assert len(await server.server.agents[0].store.sessions()) == 4


async def test_a_failed_turn_is_an_error_and_is_run_once(live):
    asked = []

    def fail(request):
        asked.append(request)
        raise ValueError("secret path")

    async with live(Agent(FunctionModel(fail), name="ann")) as server, client_of(server) as client:
        with pytest.raises(openai.InternalServerError) as error:
            await client.chat.completions.create(model="ann", messages=HI)
        assert "secret path" not in str(error.value)
        assert len(asked) == 1


async def test_a_response_is_the_answer_of_a_turn(live):
    async with live(Agent(FunctionModel(echo), name="ann")) as server, client_of(server) as client:
        done = await client.responses.create(model="ann", input="hi", instructions="be kind")
        assert done.output_text == "user: be kindhi"
        assert (done.status, done.usage.input_tokens) == ("completed", 10)


async def test_a_streamed_response_goes_through_the_clients_helper(live):
    async with live(Agent(FunctionModel(echo), name="ann")) as server, client_of(server) as client:
        async with client.responses.stream(model="ann", input="hi") as stream:
            text = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
            final = await stream.get_final_response()
        assert text == final.output_text == "user: hi"


async def test_responses_continue_each_other_and_an_older_one_in_a_fork(live):
    async with live(Agent(FunctionModel(echo), name="ann")) as server, client_of(server) as client:
        one = await client.responses.create(model="ann", input="one", conversation="s")
        two = await client.responses.create(model="ann", input="two", previous_response_id=one.id)
        assert two.output_text == "user: one | assistant: user: one | user: two"
        assert two.conversation.id == "s"
        other = await client.responses.create(model="ann", input="other", previous_response_id=one.id)
        assert other.output_text == "user: one | assistant: user: one | user: other"
        assert other.conversation.id != "s"
        for wrong in ("resp_nonsense", "resp_", "x"):
            with pytest.raises(openai.NotFoundError):
                await client.responses.create(model="ann", input="hi", previous_response_id=wrong)


async def test_a_wrong_token_is_an_authentication_error(live):
    async with live(Agent(FunctionModel(echo), name="ann")) as server:
        client = openai.AsyncOpenAI(base_url=f"{server.address}/v1", api_key="wrong")
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        await client.close()


async def test_words_between_tool_calls_are_streamed_and_a_later_reply_follows_after_an_empty_line(live):
    def reply(request):
        if request.messages[-1].role == "tool":
            return says("all sent")
        return ModelReply(Message("assistant", (TextPart("I send it."), ToolCallPart("send", '{"to": "bob"}'))))

    async with live(Agent(FunctionModel(reply), tools=[send], name="ann")) as server, client_of(server) as client:
        stream = await client.chat.completions.create(model="ann", messages=HI, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "I send it.\n\nall sent"
        whole = await client.chat.completions.create(model="ann", messages=HI)
        assert whole.choices[0].message.content == "all sent"


async def test_an_answer_that_a_hook_changed_is_the_one_that_is_streamed(live):
    agent = Agent(ScriptedModel(says("hello", chunks=["hel", "lo"])), name="ann")

    @agent.rewrite(TurnEnding)
    def shout(event):
        return event.text.upper()

    async with live(agent) as server, client_of(server) as client:
        stream = await client.chat.completions.create(model="ann", messages=HI, stream=True)
        assert "".join([c.choices[0].delta.content or "" async for c in stream]) == "HELLO"
