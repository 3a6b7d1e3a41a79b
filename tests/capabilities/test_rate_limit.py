"""RateLimit: rates, tokens and calls at once, in order, cancellable, as the vendor says, also among processes."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Completed, Failed, ModelCall, tool
from windlass.capabilities import Fallback, RateLimit, Retry
from windlass.errors import ConfigError, RateLimited
from windlass.messages import ModelReply, RateLimits, Usage, assistant
from windlass.stores import MemoryStore
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, check_capability, says

_names = itertools.count()


def limit(**options: Any) -> RateLimit:
    """A limit that no other test shares."""
    return RateLimit(name=f"limit{next(_names)}", **options)


def ok(**fields: Any) -> ModelReply:
    return ModelReply(assistant("ok"), **fields)


class Served:
    """A model that notes when it was asked what; a reply takes `seconds`."""

    def __init__(self, clock: FakeClock, *, seconds: float = 0, tokens: int = 0, replies: Any = None) -> None:
        self.at: list[tuple[str, float]] = []
        self.running = self.most = 0

        async def reply(request: Any) -> Any:
            self.at.append((request.messages[-1].text, clock.monotonic()))
            self.running += 1
            self.most = max(self.most, self.running)
            try:
                if seconds:
                    await clock.alarm(seconds)
                answer = ok(usage=Usage(input=tokens)) if replies is None else replies.pop(0)
                if isinstance(answer, Exception):
                    raise answer
                return answer
            finally:
                self.running -= 1

        self.model = FunctionModel(reply)

    @property
    def times(self) -> list[int]:
        return [round(at) for _, at in self.at]

    @property
    def order(self) -> list[str]:
        return [text for text, _ in self.at]


async def pass_time(clock: FakeClock, *turns: Any, seconds: float = 1.0, most: int = 400) -> list[Any]:
    """Run turns side by side, and let time pass until they are over."""
    running = []
    for turn in turns:
        running.append(asyncio.ensure_future(turn))
        await clock.advance(0)
    for _ in range(most):
        if all(one.done() for one in running):
            break
        await clock.advance(seconds)
    return await asyncio.gather(*running)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"requests": 10_000, "tokens": 10_000_000, "concurrency": 50},
        {"requests": 10_000, "tokens": 10_000_000, "concurrency": 50, "shared": "store"},
        {"requests": 10_000, "concurrency": 50, "tools": "*", "models": True},
        {"requests": 10_000, "concurrency": 50, "per": lambda scope: "everyone"},
    ],
)
async def test_it_passes_the_checks_for_capabilities(options):
    name = f"checked{next(_names)}"
    await check_capability(lambda: RateLimit(name=name, **options))


@pytest.mark.parametrize("shared", ["process", "store"])
async def test_requests_are_spread_and_made_in_the_order_of_arrival(shared):
    clock = FakeClock()
    served = Served(clock)
    agent = Agent(served.model, clock=clock, capabilities=[limit(requests=2, window=60, shared=shared)])
    results = await pass_time(clock, *[agent.run(str(number)) for number in range(5)])
    assert all(result.text == "ok" for result in results)
    assert served.order == ["0", "1", "2", "3", "4"]
    assert served.times == [0, 0, 30, 60, 90]


@pytest.mark.parametrize("shared", ["process", "store"])
async def test_no_more_calls_run_at_once_than_allowed_and_they_are_made_in_order(shared):
    clock = FakeClock()
    served = Served(clock, seconds=10)
    agent = Agent(served.model, clock=clock, capabilities=[limit(concurrency=2, shared=shared)])
    results = await pass_time(clock, *[agent.run(str(number)) for number in range(6)], seconds=0.25)
    assert all(result.text == "ok" for result in results)
    assert served.most == 2
    assert served.order == ["0", "1", "2", "3", "4", "5"]


async def test_a_freed_permit_is_used_at_once():
    clock = FakeClock()
    served = Served(clock, seconds=10)
    agent = Agent(served.model, clock=clock, capabilities=[limit(concurrency=1)])
    await pass_time(clock, *[agent.run(str(number)) for number in range(3)])
    assert served.times == [0, 10, 20]


async def test_tokens_are_estimated_before_a_call_and_corrected_after_it():
    clock = FakeClock()
    served = Served(clock, tokens=100)
    agent = Agent(served.model, clock=clock, capabilities=[limit(tokens=100, window=100)])
    for _ in range(3):
        await pass_time(clock, agent.run("x" * 40))
    first, second, third = served.times
    assert first == 0
    assert second == pytest.approx(15, abs=5)  # an estimate of some 15 tokens has to come back
    assert third - second == pytest.approx(100, abs=2)  # a call uses all 100 tokens


async def test_a_call_that_is_larger_than_the_limit_waits_until_all_of_it_is_free():
    clock = FakeClock()
    served = Served(clock, tokens=300)
    agent = Agent(served.model, clock=clock, capabilities=[limit(tokens=100, window=10)])
    await pass_time(clock, agent.run("x" * 4_000))
    await pass_time(clock, agent.run("x" * 4_000))
    assert served.times == [0, 30]


async def test_tokens_of_a_call_that_fails_are_given_back():
    clock = FakeClock()
    served = Served(clock, replies=[RateLimited("no", retryable=False), ok()])
    agent = Agent(served.model, clock=clock, capabilities=[limit(tokens=100, window=100)])
    await pass_time(clock, agent.run("x" * 4_000))
    await pass_time(clock, agent.run("x" * 4_000))
    assert served.times == [0, 0]


@pytest.mark.parametrize("shared", ["process", "store"])
@pytest.mark.parametrize("options", [{"requests": 1, "window": 60}, {"concurrency": 1}])
async def test_a_cancelled_call_gives_its_place_back(shared, options):
    clock = FakeClock()
    served = Served(clock, seconds=60)
    agent = Agent(served.model, clock=clock, capabilities=[limit(shared=shared, **options)])
    turns = []
    for name in ("first", "second", "third"):
        turns.append(asyncio.ensure_future(agent.run(name, session=name)))
        await clock.advance(0.1)
    assert await agent.cancel("second")
    await clock.advance(1)
    results = await pass_time(clock, *turns)
    assert [type(result.outcome).__name__ for result in results] == ["Completed", "Cancelled", "Completed"]
    assert served.order == ["first", "third"]
    assert 59 <= served.times[1] <= 62


async def test_a_cancelled_task_gives_its_place_back():
    clock = FakeClock()
    served = Served(clock)
    agent = Agent(served.model, clock=clock, capabilities=[limit(requests=1, window=60)])
    await agent.run("first")
    second = asyncio.ensure_future(agent.run("second"))
    await clock.wait_for_sleepers(1)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    await pass_time(clock, agent.run("third"))
    assert served.order == ["first", "third"]
    assert served.times == [0, 60]


@pytest.mark.parametrize("shared", ["process", "store"])
async def test_a_call_that_would_wait_too_long_fails_at_once(shared):
    clock = FakeClock()
    served = Served(clock)
    pace = limit(requests=1, window=60, max_wait=20, shared=shared)
    agent = Agent(served.model, clock=clock, capabilities=[Retry(), pace])
    await agent.run("first")
    result = await agent.run("second")
    assert isinstance(result.outcome, Failed)
    assert isinstance(result.error, RateLimited)
    assert result.error.retry_after == pytest.approx(60)
    assert str(result.error) == (
        f"{pace.name}: a call of model 'function' would wait longer than max_wait=20 s (1 requests in 60 s); make "
        "fewer calls, or raise the limit or max_wait"
    )
    assert clock.monotonic() == 0
    await clock.advance(60)  # it took nothing
    assert isinstance((await agent.run("third")).outcome, Completed)


async def test_a_call_behind_a_slow_one_waits_no_longer_than_it_may():
    clock = FakeClock()
    served = Served(clock, seconds=100)
    agent = Agent(served.model, clock=clock, capabilities=[limit(concurrency=1, max_wait=20)])
    first, second, third = await pass_time(clock, agent.run("first"), agent.run("second"), agent.run("third"))
    assert first.text == "ok"
    assert [type(one.error) for one in (second, third)] == [RateLimited, RateLimited]
    assert served.order == ["first"]


async def test_a_fallback_is_asked_if_the_first_model_is_used_up():
    clock = FakeClock()
    served = Served(clock)
    other = ScriptedModel(says("from the other"), name="other")
    agent = Agent(served.model, clock=clock, capabilities=[Fallback(other), limit(requests=1, window=600, max_wait=5)])
    assert [(await agent.run("go")).text for _ in range(2)] == ["ok", "from the other"]


async def test_each_tool_has_a_limit_of_its_own_and_the_model_reads_that_it_is_used_up():
    clock = FakeClock(auto=True)
    done = []

    @tool
    def search(text: str) -> str:
        """Search."""
        done.append(text)
        return "found"

    @tool
    def fetch(text: str) -> str:
        """Fetch."""
        done.append(text)
        return "fetched"

    model = ScriptedModel(calls("search", text="a"), calls("search", text="b"), calls("fetch", text="c"), says("Done."))
    pace = limit(requests=1, window=600, tools=["search", "fetch"], max_wait=10)
    result = await Agent(model, tools=[search, fetch], clock=clock, capabilities=[pace]).run("go")
    assert result.text == "Done."
    assert done == ["a", "c"]
    assert "would wait longer than max_wait=10 s" in str(model.requests[2].messages[-1])


async def test_each_key_of_the_scope_has_a_limit_and_none_has_no_limit():
    clock = FakeClock()
    served = Served(clock)
    pace = limit(requests=1, window=60, per=lambda scope: scope)
    agent = Agent(served.model, clock=clock, capabilities=[pace])
    await pass_time(clock, *[agent.run(str(user), scope=user) for user in ("ann", "bob", "ann", None, None)])
    assert sorted(zip(served.order, served.times, strict=True)) == [
        ("None", 0), ("None", 0), ("ann", 0), ("ann", 60), ("bob", 0),
    ]  # fmt: skip
    assert "RateLimit(per=…) returned 7" in (await agent.run("x", scope=7)).outcome.error.message


async def test_a_pause_that_the_vendor_asks_for_holds_for_all_calls():
    clock = FakeClock()
    served = Served(clock, replies=[RateLimited("slow down", retry_after=40, retryable=False), ok()])
    agent = Agent(served.model, clock=clock, capabilities=[limit()])
    await agent.run("first")
    await pass_time(clock, agent.run("second"))
    assert served.times == [0, 40]


@pytest.mark.parametrize(
    ("reported", "second"),
    [
        (RateLimits(requests_left=0, requests_reset=50), 50),
        (RateLimits(requests=10, requests_left=0, requests_reset=50), 5),
        (RateLimits(requests=10, requests_left=1, requests_reset=45), 0),
        (RateLimits(tokens=1_000, tokens_left=0, tokens_reset=1_000), 6),
        (RateLimits(requests_left=0), 0),
    ],
)
async def test_calls_wait_for_what_the_vendor_reports_to_be_left(reported, second):
    clock = FakeClock()
    served = Served(clock, replies=[ok(limits=reported), ok()])
    agent = Agent(served.model, clock=clock, capabilities=[limit()])
    await agent.run("first")
    await pass_time(clock, agent.run("second"))
    assert served.times[1] == pytest.approx(second, abs=2 if reported.tokens else 0)


async def test_the_vendor_can_be_ignored():
    clock = FakeClock()
    replies = [ok(limits=RateLimits(requests_left=0, requests_reset=50)), ok()]
    served = Served(clock, replies=replies)
    agent = Agent(served.model, clock=clock, capabilities=[limit(requests=100, vendor=False)])
    await agent.run("first")
    await agent.run("second")
    assert served.times == [0, 0]


async def test_agents_with_the_same_name_and_limits_share_them_and_others_do_not():
    clock = FakeClock()
    served = Served(clock)
    name = f"shared{next(_names)}"

    def agent(**options: Any) -> Agent[Any]:
        return Agent(served.model, clock=clock, capabilities=[RateLimit(name=name, **options)])

    turns = [agent(requests=1).run("a"), agent(requests=1).run("b"), agent(requests=2).run("c")]
    await pass_time(clock, *turns)
    assert sorted(zip(served.order, served.times, strict=True)) == [("a", 0), ("b", 60), ("c", 0)]


async def test_two_limits_hold_together():
    clock = FakeClock()
    served = Served(clock)
    both = [limit(requests=2, window=10), limit(requests=3, window=300)]
    agent = Agent(served.model, clock=clock, capabilities=both)
    await pass_time(clock, *[agent.run(str(number)) for number in range(4)])
    assert served.times == [0, 0, 5, 100]


async def test_sub_agents_count_and_do_not_wait_for_the_call_around_them():
    clock = FakeClock(auto=True)
    worker = Agent(ScriptedModel(says("done"), name="shared"), name="worker")
    boss = Agent(
        ScriptedModel(calls("worker", task="work"), says("All done."), name="shared"),
        tools=[worker.as_tool()],
        clock=clock,
        capabilities=[limit(concurrency=1, requests=1, window=60, max_wait=None, tools="*", models=True,
                            per=lambda scope: "all")],
    )  # fmt: skip
    assert (await boss.run("go")).text == "All done."
    assert clock.monotonic() == pytest.approx(180)  # the boss twice, the tool, the worker


@pytest.mark.parametrize("shared", ["process", "store"])
async def test_a_side_call_inside_a_model_call_counts_and_does_not_wait_for_it(shared):
    clock = FakeClock(auto=True)
    model = ScriptedModel(says("a judgement"), says("the answer"))
    pace = limit(requests=1, window=60, concurrency=1, shared=shared)
    agent = Agent(model, clock=clock, capabilities=[pace])

    @agent.wrap(ModelCall)
    async def judge(request: Any, call_next: Any, turn: Any) -> Any:
        await turn.ask(model, "Is this fine?")
        return await call_next(request)

    assert (await agent.run("go")).text == "the answer"
    assert clock.monotonic() == pytest.approx(60)


@pytest.mark.parametrize("shared", ["process", "store"])
async def test_it_works_in_a_stream(shared):
    clock = FakeClock(auto=True)
    store = MemoryStore()
    pace = limit(requests=1, window=60, concurrency=1, shared=shared)

    def agent(*replies: Any) -> Agent[Any]:
        return Agent(ScriptedModel(*replies), clock=clock, store=store, capabilities=[pace])

    stream = agent(says("one")).stream("go", session="s")
    assert [type(event).__name__ async for event in stream][-1] == "TurnEnded"
    assert stream.result.text == "one"
    assert (await agent(says("two")).run("again", session="s")).text == "two"
    assert clock.monotonic() == pytest.approx(60)


async def test_threads_share_a_limit():
    pace = limit(concurrency=1)
    running = most = 0

    async def reply(request: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return says("ok")

    agent = Agent(FunctionModel(reply), capabilities=[pace])
    results = await asyncio.gather(*[asyncio.to_thread(agent.run_sync, str(n)) for n in range(12)])
    assert [result.text for result in results] == ["ok"] * 12
    assert most == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"requests": 0}, "requests must be a whole number, 1 or more"),
        ({"tokens": 1.5}, "tokens must be a whole number"),
        ({"concurrency": True}, "concurrency must be a whole number"),
        ({"window": 0}, "window must be a number of seconds above 0"),
        ({"max_wait": -1}, "max_wait must be a number of seconds above 0"),
        ({"shared": "redis"}, "shared must be 'process' or 'store'"),
        ({"per": "user"}, "per must be a function or None"),
        ({"models": False}, "name tools"),
        ({"tools": "search"}, "give requests or concurrency"),
        ({"tools": "search", "tokens": 5}, "tools use no tokens"),
        ({"vendor": False}, "limits nothing"),
        ({"name": ""}, "name must be a text"),
    ],
)
def test_options_are_checked_at_once(options, words):
    with pytest.raises(ConfigError, match=words):
        RateLimit(**options)


async def test_explain_shows_the_limits():
    agent = Agent(ScriptedModel(), capabilities=[RateLimit(requests=60, tokens=100_000, concurrency=4)])
    (shown,) = agent.explain().data["capabilities"]
    assert shown["summary"] == "60 requests in 60 s, 100,000 tokens in 60 s, 4 at once"


# ---------------------------------------------------------------- processes

WORKER = """
import asyncio, json, sys, time
from windlass import Agent
from windlass.capabilities import RateLimit
from windlass.testing import FunctionModel, says

