"""Sessions under a real Temporal server and a real PostgreSQL: sent, answered, cancelled, watched, taken over."""

# ruff: noqa: ASYNC110 - other processes make happen what is waited for

from __future__ import annotations

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.servers.temporal import TemporalServer

from windlass import Agent, Approve, Ask, Cancelled, Completed, Failed, ToolCalling, Turn, tool
from windlass.engines.temporal import TemporalRunner
from windlass.errors import ConfigError, SessionBusy, SessionDriven
from windlass.records import Resumed, Suspended, TakenOver, ToolReturned, TurnEnded, TurnStarted
from windlass.testing import FunctionModel, calls, says

from .office import Town

temporalio_client = pytest.importorskip("temporalio.client")


class Depot(Town):
    """A town whose workers are under Temporal."""

    server: TemporalServer
    queue: str

    def start_worker(self, *arguments: str) -> Any:
        return self.start("--temporal", self.server.address, "--task-queue", self.queue, *arguments)


@pytest.fixture
async def depot(temporal: TemporalServer, database: str, tmp_path: Path, request: Any) -> AsyncIterator[Depot]:
    depot = Depot(tmp_path, database)
    depot.server, depot.queue = temporal, tmp_path.name
    yield depot
    depot.close()


@pytest.fixture
async def client(temporal: TemporalServer) -> Any:
    return await temporalio_client.Client.connect(temporal.address)


@pytest.fixture
async def runner(depot: Depot, client: Any) -> AsyncIterator[TemporalRunner[Any, Any]]:
    agent = depot.agent()
    yield TemporalRunner(agent, client, task_queue=depot.queue)
    for session in await agent.store.sessions():
        await agent.store.verify(session)
    assert list(await agent.store.verify_store()) == []
    await agent.aclose()


# ---------------------------------------------------------------- one worker


async def test_messages_are_run_in_order_and_once(runner: Any, depot: Depot):
    async with runner.worker():
        assert await runner.send("send 1", session="s", key="a")
        assert not await runner.send("send 1", session="s", key="a")
        second = await runner.run("send 2", session="s", key="b", timeout=30)
        assert second.text == "done: send 2"
        assert (await runner.result("s", "a", timeout=30)).text == "done: send 1"
        assert await idle(runner, "s")
    assert depot.effects == ["send 1", "send 2"]


async def test_a_question_is_answered_while_the_workflow_waits(runner: Any, depot: Depot):
    depot_agent = runner.agent
    async with runner.worker():
        result = await runner.run("sign 1", session="s", timeout=30)
        assert isinstance(result.outcome, Suspended)
        while await runner.status("s") != "waiting":
            await asyncio.sleep(0.02)
        await runner.resolve("s", result.waiting_for[0].id, Approve(by="ann"))
        await over(depot_agent, "s")
        assert await idle(runner, "s")
    assert depot.effects == ["sign 1"]


async def test_a_question_expires_by_a_timer(runner: Any, depot: Depot):
    async with runner.worker():
        result = await runner.run("sign 1", session="s", timeout=30)
        assert isinstance(result.outcome, Suspended)
        await over(runner.agent, "s")
    assert depot.effects == []


async def test_people_are_told_when_a_question_is_asked_and_when_it_escalates(depot: Depot, client: Any):
    told: list[Any] = []

    @tool
    async def pay() -> str:
        """Pay."""
        return "paid"

    def reply(request: Any) -> Any:
        return says("done") if request.messages[-1].role == "tool" else calls("pay")

    agent = Agent(FunctionModel(reply), tools=[pay], store=depot.address)
    ask = Ask("Pay?", approvers=("ann",), escalate=(1.0, ("bob",)), expires=60)
    agent.gate(ToolCalling, name="sure")(lambda event: ask)
    from windlass.approvals import progress

    async def tell(session: str, questions: Any) -> None:
        told.append((session, [progress(asked).needed for asked in questions]))

    runner: Any = TemporalRunner(agent, client, task_queue=depot.queue, tell=tell)
    async with runner.worker():
        result = await runner.run("go", session="s", timeout=30)
        async with asyncio.timeout(20):
            while len(told) < 2:
                await asyncio.sleep(0.05)
        assert told == [("s", [("ann",)]), ("s", [("ann", "bob")])]
        await runner.resolve("s", result.waiting_for[0].id, Approve(by="bob"))
        await over(agent, "s")
    await agent.aclose()


async def test_a_running_turn_is_cancelled_from_elsewhere(runner: Any, depot: Depot):
    depot.hold()
    worker = depot.start_worker()
    await runner.send("send 1", session="s", key="k")
    await depot.until(lambda: depot.effects)
    assert await runner.cancel("s", "enough")
    result = await runner.result("s", "k", timeout=30)
    assert result.outcome == Cancelled("enough")
    assert worker.poll() is None


