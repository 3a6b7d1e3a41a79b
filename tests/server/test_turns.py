"""Turns over HTTP: start, wait, stream, watch again, steer, cancel, resume."""

from __future__ import annotations

import asyncio
from pathlib import Path

from tests.server.server_events import read, read_live

from windlass import Agent, Ask, ToolCalling, tool
from windlass.messages import ModelReply, assistant
from windlass.testing import FunctionModel, ScriptedModel, calls, says


class Door:
    """A tool that waits until the test opens it."""

    def __init__(self) -> None:
        self.opened = asyncio.Event()
        self.entered = asyncio.Event()

        @tool
        async def wait() -> str:
            """Wait."""
            self.entered.set()
            await self.opened.wait()
            return "open"

        self.tool = wait


def waiting_agent(door: Door, folder: Path) -> Agent:
    model = ScriptedModel(calls("wait"), says("done"))
    return Agent(model, tools=[door.tool], name="ann", store=f"sqlite:///{folder}/log.db")


def asking_agent() -> Agent:
    @tool
    def send(to: str) -> str:
        """Send."""
        return f"sent to {to}"

    agent = Agent(ScriptedModel(calls("send", to="bob"), says("all sent")), tools=[send], name="ann")

    @agent.gate(ToolCalling)
    def ask(event):
        return Ask("really?")

    return agent


async def test_a_turn_runs_and_its_result_is_the_response(live):
    async with live(Agent(ScriptedModel(says("hello")), name="ann")) as server:
        done = await server.client.post("/agents/ann/turns", json={"message": "hi", "session": "s"})
        assert done.status_code == 200
        assert done.json()["text"] == "hello"
        assert done.json()["status"] == "completed"
        shown = (await server.client.get("/agents/ann/sessions/s")).json()
        assert [message["role"] for message in shown["messages"]] == ["user", "assistant"]
        assert shown["running"] is False


async def test_several_agents_are_found_by_their_names(live):
    one, two = (Agent(ScriptedModel(says(name)), name=name) for name in ("one", "two of/them"))
    async with live(one, two) as server:
        assert [a["name"] for a in (await server.client.get("/agents")).json()["agents"]] == ["one", "two of/them"]
        done = await server.client.post("/agents/two%20of%2Fthem/turns", json={"message": "hi"})
        assert done.json()["text"] == "two of/them"
        assert (await server.client.post("/agents/three/turns", json={"message": "hi"})).status_code == 404


async def test_a_stream_has_text_as_it_comes_and_every_record_with_an_id(live):
    async with live(Agent(ScriptedModel(says("hello", chunks=["hel", "lo"])), name="ann")) as server:
        response = await server.client.post(
            "/agents/ann/turns", json={"message": "hi", "session": "s", "mode": "stream"}
        )
        events = list(read(response.text.splitlines()))
        stored = (await server.client.get("/agents/ann/sessions/s/records")).json()["records"]
        assert [event.name for event in events if event.id] == [record["kind"] for record in stored]
        assert events[-1].name == "turn"
        assert events[-1].data["text"] == "hello"


async def test_text_is_streamed_before_the_reply_is_complete(live):
    more = asyncio.Event()

    async def model(request):
        yield "first "
        await more.wait()
        yield "second"
        yield ModelReply(assistant("first second"))

    async with live(Agent(FunctionModel(model), name="ann")) as server:
        body = {"message": "hi", "mode": "stream"}
        async with server.client.stream("POST", "/agents/ann/turns", json=body) as response:
            text = ""
            async for event in read_live(response.aiter_lines()):
                if event.name == "text_delta":
                    text += event.data["text"]
                    more.set()
        assert text.startswith("first ")  # deltas are provisional: the record of the reply may replace the rest
        assert event.data["text"] == "first second"


async def test_a_client_that_leaves_does_not_end_the_turn_and_can_watch_again(live, tmp_path):
    door = Door()
    async with live(waiting_agent(door, tmp_path)) as server:
        seen = []
        body = {"message": "hi", "session": "s", "mode": "stream"}
        async with server.client.stream("POST", "/agents/ann/turns", json=body) as response:
            async for event in read_live(response.aiter_lines()):
                seen += [event] if event.id else []
                if event.name == "ToolCalled":
                    break
        await door.entered.wait()
        door.opened.set()
        again = await server.client.get("/agents/ann/sessions/s/events", headers={"last-event-id": seen[-1].id})
        seen += [event for event in read(again.text.splitlines()) if event.id]
        stored = (await server.client.get("/agents/ann/sessions/s/records")).json()["records"]
        assert [event.name for event in seen] == [record["kind"] for record in stored]
        assert [event.data["seq"] for event in seen] == list(range(1, len(stored) + 1))


