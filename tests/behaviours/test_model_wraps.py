"""Behaviours 20-31: what can be built around a model call."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Completed,
    ErrorPolicy,
    Failed,
    Message,
    ModelCall,
    ModelCalling,
    ModelReply,
    ModelRequest,
    Slot,
    TextPart,
    ToolSpec,
    assistant,
    tool,
    user,
)
from windlass.testing import FunctionModel, ScriptedModel, calls, says


class Mood(Struct):
    text: str = "calm"


@tool(effect="pure", inline=True)
def look(at: str) -> str:
    """Look at something."""
    return f"saw {at}"


def retrying(agent: Agent, attempts: int, *errors: type[Exception], name: str = "retry") -> None:
    """A wrap that tries again on these errors, and gives up with the last of them."""

    @agent.wrap(ModelCall, name=name)
    async def retry(request, call_next):
        for _ in range(attempts - 1):
            try:
                return await call_next(request)
            except errors:
                pass
        return await call_next(request)


# ---------------------------------------------------------------- errors


async def test_a_retrying_wrap_makes_two_attempts_and_leaves_one_message():
    """Behaviour 20: the model fails once: two attempts, one reply in the transcript."""
    model = ScriptedModel(TimeoutError("slow"), says("done"))
    agent = Agent(model)
    retrying(agent, 3, TimeoutError)

    result = await agent.run("go")

    assert len(model.requests) == 2
    assert [(message.role, message.text) for message in result.messages] == [("user", "go"), ("assistant", "done")]
    assert result.outcome == Completed()
    assert result.error is None


async def test_a_second_attempt_on_a_bad_reply_is_paid_for_and_leaves_one_message():
    """Behaviour 20: an attempt whose reply the wrap did not take is counted in the usage, not in the transcript."""
    model = ScriptedModel(says("bad"), says("good"))
    agent = Agent(model)

    @agent.wrap(ModelCall)
    async def until_good(request, call_next):
        reply = await call_next(request)
        return reply if reply.text == "good" else await call_next(request)

    result = await agent.run("go")

    assert [message.text for message in result.messages] == ["go", "good"]
    assert result.usage.requests == 2


async def test_when_the_attempts_are_used_up_the_original_error_comes_out():
    """Behaviour 21: the very exception of the last attempt is the error of the turn."""
    errors = [TimeoutError("first"), TimeoutError("second")]
    model = ScriptedModel(*errors)
    agent = Agent(model, errors=ErrorPolicy.never())
    retrying(agent, 2, TimeoutError)

    result = await agent.run("go")

    assert len(model.requests) == 2
    assert result.error is errors[1]
    assert isinstance(result.outcome, Failed)
    assert (result.outcome.error.type, result.outcome.error.message) == ("TimeoutError", "second")
    with pytest.raises(TimeoutError, match="second"):
        result.raise_for_error()


async def test_a_wrap_that_turns_an_error_into_a_message_ends_the_turn_normally():
    """Behaviour 22: the error becomes a reply: the turn is completed with it."""
    agent = Agent(ScriptedModel(ConnectionError("down")))

    @agent.wrap(ModelCall)
    async def apologise(request, call_next):
        try:
            return await call_next(request)
        except ConnectionError as error:
            return assistant(f"Sorry: {error}")

    result = await agent.run("go")

    assert result.outcome == Completed()
    assert result.text == "Sorry: down"
    assert result.error is None
    assert [message.role for message in result.messages] == ["user", "assistant"]
    assert result.usage.requests == 0


async def test_an_error_that_the_wrap_does_not_handle_propagates():
    """Behaviour 23: only ConnectionError is handled, a ValueError passes through at its first occurrence."""
    error = ValueError("broken")
    model = ScriptedModel(error, says("never"))
    agent = Agent(model)
    retrying(agent, 3, ConnectionError)

    result = await agent.run("go")

    assert len(model.requests) == 1
    assert result.error is error


# ---------------------------------------------------------------- short cuts


async def test_a_caching_wrap_asks_the_model_once():
    """Behaviour 24: the same request again is served from the cache, unpaid."""
    model = ScriptedModel(says("42"))
    agent = Agent(model)
    cache: dict[str, ModelReply] = {}

    @agent.wrap(ModelCall)
    async def cached(request, call_next):
        key = request.messages[-1].text
        if key not in cache:
            cache[key] = await call_next(request)
        return cache[key]

    first = await agent.run("6 * 7?")
    second = await agent.run("6 * 7?")

    assert len(model.requests) == 1
    assert (first.text, second.text) == ("42", "42")
    assert (first.usage.requests, second.usage.requests) == (1, 0)


# ---------------------------------------------------------------- order


async def test_three_wraps_are_strictly_nested_and_change_the_reply_inside_out():
    """Behaviour 25: a b c model c b a, and the innermost change is applied first."""
    log: list[str] = []

    async def reply(request: ModelRequest) -> str:
        log.append("model")
        return "x"

    agent = Agent(FunctionModel(reply))
    for name in "abc":

        @agent.wrap(ModelCall, name=name)
        async def wrap(request, call_next, name=name):
            log.append(f"{name} in")
            answer = await call_next(request.replace(system=request.system + name))
            log.append(f"{name} out")
            return answer.replace(message=assistant(answer.text + name))

    systems: list[str] = []
    agent.gate(ModelCalling)(lambda event: systems.append(event.request.system))
    result = await agent.run("go")

    assert log == ["a in", "b in", "c in", "model", "c out", "b out", "a out"]
    assert result.text == "xcba"
    assert systems == ["", "abc"]


async def test_a_logger_inside_a_retry_sees_every_attempt():
    """Behaviour 26: retry outside, logger inside: the logger sees both attempts."""
    log: list[str] = []
    agent = Agent(ScriptedModel(TimeoutError("slow"), says("done")))
    retrying(agent, 2, TimeoutError)

    @agent.wrap(ModelCall)
    async def logger(request, call_next):
        log.append("call")
        reply = await call_next(request)
        log.append("reply")
        return reply

    await agent.run("go")

    assert log == ["call", "call", "reply"]


async def test_a_logger_outside_a_retry_sees_one_call():
    """Behaviour 26: logger outside, retry inside: the logger sees one call and one reply."""
    log: list[str] = []
    agent = Agent(ScriptedModel(TimeoutError("slow"), says("done")))

    @agent.wrap(ModelCall)
    async def logger(request, call_next):
        log.append("call")
        reply = await call_next(request)
        log.append("reply")
        return reply

    retrying(agent, 2, TimeoutError)
    await agent.run("go")

    assert log == ["call", "reply"]


async def test_a_guard_wrap_sees_every_attempt_wherever_it_was_registered():
    """Behaviour 26: the guard band is innermost: registered first, it still sees what the retry does."""
    log: list[str] = []
    agent = Agent(ScriptedModel(TimeoutError("slow"), says("done")))

    @agent.wrap(ModelCall, band="guard")
    async def guard(request, call_next):
        log.append("call")
        return await call_next(request)

    retrying(agent, 2, TimeoutError)
    await agent.run("go")

    assert log == ["call", "call"]


# ---------------------------------------------------------------- what a wrap may return


@pytest.mark.parametrize("bare", ["done", assistant("done")], ids=["str", "Message"])
async def test_a_bare_message_is_a_full_reply(bare):
    """Behaviour 27: a wrap may return a Message or a text instead of a ModelReply."""
    model = ScriptedModel()
    agent = Agent(model)

    @agent.wrap(ModelCall)
    async def canned(request, call_next):
        return bare

    result = await agent.run("go")

    assert model.requests == []
    assert result.text == "done"
    assert result.outcome == Completed()
    assert result.state.turn.last.reply.finish == "stop"


async def test_a_bare_message_with_tool_calls_is_a_full_reply():
    """Behaviour 27: the calls of a bare message are made like those of a model's."""
    agent = Agent(ScriptedModel(says("done")), tools=[look])
    canned = calls("look", at="sea").reply.message

    @agent.wrap(ModelCall)
    async def first_look(request, call_next, turn):
        return canned if turn.steps == 0 else await call_next(request)

    result = await agent.run("go")

    assert result.messages[2].parts[0].text == "saw sea"
    assert result.text == "done"


