"""What a vendor's cache serves of a session whose hooks inject and whose history is compacted."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from windlass import Agent, SessionStarting, StepStarting, TextPart, ToolReturning, TurnStarting, Usage, tool, user
from windlass.context.compaction import Compaction, Window
from windlass.messages import Message, Messages, ModelReply, ModelRequest, ToolCallPart
from windlass.testing import PrefixCache, assert_prefix_stable

STEPS, TURNS = 100, 5


def words(number: int, count: int) -> str:
    return " ".join([f"word{(number * 31 + at * 7) % 9973}" for at in range(count)])


class Summary:
    """All but the latest messages become a summary when the request has grown large."""

    name = "summary"

    def install(self, registrar: Any) -> None:
        registrar.compactor(self)

    def plan(self, window: Window, *, forced: bool = False) -> Compaction | None:
        return Compaction((0, len(window.messages) - 20)) if window.tokens > 22_000 else None

    async def replace(self, plan: Compaction, window: Window, turn: Any) -> Sequence[Message]:
        return [user(words(plan.range[1], 100), origin="summary")]


class Vendor:
    name = "vendor"

    def __init__(self) -> None:
        self.cache = PrefixCache()
        self.numbers = itertools.count(1)

    async def reply(self, request: ModelRequest) -> ModelReply:
        number = next(self.numbers)
        tokens, hits = self.cache.read(request)
        usage = Usage(tokens, 20, cached=hits)
        if number % (STEPS // TURNS) == 0:
            return ModelReply(Message("assistant", (TextPart(words(number, 20)),)), usage)
        parts = (TextPart(words(number, 20)), ToolCallPart("read", f'{{"number": {number}}}'))
        return ModelReply(Message("assistant", parts), usage, "tool_calls")


@tool(effect="pure", inline=True)
def read(number: int) -> str:
    """Read a page."""
    return words(number * 13, 200)


async def test_a_vendors_cache_serves_nine_tenths_of_a_long_session():
    """Five hooks of several kinds inject, the history is compacted twice, and every turn's own parts go with it."""
    vendor = Vendor()
    agent = Agent(vendor, tools=[read], system=words(0, 600)).with_capability(Summary())
    agent.inject(SessionStarting, name="profile")(lambda event: words(1, 100))
    agent.inject(TurnStarting, name="retrieval", group="search")(lambda event: words(len(event.message.text), 150))
    agent.inject(TurnStarting, name="memory", group="search")(lambda event: f"Remember {event.message.text}.")
    agent.inject(StepStarting, name="clock")(lambda event: f"This is step {event.step}.")
    agent.inject(ToolReturning, name="lint")(lambda event: f"Read {event.call.id} with care.")
    for number in range(TURNS):
        (await agent.run(words(number, 40 + number), session="long")).raise_for_error()
    found = await assert_prefix_stable(agent, "long", allow=["compaction", "turn"])
    kinds = [one.broken.kind for one in found if one.broken is not None]
    print(f"{vendor.cache.rate:.1%} of {vendor.cache.tokens:,} input tokens were hits")  # noqa: T201
    assert len(found) == STEPS
    assert kinds.count("compaction") == 2
    assert vendor.cache.rate >= 0.9
    assert sum([one.cached for one in found]) == vendor.cache.hits


def test_a_cache_knows_whole_blocks_of_any_earlier_request():
    cache = PrefixCache(block=10)
    long, other = user("a" * 400), user("b" * 400)
    assert cache.read(ModelRequest("", Messages([long])))[1] == 0
    tokens, hits = cache.read(ModelRequest("", Messages([long])))
    assert tokens - 10 < hits <= tokens
    assert cache.read(ModelRequest("", Messages([other])))[1] == 0
    assert cache.read(ModelRequest("", Messages([long, other])))[1] >= 100
    assert cache.read(ModelRequest("changed " * 10, Messages([long])))[1] == 0
    assert 0 < cache.rate < 1
    assert PrefixCache().rate == 0
