"""ToolSelect: some tools are picked for each message, and the prefix that vendors cache stays as it is."""

from __future__ import annotations

import msgspec
import pytest

from windlass import Agent, Ask, Noted, ToolCalling, tool
from windlass.capabilities import Skills, ToolSelect
from windlass.errors import ConfigError, ModelError
from windlass.testing import (
    FunctionModel,
    PrefixCache,
    ScriptedModel,
    assert_prefix_stable,
    assert_same_everywhere,
    calls,
    check_capability,
    says,
)

WORK = {
    "read_file": "Read a file from the disk.",
    "write_file": "Write a file to the disk.",
    "send_mail": "Send an e-mail to a person.",
    "search_mail": "Search the mailbox for e-mails.",
    "book_flight": "Book a flight between two airports.",
    "weather": "Tell the weather of a city.",
    "translate": "Translate a text into another language.",
    "run_sql": "Run a query on the database.",
}


def work(name, description):
    def do(what: str = "") -> str:
        return f"{name} done"

    return tool(effect="pure", inline=True, name=name, description=description)(do)


TOOLS = [work(name, description) for name, description in WORK.items()]


def agent_with(select, *script, tools=TOOLS, **options):
    return Agent(ScriptedModel(*(script or [says("ok")] * 4)), tools=tools, capabilities=[select], **options)


def hint(agent, number=-1):
    message = [one for one in agent.model.requests[number].messages if one.role == "user"][-1]
    return "".join(part.text for part in message.parts if part.origin == "tool_select.pick")


def offered(agent, number=-1):
    return [spec.name for spec in agent.model.requests[number].tools]


def statuses(result):
    return [part.status for message in result.messages for part in message.parts if message.role == "tool"]


async def notes(agent, session="s"):
    return [record.kind for record in await agent.store.read(session) if isinstance(record, Noted)]


@pytest.mark.parametrize("change", ["nothing", "list"])
async def test_it_passes_the_checks_for_capabilities(change):
    await check_capability(lambda: ToolSelect(most=1, change=change, find=True))
    await check_capability(lambda: ToolSelect(lambda event: ["echo"], most=1, change=change))


async def test_a_search_picks_tools_by_words_and_others_are_refused():
    both = calls([("send_mail", {}), ("weather", {})])
    agent = agent_with(ToolSelect(most=2), both, says("ok"))
    result = await agent.run("Please send an e-mail to Ann", session="s")
    assert hint(agent) == "Tools for this message: send_mail, search_mail. Other tools are not available now."
    assert offered(agent) == list(WORK)
    assert statuses(result) == ["ok", "denied"]
    assert "it was not selected for this message; use send_mail, search_mail" in str(result.messages)


async def test_the_earlier_messages_of_the_user_count():
    agent = agent_with(ToolSelect(most=1))
    await agent.run("What is the weather in Ulm?", session="s")
    await agent.run("And in Bonn?", session="s")
    assert "weather" in hint(agent)


async def test_few_tools_are_all_offered():
    agent = agent_with(ToolSelect(most=8), calls("weather"), says("ok"))
    assert statuses(await agent.run("Read a file.")) == ["ok"]
    assert hint(agent) == ""


async def test_tools_of_capabilities_and_those_outside_are_never_restricted(tmp_path):
    """Behaviour 79: tools that are always included do not count against the limit."""
    (tmp_path / "SKILL.md").write_text("---\nname: tone\ndescription: Tone.\n---\nBe brief.")
    script = [calls([("use_skill", {"name": "tone"}), ("weather", {}), ("run_sql", {}), ("send_mail", {})]), says("ok")]
    agent = agent_with(ToolSelect(most=2, always=["run_*", "weather"]), *script).with_capability(Skills(tmp_path))
    assert statuses(await agent.run("Write or read a file on the disk.")) == ["ok", "ok", "ok", "denied"]
    expected = "read_file, write_file, weather, run_sql, use_skill, read_skill_file."
    assert hint(agent).startswith(f"Tools for this message: {expected}")
    agent = agent_with(ToolSelect(most=1, among="*_mail"), calls([("weather", {}), ("send_mail", {})]), says("ok"))
    assert statuses(await agent.run("Search the mailbox.")) == ["ok", "denied"]


# ---------------------------------------------------------------- the prefix


