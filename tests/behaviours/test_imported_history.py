"""A history from elsewhere becomes the transcript of a new session."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import (
    Agent,
    Deny,
    Halt,
    HistoryImported,
    Message,
    MessageAdding,
    TextPart,
    ToolCallPart,
    ToolResultPart,
    assistant,
    fold,
    tool,
    user,
)
from windlass.errors import ConfigError, HookError, NotSuspended, SessionBusy, SessionConflict
from windlass.records import TurnStarted
from windlass.testing import FunctionModel, ScriptedModel, calls, says, unpaired


def result(id: str, text: str, name: str = "add") -> ToolResultPart:
    return ToolResultPart(id, name, (TextPart(text),))


def call(id: str, **more: Any) -> ToolCallPart:
    return ToolCallPart("add", '{"a": 1}', id, **more)


HISTORY = [
    user("1 + 2 and 3 + 4?"),
    Message("assistant", (TextPart("Let me see."), call("call_1"), call("", vendor_id="call_2"))),
    Message("tool", (result("call_2", "7"),)),
    Message("tool", (result("call_1", "3"),)),
    assistant("3 and 7."),
]


@tool(effect="pure", inline=True)
def add(a: int, b: int = 0) -> int:
    """Add."""
    return a + b


def stores(tmp_path: Any) -> list[str]:
    return ["memory:", f"sqlite:///{tmp_path}/agent.db"]


@pytest.mark.parametrize("store", [0, 1])
@pytest.mark.parametrize("way", ["run", "stream", "iterate"])
async def test_a_turn_continues_an_imported_history(tmp_path, store, way):
    model = ScriptedModel(calls("add", a=5), says("5."))
    async with Agent(model, tools=[add], store=stores(tmp_path)[store]) as agent:
        state = await agent.import_history("s", HISTORY)
        assert [message.role for message in state.messages] == ["user", "assistant", "tool", "assistant"]
        if way == "run":
            await agent.run("and 5?", session="s")
        elif way == "stream":
            async with agent.stream("and 5?", session="s") as stream:
                async for _ in stream:
                    pass
        else:
            async for _ in agent.iterate("and 5?", session="s"):
                pass
        final = await agent.state("s")
        assert unpaired(final.messages) == []
        assert [message.text for message in model.requests[0].messages][-2:] == ["3 and 7.", "and 5?"]
        assert final.text == "5."
        assert final == fold("s", await agent.store.read("s"))
        (info,) = await agent.store.find()
        assert (info.title, info.status) == ("1 + 2 and 3 + 4?", "open")


async def test_calls_get_ids_of_the_session_and_results_stand_in_the_order_of_the_calls():
    agent = Agent(ScriptedModel())
    state = await agent.import_history("s", HISTORY)
    assert [part.id for part in state.messages[1].tool_calls] == ["s/h1", "s/h2"]
    assert [part.vendor_id for part in state.messages[1].tool_calls] == [None, "call_2"]
    assert state.messages[2].parts == (result("s/h1", "3"), result("s/h2", "7"))
    assert unpaired(state.messages) == []


async def test_the_transcript_of_another_session_can_be_imported():
    source = Agent(ScriptedModel(calls("add", a=1), says("1")), tools=[add])
    messages = (await source.run("1?", session="old")).messages
    target = Agent(ScriptedModel(says("still 1")), tools=[add])
    await target.import_history("new", messages)
    ended = await target.run("sure?", session="new")
    assert [message.text for message in ended.messages][-2:] == ["sure?", "still 1"]


async def test_why_and_the_log_tell_of_the_import():
    agent = Agent(ScriptedModel(says("ok")), name="desk")
    await agent.import_history("s", HISTORY)
    assert "4 messages of an earlier history were imported" in str(await agent.why("s"))
    await agent.run("go", session="s")
    assert "4 messages of an earlier history were imported" in str(await agent.why("s"))
    kinds = [type(record) for record in await agent.store.read("s")]
    assert kinds[0] is HistoryImported
    assert kinds.index(TurnStarted) > 0


WRONG: list[tuple[Any, str]] = [
    ([], "the history has no messages"),
    ("hello", "a history must be a list of messages, not a str"),
    ([{"role": "user"}], "message 0 .*: it is a dict, not a Message"),
    ([user("a"), Message("system")], "message 1 .*role"),
    ([user("a"), Message("assistant", (call("1"),))], "message 2 .*: call '1' has no result"),
    ([Message("assistant", (call("1"),)), user("b")], "message 1 .*: call '1' has no result"),
    ([Message("tool", (result("1", "x"),))], "message 0 .*: the result of '1' has no call"),
    ([Message("assistant", (call("1"), call("1")))], "message 0 .*: two calls have the id '1'"),
    ([Message("assistant", (call(""),))], "message 0 .*: the call of 'add' has neither an id nor a vendor_id"),
    ([Message("user", (call("1"),))], "message 0 .*: a user message cannot call a tool"),
    ([Message("assistant", (result("1", "x"),))], "message 0 .*: a assistant message cannot have the result"),
    (
        [Message("assistant", (call("1"),)), Message("tool", (TextPart("3"),))],
        "message 1 .*: a tool message",
    ),
    (
        [Message("assistant", (call("1"),)), Message("tool", (result("1", "x"), result("1", "y")))],
        "message 1 .*: call '1' has two results",
    ),
    (
        [Message("assistant", (call("1"),)), Message("tool", (result("1", "x", "sub"),))],
        "message 1 .*: call '1' is of tool 'add', but its result of 'sub'",
    ),
]


@pytest.mark.parametrize(("messages", "why"), WRONG)
async def test_a_history_that_does_not_fit_is_refused_and_nothing_is_written(messages, why):
    agent = Agent(ScriptedModel())
    with pytest.raises(ConfigError, match=why):
        await agent.import_history("s", messages)
    assert await agent.store.sessions() == []


async def test_only_a_new_session_takes_a_history():
    agent = Agent(ScriptedModel(says("hi")))
    await agent.run("hello", session="s")
    with pytest.raises(SessionConflict, match=r"session 's' has \d+ records"):
        await agent.import_history("s", HISTORY)
    await agent.import_history("t", HISTORY)
    with pytest.raises(SessionConflict, match="session 't' has 1 records"):
        await agent.import_history("t", HISTORY)
    with pytest.raises(NotSuspended, match="no turn to resume: none has started"):
        await agent.resume("t")


async def test_a_busy_session_takes_no_history():
    async def reply(request):
        with pytest.raises(SessionBusy):
            await agent.import_history("s", HISTORY)
        return "ok"

    agent = Agent(FunctionModel(reply))
    assert (await agent.run("go", session="s")).text == "ok"


async def test_hooks_judge_each_message_at_the_door():
    agent = Agent(ScriptedModel())
    agent.rewrite(MessageAdding)(lambda event: event.message.map_text(lambda text: text.replace("7", "seven")))
    agent.gate(MessageAdding)(lambda event: Deny("too long") if "Let me" in event.message.text else None)
    state = await agent.import_history("s", [*HISTORY, user("Let me go")])
    assert [message.text for message in state.messages] == ["1 + 2 and 3 + 4?", "", "", "3 and seven."]
    assert [part.text for part in state.messages[2].parts] == ["3", "seven"]  # type: ignore[union-attr]
    assert unpaired(state.messages) == []
    log = await agent.store.read("s")
    assert [record.withheld for record in log if isinstance(record, HistoryImported)] == [2]
    assert state == fold("s", log)


async def test_a_halt_refuses_the_whole_history_and_names_the_hook():
    agent = Agent(ScriptedModel())
    agent.gate(MessageAdding, name="no_sums")(lambda event: Halt("no sums") if "7" in event.message.text else None)
    with pytest.raises(HookError, match="no_sums refused the history at MessageAdding: no sums"):
        await agent.import_history("s", HISTORY)
    assert await agent.store.read("s") == []
    agent = Agent(ScriptedModel())

    @agent.gate(MessageAdding)
    def broken(event):
        raise OSError("down")

    with pytest.raises(HookError, match="broken"):
        await agent.import_history("s", HISTORY)


async def test_a_hook_cannot_write_where_no_turn_is_running():
    agent = Agent(ScriptedModel())

    @agent.rewrite(MessageAdding)
    def adds(event, turn):
        turn.add("more")

    with pytest.raises(HookError, match="adds"):
        await agent.import_history("s", HISTORY)
    assert await agent.store.read("s") == []


async def test_secrets_are_masked_in_an_imported_history():
    agent = Agent(ScriptedModel(says("ok")), secrets=["hunter22"])
    await agent.import_history("s", [user("my key is hunter22"), assistant("ok")])
    assert "hunter22" not in repr(await agent.store.read("s"))


async def test_a_session_object_imports_and_a_scope_is_checked():
    agent: Agent[str, str] = Agent(ScriptedModel(says("ok")), scope=str)
    with pytest.raises(ConfigError, match="scope"):
        await agent.import_history("s", HISTORY)
    async with agent.session("s") as session:
        await session.import_history(HISTORY, scope="desk")
        assert (await session.run("go", scope="desk")).text == "ok"


async def test_an_agent_with_an_imported_history_calls_sub_agents_and_suspends_and_resumes():
    child = Agent(ScriptedModel(says("child")), name="child")
    parent = Agent(ScriptedModel(calls("child", task="x"), says("done")), tools=[child.as_tool()], unmatched="ask")
    await parent.import_history("s", HISTORY)
    asked = (await parent.run("go", session="s")).waiting_for
    from windlass import Approve

    ended = await parent.resume("s", answers={asked[0].id: Approve()})
    assert ended.text == "done"
    assert unpaired(ended.messages) == []
    fork = await parent.fork("s")
    assert (await parent.state(fork)).messages[:4] == list(ended.messages)[:4]