async def test_a_turn_ends_at_its_deadline_whether_it_runs_or_waits(runner: Any, depot: Depot):
    depot.hold()
    async with runner.worker(patience=0):
        await runner.send("pay 1", session="runs", key="k", deadline=1.5)
        await runner.send("sign 1", session="waits", key="k", deadline=1.0)
        await over(runner.agent, "runs")
        await over(runner.agent, "waits")
    for session in ("runs", "waits"):
        assert isinstance((await runner.agent.state(session)).outcome, Cancelled)


async def test_a_turn_that_fails_is_over_and_is_not_repeated(depot: Depot, client: Any):
    asked: list[int] = []

    def reply(request: Any) -> Any:
        asked.append(1)
        raise RuntimeError("no such model")

    agent = Agent(FunctionModel(reply), store=depot.address)
    runner: Any = TemporalRunner(agent, client, task_queue=depot.queue)
    async with runner.worker():
        result = await runner.run("hello", session="s", timeout=30)
        assert isinstance(result.outcome, Failed)
        assert await idle(runner, "s")
    assert len(asked) == 1
    await agent.aclose()


async def test_an_error_of_the_application_waits_for_somebody_to_mend_it(depot: Depot, client: Any):
    broken = True

    def scope(session: str) -> str:
        if broken:
            raise RuntimeError("the user directory is down: secret 4711")
        return session

    agent = depot.agent()
    runner: Any = TemporalRunner(agent, client, task_queue=depot.queue, scope=scope)
    async with runner.worker():
        await runner.send("send 1", session="s", key="k")
        async with asyncio.timeout(20):
            while await runner.status("s") != "broken":
                await asyncio.sleep(0.05)
        handle = client.get_workflow_handle(f"{depot.queue}/s")
        assert b"4711" not in b"".join([event.SerializeToString() async for event in handle.fetch_history_events()])
        broken = False
        await runner.wake("s")
        assert (await runner.result("s", "k", timeout=30)).text == "done: send 1"
    await agent.aclose()


async def test_a_turn_is_watched_from_another_process_while_its_worker_dies(runner: Any, depot: Depot):
    depot.hold()
    first = depot.start_worker("--heartbeat", "1.5")
    fast: Any = TemporalRunner(runner.agent, runner.client, task_queue=depot.queue, heartbeat=1.5)
    await fast.send("send 1\npay 2", session="s", key="k")
    seen: list[Any] = []

    async def watch() -> None:
        seen.extend([event async for event in runner.agent.watch("s")])

    watching = asyncio.create_task(watch())
    await depot.until(lambda: depot.effects)
    second = depot.start_worker("--heartbeat", "1.5")
    first.kill()
    first.wait()
    depot.let()
    await fast.result("s", "k", timeout=40)
    await asyncio.wait_for(watching, 20)
    assert second.poll() is None
    assert [type(event) for event in (seen[0], seen[-1])][1] is TurnEnded
    records = [event for event in seen if hasattr(event, "seq") and event.seq]
    assert [record.seq for record in records] == list(range(records[0].seq, records[0].seq + len(records)))
    assert any(isinstance(event, TurnStarted) for event in seen)


# ---------------------------------------------------------------- workers that die, stop and drain


async def test_a_dead_workers_session_goes_on_elsewhere_and_no_unsafe_effect_is_repeated(runner: Any, depot: Depot):
    depot.hold()
    first = depot.start_worker()
    await runner.send("send 1", session="unsafe", key="k")
    await runner.send("pay 1", session="idempotent", key="k")
    await depot.until(lambda: len(depot.effects) == 2)
    depot.start_worker()
    first.kill()
    first.wait()
    took = await depot.until(lambda: len(depot.effects) == 3)
    depot.let()
    assert isinstance((await runner.result("unsafe", "k", timeout=40)).outcome, Completed)
    assert isinstance((await runner.result("idempotent", "k", timeout=40)).outcome, Completed)
    assert Counter(depot.effects) == {"send 1": 1, "pay 1": 2}
    returned = [record for record in await runner.agent.store.read("unsafe") if isinstance(record, ToolReturned)]
    assert "unknown" in returned[0].result.text
    assert took < 30  # a benchmark says how long it takes: `make faults`


async def test_a_dead_worker_is_noticed_long_before_its_heartbeat_is_due(runner: Any, depot: Depot):
    depot.hold()
    patient: Any = TemporalRunner(runner.agent, runner.client, task_queue=depot.queue, heartbeat=8.0)
    first = depot.start_worker("--heartbeat", "8")
    await patient.send("pay 1", session="s", key="k")
    await depot.until(lambda: depot.effects)
    second = depot.start_worker("--heartbeat", "8")
    await depot.until(lambda: (depot.folder / "log").read_text().count("worker ") >= 2)
    first.kill()
    first.wait()
    depot.let()
    assert (await patient.result("s", "k", timeout=40)).text == "done: pay 1"
    assert depot.workers == [first.pid, second.pid]
    assert f":{first.pid}@" in (depot.folder / "log").read_text()