async def work(address, options):
    async def reply(request):
        begun = time.time()
        await asyncio.sleep(0.01)
        print(begun, time.time(), flush=True)
        return says("ok")

    pace = RateLimit(shared="store", **json.loads(options))
    async with Agent(FunctionModel(reply), store=address, capabilities=[pace]) as agent:
        await agent.storage("rate_limit").get("warm")
        print("ready", flush=True)
        sys.stdin.readline()
        await asyncio.gather(*[agent.run(str(n)) for n in range(8)])

asyncio.run(work(*sys.argv[1:]))
"""


def _start(address: str, options: dict[str, Any]) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WORKER, address, json.dumps(options)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


async def _calls_of_two_processes(address: str, options: dict[str, Any]) -> list[tuple[float, float]]:
    """When the calls of two processes, which make eight each, began and ended."""
    workers = [_start(address, options) for _ in range(2)]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    texts = await asyncio.gather(*[asyncio.to_thread(worker.communicate, "go\n") for worker in workers])
    assert [worker.returncode for worker in workers] == [0, 0]
    spans = [line.split() for out, _ in texts for line in out.splitlines()]
    return sorted((float(begin), float(end)) for begin, end in spans)


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    return str(request.getfixturevalue("database"))


async def test_processes_share_permits_by_the_store(address):
    spans = await _calls_of_two_processes(address, {"concurrency": 1, "max_wait": None})
    assert len(spans) == 16
    assert all(end <= begin for (_, end), (begin, _) in itertools.pairwise(spans))


async def test_processes_share_a_rate_by_the_store(address):
    spans = await _calls_of_two_processes(
        address, {"requests": 10, "window": 36_000}
    )  # the eleventh would wait an hour
    assert len(spans) == 10
