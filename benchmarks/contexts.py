"""Context: a long session on a simulated vendor's cache, and the cost of assembling a long history."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from costs import Cost, timing

from windlass import (
    Agent,
    Injected,
    SessionStarting,
    StepStarting,
    ToolReturning,
    TurnStarting,
    tool,
    user,
)
from windlass.context.assembly import assemble
from windlass.context.compaction import Compaction, Window
from windlass.messages import Message, ModelReply, ModelRequest, TextPart, ToolCallPart, Usage
from windlass.records import MessageAdded, TurnStarted
from windlass.states import Fold
from windlass.testing import PrefixCache

STEPS, TURNS = 300, 10
WORDS = (
    "the",
    "hull",
    "is",
    "of",
    "oak",
    "and",
    "mast",
    "pine",
    "while",
    "rope",
    "sail",
    "wait",
    "in",
    "store",
    "deck",
)


def passage(number: int, words: int) -> str:
    """A unique text of this many words."""
    return " ".join([f"{WORDS[(number * 7 + at) % len(WORDS)]}{(number * 31 + at) % 97}" for at in range(words)])


class Summary:
    """A strategy: when the request is large, all but the latest messages become a summary."""

    name = "summary"

    def __init__(self, tokens: int, keep: int) -> None:
        self.tokens = tokens
        self.keep = keep

    def install(self, registrar: Any) -> None:
        registrar.compactor(self)

    def plan(self, window: Window, *, forced: bool = False) -> Compaction | None:
        if window.tokens < self.tokens:
            return None
        return Compaction((0, len(window.messages) - self.keep), reason=f"{window.tokens} tokens")

    async def replace(self, plan: Compaction, window: Window, turn: Any) -> Sequence[Message]:
        return [user(f"What happened so far: {passage(plan.range[1], 400)}", origin=self.name)]


class CachingModel:
    """A model that works through its turns with tool calls, and counts as a vendor with a cache would."""

    name = "cached"
    context_window = 2_000_000

    def __init__(self, steps: int, words: int) -> None:
        self.cache = PrefixCache()
        self.numbers = itertools.count(1)
        self.steps = steps
        self.words = words

    async def reply(self, request: ModelRequest) -> ModelReply:
        number = next(self.numbers)
        tokens, hits = self.cache.read(request)
        usage = Usage(tokens, 100, cached=hits)
        said = TextPart(passage(number, self.words))
        if number % self.steps == 0:
            return ModelReply(Message("assistant", (said,)), usage)
        call = ToolCallPart("read", f'{{"path": "deck/{number}.txt"}}', vendor_id=f"call_{number}")
        return ModelReply(Message("assistant", (said, call)), usage, "tool_calls")


@tool(effect="pure", inline=True)
def read(path: str) -> str:
    """Read a file of the ship's library."""
    return passage(int(path.removeprefix("deck/").removesuffix(".txt")) * 13, 300)


def long_session(steps: int = STEPS, turns: int = TURNS, compact_at: int = 75_000) -> Agent[Any, Any]:
    """An agent with five hooks that inject, and a strategy that compacts."""
    model = CachingModel(steps // turns, 40)
    agent = Agent(model, tools=[read], system=passage(0, 1500), max_steps=None)
    agent.with_capability(Summary(compact_at, 40))
    agent.inject(SessionStarting, name="profile")(lambda event: passage(1, 200))
    agent.inject(TurnStarting, name="retrieval", group="search")(lambda event: passage(len(event.message.text), 250))
    agent.inject(TurnStarting, name="memory", group="search")(lambda event: f"Remember {event.message.text[:40]}.")
    agent.inject(StepStarting, name="clock")(lambda event: f"This is step {event.step}.")
    agent.inject(ToolReturning, name="lint")(lambda event: f"Read {event.call.id} with care.")
    return agent


async def cached(steps: int = STEPS, turns: int = TURNS, compact_at: int = 75_000) -> dict[str, Any]:
    """The part of the input tokens of a long session that a vendor's cache serves."""
    agent = long_session(steps, turns, compact_at)
    for number in range(turns):
        result = await agent.run(f"Task {number}: {passage(number, 120)}", session="long")
        result.raise_for_error()
    model: Any = agent.model
    cache: PrefixCache = model.cache
    found = await agent.prefixes("long")
    written = sum([len(message.text) for message in result.messages])
    written += sum(
        [
            len(getattr(part, "text", ""))
            for message in result.messages
            for part in message.parts
            if message.role == "tool"
        ]
    )
    return {
        "steps": len(found),
        "history_tokens": written // 4,
        "input_tokens": cache.tokens,
        "hit_percent": cache.rate * 100,
        "compactions": sum([1 for one in found if one.broken is not None and one.broken.kind == "compaction"]),
        "breaks": sorted({f"{one.broken.kind} by {one.broken.by}" for one in found if one.broken is not None}),
        "largest": max([one.tokens for one in found]),
    }


def history(length: int) -> Fold:
    """A session with this many messages in which a turn has just begun."""
    fold = Fold("long")
    for number in range(length):
        message = user(passage(number, 60))
        fold.add(TurnStarted(number + 1, message, f"long/t{number + 1}"))
        fold.add(MessageAdded())
    fold.acknowledge(len(fold.pending))
    return fold


def assembly(length: int, injected: bool, times: int = 200) -> Cost:
    """The cost of assembling a request once when nothing is new, averaged over `times`."""
    program = long_session()._compile()
    fold = history(length)
    if injected:
        part = TextPart("for the turn", "hook")
        fold.add(Injected((part,), hook="hook", event="TurnStarting", about=f"long/t{length}"))
    with timing() as timer:
        for _ in range(times):
            assemble(fold, program)
    return Cost(timer.cost.wall / times, timer.cost.cpu / times)


async def turn_after(before: int, steps: int) -> Cost:
    """A turn after `before` steps of the same session, with five hooks that inject and a context window."""
    agent = long_session(compact_at=10**9)
    model: Any = agent.model
    model.cache.read = lambda request: (len(request.messages), 0)
    model.steps = before
    await agent.run("before", session="long")
    model.steps, model.numbers = steps, itertools.count(1)
    with timing() as timer:
        (await agent.run("after", session="long")).raise_for_error()
    return timer.cost
