"""Metadata: typed values of a session, read and written by tools, hooks, the application and the model."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any, Literal

import pytest
from msgspec import Struct

from windlass import Agent, Approve, Ask, Completed, ToolCalling, Turn, TurnStarting, tool
from windlass.capabilities import Cache, Key, Metadata
from windlass.errors import ConfigError, HookError
from windlass.testing import ScriptedModel, assert_same_everywhere, calls, check_capability, crash_points, says

PLAYS = Path(__file__).with_name("crash_plays.py")


class Address(Struct):
    city: str
    zip: int | None = None


VISITS = Key("visits", int, default=0, model="none")
CITY = Key("city", str, model="write", description="where the user lives")
HOME = Key("home", Address, model="write")
MOOD = Key("mood", Literal["good", "bad"], default="good")
SEEN = Key("seen", list[str], default=[], model="write", merge=lambda old, new: old + new)


def pad() -> Metadata:
    return Metadata(VISITS, CITY, HOME, MOOD, SEEN)


def agent_with(*script: Any, metadata: Metadata | None = None, **options: Any) -> Agent:
    return Agent(ScriptedModel(*script), capabilities=[metadata or pad()], **options)


def results(result: Any) -> list[str]:
    return [part.text for message in result.messages for part in message.parts if message.role == "tool"]


def write(key: str, value: Any) -> Any:
    return calls("set_metadata", key=key, value=value)


async def test_it_passes_the_checks_for_capabilities():
    await check_capability(pad)


async def test_the_model_stores_reads_and_lists_values():
    script = [write("city", "Oslo"), write("home", {"city": "Bergen"}), calls("get_metadata", key="home")]
    result = await agent_with(*script, calls("list_metadata"), says("ok")).run("go")
    stored, _, read, listed = results(result)
    assert stored == "city is stored."
    assert json.loads(read) == {"city": "Bergen", "zip": None}
    rows = {row["key"]: row for row in json.loads(listed)}
    assert list(rows) == ["city", "home", "mood", "seen"]
    assert rows["city"] == {
        "key": "city",
        "type": {"type": "string"},
        "may_write": True,
        "value": "Oslo",
        "description": "where the user lives",
    }
    assert (rows["mood"]["value"], rows["mood"]["may_write"], rows["seen"]["value"]) == ("good", False, [])
    metadata = pad()
    assert metadata.of(result) == {
        "visits": 0, "city": "Oslo", "home": Address("Bergen"), "mood": "good", "seen": []
    }  # fmt: skip
    assert metadata.of(result.state) == metadata.of(result)


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        ("city", 3, "the value does not fit 'city': Expected `str`, got `int`"),
        ("home", {"zip": 1}, "missing required field `city`"),
        ("home", "Bergen", "does not fit 'home'"),
        ("mood", "bad", "there is no such key 'mood' for this; the keys are city, home, seen"),
        ("visits", 1, "there is no such key 'visits'"),
        ("colour", "red", "there is no such key 'colour'"),
    ],
)
async def test_a_wrong_write_is_an_error_that_the_model_reads(key, value, why):
    result = await agent_with(write(key, value), write("city", "Oslo"), says("ok")).run("go")
    assert why in results(result)[0]
    assert pad().of(result) == {"visits": 0, "city": "Oslo", "mood": "good", "seen": []}


async def test_the_model_cannot_read_a_hidden_key_and_an_unset_one_is_null():
    script = [calls("get_metadata", key="visits"), calls("get_metadata", key="city"), says("ok")]
    hidden, unset = results(await agent_with(*script).run("go"))
    assert "there is no such key 'visits' for this; the keys are city, home, mood, seen" in hidden
    assert unset == "null"


async def test_json_in_a_text_is_accepted_where_the_type_is_no_text():
    result = await agent_with(write("home", '{"city": "Oslo", "zip": 7}'), write("city", "{}"), says("ok")).run("go")
    assert pad().of(result)["home"] == Address("Oslo", 7)
    assert pad().of(result)["city"] == "{}"


async def test_the_model_has_only_the_tools_that_it_can_use():
    assert list(agent_with(metadata=Metadata(VISITS)).tools) == []
    assert list(agent_with(metadata=Metadata(MOOD)).tools) == ["get_metadata", "list_metadata"]
    described = agent_with().tools["set_metadata"].description
    assert 'city, of type {"type":"string"} (where the user lives)' in described


async def test_tools_and_hooks_read_and_write_typed_values():
    metadata = pad()

    @tool(inline=True)
    def move(turn: Turn[Any], to: str, number: int | None = None, mood: Literal["good", "bad"] = "bad") -> str:
        """Move. Parameters with the types of keys are the model's."""
        metadata.set(turn, HOME, Address(to, number))
        metadata.set(turn, "mood", mood)
        return metadata.get(turn, HOME).city

    agent = agent_with(calls("move", to="Oslo"), says("ok"), says("ok"), metadata=metadata, tools=[move])

    @agent.inject(TurnStarting)
    def count(event, turn):
        metadata.set(turn, VISITS, metadata.get(turn, VISITS) + 1)

    result = await agent.run("go", session="s")
    assert results(result) == ["Oslo"]
    result = await agent.run("go", session="s")
    assert metadata.of(result) == {"visits": 2, "home": Address("Oslo"), "mood": "bad", "seen": []}