@pytest.mark.parametrize("bare", ["done", assistant("done")], ids=["str", "Message"])
async def test_an_outer_wrap_sees_the_bare_message_of_an_inner_one_as_a_full_reply(bare):
    """Behaviour 27: what `call_next` gives is a ModelReply, whatever the inner wrap returned."""
    agent = Agent(ScriptedModel())
    seen: list[Any] = []

    @agent.wrap(ModelCall)
    async def outer(request, call_next):
        reply = await call_next(request)
        seen.append(reply)
        return reply

    @agent.wrap(ModelCall)
    async def inner(request, call_next):
        return bare

    result = await agent.run("go")

    assert [type(reply) for reply in seen] == [ModelReply]
    assert seen[0].text == "done"
    assert result.text == "done"


# ---------------------------------------------------------------- the onion itself


async def frames_of_wraps(agent: Agent, stack: list[str]) -> int:
    """How many frames of the onion's module the model was called through."""
    await agent.run("go")
    return sum(file.endswith("/wraps.py") for file in stack)


async def test_without_wraps_there_is_no_onion():
    """Behaviour 28: no wraps: no layer stands between the loop and the model, and the request is handed on as it is."""
    stack: list[str] = []
    requests: list[ModelRequest] = []

    async def reply(request: ModelRequest) -> str:
        requests.append(request)
        stack.extend(frame.filename for frame in inspect.stack(0))
        return "done"

    agent = Agent(FunctionModel(reply))
    agent.gate(ModelCalling)(lambda event: requests.append(event.request))

    assert await frames_of_wraps(agent, stack) == 0
    assert stack
    assert requests[0] is requests[1]


