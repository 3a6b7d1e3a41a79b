"""Many streams at the same time on one process."""

from __future__ import annotations

import asyncio
import os

from tests.server.server_events import read_live

from windlass import Agent
from windlass.messages import ModelReply, assistant
from windlass.testing import FunctionModel

STREAMS = 500 if os.environ.get("WINDLASS_CAMPAIGN") else 50
"""How many streams are open at once: in `make campaign` all of them."""


async def test_many_streams_are_open_at_once_and_each_gets_all_of_its_turn(live):
    entered, all_entered, received, all_received = 0, asyncio.Event(), 0, asyncio.Event()

    async def reply(request):
        nonlocal entered
        entered += 1
        if entered == STREAMS:
            all_entered.set()
        await all_entered.wait()
        name = request.messages[-1].text
        yield "hello "
        await all_received.wait()  # no turn ends before every stream has its first text
        yield name
        yield ModelReply(assistant(f"hello {name}"))

    async def stream(server, number: int) -> None:
        nonlocal received
        body = {"message": f"n{number}", "session": f"s{number}", "mode": "stream"}
        kinds, first = [], True
        async with server.client.stream("POST", "/agents/ann/turns", json=body) as response:
            async for event in read_live(response.aiter_lines()):
                if event.name == "text_delta" and first:
                    first, received = False, received + 1
                    if received == STREAMS:
                        all_received.set()
                kinds += [event.name] if event.id else []
        assert event.data["text"] == f"hello n{number}"
        records = await server.server.agents[0].store.read(f"s{number}")
        assert kinds == [type(record).__name__ for record in records]

    async with live(Agent(FunctionModel(reply), name="ann")) as server:
        await asyncio.gather(*[stream(server, number) for number in range(STREAMS)])
        assert received == STREAMS
        assert len(server.hosting.streams) == 0
