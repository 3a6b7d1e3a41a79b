"""RequestArchive: every request as it left, in little space, for as long as is wanted."""

from __future__ import annotations

import itertools
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from windlass import (
    Agent,
    ModelCall,
    ModelCalling,
    ModelError,
    ModelReplying,
    Regenerate,
    Rewind,
    StepEnding,
    StepStarting,
    ToolReturning,
    TurnStarting,
    tool,
    user,
)
from windlass.capabilities import RequestArchive
from windlass.errors import ConfigError, StoreError
from windlass.messages import Message, Messages, ModelRequest
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, check_capability, says
from windlass.testing.strategies import messages as any_messages

from .test_replay import Half, add, look, script

S = "s1"


@pytest.fixture
def archive(tmp_path: Path) -> Iterator[RequestArchive]:
    made = RequestArchive(tmp_path / "archive.db")
    yield made
    made.close()


def patient(model: Any, **options: Any) -> Agent[Any, Any]:
    """An agent that waits for its observers however slow the machine is."""
    return Agent(model, observer_patience=30, **options)


def rows(archive: RequestArchive, table: str) -> int:
    with closing(sqlite3.connect(archive.path)) as db:
        return int(db.execute(f"SELECT count(*) FROM {table}").fetchone()[0])


async def test_every_request_can_be_had_just_as_it_left(archive: RequestArchive):
    model = script(8, calls("look", at="sea"), says("done again"))
    agent = patient(model, tools=[add, look], system="You add.", settings={"temperature": 0}).with_capability(archive)
    agent.with_capability(Half(10))
    agent.inject(TurnStarting, name="recall")(lambda event: "for the turn")
    agent.inject(StepStarting, name="clock")(lambda event: f"step {event.step}")
    agent.inject(ToolReturning, name="beside")(lambda event: f"beside {event.call.id}")
    agent.gate(StepEnding)(lambda event: Rewind(6, "again") if event.step.number == 6 else None)

    @agent.rewrite(ModelCalling)
    def framed(event: Any) -> Any:
        return event.request.replace(
            messages=[user("first"), *event.request.messages, user(f"last {event.turn.steps}")]
        )

    await agent.run("go", session=S)
    await agent.run("on", session=S)
    assert len(model.requests) == 11
    assert [archive.request(S, step) for step in range(1, 12)] == model.requests
    assert archive.steps(S) == [(step, 1) for step in range(1, 12)]
    archive.close()
    assert archive.request(S, 7) == model.requests[6]


async def test_every_attempt_is_kept_after_the_wraps(archive: RequestArchive):
    model = ScriptedModel(says("bad"), ModelError("busy"), says("good"))
    agent = patient(model).with_capability(archive)
    agent.gate(ModelReplying)(lambda event: Regenerate("better") if event.reply.text == "bad" else None)

    @agent.wrap(ModelCall)
    async def again(request: Any, call_next: Any) -> Any:
        try:
            return await call_next(request)
        except ModelError:
            return await call_next(request.replace(system="try harder"))

    await agent.run("go", session=S)
    assert [archive.request(S, 1, attempt) for attempt in (1, 2, 3)] == model.requests
    assert archive.request(S, 1).system == "try harder"
    with pytest.raises(LookupError, match=r"has 3 requests in .*, but no number 4"):
        archive.request(S, 1, 4)
    with pytest.raises(LookupError, match="no request of step 2 of session 's1'"):
        archive.request(S, 2)
    with pytest.raises(LookupError, match="no requests of session 'nobody'"):
        archive.request("nobody", 1)


async def test_sub_agents_are_kept_by_their_own_sessions_and_erased_with_the_one_above(archive: RequestArchive):
    below = ScriptedModel(says("found"))
    child = Agent(below, name="child")
    model = ScriptedModel(calls("child", task="find it"), says("done"))
    agent = patient(model, tools=[child.as_tool()]).with_capability(archive)
    await agent.run("go", session=S)
    with closing(sqlite3.connect(archive.path)) as db:
        (session,) = [name for (name,) in db.execute("SELECT DISTINCT session FROM requests") if name != S]
    assert archive.request(session, 1) == below.requests[0]
    assert archive.erase(S)
    assert not archive.erase(S)
    assert [rows(archive, table) for table in ("parts", "uses", "lanes", "lines", "requests", "tails")] == [0] * 6


