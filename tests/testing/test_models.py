"""Scripted models: the same reply however they are asked, and nothing asked in vain or left over."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from windlass import Agent, Message, ModelReply, ModelRequest, TextPart, ThinkingPart, ToolCallPart
from windlass.deltas import ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import BadReply, ModelError
from windlass.messages import Messages, OpaquePart, assistant
from windlass.protocols import StreamingModel
from windlass.testing import FunctionModel, ScriptedModel, UnexpectedCall, breaks, calls, says

REQUEST = ModelRequest("", Messages())


async def streamed(model: Any, request: ModelRequest = REQUEST) -> list[Any]:
    return [piece async for piece in model.stream(request)]


REPLIES = [
    says("hello"),
    says(""),
    says(chunks=["he", "llo"], thinking="hm", signature="sig"),
    calls("add", a=1, b=2),
    calls([("add", {"a": 1}), ("get", {}), ("get", ""), ("get", "{broken")], _text="One moment."),
    "plain",
    assistant("a message"),
    ModelReply(Message("assistant", (TextPart("a"), OpaquePart("v", 1), TextPart("b")))),
]


# ---------------------------------------------------------------- one script, two ways of asking


@pytest.mark.parametrize("reply", REPLIES, ids=str)
async def test_both_ways_of_asking_give_the_same_reply(reply):
    whole = await ScriptedModel(reply).reply(REQUEST)
    *pieces, last = await streamed(ScriptedModel(reply))
    assert last == whole
    assert not any(isinstance(piece, ModelReply) for piece in pieces)


@pytest.mark.parametrize("reply", REPLIES, ids=str)
async def test_the_pieces_of_a_part_joined_are_that_part(reply):
    *pieces, last = await streamed(ScriptedModel(reply))
    for place, part in enumerate(last.message.parts):
        said = "".join(piece.text for piece in pieces if piece.part == place)
        match part:
            case TextPart(text=text) | ThinkingPart(text=text) | ToolCallPart(json=text):
                assert said == text
            case _:
                assert said == ""


async def test_thinking_comes_before_the_chunks_of_the_text():
    pieces = await streamed(ScriptedModel(says("hello", chunks=["he", "llo"], thinking="hm")))
    assert pieces[:-1] == [ThinkingDelta("hm", 0), TextDelta("he", 1), TextDelta("llo", 1)]


async def test_a_call_is_streamed_in_a_few_pieces_and_the_first_has_its_name():
    pieces = await streamed(ScriptedModel(calls([("add", {"a": 1}), ("get", {})], _text="Wait.")))
    assert pieces[:-1] == [
        TextDelta("Wait.", 0),
        ArgumentsDelta('{"a', 1, name="add"),
        ArgumentsDelta('":1', 1),
        ArgumentsDelta("}", 1),
        ArgumentsDelta("{", 2, name="get"),
        ArgumentsDelta("}", 2),
    ]


async def test_both_ways_consume_one_script_and_record_the_requests():
    model = ScriptedModel("a", "b", "c")
    other = REQUEST.replace(system="other")
    assert (await model.reply(REQUEST)).text == "a"
    assert (await streamed(model, other))[-1].text == "b"
    assert (await model.reply(other)).text == "c"
    assert model.requests == [REQUEST, other, other]
    assert model.streamed == 1
    model.assert_done()


def test_a_scripted_model_can_be_streamed():
    assert isinstance(ScriptedModel(), StreamingModel)
    assert isinstance(FunctionModel(lambda request: "x"), StreamingModel)


def test_chunks_that_do_not_make_the_text_are_refused():
    with pytest.raises(ValueError, match="'hi'"):
        says("hello", chunks=["h", "i"])


# ---------------------------------------------------------------- errors


async def test_an_exception_in_a_script_is_raised_either_way():
    model = ScriptedModel(ModelError("one"), ModelError("two"))
    with pytest.raises(ModelError, match="one"):
        await model.reply(REQUEST)
    with pytest.raises(ModelError, match="two"):
        await streamed(model)


async def heard_of(model: Any) -> tuple[list[Any], Exception | None]:
    pieces: list[Any] = []
    try:
        async for piece in model.stream(REQUEST):
            pieces.append(piece)  # noqa: PERF401 -- what came before the error counts
    except ModelError as error:
        return pieces, error
    return pieces, None


async def test_a_broken_stream_says_something_and_then_raises():
    gone = ModelError("gone")
    pieces, error = await heard_of(ScriptedModel(breaks("so far", chunks=["so", " far"], error=gone)))
    assert pieces == [TextDelta("so", 0), TextDelta(" far", 0)]
    assert error is gone
    with pytest.raises(ModelError, match="gone"):
        await ScriptedModel(breaks("so far", error=gone)).reply(REQUEST)


async def test_a_stream_can_break_in_the_middle_of_a_call():
    pieces, error = await heard_of(ScriptedModel(breaks(calls("add", a=1), pieces=2)))
    assert [piece.text for piece in pieces] == ['{"a', '":1']
    assert error is not None
    assert error.retryable


def test_a_reply_that_breaks_has_its_own_chunks():
    with pytest.raises(ValueError, match="on the reply itself"):
        breaks(says("a"), chunks=["a"])


# ---------------------------------------------------------------- delays


class Slept:
    """A clock that only notes."""

    def __init__(self) -> None:
        self.seconds: list[float] = []

    def now(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0

    async def sleep(self, seconds: float) -> None:
        self.seconds.append(seconds)


async def test_delays_are_slept_on_the_clock_of_the_model():
    clock = Slept()
    reply = says(chunks=["a", "b", "c"], delay=2, chunk_delay=1)
    await streamed(ScriptedModel(reply, clock=clock))
    assert clock.seconds == [2, 1, 1]
    await ScriptedModel(reply, clock=clock).reply(REQUEST)
    assert sum(clock.seconds[3:]) == 4
    await FunctionModel(lambda request: says("x", delay=7), clock=clock).reply(REQUEST)
    assert clock.seconds[-1] == 7


# ---------------------------------------------------------------- what was not foreseen


async def test_an_unexpected_call_is_remembered_though_the_agent_lives_on():
    model = ScriptedModel("a")
    agent = Agent(model)
    await agent.run("one", session="s")
    await agent.run("two", session="s")
    assert len(model.unexpected) == 1
    with pytest.raises(AssertionError, match="was called 2 times, but its script has 1 replies"):
        model.assert_done()


@pytest.mark.parametrize("ask", [ScriptedModel.reply, lambda model, request: streamed(model, request)])
async def test_asked_too_often_it_raises(ask):
    with pytest.raises(UnexpectedCall, match="called 1 times"):
        await ask(ScriptedModel(), REQUEST)


async def test_a_block_fails_if_replies_are_left():
    with pytest.raises(AssertionError, match="1 replies are left"), ScriptedModel("a", "b") as model:
        await model.reply(REQUEST)


async def test_a_block_does_not_hide_the_error_it_ends_with():
    with pytest.raises(ZeroDivisionError), ScriptedModel("a"):
        _ = 1 / 0


# ---------------------------------------------------------------- functions


async def test_a_function_may_return_whatever_a_script_may_hold():
    for reply in REPLIES:
        scripted = await ScriptedModel(reply).reply(REQUEST)
        model = FunctionModel(lambda request, reply=reply: reply)  # type: ignore[misc]
        assert await model.reply(REQUEST) == scripted
        assert (await streamed(model)) == (await streamed(ScriptedModel(reply)))
    with pytest.raises(ModelError, match="no"):
        await FunctionModel(lambda request: ModelError("no")).reply(REQUEST)


async def test_an_async_function_is_awaited():
    async def answer(request: ModelRequest) -> str:
        await asyncio.sleep(0)
        return request.system

    request = REQUEST.replace(system="sys")
    assert (await FunctionModel(answer).reply(request)).text == "sys"
    assert [piece.text for piece in await streamed(FunctionModel(answer), request)] == ["sys", "sys"]


async def test_a_generator_function_yields_pieces_and_last_the_reply():
    async def answer(request: ModelRequest) -> Any:
        yield "a"
        yield TextDelta("b")
        yield assistant("ab")

    model = FunctionModel(answer)
    assert (await model.reply(REQUEST)).text == "ab"
    assert await streamed(model) == ["a", TextDelta("b"), ModelReply(assistant("ab"))]


async def test_a_generator_function_must_yield_one_reply_and_last():
    async def none(request: ModelRequest) -> Any:
        yield "a"

    async def not_last(request: ModelRequest) -> Any:
        yield assistant("a")
        yield "b"

    for ask in (FunctionModel.reply, streamed):
        with pytest.raises(BadReply, match="yielded no reply"):
            await ask(FunctionModel(none), REQUEST)
        with pytest.raises(BadReply, match="after the reply"):
            await ask(FunctionModel(not_last), REQUEST)


async def test_a_stream_that_is_closed_closes_the_generator():
    closed = []

    async def answer(request: ModelRequest) -> Any:
        try:
            yield "a"
            yield assistant("a")
        finally:
            closed.append(True)

    stream = FunctionModel(answer).stream(REQUEST)
    assert await anext(stream) == "a"
    await stream.aclose()
    assert closed == [True]