async def test_a_hook_that_sets_another_type_fails_and_is_named():
    metadata = pad()
    agent = agent_with(says("ok"), metadata=metadata)

    @agent.inject(TurnStarting)
    def count(event, turn):
        metadata.set(turn, "visits", "many")

    with pytest.raises(HookError, match=r"'count' set slot 'metadata.visits' .* Expected `int`, got `str`"):
        (await agent.run("go")).raise_for_error()


async def test_a_key_that_is_not_set_or_not_known_is_an_error():
    metadata = pad()
    agent = agent_with(says("ok"), metadata=metadata)
    raised: list[str] = []

    @agent.inject(TurnStarting)
    def look(event, turn):
        for key, kind in ((CITY, LookupError), ("colour", ConfigError), (Key("city", int), ConfigError)):
            with pytest.raises(kind) as caught:
                metadata.get(turn, key)
            raised.append(str(caught.value))

    assert (await agent.run("go")).outcome == Completed()
    assert "'city' is not set and has no default" in raised[0]
    assert "has no key 'colour'; its keys are visits, city" in raised[1]
    assert len(raised) == 3


async def test_parallel_writes_are_merged_or_refused():
    both = calls([("set_metadata", {"key": "seen", "value": [one]}) for one in "ab"])
    clash = calls([("set_metadata", {"key": "city", "value": one}) for one in ("Oslo", "Bergen")])
    apart = calls(
        [("set_metadata", {"key": key, "value": value}) for key, value in (("city", "Rome"), ("seen", ["c"]))]
    )
    result = await agent_with(both, clash, apart, says("ok")).run("go")
    values = pad().of(result)
    assert values["seen"] == ["a", "b", "c"]
    assert values["city"] == "Rome"
    assert "at the same time; give it a merge rule" in results(result)[3]


async def test_the_application_sets_values_for_a_run():
    metadata = pad()
    agent = agent_with(says("ok"), metadata=metadata)
    result = await agent.run("go", slots=metadata.slots(city="Oslo", visits=3))
    assert metadata.of(result)["visits"] == 3
    assert metadata.of(result)["city"] == "Oslo"
    with pytest.raises(HookError, match="not a valid visits"):
        metadata.slots(visits="many")
    with pytest.raises(ConfigError, match="has no key 'colour'"):
        metadata.slots(colour="red")


async def test_values_are_read_anew_beside_a_cache_of_tools():
    script = [write("city", "Oslo"), calls("get_metadata", key="city"), write("city", "Rome")]
    agent = agent_with(*script, calls("get_metadata", key="city"), says("ok")).with_capability(Cache(tools=True))
    assert results(await agent.run("go"))[1::2] == ["Oslo", "Rome"]