async def test_what_is_erased_is_in_no_file_any_more_and_others_stay(archive: RequestArchive):
    agent = patient(FunctionModel(lambda request: says("a common answer"))).with_capability(archive)
    await agent.run("the quick brown fox", session=S)
    await agent.run("and again", session=S)
    await agent.run("something else", session="s2")
    kept = archive.request("s2", 1)
    assert archive.erase(S)
    assert archive.request("s2", 1) == kept
    await agent.run("on with it", session=S)
    assert archive.request(S, 3).messages[0].text == "the quick brown fox"


async def test_what_is_too_old_is_dropped_and_the_rest_can_still_be_read(tmp_path: Path):
    clock = FakeClock(1000.0)
    archive = RequestArchive(tmp_path / "archive.db", ttl=100)
    model = FunctionModel(lambda request: says("answer " + str(len(request.messages))))
    agent = patient(model, clock=clock).with_capability(archive)
    sent: list[Any] = []
    agent.rewrite(ModelCalling)(lambda event: sent.append(event.request))
    for number in range(10):
        await agent.run(f"message {number}", session=S)
        await agent.run("once", session=f"other{number}")
        await clock.advance(30)
    assert [step for step, _ in archive.steps(S)] == [7, 8, 9, 10]
    assert archive.request(S, 7) == sent[12]
    assert rows(archive, "lanes") == 5
    await clock.advance(1000)
    assert archive.purge(now=clock.now()) == 8
    assert [rows(archive, table) for table in ("parts", "uses", "lanes", "lines", "tails")] == [0] * 5
    await agent.run("after all that", session=S)
    assert archive.request(S, 11) == sent[-1]
    archive.close()


def test_a_ttl_is_above_nothing():
    with pytest.raises(ConfigError, match="ttl"):
        RequestArchive("x.db", ttl=0)


def test_a_file_that_cannot_be_opened_is_named(tmp_path: Path):
    with pytest.raises(StoreError, match=r"missing.archive\.db cannot be opened"):
        RequestArchive(tmp_path / "missing" / "archive.db").request(S, 1)


def test_several_may_open_a_new_file_at_once(tmp_path: Path):
    def look(archive: RequestArchive) -> list[tuple[int, int]]:
        together.wait()
        try:
            return archive.steps(S)
        finally:
            archive.close()

    together = threading.Barrier(6)
    with ThreadPoolExecutor(6) as pool:
        for number in range(20):
            archives = [RequestArchive(tmp_path / f"{number}.db") for _ in range(6)]
            assert list(pool.map(look, archives)) == [[]] * 6


async def test_secrets_that_the_application_named_are_masked(archive: RequestArchive):
    model = script(1)
    agent = patient(model, tools=[add], system="The key is sesame-open.", secrets=["sesame-open"]).with_capability(
        archive
    )
    await agent.run("go", session=S)
    assert model.requests[0].system == "The key is sesame-open."
    assert archive.request(S, 2).system == "The key is •••."
    archive.close()
    assert b"sesame" not in archive.path.read_bytes()


async def test_an_agent_with_an_audit_behaves_like_one_without(tmp_path: Path):
    numbers = itertools.count()
    made: list[RequestArchive] = []

    def make() -> RequestArchive:
        made.append(RequestArchive(tmp_path / f"{next(numbers)}.db"))
        return made[-1]

    await check_capability(make)
    for one in made:
        one.close()


