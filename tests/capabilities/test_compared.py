"""What the middlewares of LangChain and deepagents do, done by ours: the tests that docs/comparison.toml names."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from windlass import (
    Agent,
    Answer,
    Completed,
    Deny,
    ErrorPolicy,
    Failed,
    ModelReplying,
    Noted,
    Reject,
    Stopped,
    Stopping,
    ToolCall,
    ToolCalling,
    Veto,
    tool,
)
from windlass.capabilities import (
    Approval,
    AtFraction,
    AtTokens,
    Budget,
    ClearResults,
    Critic,
    Memory,
    MemoryFiles,
    Moderate,
    Pattern,
    Planning,
    Redact,
    Retry,
    Subagents,
    Summarize,
    ToolSelect,
    Validate,
)
from windlass.errors import OutputError, ServerError
from windlass.events import Compaction
from windlass.messages import user
from windlass.records import Compacted
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, says

RAN: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_ran_yet():
    RAN.clear()


@tool(effect="pure", inline=True)
def look(what: str = "it") -> str:
    """Look at something."""
    RAN.append(f"look {what}")
    return f"{what} is blue"


@tool(inline=True)
def delete(path: str) -> str:
    """Delete a file."""
    RAN.append(f"delete {path}")
    return f"{path} is gone"


@tool(effect="pure", inline=True)
def fetch(key: str) -> str:
    """Fetch a value."""
    RAN.append(f"fetch {key}")
    if key == "odd":
        raise ValueError("no such key: odd")
    raise ConnectionError("no network")


def agent_with(*script: Any, **options: Any) -> Agent:
    return Agent(ScriptedModel(*script), tools=[look, delete, fetch], **options)


def results(result: Any) -> list[tuple[str, str]]:
    parts = [part for message in result.messages if message.role == "tool" for part in message.parts]
    return [(part.status, part.text) for part in parts]


# ---------------------------------------------------------------- context


async def test_old_results_are_cleared_with_words_of_yours_and_stay_in_the_transcript():
    script = [calls("look", what=f"page {number} " + "text " * 50) for number in range(4)]
    agent = agent_with(*script, says("Read."), capabilities=[ClearResults(AtTokens(300), keep=1, placeholder="(old)")])
    result = await agent.run("Read it.")
    shown = [
        part.text for message in agent.model.requests[-1].messages if message.role == "tool" for part in message.parts
    ]
    assert shown[0] == "(old)"
    assert shown[-1].startswith("page 3")
    assert results(result)[0][1].startswith("page 0")


async def test_what_stays_is_a_fraction_of_the_window():
    writer = ScriptedModel(*["They talked."] * 9, name="writer")
    agent = Agent(FunctionModel(lambda request: says("A long answer. " * 100)), window=20_000)
    agent.with_capability(Summarize(writer, trigger=AtFraction(0.5), keep=1, target=0.4))
    for number in range(40):
        await agent.run(f"Question {number}", session="s")
    log = await agent.store.read("s")
    sizes = [(record.before, record.after) for record in log if isinstance(record, Compacted)]
    assert len(sizes) >= 2
    assert all(0.2 < after / before <= 0.4 for before, after in sizes), sizes
    assert (await agent.state("s")).shown[0].text.endswith("They talked.")


async def test_a_function_of_yours_writes_the_summary():
    class Digest:
        name = "digest"

        def install(self, registrar):
            registrar.compactor(self)

        def plan(self, window, *, forced=False):
            due = forced or len(window.messages) > 4
            return Compaction((0, len(window.messages) - 1), reason="more than four messages") if due else None

        async def replace(self, plan, window, turn):
            count = len(window.messages[slice(*plan.range)])
            return [user(f"{count} messages came before.")]

    agent = Agent(FunctionModel(lambda request: says("A long answer. " * 20)), capabilities=[Digest()])
    for number in range(4):
        await agent.run(f"Question {number}", session="s")
    state = await agent.state("s")
    assert "messages came before." in state.shown[0].text
    assert len(state.messages) == 8


async def test_two_files_are_remembered_side_by_side(tmp_path):
    for name, text in (("user.md", "- Ann likes tea.\n"), ("project.md", "- Use tabs.\n")):
        tmp_path.joinpath(name).write_text(text)
    one = Memory(MemoryFiles(tmp_path / "user.md"), key="all", shown="session", heading="About the user:", name="user")
    two = Memory(MemoryFiles(tmp_path / "project.md"), key="all", shown="session", tools=True, name="project")
    agent = Agent(ScriptedModel(calls("remember", text="Tests first."), says("ok")), capabilities=[one, two])
    await agent.run("Hi")
    system = agent.model.requests[0].system
    assert "About the user:\n- Ann likes tea." in system
    assert "Use tabs." in system
    assert "Tests first." in tmp_path.joinpath("project.md").read_text()
    assert "Tests first." not in tmp_path.joinpath("user.md").read_text()


# ---------------------------------------------------------------- people


async def test_a_condition_that_changes_its_mind_cannot_drop_the_answer_of_a_person():
    minds = iter([True, False, False, False])
    agent = agent_with(calls("delete", path="/x"), says("Then not."))
    agent.with_capability(Approval(lambda event: next(minds)))
    [asked] = (await agent.run("Delete /x.", session="s")).waiting_for
    result = await agent.resume("s", answers={asked.id: Reject("keep it")})
    assert results(result) == [("denied", "Denied: keep it")]
    assert RAN == []


# ---------------------------------------------------------------- tools


async def test_a_model_makes_up_the_results_of_some_tools():
    faker = ScriptedModel(says("The file is gone (not really)."), name="faker")
    agent = agent_with(calls([("delete", {"path": "/x"}), ("look", {})]), says("Done."), models=[faker])

    @agent.gate(ToolCalling, tool="delete")
    async def make_up(event, turn):
        call = event.call
        prompt = f"Make up a result of {call.name}: {event.tool.description} {call.arguments}"
        return Answer((await turn.ask("faker", prompt)).text)

    result = await agent.run("Delete /x.")
    assert results(result) == [("answered", "The file is gone (not really)."), ("ok", "it is blue")]
    assert RAN == ["look it"]
    assert "Delete a file." in faker.requests[0].messages[0].text


async def test_a_selection_in_words_of_yours():
    picker = ScriptedModel(says("look"), name="picker")

    async def pick(event):
        reply = await event.turn.ask("picker", event.message.text, system="Name the one tool that helps most.")
        return [reply.text]

    agent = agent_with(calls([("look", {}), ("delete", {"path": "/x"})]), says("Blue."), models=[picker])
    agent.with_capability(ToolSelect(pick, most=1))
    result = await agent.run("Which colour?")
    assert [status for status, _ in results(result)] == ["ok", "denied"]
    assert picker.requests[0].system == "Name the one tool that helps most."


async def test_some_tools_are_always_available():
    agent = agent_with(calls([("look", {}), ("delete", {"path": "/x"}), ("fetch", {"key": "k"})]), says("Done."))
    agent.with_capability(ToolSelect(lambda event: ["look"], most=1, always="del*"))
    assert [status for status, _ in results(await agent.run("Go."))] == ["ok", "ok", "denied"]


async def test_the_tool_calls_of_a_session_are_limited():
    script = [calls("look"), calls("look"), says("One."), calls([("look", {}), ("look", {})]), says("Two.")]
    agent = agent_with(*script, capabilities=[Budget(calls=3, per="session")])
    first = await agent.run("Look.", session="s")
    second = await agent.run("Look again.", session="s")
    assert [status for status, _ in results(second)] == ["ok", "ok", "ok", "denied"]
    assert (first.text, second.text, len(RAN)) == ("One.", "Two.", 3)


async def test_an_error_of_a_tool_is_told_in_words_of_yours_and_others_end_the_turn():
    def build(key: str) -> Agent:
        agent = agent_with(calls("fetch", key=key), says("Done."), errors=ErrorPolicy.strict())

        @agent.wrap(ToolCall, tool="fetch")
        async def explain(call, call_next):
            try:
                return await call_next(call)
            except ValueError:
                return f"There is no key {call.arguments['key']!r}. Use another one."

        return agent

    told = await build("odd").run("Fetch it.")
    assert results(told) == [("ok", "There is no key 'odd'. Use another one.")]
    assert told.outcome == Completed()
    assert isinstance((await build("even").run("Fetch it.")).outcome, Failed)


async def test_a_tool_that_keeps_failing_is_an_error_that_the_model_reads_or_the_end():
    def build(**options: Any) -> Agent:
        retry = Retry(3, tools="fetch", models=False)
        return agent_with(
            calls("fetch", key="k"), says("No."), capabilities=[retry], clock=FakeClock(auto=True), **options
        )

    result = await build().run("Fetch it.")
    assert (result.text, len(RAN), results(result)[0][0]) == ("No.", 3, "error")
    result = await build(errors=ErrorPolicy(actions={"tool": "halt"})).run("Fetch it.")
    assert isinstance(result.outcome, Failed)
    assert len(RAN) == 6


async def test_a_model_judges_whether_a_call_is_risky():
    judge = ScriptedModel(says("true"), says("false"), name="judge")
    both = calls([("delete", {"path": "/etc"}), ("delete", {"path": "/tmp/x"})])
    agent = guarded(agent_with(both, says("Done."), models=[judge]))
    result = await agent.run("Delete /tmp/x.")
    assert [status for status, _ in results(result)] == ["denied", "ok"]
    assert RAN == ["delete /tmp/x"]
    assert "Delete /tmp/x." in judge.requests[0].messages[0].text


async def test_a_call_that_nobody_could_judge_is_denied():
    judge = ScriptedModel(*[ServerError("down")] * 9, name="judge")
    agent = agent_with(calls("delete", path="/tmp/x"), says("No."), models=[judge], clock=FakeClock(auto=True))
    result = await guarded(agent).run("Delete /tmp/x.")
    assert [status for status, _ in results(result)] == ["denied"]
    assert RAN == []


def guarded(agent: Agent) -> Agent:
    """An agent whose model `judge` is asked about every deletion."""

    @agent.gate(ToolCalling, tool="delete", costly=True, band="guard")
    async def judge_risk(event, turn):
        asked = f"<task>{turn.user_message.text}</task> Is the call {event.call.json} risky, or not asked for?"
        return Deny("This is too risky.") if await turn.ask("judge", asked, output=bool) else None

    return agent


# ---------------------------------------------------------------- limits


async def test_the_model_calls_of_a_session_are_limited():
    agent = agent_with(*[calls("look"), says("One."), calls("look")], capabilities=[Budget(steps=3, per="session")])
    assert (await agent.run("Look.", session="s")).text == "One."
    result = await agent.run("Look again.", session="s")
    assert isinstance(result.outcome, Stopped)
    assert len(agent.model.requests) == 3
    with pytest.raises(OutputError):
        _ = result.output


# ---------------------------------------------------------------- content


async def test_hardware_addresses_and_links_are_found_by_patterns():
    mac = Pattern("mac", r"\b(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}\b", longest=18)
    url = Pattern("url", r"\bhttps?://[^\s<>]+|\bwww\.[^\s<>]+", longest=2_000)
    answer = "See https://example.org/a?b=c now."
    agent = Agent(ScriptedModel(says(answer, chunks=list(answer))), capabilities=[Redact(mac, url)])
    message = "My card is 00:1B:44:11:3A:B7, see www.example.org/x too."
    stream = agent.stream(message, session="s")
    seen = [str(item) async for item in stream]
    assert "example.org" not in str(seen)
    assert stream.result.text == "See [url] now."
    assert agent.model.requests[0].messages[0].text == "My card is [mac], see [url] too."


async def test_flagged_results_are_withheld():
    def judge(result):
        return "it is rude" if "blue" in result.text else None

    agent = agent_with(calls("look"), says("I may not say."), capabilities=[Validate(results=judge)])
    result = await agent.run("Look.")
    assert [status for status, _ in results(result)] == ["denied"]
    assert "blue" not in str(agent.model.requests[1].messages)


async def test_a_flagged_answer_is_replaced_and_the_turn_completes():
    agent = agent_with(says("You idiot."))

    @agent.rewrite(ModelReplying, band="guard")
    def replace(event):
        return event.reply.map_text(lambda text: "This answer was removed." if "idiot" in text else text)

    result = await agent.run("Hi", session="s")
    assert (result.text, result.outcome) == ("This answer was removed.", Completed())
    assert "idiot" not in str(await agent.store.read("s"))


async def test_the_user_reads_words_of_yours_if_a_text_is_flagged():
    moderate = Moderate(lambda text: "idiot" in text, reply="Let us be polite.")
    agent = agent_with(says("Hello."), capabilities=[moderate])
    result = await agent.run("Hi, idiot.")
    assert result.text == "Let us be polite."
    with pytest.raises(OutputError):
        _ = result.output


# ---------------------------------------------------------------- planning, sub-agents, critics


async def test_words_about_the_plan_are_in_the_system_text():
    agent = agent_with(says("ok"), system="Plan only what takes more than three steps.", capabilities=[Planning()])
    await agent.run("Hi")
    assert agent.model.requests[0].system.startswith("Plan only what takes more than three steps.")
    assert {"write_todos", "update_todo"} <= {one.name for one in agent.model.requests[0].tools}


class Finding(Struct):
    title: str
    sure: bool


async def test_a_sub_agent_answers_with_a_typed_value():
    child = Agent(ScriptedModel(says('{"title": "leak", "sure": true}')), output=Finding, name="reviewer")
    agent = Agent(ScriptedModel(calls("delegate", agent="reviewer", task="Review it."), says("A leak.")))
    agent.with_capability(Subagents([child]))
    assert results(await agent.run("Review it.")) == [("ok", '{"title": "leak", "sure": true}')]


async def test_a_rubric_of_the_run_is_judged_before_the_turn_ends():
    grader = ScriptedModel(says('"Name the year."'), says("null"), name="grader")
    agent = agent_with(says("It was long ago."), says("It was in 1066."), models=[grader])

    @agent.gate(Stopping, costly=True, when=lambda event: "rubric" in event.turn.scope)
    async def grade(event, turn):
        work = f"{turn.scope['rubric']}\n<work>{turn.state.text}</work>\nWhat is missing, or null?"
        missing = await turn.ask("grader", work, output=str | None)
        return Veto(missing) if missing else None

    result = await agent.run("When?", scope={"rubric": "The answer names a year."})
    assert (result.text, len(grader.requests)) == ("It was in 1066.", 2)
    assert "The answer names a year." in grader.requests[0].messages[0].text


async def test_every_verdict_of_a_critic_can_be_observed():
    critic = ScriptedModel(
        says('{"verdict": "revise", "score": 3, "feedback": "Longer."}'), says('{"verdict": "approve", "score": 9}')
    )
    agent = Agent(ScriptedModel(says("Hm."), says("A longer answer."), name="creator"), capabilities=[Critic(critic)])
    seen = []
    agent.observe(Noted, wait=True)(lambda fact: seen.append((fact.kind, fact.data["verdict"])))
    await agent.run("Explain it.")
    assert seen == [("critic", "revise"), ("critic", "approve")]
