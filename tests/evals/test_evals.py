"""Evaluations: cases, checks, judges, repetition, recorded sessions, comparison and reports."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

import pytest

from windlass import Agent, Ask, Deny, ToolCalling, tool
from windlass.errors import ConfigError
from windlass.evals import (
    Case,
    Check,
    EvalRun,
    ModelJudge,
    Trial,
    TrialReport,
    Verdict,
    checks,
    compare,
    evaluate,
    evaluate_sessions,
    junit,
    load_cases,
)
from windlass.evals.statistics import sign_test, wilson
from windlass.stores import open_store
from windlass.testing import FunctionModel, ScriptedModel, calls, says


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def delete(path: str) -> str:
    """Delete a file."""
    raise AssertionError("must not run")


def calculator(*replies: object) -> Agent:
    agent = Agent(ScriptedModel(*(replies or (calls("add", a=1, b=2), says("The sum is 3.")))), tools=[add, delete])

    @agent.gate(ToolCalling, tool="delete")
    def protect(event: ToolCalling) -> Deny:
        return Deny("files are protected")

    return agent


async def check(one: Callable[[Trial], object] | Check, *replies: object) -> TrialReport:
    run = await evaluate(calculator(*replies), [Case("1 + 2?", checks=[one])])
    return run.trials[0]


DENIED = (calls("delete", path="/etc"), says("I may not."))


@pytest.mark.parametrize(
    ("good", "bad"),
    [
        (checks.contains("is 3"), checks.contains("is 4")),
        (checks.contains("THE SUM", ignore_case=True), checks.contains("THE SUM")),
        (checks.equals(" The sum is 3. "), checks.equals("The sum")),
        (checks.matches(r"\b3\b"), checks.matches(r"^3")),
        (checks.outcome("completed"), checks.outcome("stopped")),
        (checks.called("add", {"a": 1}), checks.called("add", {"a": 2})),
        (checks.called("add", times=1), checks.called("add", times=2)),
        (checks.not_called("delete"), checks.not_called("a*")),
        (checks.not_proposed("delete"), checks.not_proposed("add")),
        (checks.order(["add"]), checks.order(["add", "add"])),
        (checks.order(["a*"], exact=True), checks.order([], exact=True)),
        (checks.not_decided("Deny"), checks.decided("Deny")),
        (checks.no_tool_errors(), checks.denied("add")),
        (checks.max_steps(2), checks.max_steps(1)),
        (checks.max_tokens(10_000), checks.max_tokens(1)),
        (checks.max_seconds(1000), checks.max_usd(1000)),  # the cost of a scripted model is not known
    ],
    ids=lambda check: check.name,
)
async def test_a_check_passes_and_fails_as_it_says(good: Check, bad: Check) -> None:
    passed = await check(good)
    assert passed.passed, passed.failures
    failed = await check(bad)
    assert not failed.passed
    assert [verdict.check for verdict in failed.verdicts if not verdict.passed] == [bad.name]


async def test_a_denied_call_was_proposed_and_not_called() -> None:
    for one in (
        checks.denied("delete"),
        checks.not_called("delete"),
        checks.decided("deny", hook="protect", tool="delete"),
    ):
        report = await check(one, *DENIED)
        assert report.passed, report.failures
    for one in (checks.called("delete"), checks.not_proposed("delete"), checks.not_decided("Deny", tool="delete")):
        assert not (await check(one, *DENIED)).passed


async def test_a_trial_must_be_completed_unless_a_check_speaks_of_the_outcome() -> None:
    asking = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add])
    asking.gate(ToolCalling)(lambda event: Ask("really?"))
    run = await evaluate(asking, [Case("1 + 2?", checks=[lambda trial: True])])
    assert not run.trials[0].passed
    assert "suspended" in run.trials[0].failures[0]
    asking = Agent(ScriptedModel(calls("add", a=1, b=2), says("3")), tools=[add])
    asking.gate(ToolCalling)(lambda event: Ask("really?"))
    assert (await evaluate(asking, [Case("1 + 2?", checks=[checks.outcome("suspended")])])).rate == 1


async def test_a_check_that_returns_nothing_or_raises_never_passes() -> None:
    def forgets_to_return(trial: Trial) -> None:
        trial.text == "3"  # noqa: B015

    def raises(trial: Trial) -> bool:
        raise RuntimeError("broken")

    def asserts(trial: Trial) -> bool:
        assert trial.text == "4", "it is not 4"
        return True

    nothing = await check(forgets_to_return)  # type: ignore[arg-type]
    assert not nothing.passed
    assert "returned None" in nothing.failures[0]
    broken = await check(raises)
    assert "RuntimeError: broken" in broken.failures[0]
    wrong = await check(asserts)
    assert wrong.failures[0].startswith("asserts: it is not 4")
    run = EvalRun("a", (nothing, broken, wrong))
    assert run.errors == 2  # a failed assertion is a verdict, not an error


async def test_repetitions_have_sessions_of_their_own_and_count_into_the_rate() -> None:
    replies = iter(["yes", "no", "yes", "yes"])

    async def answer(request: object) -> object:
        return says(next(replies))

    run = await evaluate(
        Agent(FunctionModel(answer)), [Case("sure?", "sure", [checks.equals("yes")])], repeat=4, concurrency=1
    )
    assert [trial.passed for trial in run.trials] == [True, False, True, True]
    assert len({trial.session for trial in run.trials}) == 4
    assert run.rate == 0.75
    assert run.interval == wilson(0.75, 4)
    assert [case.passed for case in run.cases] == [3]


async def test_follow_ups_go_to_the_same_session_and_all_turns_count() -> None:
    agent = calculator(calls("add", a=1, b=2), says("3"), says("Yes, I am sure."))
    run = await evaluate(
        agent, [Case("1 + 2?", follow_ups=["Sure?"], checks=[checks.called("add"), checks.contains("sure")])]
    )
    assert run.trials[0].passed, run.trials[0].failures
    assert run.trials[0].steps == 3
    assert run.trials[0].spent.requests == 3


async def test_an_agent_can_be_made_for_each_case_and_a_scope_too() -> None:
    seen: list[object] = []

    def make(case: Case) -> Agent:
        @tool(effect="pure", inline=True)
        def who(turn: object) -> str:
            """Who is it?"""
            seen.append(turn.scope)  # type: ignore[attr-defined]
            return "x"

        return Agent(ScriptedModel(calls("who"), says(str(case.data))), tools=[who])

    cases = [Case("a", data=1, checks=[checks.equals("1")]), Case("b", data=2, checks=[checks.equals("2")])]
    run = await evaluate(make, cases, scope=lambda case: {"user": case.label})
    assert run.rate == 1
    assert seen == [{"user": "a"}, {"user": "b"}]


async def test_a_trial_that_takes_too_long_is_cancelled_and_others_go_on() -> None:
    async def answer(request: object) -> object:
        if "slow" in request.messages[-1].text:  # type: ignore[attr-defined]
            await asyncio.Event().wait()
        return says("done")

    run = await evaluate(Agent(FunctionModel(answer)), [Case("slow"), Case("quick")], timeout=0.05)
    assert [trial.passed for trial in run.trials] == [False, True]
    assert run.trials[0].error == "it took too long"
    assert run.errors == 1


async def test_a_check_that_takes_too_long_is_cancelled_and_others_go_on() -> None:
    async def never(trial: Trial) -> bool:
        await asyncio.Event().wait()
        return True

    async def reply(request: object) -> object:
        await asyncio.Event().wait()

    cases = [Case("1", checks=[never]), Case("2", checks=[checks.judged("fine")]), Case("3")]
    agent = Agent(FunctionModel(lambda request: says("done")))
    run = await asyncio.wait_for(
        evaluate(agent, cases, judge=ModelJudge(FunctionModel(reply)), timeout=0.2), timeout=20
    )
    assert [trial.passed for trial in run.trials] == [False, False, True]
    assert [trial.error for trial in run.trials] == ["its checks took too long"] * 2 + [""]
    assert [trial.text for trial in run.trials] == ["done"] * 3


async def test_progress_tells_of_each_trial() -> None:
    told: list[tuple[int, int, int | None]] = []
    cases = [Case("1"), Case("2", checks=[lambda trial: False])]
    await evaluate(
        Agent(ScriptedModel(says("a"), says("b"))),
        cases,
        concurrency=1,
        progress=lambda now: told.append((now.done, now.failed, now.total)),
    )
    assert told == [(1, 0, 2), (2, 1, 2)]


@dataclass
class Sum:
    total: int


async def test_typed_output_is_compared_as_plain_values() -> None:
    agent = Agent(ScriptedModel(says('{"total": 3}'), says('{"total": 4}')), output=Sum)
    cases = [Case(str(n), checks=[checks.output_equals({"total": 3})]) for n in range(2)]
    run = await evaluate(agent, cases, concurrency=1)
    assert [trial.passed for trial in run.trials] == [True, False]


# ---------------------------------------------------------------- judges


def verdict(passed: bool, reason: str = "because") -> object:
    return calls("submit", passed=passed, reason=reason, score=0.5)


async def judge(*replies: object, show: str = "answer") -> tuple[TrialReport, ScriptedModel]:
    model = ScriptedModel(*replies)
    run = await evaluate(
        calculator(),
        [Case("1 + 2?", checks=[checks.judged("It is polite.")])],
        judge=ModelJudge(model, show=show),  # type: ignore[arg-type]
    )
    return run.trials[0], model


async def test_a_judge_submits_its_verdict_by_a_tool_call_and_is_paid_apart() -> None:
    report, model = await judge(verdict(True))
    assert report.passed
    assert report.verdicts[-1].score == 0.5
    assert report.judging.requests == 1
    assert report.spent.requests == 2
    asked = json.loads(model.requests[0].messages[0].text)
    assert asked["criterion"] == "It is polite."
    assert asked["answer"] == "The sum is 3."
    assert "calls" not in asked
    report, _ = await judge(verdict(False, "rude"))
    assert report.failures == ("judged: It is polite.: rude",)


async def test_a_judge_can_see_the_trajectory() -> None:
    _, model = await judge(verdict(True), show="trajectory")
    asked = json.loads(model.requests[0].messages[0].text)
    assert asked["calls"] == [{"tool": "add", "arguments": '{"a":1,"b":2}', "status": "ok", "result": "3"}]


async def test_a_judge_that_only_talks_is_reminded_and_then_not_counted_as_a_pass() -> None:
    report, _ = await judge(says("I like it."), verdict(True))
    assert report.passed
    report, model = await judge(*[says("passed: true")] * 9)
    assert not report.passed
    assert "submitted no verdict" in report.failures[0]
    assert len(model.requests) == 3


async def test_a_judge_with_invalid_arguments_is_asked_to_repair_them() -> None:
    report, _ = await judge(calls("submit", passed="maybe"), verdict(True))
    assert report.passed


async def test_an_unreachable_judge_is_an_error_and_not_a_pass() -> None:
    async def down(request: object) -> object:
        raise ConnectionError("no route")

    run = await evaluate(
        calculator(), [Case("x", checks=[checks.judged("Fine?")])], judge=ModelJudge(FunctionModel(down))
    )
    assert run.rate == 0
    assert run.errors == 1


async def test_a_check_that_asks_a_judge_needs_one_before_anything_runs() -> None:
    model = ScriptedModel(says("x"))
    with pytest.raises(ConfigError, match="asks a judge, but there is none"):
        await evaluate(Agent(model), [Case("x", checks=[checks.judged("Fine?")])])
    assert model.requests == []


# ---------------------------------------------------------------- recorded sessions


async def test_recorded_sessions_are_checked_without_running_anything(tmp_path: object) -> None:
    address = f"sqlite:///{tmp_path}/log.db"
    agent = Agent(
        ScriptedModel(calls("add", a=1, b=2), says("3"), says("no tool"), says("other")), tools=[add], store=address
    )
    async with agent:
        await agent.run("1 + 2?", session="math/1")
        await agent.run("again", session="math/2")
        await agent.run("x", session="other")
    store = open_store(address)
    try:
        run = await evaluate_sessions(store, [Case(session="math/*", name="math", checks=[checks.called("add")])])
        assert [(trial.case, trial.passed) for trial in run.trials] == [("math: math/1", True), ("math: math/2", False)]
        one = await evaluate_sessions(store, [Case(session="other", checks=[checks.equals("other")])])
        assert one.rate == 1
        assert one.spent.requests == 1
        with pytest.raises(ConfigError, match="no session in the store matches 'none/"):
            await evaluate_sessions(store, [Case(session="none/*")])
        with pytest.raises(ConfigError, match="there is no session 'nobody'"):
            await evaluate_sessions(store, [Case(session="nobody")])
        with pytest.raises(ConfigError, match="has no session"):
            await evaluate_sessions(store, [Case("hello")])
    finally:
        await store.close()


# ---------------------------------------------------------------- results


def run_of(**cases: tuple[bool, ...]) -> EvalRun:
    trials = [TrialReport(case, n, p) for case, passed in cases.items() for n, p in enumerate(passed, 1)]
    return EvalRun("agent", tuple(trials), 1.0, max(len(passed) for passed in cases.values()))


async def test_the_sessions_of_sub_agents_do_not_match_a_glob(tmp_path: Path) -> None:
    child = Agent(FunctionModel(lambda request: says("3")), name="child")
    store = f"sqlite:///{tmp_path}/log.db"
    agent = Agent(ScriptedModel(calls("child", task="1 + 2?"), says("It is 3.")), tools=[child.as_tool()], store=store)
    async with agent:
        await agent.run("go", session="math/1")
        assert len(await agent.store.find()) == 2
        run = await evaluate_sessions(agent.store, [Case(session="math/*", checks=[checks.contains("It is")])])
    assert [(trial.session, trial.passed) for trial in run.trials] == [("math/1", True)]


def test_wilson_agrees_with_published_values() -> None:
    assert wilson(0.8, 10) == pytest.approx((0.4902, 0.9433), abs=1e-4)
    assert wilson(1.0, 5) == pytest.approx((0.5655, 1.0), abs=1e-4)
    assert wilson(0.0, 0) == (0.0, 1.0)


def test_the_interval_counts_cases_not_repetitions() -> None:
    run = run_of(a=(True, True), b=(False, False))
    assert run.rate == 0.5
    assert run.interval == wilson(0.5, 2)


def test_two_runs_are_compared_case_by_case() -> None:
    before = run_of(a=(True,), b=(True,), c=(False,), d=(True,), gone=(True,))
    after = run_of(a=(True,), b=(False,), c=(True,), d=(False,), new=(True,))
    found = compare(before, after)
    assert [change.case for change in found.worse] == ["b", "d"]
    assert [change.case for change in found.better] == ["c"]
    assert {change.case for change in found.only} == {"gone", "new"}
    assert found.same == 1
    assert found.chance == sign_test(1, 2) == 1.0
    assert "worse: 2" in str(found)


def test_the_sign_test_is_exact() -> None:
    assert sign_test(0, 6) == pytest.approx(2 / 64)
    assert sign_test(0, 0) == 1.0


async def test_a_run_can_be_saved_and_read_again(tmp_path: object) -> None:
    run = await evaluate(calculator(), [Case("1 + 2?", "sum", [checks.contains("4")], tags=["math"])])
    path = f"{tmp_path}/run.json"
    run.save(path)
    assert EvalRun.load(path) == run
    assert json.loads(run.json())["trials"][0]["tools"] == ["add"]
    with pytest.raises(ConfigError, match="not a saved evaluation"):
        EvalRun.load(__file__)


async def test_a_run_with_broken_characters_can_be_saved(tmp_path: Path) -> None:
    run = await evaluate(Agent(ScriptedModel(says("a \ud800 b"))), [Case("go", "x \udfff")])
    run.save(tmp_path / "run.json")
    loaded = EvalRun.load(tmp_path / "run.json")
    assert (loaded.passed, len(loaded.trials)) == (1, 1)
    (tmp_path / "run.xml").write_text(junit(run), "utf-8")
    assert ElementTree.parse(tmp_path / "run.xml").getroot()[0].get("tests") == "1"


async def test_cases_of_one_name_stay_apart_whatever_others_are_called() -> None:
    agent = Agent(FunctionModel(lambda request: says("done")))
    run = await evaluate(agent, [Case("a"), Case("a"), Case("b", "a (2)"), Case("a")])
    assert len(run.cases) == len({case.case for case in run.cases}) == 4


async def test_junit_and_table_hold_whatever_an_agent_says() -> None:
    run = await evaluate(
        Agent(ScriptedModel(says("\x1b[2J\x00<b>&'\u202e"))), [Case("\x1b]0;x\x07 <&>", checks=[checks.equals("x")])]
    )
    suite = ElementTree.fromstring(junit(run))[0]
    assert suite.attrib["failures"] == "1"
    assert suite[0].find("failure") is not None
    text = str(run)
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert "0 of 1 trials passed" in text


async def test_costs_are_summed_or_said_to_be_unknown() -> None:
    run = await evaluate(calculator(), [Case("1 + 2?")])
    assert "cost not known" in str(run)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: checks.contains(""), "contains"),
        (lambda: checks.matches("("), "not a regular expression"),
        (lambda: checks.outcome("done"), "use one of completed"),  # type: ignore[arg-type]
        (lambda: checks.stop_reason("tired"), "use one of"),
        (lambda: checks.called(""), "name of a tool"),
        (lambda: checks.called("x", times=-1), "whole number"),
        (lambda: checks.max_steps(-1), "max_steps"),
        (lambda: checks.max_usd(True), "max_usd"),
        (lambda: checks.judged(" "), "criterion"),
        (lambda: checks.decided(""), "name a decision"),
        (lambda: ModelJudge(ScriptedModel(), show="all"), "show"),  # type: ignore[arg-type]
    ],
)
def test_a_wrong_option_of_a_check_is_refused_when_it_is_made(make: Callable[[], object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()


async def test_wrong_arguments_of_evaluate_are_refused() -> None:
    agent = Agent(ScriptedModel(says("x")))
    for wrong, message in (
        ({"repeat": 0}, "repeat"),
        ({"concurrency": 0}, "concurrency"),
        ({"progress": 3}, "progress"),
    ):
        with pytest.raises(ConfigError, match=message):
            await evaluate(agent, [Case("x")], **wrong)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no cases"):
        await evaluate(agent, [])
    with pytest.raises(ConfigError, match="is not a Case"):
        await evaluate(agent, ["x"])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="has no input"):
        await evaluate(agent, [Case(session="x")])
    with pytest.raises(ConfigError, match="is not a check"):
        await evaluate(agent, [Case("x", checks=[5])])  # type: ignore[list-item]


# ---------------------------------------------------------------- files


def write(folder: object, name: str, text: str) -> str:
    path = f"{folder}/{name}"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)
    return path


YAML = """
defaults:
  expect: {max_steps: 3}
  tags: math