async def test_a_client_that_says_so_ends_the_turn_by_leaving(live, tmp_path):
    door = Door()
    agent = waiting_agent(door, tmp_path)
    async with live(agent) as server:
        body = {"message": "hi", "session": "s", "mode": "stream", "cancel_on_disconnect": True}
        async with server.client.stream("POST", "/agents/ann/turns", json=body) as response:
            async for event in read_live(response.aiter_lines()):
                if event.name == "ToolCalled":
                    run = server.hosting.turns("ann").running("s")
                    break
        await run.wait(10)
        assert (await agent.state("s")).stop_reason == "cancelled"


async def test_a_client_that_waits_for_the_result_ends_the_turn_by_leaving_if_it_says_so(live, tmp_path):
    door = Door()
    agent = waiting_agent(door, tmp_path)
    async with live(agent) as server:
        body = {"message": "hi", "session": "s", "cancel_on_disconnect": True}
        request = asyncio.create_task(server.client.post("/agents/ann/turns", json=body))
        await door.entered.wait()
        run = server.hosting.turns("ann").running("s")
        request.cancel()
        await run.wait(10)
        assert (await agent.state("s")).stop_reason == "cancelled"


async def test_start_answers_at_once_and_cancel_ends_the_turn(live, tmp_path):
    door = Door()
    async with live(waiting_agent(door, tmp_path)) as server:
        started = await server.client.post("/agents/ann/sessions/s/turns", json={"message": "hi", "mode": "start"})
        assert started.status_code == 202
        await door.entered.wait()
        assert (await server.client.get("/agents/ann/sessions/s")).json()["running"] is True
        busy = await server.client.post("/agents/ann/sessions/s/turns", json={"message": "more"})
        assert (busy.status_code, busy.json()["error"]["type"]) == (409, "session_busy")
        assert (await server.client.delete("/agents/ann/sessions/s")).status_code == 409
        done = await server.client.post("/agents/ann/sessions/s/cancel", json={"reason": "enough"})
        assert done.json() == {"cancelled": True}
        events = list(read((await server.client.get(started.json()["events"])).text.splitlines()))
        assert (events[-1].data["status"], events[-1].data["detail"]) == ("cancelled", "enough")
        assert (await server.client.post("/agents/ann/sessions/s/cancel")).json() == {"cancelled": False}


async def test_a_message_steers_the_running_turn(live, tmp_path):
    door = Door()
    agent = waiting_agent(door, tmp_path)
    async with live(agent) as server:
        await server.client.post("/agents/ann/sessions/s/turns", json={"message": "hi", "mode": "start"})
        await door.entered.wait()
        assert (await server.client.post("/agents/ann/sessions/s/steer", json={"message": "hurry"})).status_code == 200
        door.opened.set()
        await server.client.get("/agents/ann/sessions/s/events")
        assert "hurry" in [message.text for message in (await agent.state("s")).messages]


async def test_queued_messages_run_in_their_order_and_each_stream_has_its_own_turn(live):
    door = Door()
    agent = Agent(ScriptedModel(calls("wait"), says("one"), says("two")), tools=[door.tool], name="ann", busy="queue")
    async with live(agent) as server:
        body = {"message": "first", "session": "s", "mode": "stream"}
        first = asyncio.create_task(server.client.post("/agents/ann/turns", json=body))
        await door.entered.wait()
        second = asyncio.create_task(server.client.post("/agents/ann/turns", json={**body, "message": "second"}))
        await server.client.get("/health")
        door.opened.set()
        texts = []
        for response in (await first, await second):
            events = list(read(response.text.splitlines()))
            assert [event.name for event in events].count("TurnStarted") == 1
            texts.append(events[-1].data["text"])
        assert texts == ["one", "two"]


# ---------------------------------------------------------------- approvals


async def test_a_suspended_turn_names_its_questions_and_is_resumed_with_answers(live):
    async with live(asking_agent()) as server:
        done = (await server.client.post("/agents/ann/turns", json={"message": "hi", "session": "s"})).json()
        assert done["status"] == "suspended"
        (asked,) = done["questions"]
        listed = (await server.client.get("/agents/ann/sessions/s/approvals")).json()["questions"]
        assert [question["asked"]["id"] for question in listed] == [asked["id"]]
        assert (await server.client.get("/agents/ann/approvals")).json()["questions"] == listed
        answers = {asked["id"]: {"answer": "Edit", "arguments": {"to": "eve"}, "by": "joe"}}
        body = {"answers": answers, "mode": "stream"}
        response = await server.client.post("/agents/ann/sessions/s/resume", json=body)
        events = list(read(response.text.splitlines()))
        assert events[0].data["seq"] == 8  # only what came after the suspension
        (returned,) = [event for event in events if event.name == "ToolReturned"]
        assert returned.data["result"]["content"][0]["text"] == "sent to eve"
        assert events[-1].data["text"] == "all sent"