async def test_two_of_them_need_other_tools_but_can_share_an_agent_without_any():
    first, second = Metadata(VISITS), Metadata(Key("visits", str, model="none"), name="other")
    agent = agent_with(says("ok"), metadata=first).with_capability(second)
    result = await agent.run("go", slots={**first.slots(visits=1), **second.slots(visits="x")})
    assert (first.of(result), second.of(result)) == ({"visits": 1}, {"visits": "x"})


async def test_values_survive_a_fork_and_a_resume_in_another_process(tmp_path):
    def make(*script: Any) -> Agent:
        agent = agent_with(*script, store=f"sqlite:///{tmp_path}/pad.db")
        agent.gate(ToolCalling, tool="list_metadata")(lambda event: Ask("list?"))
        return agent

    async with make(write("city", "Oslo"), calls("list_metadata")) as first:
        asked = (await first.run("go", session="s")).waiting_for[0]
    async with make(write("city", "Rome"), says("ok"), write("city", "Paris"), says("ok")) as second:
        resumed = await second.resume("s", answers={asked.id: Approve()})
        assert '"value":"Oslo"' in results(resumed)[1].replace(" ", "")
        fork = await second.fork("s")
        await second.run("go on", session=fork)
        assert [pad().of(await second.state(name))["city"] for name in ("s", fork)] == ["Rome", "Paris"]


async def test_it_is_the_same_everywhere():
    script = [write("city", "Oslo"), write("seen", ["a"]), write("seen", ["b"]), says("ok")]
    lived = await assert_same_everywhere(lambda: agent_with(*script))
    assert pad().of(lived.state)["seen"] == ["a", "b"]


@pytest.mark.timeout(240)
def test_no_write_is_lost_or_made_twice_whatever_write_the_process_dies_at():
    report = crash_points(f"{PLAYS}:counted", workers=2)
    assert report.text == "Counted to 3."
    assert len(report.points) > 8


def test_types_such_as_dates_are_stored():
    day = Key("day", date, default=date(2026, 1, 2))
    assert Metadata(day).slots(day=date(2026, 3, 4)) == {"metadata.day": {"value": "2026-03-04"}}


def test_explain_tells_the_keys():
    (line,) = agent_with(metadata=Metadata(VISITS, CITY)).explain().data["capabilities"]
    assert line["summary"] == "visits (model: none), city (model: write)"


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Metadata(), "one or more Key"),
        (lambda: Metadata("city"), "one or more Key"),
        (lambda: Metadata(CITY, Key("city", int)), "two keys of one name"),
        (lambda: Metadata(CITY, name=""), "name must be a text"),
        (lambda: Key("a b", int), "such as 'order_id'"),
        (lambda: Key("a", int, model="admin"), "'none', 'read' or 'write'"),
        (lambda: Key("a", int, merge="last"), "a function of two values"),
        (lambda: Key("a", object()), "cannot be stored"),
        (lambda: Metadata(Key("a", int, default="x")), "default='x' is not of that type"),
    ],
)
def test_invalid_options_are_refused(make, why):
    with pytest.raises(ConfigError, match=why):
        make()


async def test_a_number_that_cannot_be_stored_is_an_error_that_the_model_reads():
    big = Key("big", int, model="write")
    agent = agent_with(calls("set_metadata", key="big", value=10**30), says("Oh."), metadata=Metadata(big))
    result = await agent.run("go")
    assert "the value of 'big' cannot be stored" in result.messages[2].parts[0].text
    assert "64 bits" in result.messages[2].parts[0].text


async def test_a_merge_rule_that_raises_fails_the_call_and_is_named():
    key = Key("n", int, default=0, model="write", merge=lambda old, new: old // 0)
    script = [calls("set_metadata", key="n", value=1), calls("set_metadata", key="n", value=2), says("Oh.")]
    metadata = Metadata(key)
    result = await agent_with(*script, metadata=metadata).run("go")
    assert result.outcome == Completed()
    assert "the merge rule of slot 'metadata.n' failed" in result.messages[4].parts[0].text
    assert metadata.of(result) == {"n": 1}