async def test_what_300_steps_take_grows_with_what_is_new(tmp_path: Path):
    """A request of step 300 has 600 messages; what it costs is what is new in it."""
    sizes: dict[int, int] = {}
    for steps in (75, 150, 300):
        numbers = itertools.count()

        @tool(effect="pure", inline=True)
        def read(path: str, numbers: Any = numbers) -> str:
            """Read a file."""
            return "".join([f"{path} line {at} {next(numbers) * 7919 % 10007}\n" for at in range(40)])

        archive = RequestArchive(tmp_path / f"{steps}.db")
        script = [calls("read", path=f"file{at}.py") for at in range(steps)]
        agent = patient(ScriptedModel(*script, says("done")), tools=[read], system="You read. " * 100, max_steps=None)
        agent.with_capability(archive)
        agent.inject(TurnStarting)(lambda event: "for the turn")
        agent.inject(StepStarting)(lambda event: f"step {event.step}")
        agent.inject(ToolReturning)(lambda event: f"beside {event.call.id}")
        await agent.run("go", session=S)
        requests = [archive.request(S, step) for step in (1, steps // 2, steps + 1)]
        assert [len(request.messages) for request in requests] == [1, steps - 1 - steps % 2, 2 * steps + 1]
        assert rows(archive, "lines") < 2 * steps + 2
        with closing(sqlite3.connect(archive.path)) as db:
            data, frames = db.execute("SELECT sum(length(data)), count(*) FROM parts").fetchone()
        assert frames < 10 * steps
        sizes[steps] = data
        archive.close()
    assert 1.8 < sizes[150] / sizes[75] < 2.2
    assert 1.8 < sizes[300] / sizes[150] < 2.2


@settings(max_examples=40)
@given(st.data())
def test_any_sequence_of_requests_comes_back(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject):
    """Whatever a session sends after whatever else: a longer history, a shorter one, another one."""
    archive = RequestArchive(tmp_path_factory.mktemp("archive") / "archive.db")
    pool = data.draw(st.lists(any_messages(), min_size=1, max_size=6))
    histories = st.lists(st.sampled_from(pool), max_size=6)
    tails = st.lists(st.sampled_from(pool), max_size=2).map(tuple)
    sent: list[ModelRequest] = []
    try:
        for step in range(1, data.draw(st.integers(1, 8)) + 1):
            history: list[Message] = data.draw(histories)
            messages = Messages(history, tail=data.draw(tails)) if history else Messages()
            request = ModelRequest(data.draw(st.sampled_from(["", "one", "two"])), messages, model="m")
            archive._keep(S, (step, 1, 1), request, lambda plain: plain, 0.0)
            sent.append(request)
        found = [archive.request(S, step) for step in range(1, len(sent) + 1)]
        assert [repr(request) for request in found] == [repr(request) for request in sent]
    finally:
        archive.close()


async def test_what_another_process_drops_does_not_mix_up_sessions(archive: RequestArchive):
    """Numbers of what was dropped are given to others: nobody may still write to them."""
    model = ScriptedModel(*[says(f"reply {number}") for number in range(7)])
    agent = patient(model, system="Mind the sheep.").with_capability(archive)
    for number in range(3):
        await agent.run(f"sheep {number}", session=S)
    other = RequestArchive(archive.path)
    other.erase(S)
    stranger = patient(model, system="Mind the goats.").with_capability(other)
    for number in range(3):
        await stranger.run(f"goat {number}", session="other")
    await agent.run("more sheep", session=S)
    assert archive.request(S, 4) == model.requests[6]
    assert other.request("other", 3) == model.requests[5]
    other.close()


async def test_a_sub_agent_that_has_the_same_audit_as_its_parent_is_kept_once(archive: RequestArchive):
    child = patient(ScriptedModel(calls("look", at="sea"), says("grey")), tools=[look], name="child")
    child.with_capability(archive)
    model = ScriptedModel(calls("child", task="look at the sea"), says("done"))
    agent = patient(model, tools=[child.as_tool("child", "A child.")]).with_capability(archive)
    await agent.run("go", session=S)
    assert archive.steps(S) == [(1, 1), (2, 1)]
    assert archive.steps(f"{S}//1/1") == [(1, 1), (2, 1)]


async def test_what_was_too_large_to_leave_is_not_kept_as_sent(archive: RequestArchive):
    model = ScriptedModel("never said")
    agent = patient(model, window=50).with_capability(archive)
    await agent.run("too much " * 100, session=S)
    assert model.requests == []
    assert archive.steps(S) == []
