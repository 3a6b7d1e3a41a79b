"""What several tests measure with: a clock that stands still, and the two invariants that hold after every turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from windlass import Agent, Message, State, ToolResultPart, fold
from windlass.records import decode, encode
from windlass.testing import FakeClock


class FrozenClock(FakeClock):
    """A clock on which no time passes unless somebody sleeps."""

    def __init__(self, at: float = 1_000.0) -> None:
        super().__init__(at, auto=True)


def unpaired(messages: Iterable[Message]) -> list[str]:
    """What is wrong with the calls of a transcript: each must have one result, in the next message, in order."""
    wrong: list[str] = []
    listed = list(messages)
    for index, message in enumerate(listed):
        wanted = [call.id for call in message.tool_calls]
        following = listed[index + 1] if index + 1 < len(listed) else Message("user")
        given = [part.call_id for part in following.parts if isinstance(part, ToolResultPart)]
        if wanted and (following.role != "tool" or wanted != given):
            wrong.append(f"message {index} calls {wanted}, the next one ({following.role}) answers {given}")
        if message.role == "tool" and (index == 0 or not listed[index - 1].tool_calls):
            wrong.append(f"message {index} has results that nobody asked for")
        if len(set(wanted)) != len(wanted) or (wanted and not all(wanted)):
            wrong.append(f"message {index} has calls whose ids are not unique: {wanted}")
    return wrong


async def check_log(agent: Agent, session: str, state: State | None = None) -> State:
    """The log folds to the state, also once it was written down and read again, and no call lacks its result."""
    log = await agent.store.read(session)
    folded = fold(session, log)
    assert fold(session, [decode(encode(record)) for record in log]) == folded
    assert unpaired(folded.messages) == []
    if state is not None:
        assert state.pending == ()
        assert state == folded
    return folded


async def only_this_task() -> bool:
    """Whether nothing else runs; what has been told to end may do so first."""
    for _ in range(20):
        if len(asyncio.all_tasks()) == 1:
            return True
        await asyncio.sleep(0)
    return len(asyncio.all_tasks()) == 1
