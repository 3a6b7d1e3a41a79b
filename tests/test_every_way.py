"""Whatever an agent is made of, and whatever happens to it: hooks, transcript and outcome do not depend on how it is
run. The ways are those of `run_everywhere`: run, run_sync, iterate, stream, resume by another process, sub-agent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from windlass import (
    Agent,
    ErrorPolicy,
    MessageAdding,
    ModelCall,
    ModelCalling,
    ModelReplying,
    StepEnding,
    StepLimit,
    StepStarting,
    Stopping,
    Suspended,
    TokenLimit,
    ToolCall,
    ToolCalling,
    ToolReturning,
    Turn,
    TurnEnding,
    TurnStarting,
    tool,
)
from windlass.errors import NotDone
from windlass.testing import FakeClock, HookSet, ScriptedModel, agreeable, assert_same_everywhere, says
from windlass.testing.strategies import hook_sets, scripts

from .checks import check_log, numbers, unpaired, visible

# ---------------------------------------------------------------- random agents


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def wipe(path: str) -> str:
    """Wipe a path."""
    await asyncio.sleep(0)
    return f"wiped {path}"


@tool(effect="idempotent")
async def fails(why: str = "") -> str:
    """Fail."""
    await asyncio.sleep(0)
    raise NotDone(why) if why else RuntimeError("broken")


@tool(effect="pure")
def block() -> str:
    """Work in a thread."""
    return "blocked"


@tool(sequential=True)
async def stop(turn: Turn, swallow: bool = False) -> str:
    """Cancel the turn, and perhaps go on nevertheless."""
    turn.cancel("from a tool")
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        if not swallow:
            raise
    return "it went on"


TOOLS = [add, wipe, fails, block, stop]
POLICIES = {
    "usual": ErrorPolicy(delay=0),
    "strict": ErrorPolicy.strict(),
    "retrying": ErrorPolicy.retrying(1, delay=0),
    "retrying all": ErrorPolicy(actions={"tool": "retry"}, otherwise="retry", retries=1, delay=0),
    "ignoring": ErrorPolicy(otherwise="ignore", delay=0),
}
CANCELLERS: Sequence[Any] = (
    TurnStarting, StepStarting, ModelCalling, ModelReplying, ToolCalling, ToolReturning, MessageAdding, StepEnding,
    Stopping, TurnEnding,
)  # fmt: skip


class Plan:
    """All that an agent is made of. `make` gives the same agent each time, with a model and a store of its own."""

    def __init__(
        self, script: list[Any], hooks: HookSet, policy: str, limit: int, cancel: tuple[Any, int, bool] | None
    ) -> None:
        self.script = script
        self.hooks = hooks
        self.policy = policy
        self.limit = limit
        self.cancel = cancel

    def make(self) -> Agent:
        agent = Agent(
            ScriptedModel(*self.script, *[says("the end")] * 8),
            tools=TOOLS,
            errors=POLICIES[self.policy],
            criteria=[StepLimit(self.limit), TokenLimit(100_000)],
            clock=FakeClock(auto=True),
            max_regenerations=1,
            max_vetoes=1,
            name="planned",
        )
        self.hooks.install(agent)
        if self.cancel is not None:
            self._cancelling(agent, *self.cancel)
        return agent

    def _cancelling(self, agent: Agent, event: Any, step: int, waits: bool) -> None:
        """A hook that cancels the turn once it has come to a step; by the log, so that an heir does the same."""

        async def canceller(event: Any, turn: Turn) -> None:
            if turn.steps >= step:
                turn.cancel("from a hook")
                if waits:
                    await asyncio.sleep(0)

        live = {"live": True} if event in (ModelReplying, TurnEnding) else {}
        agent.gate(event, name="canceller", **live)(canceller)

    def __repr__(self) -> str:
        return f"Plan({self.script}, {self.hooks}, {self.policy!r}, limit={self.limit}, cancel={self.cancel})"


def plans(**options: Any) -> st.SearchStrategy[Plan]:
    """Random agents."""
    return st.builds(
        Plan,
        scripts(TOOLS, max_size=4),
        hook_sets(tools=TOOLS, max_size=4, **options),
        st.sampled_from(sorted(POLICIES)),
        st.integers(1, 4),
        st.none() | st.tuples(st.sampled_from(CANCELLERS), st.integers(0, 2), st.booleans()),
    )


# ---------------------------------------------------------------- every way


@given(plans(), st.booleans())
@settings(max_examples=150)
def test_a_random_agent_does_the_same_in_every_way_of_running(plan, answered):
    """Behaviour 84: the same hooks, the same transcript, the same outcome; also if it is cut at each suspension."""
    lived = asyncio.run(assert_same_everywhere(plan.make, answers=agreeable if answered else None))
    assert unpaired(lived.state.messages) == []
    assert lived.state.over or isinstance(lived.state.outcome, Suspended)


@given(plans())
@settings(max_examples=200)
async def test_what_the_stream_of_a_random_agent_shows_is_its_text(plan):
    """Behaviours 84, 107: one numbering, nothing shown that does not count, whatever the hooks do."""
    agent = plan.make()
    events, state = await streamed(agent, "go", None)
    for _ in range(20):
        if not state.waiting:
            break
        more, state = await streamed(agent, None, {asked.id: agreeable(asked) for asked in state.waiting})
        events += more
    assert visible(events) == state.text
    await check_log(agent, "s", state)


async def streamed(agent: Agent, message: str | None, answers: Any) -> tuple[list[Any], Any]:
    stream = agent.stream(message, session="s", answers=answers)
    events = [event async for event in stream]
    assert numbers(events) == list(range(1, len(events) + 1))
    return events, stream.result.state


# ---------------------------------------------------------------- cancelled from outside


@given(plans(failing=False), st.sampled_from([ModelCall, ToolCall]), st.integers(0, 2))
@settings(max_examples=60)
async def test_a_random_agent_that_is_cancelled_from_outside_is_closed_the_same_in_every_way(plan, effect, step):
    """Behaviours 83f, 84: cancelled where nothing is half said: before the model or a tool of some step is called."""
    plan.cancel = None
    one = await closed(plan.make(), by_run, effect, step)
    for way in (by_iterate, by_stream):
        assert await closed(plan.make(), way, effect, step) == one, way.__name__


async def closed(agent: Agent, way: Callable[[Agent], Any], effect: Any, step: int) -> Any:
    """What a turn came to that was cancelled at its first effect of a kind from some step on."""
    reached = asyncio.Event()

    @agent.wrap(effect, name="stay", band="early", priority=9)
    async def stay(value: Any, call_next: Any, turn: Turn) -> Any:
        if turn.steps >= step:
            reached.set()
            await asyncio.Event().wait()
        return await call_next(value)

    running = asyncio.ensure_future(way(agent))
    arriving = asyncio.ensure_future(reached.wait())
    await asyncio.wait([running, arriving], return_when=asyncio.FIRST_COMPLETED)
    if reached.is_set():
        assert await agent.cancel("s", "enough")
    arriving.cancel()
    await asyncio.wait([running, arriving])
    assert running.exception() is None
    state = await check_log(agent, "s")
    told = [type(record).__name__ for record in await agent.store.read("s")]
    outcome = type(state.outcome) if isinstance(state.outcome, Suspended) else state.outcome
    return outcome, list(state.messages), told


async def by_run(agent: Agent) -> None:
    await agent.run("go", session="s")


async def by_iterate(agent: Agent) -> None:
    async for _ in agent.iterate("go", session="s"):
        pass


async def by_stream(agent: Agent) -> None:
    async for _ in agent.stream("go", session="s"):
        pass