async def test_a_stopped_worker_is_taken_over_and_fenced_when_it_goes_on(runner: Any, depot: Depot):
    depot.hold()
    first = depot.start_worker()
    await runner.send("send 1\nsend 2\nsend 3", session="s", key="k")
    await depot.until(lambda: depot.effects)
    first.send_signal(signal.SIGSTOP)
    second = depot.start_worker()
    depot.let()
    result = await runner.result("s", "k", timeout=40)
    first.send_signal(signal.SIGCONT)
    assert isinstance(result.outcome, Completed)
    await runner.run("pay 9", session="other", timeout=40)
    await asyncio.sleep(0.5)
    assert Counter(depot.effects) == {"send 1": 1, "send 2": 1, "send 3": 1, "pay 9": 1}
    assert any(isinstance(record, TakenOver) for record in await runner.agent.store.read("s"))
    assert second.poll() is None


async def test_sigterm_hands_sessions_over(runner: Any, depot: Depot):
    depot.hold()
    first = depot.start_worker("--drain", "0.3")
    await runner.send("pay 1", session="s", key="k")
    await depot.until(lambda: depot.effects)
    second = depot.start_worker()
    first.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait, 30) == 0
    depot.let()
    assert (await runner.result("s", "k", timeout=40)).text == "done: pay 1"
    assert depot.effects == ["pay 1", "pay 1"]
    assert second.poll() is None


async def test_the_server_is_killed_and_started_again_while_turns_run(runner: Any, depot: Depot):
    depot.hold()
    worker = depot.start_worker()
    await runner.send("pay 1\npay 2", session="s", key="k")
    await depot.until(lambda: depot.effects)
    depot.server.kill()
    depot.let()
    await asyncio.sleep(0.3)
    depot.server.start()
    assert (await runner.result("s", "k", timeout=60)).text == "done: pay 1\npay 2"
    async with asyncio.timeout(30):
        assert await idle(runner, "s")
    assert worker.poll() is None


async def test_a_restart_of_the_server_takes_no_turn_from_a_worker_that_works(runner: Any, depot: Depot):
    depot.hold()
    for _ in range(2):
        depot.start_worker()
    for number in range(6):
        await runner.send(f"send {number}", session=f"s{number}", key="k")
    await depot.until(lambda: len(depot.effects) == 6)
    depot.server.kill()
    await asyncio.sleep(2.5)  # longer than a heartbeat: Temporal believes that all workers are lost
    depot.server.start()
    await asyncio.sleep(4.0)
    depot.let()
    for number in range(6):
        assert (await runner.result(f"s{number}", "k", timeout=40)).text == f"done: send {number}"
        records = await runner.agent.store.read(f"s{number}")
        assert not any(isinstance(record, Resumed | TakenOver) for record in records)
    assert sorted(depot.effects) == [f"send {number}" for number in range(6)]


# ---------------------------------------------------------------- who may do what


async def test_a_plain_run_or_resume_of_a_session_is_refused_until_it_is_released(runner: Any, depot: Depot):
    async with runner.worker():
        await runner.run("send 1", session="s", timeout=30)
        await idle(runner, "s")
    plain = depot.agent()
    for attempt in (
        lambda: plain.run("pay 1", session="s"),
        lambda: plain.resume("s"),
        lambda: plain.run("pay 1", session="s", takeover=True),
        lambda: plain.compact("s"),
    ):
        with pytest.raises(
            (SessionDriven, ConfigError), match=r"engine 'temporal:default/.*' drives session 's'|compact"
        ):
            await attempt()
    await runner.release("s")
    assert (await plain.run("pay 1", session="s")).text == "done: pay 1"
    await plain.aclose()


async def test_a_session_that_runs_elsewhere_is_not_taken_from_there(runner: Any, depot: Depot):
    depot.hold()
    running = asyncio.create_task(runner.agent.run("send 1", session="s"))
    await depot.until(lambda: depot.effects)
    with pytest.raises(SessionBusy):
        await runner.send("send 2", session="s")
    depot.let()
    await running


async def test_what_would_not_be_durable_is_refused(client: Any):
    agent = Agent(FunctionModel(lambda request: says("")))
    with pytest.raises(ConfigError, match=r"keeps its sessions in MemoryStore, but Temporal needs a store"):
        TemporalRunner(agent, client)


