"""Workers on one store: every message is run once, a dead worker's turns go on at once, a stopped one keeps its own."""

from __future__ import annotations

import asyncio
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from tests.servers.postgres import PostgresServer

from windlass import Agent, Approve, Completed
from windlass.engines.pool import Queue, Worker
from windlass.errors import ConfigError, SessionBusy
from windlass.records import InboxTaken, Resumed, Suspended, ToolReturned, TurnStarted
from windlass.testing import FunctionModel, says

from .office import Town


@pytest.fixture(params=["sqlite", "postgresql"])
async def town(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Town]:
    sqlite = request.param == "sqlite"
    town = Town(tmp_path, f"sqlite:///{tmp_path}/store.db" if sqlite else request.getfixturevalue("database"))
    yield town
    town.close()


@pytest.fixture
async def clerk(town: Town) -> AsyncIterator[Agent[Any, Any]]:
    agent = town.agent()
    yield agent
    for session in await agent.store.sessions():
        await agent.store.verify(session)
    assert list(await agent.store.verify_store()) == []
    await agent.aclose()


# ---------------------------------------------------------------- the queue


async def test_queued_messages_of_a_session_are_run_in_order_and_once(clerk: Agent[Any, Any], town: Town):
    queue = Queue(clerk)
    for number in (1, 2, 3):
        assert await queue.submit(f"send {number}", session="s", key=str(number))
        assert not await queue.submit("send 9", session="s", key=str(number))
    await Worker(clerk).run(until_idle=True)
    assert town.effects == ["send 1", "send 2", "send 3"]
    assert not await queue.submit("send 1", session="s", key="1")
    await Worker(clerk).run(until_idle=True)
    assert len(town.effects) == 3
    assert (await queue.result("s", "2")).text == "done: send 2"


async def test_the_turn_and_the_end_of_waiting_are_written_together(clerk: Agent[Any, Any]):
    await Queue(clerk).submit("hello", session="s", key="k")
    await Worker(clerk).run(until_idle=True)
    batches = await clerk.store.batches("s")
    opening = [batch.lines for batch in batches if b'"TurnStarted"' in batch.lines]
    assert [b'"InboxTaken"' in lines for lines in opening] == [True]


async def test_a_running_turn_leaves_queued_messages_to_turns_of_their_own(clerk: Agent[Any, Any], town: Town):
    town.hold()
    running = asyncio.create_task(clerk.run("send 1", session="s"))
    await town.until(lambda: town.effects)
    await Queue(clerk).submit("send 2", session="s", key="k")
    worker = Worker(clerk)
    working = asyncio.create_task(worker.run())
    await asyncio.sleep(0.3)
    town.let()
    assert (await running).text == "done: send 1"
    assert (await Queue(clerk).result("s", "k", timeout=20)).text == "done: send 2"
    worker.stop()
    await working
    assert sum(isinstance(record, TurnStarted) for record in await clerk.store.read("s")) == 2


async def test_sessions_of_a_higher_priority_come_first(clerk: Agent[Any, Any], town: Town):
    for number, priority in enumerate((1, 5, 9, 5)):
        await Queue(clerk).submit(f"send {number}", session=f"s{number}", key="k", priority=priority)
    await Worker(clerk, concurrency=1).run(until_idle=True)
    assert town.effects == ["send 2", "send 1", "send 3", "send 0"]


async def test_no_more_turns_run_than_the_worker_may_run(clerk: Agent[Any, Any], town: Town):
    for number in range(9):
        await Queue(clerk).submit(f"send {number}", session=f"s{number}", key="k")
    town.hold()
    worker = Worker(clerk, concurrency=3)
    working = asyncio.create_task(worker.run(until_idle=True))
    await town.until(lambda: len(town.effects) == 3)
    await asyncio.sleep(0.3)
    assert len(town.effects) == len(worker.running) == 3
    town.let()
    await working
    assert len(town.effects) == 9


async def test_a_turn_that_runs_is_not_taken_when_the_server_starts_again(
    postgres: PostgresServer, database: str, tmp_path: Path
):
    with closing(Town(tmp_path, database)) as town:
        agent = town.agent()
        town.hold()
        town.start("--poll", "0.02")
        await Queue(agent).submit("send 1", session="s", key="k")
        await town.until(lambda: town.effects)
        town.start("--poll", "0.02")
        postgres.kill()
        postgres.start()
        await asyncio.sleep(1.5)
        town.let()
        result = await Queue(agent).result("s", "k", timeout=30)
        assert result.text == "done: send 1"
        assert not any(isinstance(record, Resumed) for record in await agent.store.read("s"))
        assert town.effects == ["send 1"]
        await agent.aclose()


