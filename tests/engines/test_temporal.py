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
from windlass._kernel.program import SystemClock
from windlass.engines.temporal import TemporalRunner, connect
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


async def test_a_deadline_counts_while_all_workers_are_busy(runner: Any, depot: Depot):
    depot.hold()
    async with runner.worker(concurrency=1, patience=0):
        await runner.send("pay 1", session="s", key="k", deadline=1.0)
        assert (await runner.result("s", "k", timeout=20)).outcome == Cancelled("its deadline has passed")


async def test_a_deadline_is_that_of_its_message_alone(runner: Any, depot: Depot):
    """A later message neither lifts the deadline of an earlier one nor is cancelled by it."""
    depot.hold()
    async with runner.worker(patience=0):
        await runner.send("pay 1", session="s", key="a", deadline=1.5)
        await depot.until(lambda: depot.effects)
        await runner.send("pay 2", session="s", key="b", deadline=600)
        assert isinstance((await runner.result("s", "a", timeout=20)).outcome, Cancelled)
        await depot.until(lambda: len(depot.effects) == 2)
        depot.let()
        assert (await runner.result("s", "b", timeout=20)).text == "done: pay 2"
        depot.hold()
        await runner.send("pay 3", session="s", key="c")
        await depot.until(lambda: len(depot.effects) == 3)
        await runner.send("pay 4", session="s", key="d", deadline=0.2)
        await asyncio.sleep(0.5)
        depot.let()
        assert (await runner.result("s", "c", timeout=20)).text == "done: pay 3"
        depot.hold()
        assert isinstance((await runner.result("s", "d", timeout=20)).outcome, Cancelled | Completed)


async def test_a_workflow_that_is_cancelled_in_temporal_cancels_its_turn(runner: Any, depot: Depot, client: Any):
    depot.hold()
    async with runner.worker(patience=0):
        await runner.send("pay 1", session="runs", key="k")
        await runner.run("sign 1", session="waits", key="k", timeout=20)
        await depot.until(lambda: depot.effects)
        for session in ("runs", "waits"):
            await client.get_workflow_handle(f"{depot.queue}/{session}").cancel()
            await over(runner.agent, session)
            outcome = (await runner.agent.state(session)).outcome
            assert outcome == Cancelled("the workflow was cancelled in Temporal")
            assert await idle(runner, session)


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
    assert any(isinstance(record, Resumed | TakenOver) for record in await runner.agent.store.read("s"))
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


async def test_a_second_sigterm_interrupts_turns(runner: Any, depot: Depot):
    depot.hold()
    first = depot.start_worker("--drain", "60")
    await runner.send("pay 1", session="s", key="k")
    await depot.until(lambda: depot.effects)
    first.send_signal(signal.SIGTERM)
    await depot.until(lambda: "takes no more; sessions at work: 1" in (depot.folder / "log").read_text())
    first.send_signal(signal.SIGTERM)
    assert await asyncio.to_thread(first.wait, 30) == 0
    depot.let()
    async with runner.worker():
        assert (await runner.result("s", "k", timeout=40)).text == "done: pay 1"
    assert depot.effects == ["pay 1", "pay 1"]


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


async def test_a_worker_with_another_agent_does_not_swallow_messages(runner: Any, depot: Depot, caplog: Any):
    other = Agent(FunctionModel(lambda request: says("hello")), store=depot.address, name="other")
    stranger: Any = TemporalRunner(other, runner.client, task_queue=depot.queue)
    async with stranger.worker():
        await runner.send("send 1", session="s", key="k")
        async with asyncio.timeout(20):
            while await runner.status("s") != "broken":
                await asyncio.sleep(0.05)
    assert "give each agent a task queue of its own" in caplog.text
    async with runner.worker():
        await runner.wake("s")
        assert (await runner.result("s", "k", timeout=30)).text == "done: send 1"
    await other.aclose()


async def test_a_key_that_many_clients_send_at_once_is_run_once(runner: Any, depot: Depot):
    agents = [depot.agent() for _ in range(3)]
    clients = [TemporalRunner(agent, runner.client, task_queue=depot.queue) for agent in agents]
    async with runner.worker():
        new = await asyncio.gather(*[one.send("send 1", session="s", key="k") for one in clients * 4])
        await runner.result("s", "k", timeout=30)
        assert await idle(runner, "s")
    assert sum(new) == 1
    assert depot.effects == ["send 1"]
    for agent in agents:
        await agent.aclose()


async def test_what_temporal_was_not_told_of_is_found_by_a_worker(
    runner: Any, depot: Depot, monkeypatch: pytest.MonkeyPatch
):
    """A client that dies after it has stored a message or an answer has lost time, and nothing else."""
    monkeypatch.setattr("windlass.engines.temporal._UNSERVED", 0.2)
    plain = depot.agent()
    silent: Any = TemporalRunner(plain, runner.client, task_queue=depot.queue)

    async def dies(*given: Any) -> None:
        raise ConnectionError

    silent._poke = dies
    async with runner.worker():
        for session in ("new", "idle"):
            if session == "idle":
                await runner.run("send 1", session=session, timeout=30)
            with pytest.raises(ConnectionError):
                await silent.send("send 2", session=session, key="k")
            assert (await runner.result(session, "k", timeout=30)).text == "done: send 2"
        asked = await runner.run("sign 1", session="waits", timeout=30)
        await plain.resolve("waits", asked.waiting_for[0].id, Approve())
        await over(runner.agent, "waits")
    assert depot.effects == ["send 2", "send 1", "send 2", "sign 1"]
    await plain.aclose()