async def test_a_question_is_answered_once_and_the_answer_counts_at_resume(live):
    async with live(asking_agent()) as server:
        done = (await server.client.post("/agents/ann/turns", json={"message": "hi", "session": "s"})).json()
        where = f"/agents/ann/sessions/s/approvals/{done['questions'][0]['id'].replace('/', '%2F')}"
        assert (await server.client.post(where, json={"answer": "Perhaps"})).status_code == 400
        assert (await server.client.post(where, json={"answer": "Reject", "message": "no"})).status_code == 200
        assert (await server.client.post(where, json={"answer": "Approve"})).status_code == 409
        assert (await server.client.get("/agents/ann/sessions/s/approvals")).json() == {"questions": []}
        resumed = await server.client.post("/agents/ann/sessions/s/resume")
        assert resumed.json()["status"] == "completed"
        again = await server.client.post("/agents/ann/sessions/s/resume")
        assert (again.status_code, again.json()["error"]["type"]) == (409, "not_suspended")


# ---------------------------------------------------------------- sessions


async def test_sessions_are_listed_forked_explained_and_erased(live):
    async with live(Agent(ScriptedModel(says("a"), says("b")), name="ann")) as server:
        client = server.client
        for message in ("one", "two"):
            await client.post("/agents/ann/turns", json={"message": message, "session": "s/1"})
        page = (await client.get("/agents/ann/sessions/s%2F1/records?start=2&limit=3")).json()
        assert (len(page["records"]), page["next"]) == (3, 5)
        forked = await client.post("/agents/ann/sessions/s%2F1/fork", json={"to": "copy"})
        assert (forked.status_code, forked.json()) == (201, {"session": "copy"})
        listed = (await client.get("/agents/ann/sessions?search=s/1")).json()["sessions"]
        assert [info["session"] for info in listed] == ["s/1"]
        assert "Completed" in (await client.get("/agents/ann/sessions/copy/why")).json()["text"]
        assert (await client.delete("/agents/ann/sessions/copy")).json() == {"done": True}
        for path in ("", "/records", "/why", "/approvals", "/events"):
            gone = await client.get(f"/agents/ann/sessions/copy{path}")
            assert (gone.status_code, gone.json()["error"]["type"]) == (404, "session_unknown"), path
        assert (await client.get("/agents/ann/sessions/s%2F1/events?since=nonsense")).status_code == 400


async def test_a_turn_that_fails_is_a_result_with_its_error(live):
    def fail(request):
        raise ValueError("no model today")

    async with live(Agent(FunctionModel(fail), name="ann")) as server:
        done = await server.client.post("/agents/ann/turns", json={"message": "hi"})
        assert (done.status_code, done.json()["status"]) == (200, "failed")
        assert done.json()["error"]["type"] == "ValueError"


async def test_parts_reach_the_model_and_their_origin_is_not_the_clients_choice(live):
    seen = []

    def look(request):
        seen.extend(request.messages[-1].parts)
        return says("nice")

    parts = [
        {"type": "text", "text": "look", "origin": "hook"},
        {"type": "image", "data": "iVBORw0KGgo=", "media_type": "image/png"},
    ]
    async with live(Agent(FunctionModel(look), name="ann")) as server:
        done = await server.client.post("/agents/ann/turns", json={"message": parts})
        assert done.json()["text"] == "nice"
        assert [type(part).__name__ for part in seen] == ["TextPart", "ImagePart"]
        assert seen[0].origin is None


async def test_the_scope_of_a_turn_is_made_for_its_session(live):
    seen = []
    agent = Agent(ScriptedModel(says("a")), name="ann", scope=str)

    async def scope(session: str) -> str:
        seen.append(session)
        return f"desk of {session}"

    async with live(agent, scope=scope) as server:
        done = await server.client.post("/agents/ann/turns", json={"message": "hi", "session": "s"})
        assert done.json()["status"] == "completed"
        assert seen == ["s"]


async def test_an_interrupted_turn_is_resumed_and_only_a_running_one_can_be_interrupted(tmp_path):
    door = Door()
    agent = waiting_agent(door, tmp_path)
    turn = asyncio.create_task(agent.run("hi", session="s"))
    await door.entered.wait()
    assert agent.interrupt("s") is True
    await asyncio.gather(turn, return_exceptions=True)
    assert turn.cancelled()
    state = await agent.state("s")
    assert (state.over, state.outcome) == (False, None)
    assert agent.interrupt("s") is False
    resumed = await agent.resume("s")
    assert resumed.stop_reason in ("completed", "suspended")
    await agent.aclose()
