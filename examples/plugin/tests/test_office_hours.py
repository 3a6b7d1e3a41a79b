"""OfficeHours, tested with the public kit: a scripted model, a fake clock, and the checks for all capabilities."""

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from windlass_office_hours import OfficeHours

from windlass import Agent, Approve, Result, Suspended, ToolCall, ToolCalling, tool
from windlass.errors import ConfigError
from windlass.testing import FakeClock, ScriptedModel, assert_same_everywhere, calls, check_capability, fake_turn, says


@tool(destructive=True, inline=True)
def deploy(version: str) -> str:
    """Deploy a version."""
    return f"deployed {version}"


@tool(effect="pure", inline=True)
def look(at: str) -> str:
    """Look at something."""
    return f"{at} is fine"


def at(moment: str, zone: str = "UTC") -> FakeClock:
    return FakeClock(auto=True, start=datetime.fromisoformat(moment).replace(tzinfo=ZoneInfo(zone)).timestamp())


FRIDAY_NOON, FRIDAY_NIGHT, SUNDAY = "2026-11-20T12:00", "2026-11-20T22:00", "2026-11-22T12:00"


def new_agent(moment: str, *capabilities: Any, zone: str = "UTC") -> Agent[Any, Any]:
    model = ScriptedModel(calls([("deploy", {"version": "2"}), ("look", {"at": "the log"})]), says("Done."))
    return Agent(model, tools=[deploy, look], clock=at(moment, zone), capabilities=[*capabilities])


async def results(agent: Agent[Any, Any]) -> list[str]:
    return texts(await agent.run("Deploy."))


def texts(result: Result[Any]) -> list[str]:
    """What the tools of the first step returned."""
    return [one.text for one in result.steps[0].results if one is not None]


async def test_it_is_a_good_capability():
    await check_capability(OfficeHours)


async def test_tools_run_in_office_hours():
    assert await results(new_agent(FRIDAY_NOON, OfficeHours())) == ["deployed 2", "the log is fine"]


async def test_outside_office_hours_the_model_reads_when_they_begin():
    denied, looked = await results(new_agent(FRIDAY_NIGHT, OfficeHours()))
    hours = "Mon, Tue, Wed, Thu, Fri 09:00 to 17:00 UTC"
    assert denied == f"Denied: 'deploy' runs only in office hours ({hours}); they begin again on Monday at 09:00"
    assert looked == "the log is fine"


async def test_named_tools_have_hours_and_others_do_not():
    assert await results(new_agent(SUNDAY, OfficeHours("loo*"))) == ["deployed 2", _denied("look")]
    assert await results(new_agent(SUNDAY, OfficeHours(["look", "deploy"]))) == [_denied("deploy"), _denied("look")]


def _denied(name: str) -> str:
    hours = "Mon, Tue, Wed, Thu, Fri 09:00 to 17:00 UTC"
    return f"Denied: {name!r} runs only in office hours ({hours}); they begin again on Monday at 09:00"


async def test_a_person_may_allow_it():
    agent = new_agent(SUNDAY, OfficeHours(outside="ask"))
    waiting = await agent.run("Deploy.", session="s")
    assert isinstance(waiting.outcome, Suspended)
    [asked] = waiting.outcome.waiting_for
    assert asked.question.startswith("Run 'deploy' outside office hours")
    result = await agent.resume("s", answers={asked.id: Approve()})
    assert texts(result)[0] == "deployed 2"


async def test_it_is_the_same_in_every_way_of_running():
    await assert_same_everywhere(lambda: new_agent(SUNDAY, OfficeHours(outside="ask")))


@pytest.mark.parametrize(
    ("moment", "opens"),
    [("2026-11-20T08:59", True), ("2026-11-20T09:00", False), ("2026-11-20T16:59", False), ("2026-11-20T17:00", True)],
)
def test_the_edges_of_the_day(moment: str, opens: bool):
    turn = fake_turn(clock=at(moment))
    answer = OfficeHours().keep_hours(ToolCalling(ToolCall("deploy", "{}"), turn), turn)
    assert (answer is not None) == opens


@pytest.mark.parametrize(("zone", "ran"), [("Europe/Berlin", True), ("America/New_York", False)])
async def test_hours_are_those_of_the_timezone(zone: str, ran: bool):
    [deployed, _] = await results(new_agent("2026-11-20T09:30", OfficeHours(timezone=zone), zone="Europe/Berlin"))
    assert deployed.startswith("deployed") == ran


async def test_the_next_opening_may_be_today_or_in_a_week():
    hours = OfficeHours(days=["Fri"])
    assert "begin again on Friday at 09:00" in (await results(new_agent("2026-11-20T03:00", hours)))[0]
    assert "begin again on Friday at 09:00" in (await results(new_agent(FRIDAY_NIGHT, hours)))[0]


def test_explain_shows_the_hours():
    explained = new_agent(SUNDAY, OfficeHours(opens="08:30", days=["Sat", "Mon"])).explain()
    assert "Mon, Sat 08:30 to 17:00 UTC" in str(explained)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"opens": "nine"}, "OfficeHours: Invalid isoformat string: 'nine'"),
        ({"opens": "18:00"}, "it must open before it closes"),
        ({"days": ["Funday"]}, "days must be some of Mon, Tue"),
        ({"days": []}, "days must be some of Mon, Tue"),
        ({"timezone": "Moon/Sea"}, "Moon/Sea"),
        ({"outside": "sometimes"}, "outside must be 'deny' or 'ask'"),
    ],
)
def test_bad_options_are_refused(options: dict[str, Any], why: str):
    with pytest.raises(ConfigError, match=why):
        OfficeHours(**options)


def test_an_agent_finds_it_by_its_name():
    agent = Agent(ScriptedModel(), tools=[deploy], capabilities=["office_hours"])
    [installed] = agent.explain().data["capabilities"]
    assert (installed["name"], installed["type"]) == ("office_hours", "OfficeHours")