async def test_a_single_wrap_is_used_directly():
    """Behaviour 28: one wrap: it gets the judged request itself and the model's reply itself; nothing is copied."""
    made = ModelReply(assistant("done"))
    seen: list[Any] = []

    async def reply(request: ModelRequest) -> ModelReply:
        seen.append(request)
        return made

    agent = Agent(FunctionModel(reply))
    agent.gate(ModelCalling)(lambda event: seen.append(event.request))

    @agent.wrap(ModelCall)
    async def only(request, call_next):
        seen.append(request)
        answer = await call_next(request)
        seen.append(answer)
        return answer

    result = await agent.run("go")

    judged, wrapped, sent, answered = seen
    assert judged is wrapped
    assert wrapped is sent
    assert answered is made
    assert result.text == "done"


# ---------------------------------------------------------------- requests


async def test_an_inner_wrap_that_changes_the_request_leaves_the_outer_ones_untouched():
    """Behaviour 29: the request is a value: the outer wrap's is the same before and after `call_next`."""
    model = ScriptedModel(says("done"))
    agent = Agent(model, system="Be kind.")
    seen: list[Any] = []

    @agent.wrap(ModelCall)
    async def outer(request, call_next):
        before = (request.system, list(request.messages), request.tools)
        reply = await call_next(request)
        seen.extend([before, (request.system, list(request.messages), request.tools)])
        return reply

    @agent.wrap(ModelCall)
    async def inner(request, call_next):
        changed = request.replace(
            system="Be brief.", messages=[*request.messages, user("now")], tools=[ToolSpec("ghost")]
        )
        return await call_next(changed)

    result = await agent.run("go")

    assert seen[0] == seen[1] == ("Be kind.", [result.messages[0]], ())
    assert model.requests[0].system == "Be brief."
    assert [message.text for message in model.requests[0].messages] == ["go", "now"]
    assert [message.text for message in result.messages] == ["go", "done"]


