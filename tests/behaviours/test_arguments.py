"""A call is validated before hooks see it: what is shown, judged, recorded and run are the same complete arguments."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Literal

import msgspec
import pydantic
import pytest
from tests.checks import check_log

from windlass import (
    Agent,
    Allow,
    Answer,
    Answered,
    Approve,
    Ask,
    Completed,
    Delegating,
    Deny,
    Edit,
    Reject,
    Says,
    Suspended,
    ToolCall,
    ToolCalling,
    ToolDecided,
    ToolReturned,
    ToolReturning,
    tool,
)
from windlass.approvals import resolve
from windlass.criteria import ErrorLimit
from windlass.records import HookDecided, Rewritten, ToolCalled
from windlass.stores import MemoryStore
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, run_everywhere, says, without_times

SEND = '{ "amount" : 80 ,"to":"ann" }'
SENT = '{"to":"ann","amount":80.0,"currency":"EUR","tags":[]}'


class Desk:
    """An agent that sends money, and what its tool got."""

    def __init__(self, *replies: Any, **options: Any) -> None:
        self.got: list[Any] = []
        self.model = ScriptedModel(*replies)

        @tool(inline=True)
        def send(to: str, amount: float, currency: str = "EUR", tags: Sequence[str] = ()) -> str:
            self.got.append((to, amount, currency, list(tags)))
            return "sent"

        self.agent: Agent = Agent(self.model, tools=[send], **options)

    async def run(self) -> list[Any]:
        """The log of a turn."""
        result = await self.agent.run("go", session="s")
        await check_log(self.agent, "s", result.state)
        return list(await self.agent.store.read("s"))


def of(log: Sequence[Any], kind: type) -> list[Any]:
    return [record for record in log if isinstance(record, kind)]


# ---------------------------------------------------------------- what hooks see


class Colour(Enum):
    RED = "red"


@dataclass
class Box:
    size: int
    lid: bool = True


@dataclass
class Rooted:
    path: str

    def __post_init__(self) -> None:
        self.path = f"/root{self.path}"


class Point(pydantic.BaseModel):
    x: int
    y: int = 2
    label: str = pydantic.Field("p", alias="Label")


class OneWay(pydantic.BaseModel):
    x: int = pydantic.Field(validation_alias="in", serialization_alias="out")


_NOTHING = object()


@tool
def plain(a: int, b: float = 5, c: bool = False, d: str | None = None) -> None: ...


@tool
def listed(
    names: Sequence[str] = (), pairs: tuple[int, ...] = (1, 2), seen: frozenset[str] = frozenset({"b", "a"})
) -> None: ...


@tool
def typed(
    colour: Colour = Colour.RED,
    day: datetime.date = datetime.date(2024, 5, 1),
    mode: Literal["r", "w"] = "r",
    counts: dict[int, str] | None = None,
) -> None: ...


@tool
def nested(box: Box, point: Point) -> None: ...


@tool
def stubborn(where: Rooted, way: OneWay, n: int = 1) -> None: ...


@tool
def hidden(a: int = None, b: Any = _NOTHING, c: int = 1, d: float = float("nan")) -> None: ...  # type: ignore[assignment] # noqa: RUF013


@tool
def nothing() -> None: ...


COMPLETED: list[tuple[Any, str, str]] = [
    (plain, '{"c": true, "a": 1}', '{"a":1,"b":5.0,"c":true,"d":null}'),
    (plain, '{"a":1, "b": 80}', '{"a":1,"b":80.0,"c":false,"d":null}'),
    (plain, '{"a":1,"a":2}', '{"a":2,"b":5.0,"c":false,"d":null}'),
    (listed, "", '{"names":[],"pairs":[1,2],"seen":["a","b"]}'),
    (listed, '{"seen":["z","y"],"names":["\\u00e9"]}', '{"names":["é"],"pairs":[1,2],"seen":["y","z"]}'),
    (typed, "{}", '{"colour":"red","day":"2024-05-01","mode":"r","counts":null}'),
    (
        typed,
        '{"counts":{"2":"b","1":"a"}}',
        '{"colour":"red","day":"2024-05-01","mode":"r","counts":{"2":"b","1":"a"}}',
    ),
    (
        nested,
        '{"point":{"x":1},"box":{"size":3}}',
        '{"box":{"size":3,"lid":true},"point":{"x":1,"y":2,"Label":"p"}}',
    ),
    (stubborn, '{"way":{"in":1},"where":{"path":"/a"}}', '{"where":{"path":"/a"},"way":{"in":1},"n":1}'),
    (hidden, "{}", '{"c":1}'),
    (hidden, '{"b":[1],"a":2}', '{"a":2,"b":[1],"c":1}'),
    (nothing, "null", "{}"),
]


@pytest.mark.parametrize(("given", "json", "complete"), COMPLETED)
def test_arguments_are_completed_in_the_order_of_the_parameters(given, json, complete):
    assert given.complete(json) == complete
    assert given.complete(complete) == complete
    assert given.prepare(complete) == given.prepare(json) or given is hidden


def test_a_default_without_a_json_form_stays_out_and_explain_says_so():
    assert hidden.hidden_defaults == ("a", "b", "d")
    explained = Agent(ScriptedModel(), tools=[hidden, plain]).explain()
    assert [row["hidden_defaults"] for row in explained.data["tools"]] == [["a", "b", "d"], []]
    assert "hooks do not see the defaults of a, b, d" in " ".join(str(explained).split())


def test_a_default_that_is_made_anew_is_not_shared_between_calls():
    @tool
    def keep(item: str, items: list[str] = []) -> list[str]:  # noqa: B006
        items.append(item)
        return items

    assert [keep.invoke(keep.prepare('{"item":"a"}')) for _ in range(2)] == [["a"], ["a"]]


async def test_what_is_shown_recorded_and_run_are_the_same_bytes():
    """ToolCalling, the wraps, the tool, ToolReturning, the question and the log have the same arguments and digest."""
    desk = Desk(calls([("send", SEND)]), says("done"))
    shown: list[tuple[str, str]] = []
    desk.agent.gate(ToolCalling)(lambda event: Ask("Send?"))
    desk.agent.gate(ToolReturning)(lambda event: shown.append(("returning", event.call.json)))

    @desk.agent.gate(ToolCalling)
    def look(event: ToolCalling) -> None:
        shown.append(("calling", event.call.json))
        assert event.call.arguments == {"to": "ann", "amount": 80.0, "currency": "EUR", "tags": []}

    @desk.agent.wrap(ToolCall)
    async def around(call: ToolCall, call_next: Any) -> Any:
        shown.append(("wrap", call.json))
        return await call_next(call)

    first = await desk.agent.run("go", session="s")
    (asked,) = first.waiting_for
    result = await desk.agent.resume("s", answers={asked.id: Approve()})

    assert asked.call is not None
    assert asked.call.json == SENT
    assert asked.digest == asked.call.digest
    assert {json for _, json in shown} == {SENT}
    assert [where for where, _ in shown][-2:] == ["wrap", "returning"]
    assert desk.got == [("ann", 80.0, "EUR", [])]
    log = await desk.agent.store.read("s")
    assert [(d.json, d.digest) for d in of(log, ToolDecided)] == [(SENT, asked.digest)] * 2
    assert of(log, ToolCalled)[0].json is None
    await check_log(desk.agent, "s", result.state)


@pytest.mark.parametrize("looker", ["gate", "wrap", "returning", "rewrite"])
async def test_silent_hooks_see_complete_arguments_and_write_nothing(looker):
    desk = Desk(calls([("send", SEND)]), says("done"))
    seen: list[str] = []
    match looker:
        case "gate":
            desk.agent.gate(ToolCalling)(lambda event: seen.append(event.call.json))
        case "rewrite":
            desk.agent.rewrite(ToolCalling)(lambda event: seen.append(event.call.json))
        case "returning":
            desk.agent.gate(ToolReturning)(lambda event: seen.append(event.call.json))
        case _:

            @desk.agent.wrap(ToolCall)
            async def around(call: ToolCall, call_next: Any) -> Any:
                seen.append(call.json)
                return await call_next(call)

    log = await desk.run()
    bare = await Desk(calls([("send", SEND)]), says("done")).run()
    assert seen == [SENT]
    assert [type(record) for record in log] == [type(record) for record in bare]
    assert [without_times(decided) for decided in of(log, ToolDecided)] == [ToolDecided("s/1/1", Allow(), name="send")]


async def test_complete_arguments_are_recorded_if_somebody_spoke_and_they_differ():
    for json, recorded in ((SEND, SENT), (SENT, None)):
        desk = Desk(calls([("send", json)]), says("done"))
        desk.agent.gate(ToolCalling)(lambda event: Allow())
        (decided,) = of(await desk.run(), ToolDecided)
        assert decided.json == recorded
        assert decided.digest == ToolCall("", "send", SENT).digest


@pytest.mark.parametrize("unmatched", ["ask", "deny"])
async def test_a_default_verdict_is_about_the_complete_arguments(unmatched):
    desk = Desk(calls([("send", SEND)]), says("done"), unmatched=unmatched)
    (decided,) = of(await desk.run(), ToolDecided)
    assert (decided.json, decided.digest) == (SENT, ToolCall("", "send", SENT).digest)


async def test_every_way_of_running_sees_the_same_arguments():
    def factory() -> Agent:
        agent = Desk(calls([("send", SEND), ("send", "{}")]), calls([("send", SEND)]), says("done")).agent
        agent.gate(ToolCalling)(lambda event: Ask("Send?") if event.call.arguments["currency"] == "EUR" else None)
        return agent

    everywhere = await run_everywhere(factory)
    for lived in everywhere.values():
        spoken = of(lived.log, ToolDecided)
        assert {decided.json for decided in spoken} <= {SENT, None}
        assert [r.result.status for r in of(lived.log, ToolReturned)] == ["error", "ok", "ok"]
    await assert_same_everywhere(factory)


# ---------------------------------------------------------------- an invalid call

INVALID = {
    "a text for a number": '{"to":"ann","amount":"80"}',
    "one too many": '{"to":"ann","amount":80,"limit":1}',
    "one missing": '{"amount":80}',
    "no object": "[1]",
    "no JSON": "{oops",
    "nothing": "",
}


@pytest.mark.parametrize("looker", ["nobody", "gate", "raising gate", "rewrite", "wrap", "returning", "unmatched"])
@pytest.mark.parametrize("json", INVALID.values(), ids=INVALID)
async def test_an_invalid_call_is_an_error_that_the_model_reads_and_no_hook_is_asked_about(json, looker):
    desk = Desk(calls([("send", json)]), calls([("send", SEND)]), says("done"), unmatched="allow")
    seen: list[str] = []
    match looker:
        case "gate":
            desk.agent.gate(ToolCalling)(lambda event: seen.append(event.call.json))
        case "raising gate":
            desk.agent.gate(ToolCalling)(lambda event: None if event.call.arguments["amount"] > 5 else Deny("no"))
        case "rewrite":
            desk.agent.rewrite(ToolCalling)(lambda event: seen.append(event.call.json))
        case "returning":
            desk.agent.gate(ToolReturning)(lambda event: seen.append(event.result.status))
        case "unmatched":
            desk = Desk(calls([("send", json)]), says("done"), unmatched="deny")
        case "wrap":

            @desk.agent.wrap(ToolCall)
            async def around(call: ToolCall, call_next: Any) -> Any:
                seen.append(call.json)
                return await call_next(call)

        case _:
            pass

    log = await desk.run()
    decided, returned = of(log, ToolDecided)[0], of(log, ToolReturned)[0]
    assert isinstance(decided.verdict, Deny)
    answers = (("arguments", decided.verdict),)
    assert without_times(decided) == ToolDecided("s/1/1", decided.verdict, answers=answers, name="send")
    assert "tool 'send' was not run" in decided.verdict.reason
    assert returned.result.status == "error"
    assert returned.result.text == f"Error: {decided.verdict.reason}"
    assert of(log, ToolCalled) == ([] if looker == "unmatched" else of(log, ToolCalled)[-1:])
    state = await desk.agent.state("s")
    assert state.turn is not None
    assert (state.outcome, state.turn.failed_calls) == (Completed(), 1)
    if looker == "unmatched":
        return
    assert desk.got == [("ann", 80.0, "EUR", [])]
    assert seen == {"returning": ["error", "ok"], "nobody": [], "raising gate": []}.get(looker, [SENT])


@pytest.mark.parametrize("looker", ["nobody", "gate"])
async def test_a_class_that_fails_to_read_arguments_makes_the_call_invalid(looker):
    @dataclass
    class Odd:
        x: int

        def __post_init__(self) -> None:
            raise KeyError("inside")

    @tool(inline=True)
    def odd(value: Odd) -> None: ...

    agent = Agent(ScriptedModel(calls("odd", value={"x": 1}), says("done")), tools=[odd])
    if looker == "gate":
        agent.gate(ToolCalling)(lambda event: pytest.fail("asked"))
    result = await agent.run("go", session="s")
    (returned,) = of(await agent.store.read("s"), ToolReturned)
    assert returned.result.status == "error"
    assert "its arguments could not be read (KeyError)" in returned.result.text
    assert "inside" not in returned.result.text
    assert result.outcome == Completed()


async def test_an_invalid_call_beside_others_is_decided_with_them():
    desk = Desk(calls([("send", SEND), ("send", "{}"), ("send", SEND)]), says("done"))
    desk.agent.gate(ToolReturning)(lambda event: None)
    log = await desk.run()
    assert [type(d.verdict) for d in of(log, ToolDecided)] == [Allow, Deny, Allow]
    assert [type(r).__name__ for r in log if isinstance(r, ToolDecided | ToolCalled)][:3] == ["ToolDecided"] * 3
    assert sorted(r.result.status for r in of(log, ToolReturned)) == ["error", "ok", "ok"]


async def test_an_invalid_call_counts_as_an_error():
    desk = Desk(calls([("send", "{}")]), says("done"), criteria=[ErrorLimit(1)])
    result = await desk.agent.run("go")
    assert "1 errors occurred" in str(result.outcome)


async def test_a_name_without_a_tool_is_not_checked():
    desk = Desk(calls([("ghost", '{"x": 1}')]), says("done"))
    desk.agent.gate(ToolCalling)(lambda event: Answer(event.call.json))
    (returned,) = of(await desk.run(), ToolReturned)
    assert returned.result.text == '{"x": 1}'


async def test_an_invalid_task_for_a_sub_agent_starts_no_child():
    child = Agent(ScriptedModel(says("never")), name="child")
    parent = Agent(ScriptedModel(calls([("child", '{"task": 5}')]), says("done")), tools=[child.as_tool()])
    parent.gate(Delegating)(lambda event: pytest.fail("asked"))
    result = await parent.run("go", session="s")
    (returned,) = of(await parent.store.read("s"), ToolReturned)
    assert returned.result.status == "error"
    assert "Expected `str`, got `int`" in returned.result.text
    await check_log(parent, "s", result.state)


# ---------------------------------------------------------------- who changes them

REWRITES: list[Any] = [
    ({"to": "bob", "amount": 1}, '{"to":"bob","amount":1.0,"currency":"EUR","tags":[]}'),
    ({"to": "ann", "amount": 80}, None),
    ({"amount": 80.0, "to": "ann", "tags": [], "currency": "EUR"}, None),
]


@pytest.mark.parametrize("verb", ["rewrite", "hook"])
@pytest.mark.parametrize(("arguments", "changed"), REWRITES)
async def test_a_rewrite_is_completed_before_the_next_hook_sees_it(verb, arguments, changed):
    desk = Desk(calls([("send", SEND)]), says("done"))
    seen: list[str] = []
    if verb == "rewrite":
        desk.agent.rewrite(ToolCalling, name="other")(lambda event: arguments)
    else:
        desk.agent.hook(ToolCalling, name="other")(lambda event: Says(rewrite=arguments))
    desk.agent.gate(ToolCalling)(lambda event: seen.append(event.call.json))
    log = await desk.run()
    assert seen == [changed or SENT]
    assert [dict(rewritten.fields) for rewritten in of(log, Rewritten)] == ([{"json": changed}] if changed else [])
    (decided,) = of(log, ToolDecided)
    assert decided.json == changed
    assert desk.got == [tuple(msgspec.json.decode(changed or SENT).values())]


@pytest.mark.parametrize("verb", ["rewrite", "hook"])
@pytest.mark.parametrize("arguments", [{"to": "bob"}, {"to": "bob", "amount": "1"}, {"to": "b", "amount": 1, "x": 2}])
async def test_an_invalid_rewrite_fails_in_the_name_of_its_hook(verb, arguments):
    desk = Desk(calls([("send", SEND)]), says("done"))
    if verb == "rewrite":
        desk.agent.rewrite(ToolCalling, name="careless")(lambda event: arguments)
    else:
        desk.agent.hook(ToolCalling, name="careless")(lambda event: Says(rewrite=arguments))
    desk.agent.gate(ToolCalling)(lambda event: pytest.fail("asked"))
    log = await desk.run()
    (decided,) = of(log, ToolDecided)
    assert isinstance(decided.verdict, Deny)
    assert [name for name, _ in decided.answers] == ["careless"]
    assert "careless" in decided.verdict.reason
    assert [r.result.status for r in of(log, ToolReturned)] == ["denied"]
    assert desk.got == []


async def test_an_edit_is_completed_judged_and_run_as_shown():
    desk = Desk(calls([("send", SEND)]), says("done"))
    seen: list[str] = []
    desk.agent.gate(ToolCalling, name="asker")(lambda event: Ask("Send?"))
    desk.agent.gate(ToolCalling, name="other")(lambda event: seen.append(event.call.json))
    await desk.agent.run("go", session="s")
    result = await desk.agent.resume("s", answers={"s/1/1": Edit({"amount": 1, "to": "bob"}, by="eve")})
    edited = '{"to":"bob","amount":1.0,"currency":"EUR","tags":[]}'
    assert seen == [SENT, edited]
    decided = of(await desk.agent.store.read("s"), ToolDecided)[-1]
    assert (decided.json, decided.digest) == (edited, ToolCall("", "send", edited).digest)
    assert desk.got == [("bob", 1.0, "EUR", [])]
    await check_log(desk.agent, "s", result.state)


@pytest.mark.parametrize("below", [False, True], ids=["own", "of a sub-agent"])
async def test_an_invalid_edit_is_refused_at_the_door_and_the_question_stays_open(below):
    desk = Desk(calls([("send", SEND)]), says("done"))
    desk.agent.gate(ToolCalling)(lambda event: Ask("Send?"))
    agent = desk.agent
    if below:
        agent = Agent(ScriptedModel(calls("desk", task="send it"), says("done")), tools=[agent.as_tool("desk")])
    (asked,) = (await agent.run("go", session="s")).waiting_for
    before = await agent.store.read("s")
    for door in (
        agent.resolve("s", asked.id, Edit({"amount": 1})),
        agent.resume("s", answers={asked.id: Edit({"amount": 1, "to": 5})}),
    ):
        with pytest.raises(Exception, match=r"the edited arguments do not fit: tool 'send' was not run") as refused:
            await door
        assert type(refused.value).__name__ == "StaleAnswer"
    assert [type(r) for r in await agent.store.read("s")] == [type(r) for r in before]
    await agent.resolve("s", asked.id, Edit({"amount": 1, "to": "bob"}))
    await agent.resume("s")
    assert desk.got == [("bob", 1.0, "EUR", [])]


async def test_an_invalid_edit_from_a_process_without_the_tool_fails_in_the_name_of_its_giver():
    store = MemoryStore()
    desk = Desk(calls([("send", SEND)]), says("done"), store=store)
    desk.agent.gate(ToolCalling)(lambda event: Ask("Send?"))
    await desk.agent.run("go", session="s")
    await resolve(store, "s", "s/1/1", Edit({"amount": 1}, by="eve"))
    result = await desk.agent.resume("s")
    log = await store.read("s")
    decided = of(log, ToolDecided)[-1]
    assert isinstance(decided.verdict, Deny)
    assert decided.answers == (("eve", decided.verdict),)
    assert "eve changed the arguments" in decided.verdict.reason
    assert [(r.result.status, "missing parameter 'to'" in r.result.text) for r in of(log, ToolReturned)] == [
        ("error", True)
    ]
    assert [answered.by for answered in of(log, Answered)] == ["eve"]
    assert desk.got == []
    assert result.outcome == Completed()
    await check_log(desk.agent, "s", result.state)


async def test_a_wrap_that_changes_arguments_has_them_completed_and_judged_again():
    desk = Desk(calls([("send", SEND)]), says("done"))
    seen: list[str] = []

    @desk.agent.gate(ToolCalling)
    def look(event: ToolCalling) -> Allow:
        seen.append(event.call.json)
        return Allow()

    @desk.agent.wrap(ToolCall)
    async def around(call: ToolCall, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"amount": 1, "to": "bob"}))

    log = await desk.run()
    edited = '{"to":"bob","amount":1.0,"currency":"EUR","tags":[]}'
    assert seen == [SENT, edited]
    assert [(d.about, d.event) for d in of(log, HookDecided)] == [("s/1/1/attempt.1", "ToolCalling")]
    (called,) = of(log, ToolCalled)
    assert (called.json, called.fingerprint) == (edited, ToolCall("", "send", edited).digest)
    assert desk.got == [("bob", 1.0, "EUR", [])]


async def test_a_wrap_that_writes_the_same_arguments_otherwise_has_changed_nothing():
    desk = Desk(calls([("send", SEND)]), says("done"))
    seen: list[str] = []
    desk.agent.gate(ToolCalling)(lambda event: seen.append(event.call.json))

    @desk.agent.wrap(ToolCall)
    async def around(call: ToolCall, call_next: Any) -> Any:
        return await call_next(call.replace(arguments={"amount": 80, "to": "ann"}))

    log = await desk.run()
    assert seen == [SENT]
    assert [called.json for called in of(log, ToolCalled)] == [None]


async def test_a_wrap_that_makes_a_call_invalid_reads_the_error_and_no_gate_is_asked():
    desk = Desk(calls([("send", SEND)]), says("done"))
    seen: list[str] = []
    desk.agent.gate(ToolCalling)(lambda event: seen.append(event.call.json))

    @desk.agent.wrap(ToolCall)
    async def around(call: ToolCall, call_next: Any) -> Any:
        result = await call_next(call.replace(arguments={"amount": 1}))
        assert "missing parameter 'to'" in result.text
        return result

    log = await desk.run()
    assert seen == [SENT]
    assert [r.result.status for r in of(log, ToolReturned)] == ["error"]
    assert desk.got == []


async def test_resume_runs_the_recorded_bytes_whatever_the_defaults_are_by_then():
    """A person approved 80 EUR; the process that goes on has another default."""
    store = MemoryStore()
    desk = Desk(calls([("send", SEND)]), says("done"), store=store)
    desk.agent.gate(ToolCalling)(lambda event: Ask("Send?"))
    assert isinstance((await desk.agent.run("go", session="s")).outcome, Suspended)
    got: list[Any] = []

    @tool(inline=True)
    def send(to: str, amount: float, currency: str = "BTC", tags: Sequence[str] = ()) -> str:
        got.append((to, amount, currency))
        return "sent"

    other: Agent = Agent(ScriptedModel(says("done")), tools=[send], store=store)
    other.gate(ToolCalling)(lambda event: Ask("Send?"))
    await other.resume("s", answers={"s/1/1": Approve()})
    assert got == [("ann", 80.0, "EUR")]


async def test_a_default_that_is_made_for_each_call_is_the_same_for_gate_and_tool():
    numbers = iter(range(100))

    @dataclass
    class Order:
        item: str
        number: int = field(default_factory=lambda: next(numbers))

    got: list[int] = []

    @tool(inline=True)
    def buy(order: Order) -> str:
        got.append(order.number)
        return "bought"

    seen: list[int] = []
    agent = Agent(ScriptedModel(calls([("buy", '{"order":{"item":"x"}}')]), says("done")), tools=[buy])
    agent.gate(ToolCalling)(lambda event: seen.append(event.call.arguments["order"]["number"]))
    await agent.run("go")
    assert got == seen


async def test_a_rejected_call_with_complete_arguments_is_denied_as_before():
    desk = Desk(calls([("send", SEND)]), says("done"))
    desk.agent.gate(ToolCalling)(lambda event: Ask("Send?"))
    await desk.agent.run("go", session="s")
    result = await desk.agent.resume("s", answers={"s/1/1": Reject("no")})
    assert [r.result.status for r in of(await desk.agent.store.read("s"), ToolReturned)] == ["denied"]
    await check_log(desk.agent, "s", result.state)


@pytest.mark.parametrize("answer", [None, Allow(), Ask("Fetch?")], ids=["silent", "allow", "ask"])
async def test_a_default_with_a_secret_is_shown_to_nobody_and_reaches_the_tool(answer):
    got: list[Any] = []
    seen: list[str] = []

    @dataclass
    class Login:
        user: str
        password: str = "hunter2"

    @tool(inline=True)
    def fetch(url: str, login: Login, key: str = "hunter2", retries: int = 3) -> str:
        got.append((url, login.password, key, retries))
        return "fetched"

    call = calls("fetch", login={"user": "ann"}, url="x")
    agent = Agent(ScriptedModel(call, says("done")), tools=[fetch], secrets=["hunter2"])

    @agent.gate(ToolCalling)
    def look(event: ToolCalling) -> Any:
        seen.append(event.call.json)
        return answer

    result = await agent.run("go", session="s")
    for asked in result.waiting_for:
        result = await agent.resume("s", answers={asked.id: Approve()})
    assert {*map(len, map(msgspec.json.decode, seen))} == {3}
    assert "hunter2" not in repr(seen)
    assert got == [("x", "hunter2", "hunter2", 3)]
    await check_log(agent, "s", result.state)