async def test_the_list_of_tools_is_the_same_to_the_byte_whatever_is_picked():
    script = [calls("read_file"), says("one"), calls("weather"), says("two"), says("three")]
    agent = agent_with(ToolSelect(most=1), *script, system="You help.")
    for message in ("Read a file.", "The weather in Ulm?", "Translate it into another language."):
        await agent.run(message, session="s")
    assert [hint(agent, number).split()[4] for number in (0, 2, 4)] == ["read_file.", "weather.", "translate."]
    assert len({msgspec.json.encode((one.system, one.tools)) for one in agent.model.requests}) == 1
    await assert_prefix_stable(agent, "s", allow=["turn"])


async def test_removing_tools_instead_would_break_the_prefix():
    """The check above can fail: with lists of their own, requests of later turns have no common prefix."""
    agent = agent_with(ToolSelect(most=1, change="list"))
    await agent.run("Read a file.", session="s")
    await agent.run("The weather in Ulm?", session="s")
    with pytest.raises(AssertionError, match=r"'tool_select\.offer' \(tools\)"):
        await assert_prefix_stable(agent, "s", allow=["turn"])


async def test_with_lists_the_prefix_breaks_only_when_a_tool_is_added_and_by_name():
    script = [calls("read_file"), says("1"), calls("weather"), says("2"), calls("read_file"), says("3")]
    agent = agent_with(ToolSelect(most=1, change="list"), *script)
    for message in ("Read a file.", "The weather in Ulm?", "Read that file again, this file"):
        await agent.run(message, session="s")
    assert [offered(agent, number) for number in range(6)] == [["read_file"]] * 2 + [["read_file", "weather"]] * 4
    prefixes = await assert_prefix_stable(agent, "s", allow=["tool_select.offer"])
    assert [(one.step, one.broken.kind, one.broken.detail) for one in prefixes if one.broken] == [
        (3, "tools", "tools: weather added")
    ]


@pytest.mark.parametrize(("change", "much"), [("nothing", True), ("list", False)])
async def test_a_vendors_cache_serves_much_of_later_turns_only_if_the_list_stays(change, much):
    tools = [work(name, WORK[name] * 20) for name in WORK]
    agent = agent_with(ToolSelect(most=1, change=change), tools=tools)
    for message in ("Read a file.", "The weather in Ulm?", "Book a flight"):
        await agent.run(message, session="s")
    cache = PrefixCache(block=16)
    for request in agent.model.requests:
        cache.read(request)
    assert (cache.rate > 0.6) == much, cache.rate


# ---------------------------------------------------------------- a model picks


async def test_a_model_picks_and_reads_the_descriptions():
    picker = ScriptedModel(says('["weather", "translate", "weather", "run_sql"]'), name="small")
    agent = agent_with(ToolSelect(picker, most=2))
    await agent.run("Wie ist das Wetter?")
    assert "weather, translate." in hint(agent)
    assert "- book_flight: Book a flight between two airports." in picker.requests[0].system
    assert picker.requests[0].messages[0].text == "Wie ist das Wetter?"


@pytest.mark.parametrize(
    ("otherwise", "expected"),
    [
        ("all", ""),
        ("none", "Tools for this message: none. Other tools are not available now."),
        (["weather"], "Tools for this message: weather. Other tools are not available now."),
        (lambda event: [event.message.text], "Tools for this message: run_sql. Other tools are not available now."),
    ],
)
async def test_a_malformed_selection_is_asked_for_again_and_then_something_else_counts(otherwise, expected):
    """Behaviour 79: bounded retries, then what is configured."""
    picker = ScriptedModel(says("no JSON"), says('["no_tool"]'), says('{"a": 1}'), name="small")
    agent = agent_with(ToolSelect(picker, most=2, retries=2, otherwise=otherwise))
    assert (await agent.run("run_sql", session="s")).text == "ok"
    assert len(picker.requests) == 3
    assert hint(agent) == expected
    assert await notes(agent) == ["tool_select.failed"]


async def test_with_error_a_malformed_selection_fails_the_turn():
    """Behaviour 79: an error, if that is configured."""
    picker = ScriptedModel(says("no JSON"), name="small")
    result = await agent_with(ToolSelect(picker, most=2, retries=0, otherwise="error")).run("x")
    with pytest.raises(Exception, match=r"tool_select\.pick"):
        result.raise_for_error()


