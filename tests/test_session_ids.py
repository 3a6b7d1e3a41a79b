"""Session ids: which ones are refused, and that those of users never collide with those of sub-agents."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from click.testing import CliRunner

from windlass import Agent, Approve, Ask, ToolCalling
from windlass.capabilities import RequestArchive
from windlass.cli import main
from windlass.errors import ConfigError, SessionError, StoreError
from windlass.outcomes import Completed
from windlass.protocols import Store
from windlass.records import SessionOpened
from windlass.stores import MemoryStore, open_store
from windlass.testing import FunctionModel, ScriptedModel, calls, says
from windlass.transfer import export_session, import_session

BAD: dict[str, tuple[Any, str]] = {
    "empty": ("", "must not be empty"),
    "long": ("x" * 513, "has 513 bytes in UTF-8; the maximum is 512"),
    "long in UTF-8": ("é" * 257, "has 514 bytes in UTF-8; the maximum is 512"),
    "a megabyte": ("x" * 2**20, "has 1048576 bytes"),
    "surrogate": ("a\ud800", "lone surrogate"),
    "a number": (7, "a session id is a str, not of type int"),
    "bytes": (b"s", "a session id is a str, not of type bytes"),
    "a list": (["s"], "a session id is a str, not of type list"),
}
NEW_BAD: dict[str, tuple[Any, str]] = {
    **BAD,
    "slashes": ("a//1/1", "contains '//'"),
    "NUL": ("a\0b", "contains a NUL character"),
}


def greeter(store: Store | None = None) -> Agent[Any, Any]:
    return Agent(FunctionModel(lambda request: says("hi")), store=store or MemoryStore())


async def drained(stream: Any) -> None:
    async for _ in stream:
        pass


async def opened(agent: Agent[Any, Any], session: Any) -> None:
    async with agent.session(session) as made:
        await made.run("go")


async def started(agent: Agent[Any, Any]) -> Agent[Any, Any]:
    await agent.run("go", session="known")
    return agent


NEW: dict[str, Callable[[Agent[Any, Any], Any], Awaitable[Any]]] = {
    "run": lambda agent, session: agent.run("go", session=session),
    "stream": lambda agent, session: drained(agent.stream("go", session=session)),
    "iterate": lambda agent, session: drained(agent.iterate("go", session=session)),
    "session": opened,
    "fork to": lambda agent, session: agent.fork("known", to=session),
}
KNOWN: dict[str, Callable[[Agent[Any, Any], Any], Awaitable[Any]]] = {
    "resume": lambda agent, session: agent.resume(session),
    "resume a stream": lambda agent, session: drained(agent.stream(session=session, answers={})),
    "fork": lambda agent, session: agent.fork(session),
    "compact": lambda agent, session: agent.compact(session),
    "cancel": lambda agent, session: agent.cancel(session),
    "steer": lambda agent, session: agent.steer(session, "and?"),
    "resolve": lambda agent, session: agent.resolve(session, "c1", Approve()),
    "state": lambda agent, session: agent.state(session),
    "why": lambda agent, session: agent.why(session),
    "prefixes": lambda agent, session: agent.prefixes(session),
}


@pytest.mark.parametrize("bad", NEW_BAD)
@pytest.mark.parametrize("door", NEW)
async def test_an_id_that_no_new_session_may_have_is_refused(door, bad):
    agent = await started(greeter())
    session, why = NEW_BAD[bad]
    with pytest.raises(ConfigError) as caught:
        await NEW[door](agent, session)
    assert why in str(caught.value)
    assert len(str(caught.value)) < 300
    assert await agent.store.sessions() == ["known"]


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("door", KNOWN)
async def test_an_id_that_no_session_can_have_is_refused(door, bad):
    agent = await started(greeter())
    session, why = BAD[bad]
    with pytest.raises(ConfigError) as caught:
        await KNOWN[door](agent, session)
    assert why in str(caught.value)


@pytest.mark.parametrize("session", ["x" * 512, "é" * 256, "ann/1", "proj/1/1", "/", "a/", "%_'\"", " ", "🌍"])
async def test_any_other_id_is_an_id(session, tmp_path):
    agent = greeter(open_store(f"sqlite:///{tmp_path}/logs.db"))
    assert (await agent.run("go", session=session)).session_id == session
    assert (await agent.run("go on", session=session)).state.turns == 2
    await agent.store.close()


async def test_a_session_with_slashes_of_an_earlier_version_goes_on():
    store = MemoryStore()
    await store.append("a//b", [SessionOpened(agent="agent")], 0)
    assert (await greeter(store).run("go", session="a//b")).outcome == Completed()


@pytest.mark.parametrize("bad", NEW_BAD)
async def test_an_import_refuses_an_id_that_no_new_session_may_have(bad):
    agent = await started(greeter())
    lines, store = await export_session(agent.store, "known"), MemoryStore()
    session, why = NEW_BAD[bad]
    with pytest.raises(ConfigError) as caught:
        await import_session(store, lines, session)
    assert why in str(caught.value)
    assert await store.sessions() == []


async def test_an_exported_id_that_no_user_may_have_needs_another():
    store, other = MemoryStore(), MemoryStore()
    await store.append("a//b", [SessionOpened(agent="agent")], 0)
    lines = await export_session(store, "a//b")
    with pytest.raises(StoreError, match=r"contains '//'.*\. Import it under another id"):
        await import_session(other, lines)
    assert await import_session(other, lines, "ab") == "ab"


def test_an_import_at_the_command_line_refuses_it_too(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    agent = greeter(open_store("sqlite:///logs.db"))
    agent.run_sync("go", session="known")
    exported = CliRunner().invoke(
        main, ["sessions", "export", "known", "-o", "x.jsonl", "--store", "sqlite:///logs.db"]
    )
    assert exported.exit_code == 0
    for name in ("", "a//b", "x" * 600):
        result = CliRunner().invoke(main, ["sessions", "import", "x.jsonl", "--as", name, "--store", "sqlite:///n.db"])
        assert (result.exit_code, result.output.startswith(("Error: session id", "Error: a session id"))) == (1, True)


# ---------------------------------------------------------------- users and sub-agents


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest, tmp_path: Any) -> Any:
    address = {"memory": "memory:", "sqlite": f"sqlite:///{tmp_path}/logs.db"}.get(request.param)
    made = open_store(address or request.getfixturevalue("database"))
    yield made
    await made.close()


def boss(store: Store, *, asks: bool = False) -> Agent[Any, Any]:
    def once(call: Any) -> FunctionModel:
        return FunctionModel(lambda request: says("Done.") if request.messages[-1].role == "tool" else call)

    kid = Agent(FunctionModel(lambda request: says("Yes.")), name="kid")
    chief = Agent(once(calls("kid", task="Look.")), tools=[kid.as_tool()], name="chief")
    if asks:
        chief.gate(ToolCalling, name="sure")(lambda event: Ask("Sure?"))
    return Agent(once(calls("chief", task="See.")), tools=[chief.as_tool()], name="boss", store=store)


async def test_a_user_who_owns_an_id_like_that_of_a_sub_agent_is_in_nobodys_way(store: Store):
    agent, other = boss(store), Agent(FunctionModel(lambda request: says("mine")), store=store)
    for name in ("proj/1/1", "proj/1/1/1/1"):
        assert (await other.run("hello", session=name)).text == "mine"
    before = {name: list(await store.read(name)) for name in ("proj/1/1", "proj/1/1/1/1")}
    result = await agent.run("go", session="proj")
    assert (result.outcome, result.text) == (Completed(), "Done.")
    assert "Error" not in repr(result.messages)
    assert sorted(await store.sessions()) == ["proj", "proj//1/1", "proj//1/1//1/1", "proj/1/1", "proj/1/1/1/1"]
    assert {name: list(await store.read(name)) for name in before} == before
    assert (await other.run("and?", session="proj/1/1")).text == "mine"


async def test_erasing_takes_the_sessions_of_its_sub_agents_and_no_other(store: Store):
    agent, other = boss(store), Agent(FunctionModel(lambda request: says("mine")), store=store)
    for name in ("q/7/7", "q/1/1", "q/1/1/1/1", "q/1/1.2", "qq"):
        await other.run("hello", session=name)
    await agent.run("go", session="q")
    await agent.run("go", session="q/1/2")
    assert await store.erase("q")
    assert sorted(await store.sessions()) == sorted(
        ["q/7/7", "q/1/1", "q/1/1/1/1", "q/1/1.2", "qq", "q/1/2", "q/1/2//1/1", "q/1/2//1/1//1/1"]
    )
    assert {info.session for info in await store.find(status="erased")} == {"q", "q//1/1", "q//1/1//1/1"}
    assert await store.erase("q/1/2//1/1")
    assert "q/1/2" in await store.sessions()
    assert "q/1/2//1/1//1/1" not in await store.sessions()


async def test_a_fork_and_its_original_are_erased_apart(store: Store):
    agent = boss(store, asks=True)
    (asked,) = (await agent.run("go", session="s")).waiting_for
    await agent.fork("s", to="f")
    await store.erase("s")
    assert (await agent.resume("f", answers={asked.id: Approve()})).outcome == Completed()
    await store.erase("f")
    assert await store.sessions() == []


async def test_the_session_of_a_sub_agent_can_be_shown_and_answered_by_its_id(store: Store):
    agent = boss(store, asks=True)
    (asked,) = (await agent.run("go", session="s")).waiting_for
    assert asked.id == "s//1/1/1/1"
    assert [one.id for one in (await agent.state("s//1/1")).waiting] == [asked.id]
    assert "s//1/1" in str(await agent.why("s"))
    step_one = str(await agent.why("s")).split("Step 1")[1]
    assert "Sure?" in step_one
    async with agent.session("s") as session:
        assert [one.id for one in await session.approvals()] == [asked.id]
    await agent.resolve("s//1/1", asked.id, Approve())
    for attempt in (agent.resume("s//1/1"), agent.run("x", session="s//1/1"), agent.compact("s//1/1")):
        with pytest.raises((SessionError, ConfigError), match=r"belongs to a sub-agent|nothing to compact"):
            await attempt
    assert (await agent.resume("s")).outcome == Completed()


async def test_the_session_of_a_sub_agent_moves_under_its_own_id(store: Store):
    agent, other = boss(store, asks=True), MemoryStore()
    (asked,) = (await agent.run("go", session="s")).waiting_for
    for name in ("s", "s//1/1"):
        assert await import_session(other, await export_session(store, name)) == name
    assert (await boss(other, asks=True).resume("s", answers={asked.id: Approve()})).outcome == Completed()


async def test_an_audit_erases_the_requests_of_a_session_and_of_its_sub_agents_only(tmp_path):
    archive, store = RequestArchive(tmp_path / "archive.db"), MemoryStore()
    agent = boss(store).with_capability(archive)
    other = Agent(ScriptedModel("mine", "mine"), store=store).with_capability(archive)
    await other.run("hello", session="q/1/1")
    await agent.run("go", session="q")
    await agent.aclose()
    await other.aclose()
    assert archive.erase("q")
    assert (archive.steps("q"), archive.steps("q//1/1"), archive.steps("q/1/1")) == ([], [], [(1, 1)])
    archive.close()
