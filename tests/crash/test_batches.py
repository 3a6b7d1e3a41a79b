"""What belongs together is in one batch: no crash can come between."""

from __future__ import annotations

import asyncio
from typing import Any

from windlass import Agent, Allow, Cancelled, ToolCall, ToolCalling, ToolReturning, Turn, tool
from windlass.records import HookDecided, InboxTaken, MessageAdded, ToolReturned, decode
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import ScriptedModel, calls, says

from .children import Listening


async def batches_of(store: Any, session: str = "s") -> list[list[Any]]:
    return [[decode(line) for line in batch.lines.split(b"\n")] for batch in await store.batches(session)]


async def test_what_gates_said_of_a_result_is_stored_with_the_result(tmp_path):
    judged, other_ran = asyncio.Event(), asyncio.Event()

    @tool
    async def first() -> str:
        """Run first."""
        return "one"

    @tool
    async def second() -> str:
        """Run while the result of the first is judged."""
        other_ran.set()
        return "two"

    store = SQLiteStore(tmp_path / "store.db")
    agent = Agent(
        ScriptedModel(calls([("first", {}), ("second", {})]), says("done")), tools=[first, second], store=store
    )

    @agent.wrap(ToolCall, tool="second")
    async def later(call: Any, call_next: Any) -> Any:
        await judged.wait()
        return await call_next(call)

    @agent.gate(ToolReturning, tool="first")
    def fine(event: ToolReturning) -> Any:
        return Allow()

    @agent.inject(ToolReturning, tool="first")
    async def slowly(event: ToolReturning) -> str:
        judged.set()
        await other_ran.wait()
        return "beside"

    await agent.run("go", session="s")
    [batch] = [batch for batch in await batches_of(store) if any(type(record) is HookDecided for record in batch)]
    assert "s/1/1" in [record.call for record in batch if isinstance(record, ToolReturned)]
    await store.close()


async def test_a_message_from_outside_is_taken_and_added_in_one_batch(tmp_path):
    store = SQLiteStore(tmp_path / "store.db")

    @tool
    async def work() -> str:
        """Be told more meanwhile."""
        await agent.steer("s", "more")
        return "worked"

    agent: Agent = Agent(ScriptedModel(calls("work"), says("done")), tools=[work], store=store)
    await agent.run("go", session="s")
    [batch] = [batch for batch in await batches_of(store) if any(type(record) is InboxTaken for record in batch)]
    assert any(isinstance(record, MessageAdded) for record in batch)
    await store.close()


async def test_a_cancel_while_a_batch_is_written_waits_for_it(tmp_path):
    class Cancelling(Listening):
        """Cancels the turn while the batch with the start of the call is on its way."""

        async def before(self, session: str, records: Any, expected: int) -> None:
            if any(type(record).__name__ == "ToolCalled" for record in records):
                turns[0].cancel("enough")

    turns: list[Turn] = []
    store = SQLiteStore(tmp_path / "store.db")

    @tool
    async def work() -> str:
        """Never run."""
        raise AssertionError("it ran")

    agent: Agent = Agent(ScriptedModel(calls("work"), says("done")), tools=[work], store=Cancelling(store))  # type: ignore[arg-type]

    @agent.gate(ToolCalling)
    def note(event: ToolCalling) -> None:
        turns.append(event.turn)

    result = await agent.run("go", session="s")
    assert result.outcome == Cancelled("enough")
    assert result.messages[-1].parts[0].status == "interrupted"
    assert result.state == await agent.state("s")
    await store.verify("s")
    await store.close()