async def test_workers_take_only_the_work_of_their_agent(town: Town, clerk: Agent[Any, Any]):
    other = Agent(FunctionModel(lambda request: says("other")), store=town.address, name="other")
    await Queue(other).submit("hi", session="s", key="k")
    await Worker(clerk).run(until_idle=True)
    assert await clerk.store.sessions() == []
    await Worker(other).run(until_idle=True)
    assert (await other.state("s")).text == "other"
    await other.aclose()


async def test_the_scope_of_a_turn_is_made_from_its_session(town: Town):
    seen: list[Any] = []

    async def reply(request: Any) -> Any:
        return says("ok")

    agent = Agent(FunctionModel(reply), store=town.address, scope=str)

    @agent.observe(TurnStarted, wait=True)
    async def look(fact: TurnStarted, turn: Any) -> None:
        seen.append(turn.scope)

    await Queue(agent).submit("hi", session="ann", key="k")

    async def scope(session: str) -> str:
        return f"user {session}"

    await Worker(agent, scope=scope).run(until_idle=True)
    assert seen == ["user ann"]
    await agent.aclose()


async def test_a_scope_that_cannot_be_made_leaves_the_session_to_others(
    town: Town, clerk: Agent[Any, Any], caplog: Any
):
    await Queue(clerk).submit("send 1", session="s", key="k")

    def broken(session: str) -> Any:
        raise RuntimeError("no such user")

    await Worker(clerk, scope=broken).run(until_idle=True)
    assert "no such user" in caplog.text
    assert not (await clerk.store.ownership("s")).owner
    await Worker(clerk).run(until_idle=True)
    assert town.effects == ["send 1"]


def test_a_store_that_processes_cannot_share_is_refused():
    agent = Agent(FunctionModel(lambda request: says("")))
    for make in (Queue, Worker):
        with pytest.raises(ConfigError, match=r"keeps its sessions in MemoryStore, but .* processes share"):
            make(agent)


@pytest.mark.parametrize("given", [{"priority": 10}, {"priority": "high"}, {"key": ""}, {"session": "a//b"}])
async def test_an_invalid_submission_is_refused(clerk: Agent[Any, Any], given: dict[str, Any]):
    with pytest.raises(ConfigError):
        await Queue(clerk).submit("hi", **{"session": "s", "key": "k", **given})


# ---------------------------------------------------------------- answers


async def test_an_answered_turn_is_resumed_and_an_expired_one_too(clerk: Agent[Any, Any], town: Town):
    for session in ("answered", "expired"):
        await Queue(clerk).submit("sign 1", session=session, key="k")
    worker = Worker(clerk)
    working = asyncio.create_task(worker.run())
    result = await Queue(clerk).result("answered", "k", timeout=20)
    assert isinstance(result.outcome, Suspended)
    await clerk.resolve("answered", result.waiting_for[0].id, Approve())
    for session in ("answered", "expired"):
        async with asyncio.timeout(20):
            while not (await clerk.state(session)).over:  # noqa: ASYNC110 - a worker ends it
                await asyncio.sleep(0.05)
    worker.stop()
    await working
    assert town.effects == ["sign 1"]
    assert isinstance((await clerk.state("answered")).outcome, Completed)


async def test_an_answer_that_does_not_count_is_not_taken_again_and_again(clerk: Agent[Any, Any]):
    await Queue(clerk).submit("sign 1", session="s", key="k")
    await Worker(clerk).run(until_idle=True)
    await clerk.store.put("s", "bad", "answer", {"id": "no such question"})
    worker = Worker(clerk)
    await worker.run(until_idle=True)
    assert worker.done <= 2


# ---------------------------------------------------------------- processes


async def test_a_dead_workers_session_is_taken_over_and_no_unsafe_effect_is_repeated(
    clerk: Agent[Any, Any], town: Town
):
    town.hold()
    first = town.start("--concurrency", "4")
    await Queue(clerk).submit("send 1", session="unsafe", key="k")
    await Queue(clerk).submit("pay 1", session="idempotent", key="k")
    await town.until(lambda: len(town.effects) == 2)
    second = town.start()
    await asyncio.sleep(0.7)
    assert len(town.effects) == 2, "a live worker's session was taken"
    first.kill()
    first.wait()
    await town.until(lambda: len(town.effects) == 3)
    town.let()
    queue = Queue(clerk)
    unsafe, idempotent = (
        await queue.result("unsafe", "k", timeout=20),
        await queue.result("idempotent", "k", timeout=20),
    )
    assert Counter(town.effects) == {"send 1": 1, "pay 1": 2}
    assert isinstance(unsafe.outcome, Completed)
    assert isinstance(idempotent.outcome, Completed)
    returned = [record for record in await clerk.store.read("unsafe") if isinstance(record, ToolReturned)]
    assert "unknown" in returned[0].result.text
    assert set(town.workers) == {first.pid, second.pid}