async def test_an_erased_session_leaves_no_workflow_behind(runner: Any, depot: Depot):
    async with runner.worker():
        await runner.run("sign 1", session="s", timeout=30)
        while await runner.status("s") != "waiting":
            await asyncio.sleep(0.02)
        assert await runner.agent.store.erase("s")
        await runner.wake("s")
        assert await idle(runner, "s")


async def test_clocks_that_differ_do_not_let_a_session_run_in_circles(depot: Depot, client: Any):
    """The worker's clock is behind: by Temporal's clock the question has expired, by the worker's it has not."""

    class Behind(SystemClock):
        def now(self) -> float:
            return super().now() - 3600

    agent = depot.agent(clock=Behind())
    runner: Any = TemporalRunner(agent, client, task_queue=depot.queue)
    async with runner.worker():
        result = await runner.run("sign 1", session="s", timeout=30)
        assert isinstance(result.outcome, Suspended)
        await over(agent, "s")
        assert await idle(runner, "s")
    handle = client.get_workflow_handle(f"{depot.queue}/s")
    assert len([event async for event in handle.fetch_history_events()]) < 40
    await agent.aclose()


async def test_deadlines_outlast_the_history_of_a_workflow(database: str, tmp_path: Path):
    """A workflow whose history is long starts anew."""

    class Short(TemporalServer):
        def command(self) -> list[str]:
            return [*super().command(), "--dynamic-config-value", "limit.historyCount.suggestContinueAsNew=12"]

    server, town = Short(), Town(tmp_path, database)
    agent = town.agent()
    try:
        server.start()
        runner: Any = TemporalRunner(agent, await temporalio_client.Client.connect(server.address))
        async with runner.worker():
            await runner.send("ask 1", session="s", key="k", deadline=3.0)
            first = (await runner.client.get_workflow_handle("windlass/s").describe()).run_id
            for _ in range(4):
                while await runner.status("s") != "waiting":
                    await asyncio.sleep(0.02)
                await runner.wake("s")
            assert (await runner.client.get_workflow_handle("windlass/s").describe()).run_id != first
            await over(agent, "s")
            assert (await agent.state("s")).outcome == Cancelled("its deadline has passed")
    finally:
        await agent.aclose()
        server.remove()


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


async def test_a_session_is_spoken_to_while_its_agents_work_in_the_background(depot: Depot, client: Any):
    going_on = asyncio.Event()

    async def slowly(request: Any) -> Any:
        await going_on.wait()
        return says("found it")

    child = Agent(FunctionModel(slowly), name="searcher")

    @tool(effect="idempotent")
    async def search(turn: Turn[Any]) -> str:
        """Search in the background."""
        await turn.delegate(child, "Find it.", background=True)
        return "started"

    @tool
    async def sign() -> str:
        """Sign."""
        return "signed"

    def reply(request: Any) -> Any:
        last = request.messages[-1]
        return calls(last.text) if last.text in ("search", "sign") else says("done")

    agent = Agent(FunctionModel(reply), tools=[search, sign], subagents=[child], store=depot.address, name="boss")
    agent.gate(ToolCalling, tool="sign", name="sure")(lambda event: Ask("sure?", expires=60.0))
    runner: Any = TemporalRunner(agent, client, task_queue=depot.queue)
    async with runner.worker():
        await runner.run("search", session="s", timeout=30)
        assert (await runner.run("hello", session="s", timeout=30)).text == "done"
        asked = await runner.run("sign", session="s", key="sign", timeout=30)
        await runner.resolve("s", asked.waiting_for[0].id, Approve())
        await over(agent, "s")
        assert (await agent.state("s")).text == "done"
        going_on.set()
        assert await idle(runner, "s")
    below = [name for name in await agent.store.sessions() if "//" in name]
    assert [(await agent.state(name)).text for name in below] == ["found it"]
    await agent.aclose()


# ---------------------------------------------------------------- how many at once


async def test_no_more_turns_run_than_a_worker_may_run_and_higher_priorities_come_first(runner: Any, depot: Depot):
    depot.hold()
    async with runner.worker(concurrency=1):
        await runner.send("send 0", session="first", key="k")
        await depot.until(lambda: depot.effects)
        for number, priority in enumerate((0, 4, 9)):
            await runner.send(f"send {number + 1}", session=f"s{number}", key="k", priority=priority)
        await asyncio.sleep(1.0)
        assert depot.effects == ["send 0"]
        depot.let()
        for number in range(3):
            await runner.result(f"s{number}", "k", timeout=30)
    assert depot.effects == ["send 0", "send 3", "send 2", "send 1"]


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


async def test_keys_and_certificates_come_from_the_environment(depot: Depot, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TEMPORAL_TLS", "false")
    monkeypatch.setenv("TEMPORAL_API_KEY", "secret")
    assert (await connect(depot.server.address)).api_key == "secret"
    monkeypatch.setenv("TEMPORAL_TLS_SERVER_CA_CERT_PATH", "/no/such/file")
    monkeypatch.setenv("TEMPORAL_TLS", "true")
    with pytest.raises(ConfigError, match=r"TEMPORAL_….*No such file"):
        await connect(depot.server.address)


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