async def test_a_worker_with_another_store_does_not_run_the_session_as_a_new_one(
    runner: Any, depot: Depot, tmp_path: Path
):
    other = Depot(tmp_path, f"sqlite:///{tmp_path}/other.db").agent()
    stranger: Any = TemporalRunner(other, runner.client, task_queue=depot.queue)
    async with stranger.worker():
        await runner.send("send 1", session="s", key="k")
        async with asyncio.timeout(20):
            while await runner.status("s") != "broken":
                await asyncio.sleep(0.05)
    assert await other.store.sessions() == []
    async with runner.worker():
        await runner.wake("s")
        assert (await runner.result("s", "k", timeout=30)).text == "done: send 1"
    await other.aclose()


async def test_temporal_gets_no_content(runner: Any, depot: Depot):
    async with runner.worker():
        await runner.run("send 1\nConfidential: the launch is on May 4", session="s", timeout=30)
        await idle(runner, "s")
    handle = runner.client.get_workflow_handle(f"{depot.queue}/s")
    history = b"".join([event.SerializeToString() async for event in handle.fetch_history_events()])
    assert b"s" in history
    assert b"Confidential" not in history
    assert len(history) < 8000


async def test_the_workflow_replays(runner: Any, depot: Depot):
    from temporalio.worker import Replayer, UnsandboxedWorkflowRunner

    from windlass.engines.temporal_workflow import SessionWorkflow

    async with runner.worker():
        result = await runner.run("sign 1", session="s", deadline=60, timeout=30)
        await runner.resolve("s", result.waiting_for[0].id, Approve())
        await over(runner.agent, "s")
        await idle(runner, "s")
    history = await runner.client.get_workflow_handle(f"{depot.queue}/s").fetch_history()
    await Replayer(workflows=[SessionWorkflow], workflow_runner=UnsandboxedWorkflowRunner()).replay_workflow(history)


async def test_an_agent_in_the_background_goes_on_under_the_engine(depot: Depot, client: Any):
    async def slowly(request: Any) -> Any:
        await asyncio.sleep(1.0)
        return says("found it")

    child = Agent(FunctionModel(slowly), name="searcher")

    @tool(effect="idempotent")
    async def search(turn: Turn[Any]) -> str:
        """Search in the background."""
        await turn.delegate(child, "Find it.", background=True)
        return "started"

    def reply(request: Any) -> Any:
        return says("started") if request.messages[-1].role == "tool" else calls("search")

    agent = Agent(FunctionModel(reply), tools=[search], subagents=[child], store=depot.address, name="boss")
    runner: Any = TemporalRunner(agent, client, task_queue=depot.queue)
    async with runner.worker():
        await runner.run("go", session="s", timeout=30)
        await idle(runner, "s")
    below = [name for name in await agent.store.sessions() if "//" in name]
    assert [(await agent.state(name)).text for name in below] == ["found it"]
    await agent.aclose()


# ---------------------------------------------------------------- the command line


async def test_the_command_line_runs_a_turn_under_temporal(depot: Depot):
    depot.start_worker("--concurrency", "2")
    given = ("--temporal", depot.server.address, "--task-queue", depot.queue, "--session", "s", "--wait")
    sent = depot.start("send 1", *given, command="submit")
    assert await asyncio.to_thread(sent.wait, 60) == 0, (depot.folder / "log").read_text()
    assert depot.effects == ["send 1"]
    assert "done: send 1" in (depot.folder / "log").read_text()


async def test_windlass_run_shows_a_turn_that_a_worker_runs(depot: Depot):
    depot.start_worker()
    given = ("--temporal", depot.server.address, "--task-queue", depot.queue, "--session", "s", "--json")
    ran = depot.start("pay 1", *given, command="run")
    assert await asyncio.to_thread(ran.wait, 60) == 0, (depot.folder / "log").read_text()
    again = depot.start("send 2", *given, command="run")
    assert await asyncio.to_thread(again.wait, 60) == 0, (depot.folder / "log").read_text()
    log = (depot.folder / "log").read_text()
    assert depot.effects == ["pay 1", "send 2"]
    assert log.count('"type": "end"') == 2
    assert "done: send 2" in log
    assert len(set(depot.workers)) == 1


def test_without_temporalio_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "temporalio", None)
    monkeypatch.delitem(sys.modules, "windlass.engines.temporal")
    with pytest.raises(ConfigError, match=r"pip install 'windlass\[temporal\]'"):
        import windlass.engines.temporal  # noqa: F401


# ---------------------------------------------------------------- help


async def idle(runner: Any, session: str) -> bool:
    async with asyncio.timeout(30):
        while await runner.status(session) != "idle":
            await asyncio.sleep(0.02)
    return True


async def over(agent: Any, session: str) -> None:
    async with asyncio.timeout(30):
        while session not in await agent.store.sessions() or not (await agent.state(session)).over:
            await asyncio.sleep(0.05)