async def test_a_stopped_worker_keeps_its_session_and_ends_its_turn_alone(clerk: Agent[Any, Any], town: Town):
    """Work queues with leases run the job of a stopped worker twice."""
    town.hold()
    first = town.start()
    await Queue(clerk).submit("send 1\nsend 2", session="s", key="k")
    await town.until(lambda: town.effects)
    first.send_signal(signal.SIGSTOP)
    second = town.start()
    await Queue(clerk).submit("pay 1", session="other", key="k")
    await town.until(lambda: second.pid in town.workers)
    await asyncio.sleep(1.0)
    town.let()
    assert (await Queue(clerk).result("other", "k", timeout=20)).text == "done: pay 1"
    with pytest.raises(SessionBusy, match=str(first.pid)):
        await clerk.run("hello", session="s")
    first.send_signal(signal.SIGCONT)
    assert isinstance((await Queue(clerk).result("s", "k", timeout=20)).outcome, Completed)
    assert Counter(town.effects) == {"send 1": 1, "send 2": 1, "pay 1": 1}


async def test_a_stopped_workers_session_that_is_taken_over_by_force_is_fenced(clerk: Agent[Any, Any], town: Town):
    town.hold()
    first = town.start()
    await Queue(clerk).submit("send 1\nsend 2", session="s", key="k")
    await town.until(lambda: town.effects)
    first.send_signal(signal.SIGSTOP)
    town.let()
    result = await clerk.resume("s", takeover=True)
    assert isinstance(result.outcome, Completed)
    first.send_signal(signal.SIGCONT)
    await Queue(clerk).submit("pay 1", session="s2", key="k")
    await Queue(clerk).result("s2", "k", timeout=20)
    assert Counter(town.effects) == {"send 1": 1, "send 2": 1, "pay 1": 1}


async def test_sigterm_lets_turns_end_and_hands_over_the_rest(clerk: Agent[Any, Any], town: Town):
    town.hold()
    first = town.start("--drain", "0.5")
    await Queue(clerk).submit("pay 1", session="s", key="k")
    await town.until(lambda: town.effects)
    first.send_signal(signal.SIGTERM)
    await town.until(lambda: "takes no more; sessions at work: 1" in (town.folder / "log").read_text())
    await Queue(clerk).submit("pay 2", session="late", key="k")
    assert await asyncio.to_thread(first.wait, 30) == 0
    assert town.effects == ["pay 1"]
    town.let()
    second = town.start("--until-idle")
    assert await asyncio.to_thread(second.wait, 30) == 0
    assert Counter(town.effects) == {"pay 1": 2, "pay 2": 1}
    for session in ("s", "late"):
        assert isinstance((await clerk.state(session)).outcome, Completed)


async def test_several_workers_share_the_messages_and_run_each_once(clerk: Agent[Any, Any], town: Town):
    queue = Queue(clerk)
    for number in range(40):
        await queue.submit(f"send {number}\npay {number}", session=f"s{number}", key="k")
    workers = [town.start("--until-idle", "--concurrency", "2", "--poll", "0.01") for _ in range(3)]
    for worker in workers:
        assert await asyncio.to_thread(worker.wait, 60) == 0
    assert Counter(town.effects) == {f"{verb} {n}": 1 for n in range(40) for verb in ("send", "pay")}
    for number in range(40):
        log = await clerk.store.read(f"s{number}")
        assert sum(isinstance(record, InboxTaken) for record in log) == 1


async def test_submit_and_wait_on_the_command_line(town: Town, clerk: Agent[Any, Any]):
    worker = town.start()
    waiting = town.start("send 7", "--session", "s", "--key", "k", "--wait", command="submit")
    assert await asyncio.to_thread(waiting.wait, 40) == 0
    again = town.start("send 7", "--session", "s", "--key", "k", command="submit")
    assert await asyncio.to_thread(again.wait, 40) == 0
    log = (town.folder / "log").read_text()
    assert "done: send 7" in log
    assert "was given a message with the key 'k' before" in log
    assert town.effects == ["send 7"]
    assert worker.poll() is None