async def test_a_model_that_is_down_does_not_end_the_turn():
    picker = FunctionModel(lambda request: ModelError("down"), name="small")
    agent = agent_with(ToolSelect(picker, most=2))
    assert (await agent.run("x", session="s")).text == "ok"
    assert await notes(agent) == ["tool_select.failed"]


@pytest.mark.parametrize("answer", [["no_tool"], "no_tool", 3])
async def test_a_function_that_names_no_tool_is_noted(answer):
    agent = agent_with(ToolSelect(lambda event: answer, most=2))
    assert (await agent.run("x", session="s")).text == "ok"
    assert await notes(agent) == ["tool_select.failed"]


async def test_an_async_function_may_pick_nothing():
    async def nothing(event):
        return []

    agent = agent_with(ToolSelect(nothing, most=2), calls("weather"), says("ok"))
    assert statuses(await agent.run("x")) == ["denied"]
    assert "Tools for this message: none" in hint(agent)


# ---------------------------------------------------------------- find_tools


@pytest.mark.parametrize("change", ["nothing", "list"])
async def test_the_model_can_find_more_tools_for_the_turn(change):
    script = [
        calls("find_tools", query="book flights"),
        calls("book_flight"),
        says("1"),
        calls("book_flight"),
        says("2"),
    ]
    agent = agent_with(ToolSelect(most=1, find=True, change=change), *script)
    first = await agent.run("The weather in Ulm?", session="s")
    assert first.messages[2].parts[0].text == "- book_flight: Book a flight between two airports."
    assert statuses(first) == ["ok", "ok"]
    assert statuses(await agent.run("The weather in Bonn?", session="s"))[-1] == "denied"
    if change == "list":
        assert offered(agent, 0) == ["find_tools", "weather"]
        assert offered(agent, 1) == ["find_tools", "weather", "book_flight"]


async def test_several_searches_of_one_step_add_up():
    script = [
        calls([("find_tools", {"query": "flight"}), ("find_tools", {"query": "translate"})]),
        calls([("book_flight", {}), ("translate", {}), ("run_sql", {})]),
        says("ok"),
    ]
    agent = agent_with(ToolSelect(most=1, find=True), *script)
    assert statuses(await agent.run("The weather in Ulm?")) == ["ok", "ok", "ok", "ok", "denied"]


@pytest.mark.parametrize("change", ["nothing", "list"])
async def test_it_is_the_same_everywhere_and_does_not_pick_again_on_resume(change):
    picked = []

    def pick(event):
        picked.append(event.message.text)
        return ["weather"]

    def make():
        agent = agent_with(
            ToolSelect(pick, most=1, change=change), calls([("weather", {}), ("run_sql", {})]), says("ok")
        )
        agent.gate(ToolCalling, tool="weather", name="ask")(lambda event: Ask("May it?"))
        return agent

    lived = await assert_same_everywhere(make)
    assert lived.resumed == 1
    assert len(picked) == 6  # once for each way of running


@pytest.mark.parametrize(
    "options",
    [
        {"most": 0},
        {"retries": -1},
        {"otherwise": "some"},
        {"change": "order"},
        {"select": 3},
        {"among": 3},
        {"name": ""},
    ],
)
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match="ToolSelect"):
        ToolSelect(**options)


def test_explain_says_how_tools_are_picked():
    [listed] = agent_with(ToolSelect()).explain().data["capabilities"]
    assert listed["summary"] == "at most 8 tools for a message, picked by search; the list of tools stays the same"


@pytest.mark.parametrize("otherwise", ["all", "error"])
async def test_any_failure_to_pick_is_noted_unless_it_is_an_error(otherwise):
    def broken(event):
        raise RuntimeError("the index is gone")

    agent = Agent(
        ScriptedModel(says("Done.")),
        tools=[work(*pair) for pair in WORK.items()],
        capabilities=[ToolSelect(broken, most=2, otherwise=otherwise)],
    )
    result = await agent.run("go", session="s")
    texts = [record.data["text"] for record in await agent.store.read("s") if isinstance(record, Noted)]
    if otherwise == "all":
        assert (result.text, texts) == ("Done.", ["the index is gone"])
    else:
        assert "the index is gone" in result.outcome.error.message