cases:
  - name: sum
    input: 1 + 2?
    expect:
      contains: "3"
      called: {tool: add, arguments: {a: 1}}
      order: [add]
      no_tool_errors: true
  - 2 + 2?
"""


async def test_cases_are_read_from_yaml(tmp_path: object) -> None:
    cases = load_cases(write(tmp_path, "c.yaml", YAML))
    assert [case.label for case in cases] == ["sum", "2 + 2?"]
    assert [case.tags for case in cases] == [("math",), ("math",)]
    assert len(cases[0].checks) == 5
    run = await evaluate(calculator(), cases[:1])
    assert run.rate == 1, run.trials[0].failures


def test_cases_are_read_from_json_lines(tmp_path: object) -> None:
    text = '{"input": "a", "expect": [{"contains": "x"}, {"contains": "y"}]}\n\n{"session": "s/*"}\n'
    cases = load_cases(write(tmp_path, "c.jsonl", text))
    assert [check.name for check in cases[0].checks] == ["contains 'x'", "contains 'y'"]  # type: ignore[union-attr]
    assert cases[1].session == "s/*"


LEVELS = ["&a0 [x, x, x, x, x, x, x, x, x]", *[f"&a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]]
BOMB = f"[{', '.join(LEVELS)}]"


def test_aliases_and_merged_keys_of_an_ordinary_size_are_fine(tmp_path: object) -> None:
    text = "- &a {input: x, tags: [t], name: a}\n- {<<: *a, name: b}\n"
    assert [(case.name, case.tags) for case in load_cases(write(tmp_path, "c.yaml", text))] == [
        ("a", ("t",)),
        ("b", ("t",)),
    ]


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("c.yaml", "- input: x\n  expct: {}\n", "case 1: there is no 'expct'; did you mean 'expect'"),
        ("c.yaml", "- {name: a, input: x, expect: {contain: y}}", r"'a'\): expect has no 'contain'; did you mean"),
        ("c.yaml", "- {name: a, input: x, expect: {max_steps: -1}}", "expect max_steps: max_steps"),
        ("c.yaml", "- {name: a, input: x, expect: {called: {tol: y}}}", "expect called"),
        ("c.yaml", "- {name: a, input: x}\n- {name: a, input: y}", "cases 1 and 2 have the same name 'a'"),
        ("c.yaml", "- {name: a}", "either an input or a session"),
        ("c.yaml", "- {input: 5}", "input must be a text, not 5"),
        ("c.yaml", "- 5", "case 1: write keys and values, not 5"),
        ("c.yaml", "[", "not valid YAML"),
        ("c.yaml", "", "there are no cases"),
        ("c.yaml", "- {input: x, expect: {contains: y, contains: z}}", "the key 'contains' is there twice, in line 1"),
        ("c.json", '[{"input": "x", "expect": {"contains": "y", "contains": "z"}}]', "'contains' is there twice"),
        ("c.jsonl", '{"input": "x", "expect": {"contains": "y", "contains": "z"}}', "'contains' is there twice"),
        ("c.yaml", f"- input: x\n  expect: {{output: {BOMB}}}", "its aliases make it too large"),
        ("c.yaml", "[" * 5000, "nested too deeply"),
        ("c.json", "[" * 100_000, "not valid JSON"),
        ("c.yaml", "case: []", "there is no 'case'; did you mean 'cases'"),
        ("c.jsonl", '{"input": "x"}\n{', "line 2 is not valid JSON"),
        ("c.json", "{", "not valid JSON"),
        ("c.txt", "x", ".yaml, .yml, .json and .jsonl"),
        ("c.yaml", "- {input: x, checks: [nowhere.at.all:f]}", "'nowhere.at.all:f' cannot be loaded"),
        ("c.yaml", "- {input: x, tags: 5}", "tags must be a list of texts"),
    ],
)
def test_a_mistake_in_a_file_is_named(tmp_path: object, name: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_cases(write(tmp_path, name, text))


def test_a_verdict_with_an_error_never_passes() -> None:
    async def work() -> TrialReport:
        return await check(lambda trial: Verdict(True, error="the judge was down"))

    assert not asyncio.run(work()).passed