async def request_of(agent: Agent) -> ModelRequest:
    """A request as hooks see it."""
    seen: list[ModelRequest] = []
    agent.gate(ModelCalling)(lambda event: seen.append(event.request))
    await agent.run("go")
    return seen[0]


class Answer(Struct):
    number: int


async def test_replacing_one_field_keeps_the_others_as_they_are():
    """Behaviour 30: an override of one field keeps the identity of all others, and the original."""
    request = await request_of(
        Agent(ScriptedModel(says("x")), tools=[look], system="Be kind.", settings={"temperature": 0})
    )
    changed = request.replace(system="Be brief.")

    assert changed.system == "Be brief."
    assert request.system == "Be kind."
    for field in ("messages", "tools", "model", "settings", "output"):
        assert getattr(changed, field) is getattr(request, field)


async def test_none_is_a_legal_override():
    """Behaviour 30: a field can be overridden with None."""
    agent: Agent[Any, Answer] = Agent(ScriptedModel(says('{"number": 1}')), output=Answer)
    request = await request_of(agent)

    assert request.output is not None
    assert request.replace(output=None).output is None


async def test_chained_overrides_compose():
    """Behaviour 30: later overrides keep the earlier ones; the last one of a field wins."""
    request = await request_of(Agent(ScriptedModel(says("x"))))
    changed = request.replace(system="a").replace(model="other").replace(system="b")

    assert (changed.system, changed.model) == ("b", "other")
    assert changed.messages is request.messages


async def test_system_text_cannot_be_a_message():
    """Behaviour 30: there is one place for system text; a message with that role is refused and says where it goes."""
    request = await request_of(Agent(ScriptedModel(says("x")), system="Be kind."))
    system: Any = "system"

    with pytest.raises(ValueError, match=r"message 0 has role 'system'.*`system`"):
        request.replace(messages=[Message(system, (TextPart("Be brief."),)), *request.messages])


async def test_what_is_no_message_is_refused():
    """Behaviour 30: messages are checked when the request is changed, not when it has left."""
    request = await request_of(Agent(ScriptedModel(says("x"))))

    with pytest.raises(TypeError, match="message 1 is a str"):
        request.replace(messages=[*request.messages, "now"])


async def test_a_field_that_a_request_does_not_have_is_refused():
    """Behaviour 30: a misspelt override is an error, not a silent no-op."""
    request = await request_of(Agent(ScriptedModel(says("x"))))

    with pytest.raises(TypeError, match="sistem"):
        request.replace(sistem="Be brief.")


async def test_of_several_dynamic_prompts_the_innermost_wins():
    """Behaviour 31: wraps that set the system text: the innermost one's is sent."""
    model = ScriptedModel(says("done"))
    agent = Agent(model, system="static")
    for name in ("outer", "middle", "inner"):

        @agent.wrap(ModelCall, name=name)
        async def prompt(request, call_next, name=name):
            return await call_next(request.replace(system=f"{name} over {request.system}"))

    await agent.run("go")

    assert model.requests[0].system == "inner over middle over outer over static"


async def test_a_dynamic_prompt_reads_state_and_slots():
    """Behaviour 31: a prompt can be made of the turn so far, its scope and its slots."""
    model = ScriptedModel(calls("look", at="sea"), says("done"))
    agent = Agent(model, tools=[look])
    agent.slot(Slot("mood", Mood))

    @agent.wrap(ModelCall)
    async def prompt(request, call_next, turn, mood: Mood):
        system = f"{turn.scope['user']}, step {turn.steps + 1}, {len(turn.context)} messages, {mood.text}"
        turn.set(Mood, Mood("glad"))
        return await call_next(request.replace(system=system))

    await agent.run("go", scope={"user": "ann"})

    assert [request.system for request in model.requests] == [
        "ann, step 1, 1 messages, calm",
        "ann, step 2, 3 messages, glad",
    ]
