"""The checks for capabilities: good ones pass, and each way of being bad is named."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from windlass import (
    Agent,
    Ask,
    Deny,
    ErrorRule,
    Injected,
    Lifecycle,
    ModelCall,
    ModelReplied,
    ModelReplying,
    Slot,
    StepLimit,
    StepStarting,
    ToolCall,
    ToolCalling,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnEnding,
    TurnStarting,
)
from windlass.testing import CapabilityFailed, RecordingObserver, ScriptedModel, check_capability, says

COUNT = Slot("count", int)


class Capable:
    """A capability made of a function."""

    name = "mine"

    def __init__(self, install: Callable[[Any], object]) -> None:
        self.install = install


class Everything:
    """A capability that uses all there is, and properly."""

    def install(self, registrar: Any, /) -> None:
        registrar.slot(COUNT)
        registrar.instruct("Be brief.")
        registrar.criterion(StepLimit(50))
        registrar.inject(StepStarting)(self.remind)
        registrar.gate(ToolCalling, tool="fail")(self.count)
        registrar.rewrite(ToolReturning)(self.tidy)
        registrar.wrap(ModelCall)(self.around)
        registrar.wrap(ToolCall)(self.around)
        registrar.observe(ToolReturned)(self.look)
        registrar.tool(noop)

    def remind(self, event: StepStarting) -> str:
        return f"Step {event.step}."

    async def count(self, event: ToolCalling, turn: Turn[Any]) -> Deny | None:
        turn.set(COUNT, turn.get(COUNT) + 1)
        return None

    def tidy(self, event: ToolReturning) -> str | None:
        return event.result.text.strip() if event.result.text != event.result.text.strip() else None

    async def around(self, value: Any, call_next: Any) -> Any:
        return await call_next(value)

    def look(self, fact: ToolReturned) -> None:
        pass


def noop() -> str:
    """Do nothing."""
    return ""


class Politeness(Lifecycle):
    def before_agent(self, text: str) -> str:
        return f"Please: {text}"


@pytest.mark.parametrize(
    "make",
    [
        Everything,
        RecordingObserver,
        lambda: Capable(lambda registrar: None),
        lambda: Capable(lambda registrar: registrar.gate(ToolCalling, name="ask")(lambda event: Ask("Sure?"))),
        lambda: Capable(lambda registrar: registrar.with_lifecycle(Politeness())),
    ],
    ids=["everything", "recording", "nothing", "asking", "lifecycle"],
)
async def test_a_good_capability_passes_all_checks(make):
    report = await check_capability(make)
    assert report.failed == {}
    assert len(report.passed) == 11


async def failures(install: Callable[[Any], object], **options: Any) -> dict[str, str]:
    with pytest.raises(CapabilityFailed) as caught:
        await check_capability(lambda: Capable(install), **options)
    report = caught.value.report
    assert report.name == "mine"
    for check, why in report.failed.items():
        assert f"- {check}: {why}" in str(caught.value)
    assert not set(report.passed) & set(report.failed)
    return report.failed


async def test_what_is_not_public_is_refused():
    failed = await failures(lambda registrar: registrar._registered.hooks.clear())
    assert list(failed) == ["installs"]
    assert "registrar._registered" in failed["installs"]


async def test_the_guard_band_is_refused():
    failed = await failures(lambda registrar: registrar.gate(ToolCalling, name="g", band="guard")(lambda event: None))
    assert "guard band" in failed["installs"]


async def test_a_hook_without_a_name_is_refused():
    failed = await failures(lambda registrar: registrar.gate(ToolCalling)(lambda event: None))
    assert list(failed) == ["named"]
    assert "its hook on ToolCalling (test_conformance.py:" in failed["named"]
    assert "has no name" in failed["named"]


async def test_a_pipeline_that_differs_each_time_is_refused():
    numbers = iter(range(1000))
    failed = await failures(lambda r: r.gate(ToolCalling, name=f"gate{next(numbers)}")(lambda event: None))
    assert "compile to different pipelines" in failed["named"]


async def test_another_answer_must_be_announced():
    def shout(registrar: Any) -> None:
        registrar.rewrite(TurnEnding, name="shout")(lambda event: event.text.upper())

    failed = await failures(shout)
    assert list(failed) == ["harmless"]
    assert "IT SAID HELLO." in failed["harmless"]
    report = await check_capability(lambda: Capable(shout), changes_answer=True)
    assert report.failed == {}


async def test_sessions_that_know_of_each_other_are_found():
    def sharing(registrar: Any) -> None:
        seen: list[str] = []

        def greet(event: TurnStarting, turn: Turn[Any]) -> str | None:
            seen.append(turn.session_id)
            return Injected("Nice to see you again.") if len(seen) > 1 else None  # type: ignore[return-value]

        registrar.inject(TurnStarting)(greet)

    failed = await failures(sharing)
    assert "one after another" in failed["separate"]
    assert "+TurnStarting" in failed["separate"]


async def test_what_another_process_cannot_go_on_with_is_found():
    def forgetful(registrar: Any) -> None:
        counted = []

        def count(event: ModelReplying) -> None:
            counted.append(1)

        registrar.gate(ModelReplying)(count)
        registrar.inject(StepStarting, name="tell")(lambda event: f"{len(counted)} replies so far.")
        registrar.rewrite(TurnEnding, name="sign")(lambda event: f"{event.text} ({len(counted)})")

    failed = await failures(forgetful, changes_answer=True)
    assert "with resume" in failed["same everywhere"]


async def test_what_a_crash_destroys_is_found():
    def install(registrar: Any) -> None:
        seen: dict[str, int] = {}

        def count(event: StepStarting, turn: Turn[Any]) -> None:
            seen[turn.session_id] = seen.get(turn.session_id, 0) + 1

        def sign(event: TurnEnding, turn: Turn[Any]) -> str:
            return f"{event.text} ({seen.get(turn.session_id, 0)})"

        registrar.gate(StepStarting)(count)
        registrar.rewrite(TurnEnding)(sign)

    failed = await failures(install, changes_answer=True)
    assert "after a crash after record" in failed["recovers"]
    assert "It said hello. (1)" in failed["recovers"]


async def test_a_failure_that_is_swallowed_is_found():
    def install(registrar: Any) -> None:
        async def careless(call: Any, call_next: Any) -> Any:
            try:
                return await call_next(call)
            except Exception:
                return "fine"

        async def around(call: Any, call_next: Any) -> Any:
            return await call_next(call)

        registrar.wrap(ToolCall, name="careless", tool="echo")(careless)
        registrar.wrap(ToolCall, name="inner", tool="echo")(around)

    failed = await failures(install)
    assert list(failed) == ["fails as it says"]
    assert "if wrap 'inner' fails, the log does not say so" in failed["fails as it says"]


async def test_a_capability_that_hides_under_another_name_is_found():
    class Renamed:
        names = iter(f"name{number}" for number in range(1000))

        @property
        def name(self) -> str:
            return next(self.names)

        def install(self, registrar: Any) -> None:
            pass

    with pytest.raises(CapabilityFailed) as caught:
        await check_capability(Renamed)
    assert "explain lists the capabilities" in caught.value.report.failed["listed"]


async def test_hooks_that_cannot_bear_a_failing_tool_are_found():
    def brittle(registrar: Any) -> None:
        def parse(event: ToolReturning) -> None:
            assert not event.result.is_error, "no error, please"

        def watch(fact: ModelReplied) -> None:
            raise LookupError("nothing there")

        registrar.rewrite(ToolReturning)(parse)
        registrar.observe(ModelReplied, wait=True)(watch)

    failed = await failures(brittle)
    assert "'parse' failed" in failed["unshaken"]
    assert "'watch' failed" in failed["unshaken"]


async def test_silence_that_changes_the_log_is_found():
    def twice(registrar: Any) -> None:
        async def again(request: Any, call_next: Any) -> Any:
            await call_next(request)
            return await call_next(request)

        registrar.wrap(ModelCall)(again)

    failed = await failures(twice)
    assert list(failed) == ["silent"]
    assert "ModelAttempted" in failed["silent"]


async def test_what_is_left_behind_is_found():
    over = threading.Event()
    tasks = []

    def untidy(registrar: Any) -> None:
        async def start(event: TurnStarting) -> None:
            tasks.append(asyncio.create_task(asyncio.sleep(1000), name="left-task"))
            threading.Thread(target=over.wait, name="left-thread").start()

        registrar.gate(TurnStarting)(start)

    failed = await failures(untidy)
    assert "left-task" in failed["tidy"]
    assert "left-thread" in failed["tidy"]
    over.set()
    for task in tasks:
        if task.get_loop() is asyncio.get_running_loop():
            task.cancel()


async def test_an_agent_can_be_prepared_for_it():
    def needy(registrar: Any) -> None:
        def count(event: ToolCalling, turn: Turn[Any]) -> None:
            turn.set(COUNT, turn.get(COUNT) + 1)

        registrar.gate(ToolCalling)(count)

    def prepare(agent: Agent) -> None:
        agent.slot(COUNT)

    assert "no slot 'count'" in (await failures(needy))["unshaken"]
    assert (await check_capability(lambda: Capable(needy), prepare=prepare)).failed == {}


async def test_a_capability_may_use_everything_that_a_registrar_offers():
    def install(registrar: Any) -> None:
        registrar.model(ScriptedModel(says("hi"), name="other"))
        registrar.errors(ErrorRule("timeout", "retry"))
        registrar.reveal(lambda text: text, name="nothing")
        registrar.shared(dict)
        registrar.approver(lambda asked: None)
        registrar.with_lifecycle(Politeness())

    await check_capability(lambda: Capable(install), changes_answer=True)
