"""Values that are easy to change: texts in place, a fingerprint without ids, and data that no model reads."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Answer,
    Ask,
    ImagePart,
    Message,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelReplying,
    TextPart,
    ThinkingPart,
    ToolCall,
    ToolCalling,
    ToolResult,
    ToolReturned,
    ToolReturning,
    TurnStarting,
    tool,
    user,
)
from windlass.messages import (
    Fingerprints,
    Messages,
    ModelReply,
    ModelRequest,
    OpaquePart,
    ToolCallPart,
    ToolResultPart,
)
from windlass.records import Rewritten
from windlass.states import fold
from windlass.testing import FunctionModel, ScriptedModel, assert_same_everywhere, calls, run_everywhere, says

RESULT = ToolResultPart("s/1/1", "look", (TextPart("a"), ImagePart(b"1"), TextPart("b")))
REQUEST = ModelRequest(
    "be brief",
    Messages(
        [
            Message("user", (TextPart("hello "), ImagePart(b"1"), TextPart("you", "rag"))),
            Message("assistant", (ThinkingPart("hm", "sig"), TextPart("so"), ToolCallPart("look", "{}", "s/1/1"))),
            Message("tool", (RESULT,)),
        ]
    ),
)

# ---------------------------------------------------------------- texts in place


def test_map_text_changes_every_text_in_its_place_and_nothing_else():
    mapped = REQUEST.map_text(str.upper)
    assert mapped.system == "BE BRIEF"
    question, reply, results = mapped.messages
    assert question.parts == (TextPart("HELLO "), ImagePart(b"1"), TextPart("YOU", "rag"))
    assert reply.parts == (ThinkingPart("hm", "sig"), TextPart("SO"), ToolCallPart("look", "{}", "s/1/1"))
    assert results.parts == (RESULT.replace(content=(TextPart("A"), ImagePart(b"1"), TextPart("B"))),)


def test_map_text_returns_the_same_object_if_no_text_changes():
    reply = ModelReply(REQUEST.messages[1])
    result = ToolResult(RESULT.content, data={"rows": 3})
    for value in (REQUEST, REQUEST.messages, REQUEST.messages[2], reply, result):
        assert value.map_text(lambda text: text) is value  # type: ignore[attr-defined]
    mapped = REQUEST.map_text(lambda text: text.replace("so", "thus"))
    assert mapped.messages[0] is REQUEST.messages[0]
    assert reply.map_text(str.upper).text == "SO"
    assert result.map_text(str.upper) == ToolResult((TextPart("A"), ImagePart(b"1"), TextPart("B")), data={"rows": 3})


def test_a_text_that_becomes_empty_leaves_no_part():
    assert REQUEST.messages[0].map_text(lambda text: "").parts == (ImagePart(b"1"),)


def test_map_text_keeps_injected_and_following_messages_apart():
    messages = Messages([user("a"), user("b")], overlay={1: user("b injected")}, tail=(user("c"),))
    mapped = messages.map_text(str.upper)
    assert [message.text for message in mapped] == ["A", "B INJECTED", "C"]
    assert mapped.overlay == {1: user("B INJECTED")}


def test_map_text_visits_every_text_once_in_the_order_in_which_a_model_reads_it():
    seen: list[str] = []
    messages = Messages([user("a"), user("b")], overlay={1: user("b injected")}, tail=(user("c"),))
    request = ModelRequest("system", messages, sections=(TextPart("system", "agent"),))
    request.map_text(lambda text: seen.append(text) or text)  # type: ignore[func-returns-value]
    assert seen == ["system", "a", "b injected", "c"]
    assert [message.text for message in messages] == ["a", "b injected", "c"]


def test_map_text_names_a_function_that_returns_no_text():
    with pytest.raises(TypeError, match="map_text: the function must return a str, not NoneType"):
        REQUEST.map_text(lambda text: None)  # type: ignore[arg-type, return-value]


def _redact(text: str) -> str:
    return text.replace("hunter2", "[card]")


@tool(effect="pure", inline=True)
def look() -> Any:
    """Look something up."""
    return [ImagePart(b"1"), TextPart("card hunter2")]


def redacting() -> Agent:
    agent = Agent(ScriptedModel(calls("look", _text="hunter2?"), says("it is hunter2")), tools=[look])
    agent.rewrite(TurnStarting)(lambda event: event.message.map_text(_redact))
    agent.rewrite(ModelReplying)(lambda event: event.reply.map_text(_redact))
    agent.rewrite(ToolReturning)(lambda event: event.result.map_text(_redact))
    agent.rewrite(ModelCalling)(lambda event: event.request.map_text(_redact))
    agent.rewrite(MessageAdding)(lambda event: event.message.map_text(_redact))
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    return agent


async def test_one_line_redacts_messages_replies_results_and_requests_however_the_turn_is_run():
    lived = await assert_same_everywhere(redacting, "pay with hunter2")
    assert "hunter2" not in repr(lived.log)
    assert lived.state.text == "it is [card]"
    assert lived.state.messages[2].parts[0].content == (ImagePart(b"1"), TextPart("card [card]"))  # type: ignore


async def test_a_rewrite_that_maps_no_text_records_nothing():
    def factory() -> Agent:
        agent = Agent(ScriptedModel(calls("look"), says("done")), tools=[look])
        agent.rewrite(ModelCalling)(lambda event: event.request.map_text(str.strip))
        agent.rewrite(MessageAdding)(lambda event: event.message.map_text(str.strip))
        return agent

    lived = await assert_same_everywhere(factory, "go")
    assert not [record for record in lived.log if isinstance(record, Rewritten)]


async def test_text_added_by_a_rewrite_that_returns_a_str_leaves_the_other_texts_in_their_places():
    agent = Agent(ScriptedModel(says("done")))
    agent.rewrite(TurnStarting)(lambda event: event.message.text + " Briefly.")
    result = await agent.run(Message("user", (TextPart("A "), ImagePart(b"1"), TextPart("B."))))
    assert result.messages[0].parts == (TextPart("A "), ImagePart(b"1"), TextPart("B. Briefly."))


# ---------------------------------------------------------------- fingerprints


def test_requests_that_differ_only_in_ids_and_origins_have_the_same_fingerprint():
    def request(session: str, origin: str | None = None) -> ModelRequest:
        call = ToolCallPart("look", "{}", f"{session}/1/1", f"call_{session}")
        answer = Message("tool", (ToolResultPart(call.id, "look", (TextPart("3", origin),)),))
        reply = Message("assistant", (call,), id=f"{session}/1")
        return ModelRequest("be brief", Messages([Message("user", (TextPart("go", origin),)), reply, answer]))

    one = request("a")
    assert one.fingerprint == request("b", "rag").fingerprint
    assert one.fingerprint == one.replace(side="critic").fingerprint
    changed: list[ModelRequest] = [
        one.replace(system="be verbose"),
        one.replace(model="other"),
        one.replace(settings={"temperature": 1}),
        one.replace(tools=[look]),
        one.replace(output={"type": "object"}),
        one.replace(messages=one.messages[:2]),
        one.map_text(lambda text: text.replace("3", "4")),
    ]
    prints = {one.fingerprint, *[request.fingerprint for request in changed]}
    assert len(prints) == len(changed) + 1


def test_a_fingerprint_tells_which_result_belongs_to_which_call():
    def request(*order: str) -> ModelRequest:
        reply = Message("assistant", (ToolCallPart("look", "{}", "1"), ToolCallPart("look", "{}", "2")))
        results = tuple([ToolResultPart(id, "look", (TextPart("x"),)) for id in order])
        return ModelRequest("", Messages([user("go"), reply, Message("tool", results)]))

    assert request("1", "2").fingerprint != request("2", "1").fingerprint


def test_a_fingerprint_copes_with_any_value():
    odd = REQUEST.replace(settings={"b": object(), "a": "\ud800"}, messages=[user("\ud800")])
    assert odd.fingerprint == odd.replace(settings=dict(odd.settings)).fingerprint
    opaque = REQUEST.replace(messages=[Message("user", (OpaquePart("x", {"b": 1, "a": 2}),))])
    swapped = REQUEST.replace(messages=[Message("user", (OpaquePart("x", {"a": 2, "b": 1}),))])
    assert opaque.fingerprint == swapped.fingerprint


def caching(cache: dict[str, ModelReply], asked: list[str]) -> Agent:
    def reply(request: ModelRequest) -> Any:
        asked.append(request.messages[-1].role)
        return says("done") if request.messages[-1].role == "tool" else calls("look")

    agent = Agent(FunctionModel(reply), tools=[look])

    @agent.wrap(ModelCall)
    async def response_cache(request, call_next):
        if request.fingerprint not in cache:
            cache[request.fingerprint] = await call_next(request)
        return cache[request.fingerprint]

    return agent


async def test_a_response_cache_hits_in_every_step_of_an_identical_turn():
    asked: list[str] = []
    agent = caching({}, asked)
    first = await agent.run("go", session="one")
    second = await agent.run("go", session="two")
    assert first.text == second.text == "done"
    assert asked == ["user", "tool"]


async def test_a_response_cache_hits_however_the_turn_is_run():
    asked: list[str] = []
    cache: dict[str, ModelReply] = {}
    lived = await run_everywhere(lambda: caching(cache, asked), "go")
    assert {way.state.text for way in lived.values()} == {"done"}
    assert asked == ["user", "tool"]


# ---------------------------------------------------------------- data


@dataclasses.dataclass
class Row:
    id: int
    name: str


class Rows(Struct):
    rows: list[Row]


ROWS = Rows([Row(1, "ann"), Row(2, "bob")])


@tool(effect="pure", inline=True)
def query() -> ToolResult:
    """Query the database."""
    return ToolResult.of("2 rows", data=ROWS)


def querying() -> Agent:
    agent = Agent(ScriptedModel(calls("query"), says("done")), tools=[query])
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    return agent


async def test_data_is_recorded_and_no_model_reads_it():
    models: list[ScriptedModel] = []

    def factory() -> Agent:
        agent = querying()
        models.append(agent.model)  # type: ignore[arg-type]
        return agent

    lived = await assert_same_everywhere(factory)
    (returned,) = [record for record in lived.log if isinstance(record, ToolReturned)]
    assert returned.result.data == {"rows": [{"id": 1, "name": "ann"}, {"id": 2, "name": "bob"}]}
    assert returned.result.data_as(Rows) == ROWS
    assert fold(lived.session, lived.log).messages[2].parts == (
        ToolResultPart("session/1/1", "query", (TextPart("2 rows"),)),
    )
    requests = [request for model in models for request in model.requests]
    assert requests
    assert "ann" not in repr(requests)


async def test_observers_wraps_and_hooks_see_the_data():
    seen: list[Any] = []
    agent = Agent(ScriptedModel(calls("query"), says("done")), tools=[query])
    agent.observe(ToolReturned, wait=True)(lambda fact: seen.append(fact.result.data_as(Rows)))

    @agent.rewrite(ToolReturning)
    def shorten(event):
        seen.append(event.result.data_as(Rows))
        return "some rows"

    @agent.wrap(ToolCall)
    async def look_on(call, call_next):
        result = await call_next(call)
        seen.append(result.data_as(Rows))
        return result

    result = await agent.run("go")
    assert seen == [ROWS] * 3
    (part,) = result.messages[2].parts
    assert isinstance(part, ToolResultPart)
    assert part.text == "some rows"


async def test_data_without_a_json_form_is_the_tools_error_and_named():
    @tool(effect="pure")
    async def broken() -> ToolResult:
        """Return an object."""
        return ToolResult((TextPart("done"),), data=object())

    result = await Agent(ScriptedModel(calls("broken"), says("done")), tools=[broken]).run("go")
    (part,) = result.messages[2].parts
    assert isinstance(part, ToolResultPart)
    assert part.status == "error"
    assert "'broken' returned an invalid value: the data of a result must have a JSON form" in part.text
    with pytest.raises(TypeError, match="the data of a result must have a JSON form: Encoding objects"):
        ToolResult.of("done", data=object())


def test_data_that_does_not_fit_a_type_is_named():
    with pytest.raises(TypeError, match="the data of this result is not a Rows: Expected `array`"):
        ToolResult.of("", data={"rows": 3}).data_as(Rows)


async def test_data_cannot_be_changed_and_is_part_of_an_answer():
    agent = Agent(ScriptedModel(calls("query"), says("done")), tools=[query])
    agent.gate(ToolCalling)(lambda event: Answer(ToolResult.of("cached", data=[1])))
    facts: list[ToolReturned] = []
    agent.observe(ToolReturned, wait=True)(facts.append)
    await agent.run("go")
    assert facts[0].result.data == [1]
    with pytest.raises(TypeError, match="cannot be changed"):
        facts[0].result.data.append(2)


async def test_secrets_are_masked_in_data():
    @tool(effect="pure")
    async def leak() -> ToolResult:
        """Leak."""
        return ToolResult.of("ok", data={"key": "hunter22", "hunter22": [1]})

    seen: list[Any] = []
    agent = Agent(ScriptedModel(calls("leak"), says("done")), tools=[leak], secrets=["hunter22"])
    agent.observe(ToolReturned, wait=True)(seen.append)
    await agent.run("go", session="s")
    assert seen[0].result.data == {"key": "•••", "•••": [1]}
    assert "hunter22" not in repr(await agent.store.read("s"))


def _turn_of_requests(steps: int) -> list[ModelRequest]:
    """The requests of a turn: each has two messages more, and some show a changed message or a tail."""
    history: list[Message] = [user("go")]
    requests: list[ModelRequest] = []
    for step in range(1, steps + 1):
        messages = Messages.sharing(history)
        requests.append(REQUEST.replace(messages=messages))
        shown = history[-1].replace(parts=(*history[-1].parts, TextPart(f"beside {step}")))
        requests.append(REQUEST.replace(messages=Messages(messages, overlay={len(history) - 1: shown})))
        tail = Message("tool", (ToolResultPart(f"s/{step - 1}/1", "look", (TextPart("again"),)),))
        requests.append(REQUEST.replace(messages=Messages(messages, tail=(tail, user("Give another reply.")))))
        history.append(Message("assistant", (ToolCallPart("look", f'{{"n":{step}}}', f"s/{step}/1"),)))
        history.append(Message("tool", (ToolResultPart(f"s/{step}/1", "look", (TextPart(str(step)),)),)))
    return requests


def test_fingerprints_of_a_growing_conversation_are_those_of_its_requests():
    requests = _turn_of_requests(6)
    whole = [request.fingerprint for request in requests]
    assert len(set(whole)) == len(whole)
    growing = Fingerprints()
    assert [growing.of(request) for request in requests] == whole
    assert [growing.of(request) for request in reversed(requests)] == whole[::-1]
    other = requests[3].replace(system="other", tools=[look], settings={"seed": 1}, messages=[user("hello")])
    assert growing.of(other) == other.fingerprint
    assert growing.of(requests[-1]) == whole[-1]


def test_fingerprints_of_a_growing_conversation_hash_each_message_once():
    class Counted(list[Message]):
        read = 0

        def __getitem__(self, index: Any) -> Any:
            found = super().__getitem__(index)
            Counted.read += len(found)
            return found

    history: list[Message] = Counted([user("go")])
    growing = Fingerprints()
    for _ in range(10):
        growing.of(REQUEST.replace(messages=Messages.sharing(history)))
        history.append(user("more"))
    assert Counted.read == 10
