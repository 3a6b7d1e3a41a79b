"""LangChain's own middlewares do their job in our loop."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Iterator
from operator import add
from pathlib import Path
from typing import Annotated, Any, NotRequired

import pytest
from langchain.agents.middleware import (
    AgentMiddleware,
    AgentState,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    ExtendedModelResponse,
    FilesystemFileSearchMiddleware,
    HumanInTheLoopMiddleware,
    LLMToolEmulator,
    LLMToolSelectorMiddleware,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
    ProviderToolSearchMiddleware,
    ShellToolMiddleware,
    SummarizationMiddleware,
    TodoListMiddleware,
    ToolCallLimitMiddleware,
    ToolErrorMiddleware,
    ToolRetryMiddleware,
    after_agent,
    after_model,
    before_agent,
    before_model,
    dynamic_prompt,
    hook_config,
    wrap_model_call,
    wrap_tool_call,
)
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.tools import InjectedToolCallId
from langchain_core.tools import tool as langchain_tool
from langgraph.channels.untracked_value import UntrackedValue
from langgraph.config import get_store, get_stream_writer
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.runtime import get_runtime
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command, interrupt

from windlass import (
    Agent,
    Approve,
    Completed,
    Deny,
    Edit,
    Failed,
    Progressed,
    Reject,
    Respond,
    Stopped,
    Suspended,
    TextDelta,
    ToolCalling,
    TurnStarting,
    tool,
)
from windlass.compat.langchain import LangChainModel, Middlewares, agent_model, langchain_tools
from windlass.errors import ConfigError, ModelError
from windlass.records import SideReplied, SlotSet
from windlass.testing import ScriptedModel, calls, crash_points, says


def chat(*messages: AIMessage | Exception) -> GenericFakeChatModel:
    def script() -> Iterator[AIMessage]:
        for message in messages:
            if isinstance(message, Exception):
                raise message
            yield message

    return GenericFakeChatModel(messages=script())


@tool(effect="pure", inline=True)
def look(name: str) -> str:
    """Look something up."""
    return f"{name} is 7"


def sent(model: ScriptedModel, at: int) -> list[str]:
    return [message.text or "".join(p.text for r in message.parts for p in getattr(r, "content", ()))
            for message in model.requests[at].messages]  # fmt: skip


def results_of(result: Any, step: int) -> list[Any]:
    return list(result.steps[step].results)


def failure(result: Any) -> str:
    assert isinstance(result.outcome, Failed), result.outcome
    return result.outcome.error.message


# ---------------------------------------------------------------- LangChain's own


async def test_summarization_replaces_old_messages_in_requests_and_not_in_the_log() -> None:
    model = ScriptedModel(says("one"), says("two"), says("they counted"), says("three"), says("four"))
    own = SummarizationMiddleware(agent_model(), trigger=("messages", 5), keep=("messages", 1))
    agent = Agent(model, capabilities=[Middlewares(own)])
    for text in ("first", "second", "third", "fourth"):
        result = await agent.run(text, session="s")
        assert isinstance(result.outcome, Completed), result.outcome
    assert "first" in model.requests[2].messages[0].text  # it was asked for the summary
    assert len(model.requests[3].messages) == 2
    assert "they counted" in sent(model, 3)[0]
    assert sent(model, 3)[1] == "third"
    assert "they counted" in sent(model, 4)[0]
    assert sent(model, 4)[1:] == ["third", "three", "fourth"]
    assert [m.text for m in result.messages][:4] == ["first", "one", "second", "two"]
    summary = [record for record in await agent.store.read("s") if isinstance(record, SideReplied)]
    assert [record.by for record in summary] == ["middlewares.before(SummarizationMiddleware)"]


@pytest.mark.parametrize(
    ("strategy", "seen"),
    [
        ("redact", "write to [REDACTED_EMAIL]"),
        ("mask", "write to ann@****.org"),
        ("hash", "write to <email_hash:"),
    ],
)
async def test_pii_hides_addresses_from_the_model_and_in_its_reply(strategy: Any, seen: str) -> None:
    model = ScriptedModel(calls("look", name="ann@example.org"), says("bob@example.org it is"), says("again"))
    own = PIIMiddleware("email", strategy=strategy, apply_to_output=True, apply_to_tool_results=True)
    agent = Agent(model, tools=[look], capabilities=[Middlewares(own)])
    result = await agent.run("write to ann@example.org", session="s")
    assert sent(model, 0)[0].startswith(seen)
    assert "ann@example" not in str(sent(model, 1))
    assert "bob@example" not in result.text
    assert "bob@example" not in str(await agent.store.read("s"))
    await agent.run("go on", session="s")
    assert "ann@example" not in str(sent(model, 2))
    assert "bob@example" not in str(sent(model, 2))


async def test_pii_blocks() -> None:
    model = ScriptedModel(says("never"))
    result = await Agent(model, capabilities=[Middlewares(PIIMiddleware("email", strategy="block"))]).run("a@b.org")
    assert "PIIMiddleware[email].before_model failed: PIIDetectionError" in failure(result)
    assert not model.requests


async def test_a_limit_of_model_calls_ends_the_turn() -> None:
    model = ScriptedModel(*[calls("look", name="x") for _ in range(5)])
    own = ModelCallLimitMiddleware(run_limit=2)
    agent = Agent(model, tools=[look], capabilities=[Middlewares(own)])
    for _ in range(2):
        result = await agent.run("go", session="s")
        assert isinstance(result.outcome, Stopped)
        assert result.outcome.detail == "ModelCallLimitMiddleware.before_model: jump_to end"
        assert result.text == "Model call limits exceeded: run limit (2/2)"
    assert len(model.requests) == 4


async def test_a_limit_of_model_calls_of_a_thread_holds_over_turns() -> None:
    agent = Agent(
        ScriptedModel(says("1"), says("2")), capabilities=[Middlewares(ModelCallLimitMiddleware(thread_limit=1))]
    )
    await agent.run("go", session="s")
    assert "thread limit (1/1)" in (await agent.run("go", session="s")).text


async def test_a_limit_of_model_calls_may_raise() -> None:
    own = ModelCallLimitMiddleware(run_limit=1, exit_behavior="error")
    agent = Agent(ScriptedModel(calls("look", name="x"), says("no")), tools=[look], capabilities=[Middlewares(own)])
    assert "ModelCallLimitMiddleware.before_model failed: ModelCallLimitExceededError" in failure(await agent.run("go"))


async def test_a_limit_of_tool_calls_answers_for_the_calls_beyond_it() -> None:
    model = ScriptedModel(
        calls([("look", {"name": "x"}), ("look", {"name": "y"})]), calls("look", name="z"), says("done")
    )
    own = ToolCallLimitMiddleware(run_limit=1)
    result = await Agent(model, tools=[look], capabilities=[Middlewares(own)]).run("go")
    assert result.text == "done"
    results = [item for at in (0, 1) for item in results_of(result, at)]
    assert [(item.status, "limit" in item.text) for item in results] == [
        ("ok", False),
        ("error", True),
        ("error", True),
    ]


async def test_a_limit_of_tool_calls_ends_the_turn() -> None:
    model = ScriptedModel(calls([("look", {"name": "x"}), ("look", {"name": "y"})]), says("never"))
    own = ToolCallLimitMiddleware(tool_name="look", run_limit=1, exit_behavior="end")
    result = await Agent(model, tools=[look], capabilities=[Middlewares(own)]).run("go")
    assert isinstance(result.outcome, Stopped)
    assert "'look' tool call limit" in result.text
    assert len(model.requests) == 1


async def test_a_model_is_asked_again_after_an_error() -> None:
    model = ScriptedModel(ModelError("busy"), ModelError("busy"), says("at last"))
    own = ModelRetryMiddleware(max_retries=2, initial_delay=0)
    result = await Agent(model, capabilities=[Middlewares(own)]).run("go")
    assert result.text == "at last"
    assert len(model.requests) == 3


async def test_a_model_that_keeps_failing_is_answered_for() -> None:
    own = ModelRetryMiddleware(max_retries=1, initial_delay=0)
    result = await Agent(ScriptedModel(ModelError("busy"), ModelError("busy")), capabilities=[Middlewares(own)]).run(
        "go"
    )
    assert "failed after 2 attempts" in result.text


async def test_another_model_answers() -> None:
    own = ModelFallbackMiddleware(chat(RuntimeError("down")), chat(AIMessage("the third")))
    agent = Agent(ScriptedModel(ModelError("busy")), capabilities=[Middlewares(own)])
    assert (await agent.run("go")).text == "the third"


async def test_a_tool_is_called_again_if_that_is_safe() -> None:
    tried = []

    @tool(effect="idempotent")
    def flaky(key: str) -> str:
        """Fail once."""
        tried.append(key)
        if len(tried) < 3:
            raise ValueError("not yet")
        return "fine"

    own = ToolRetryMiddleware(max_retries=3, initial_delay=0)
    model = ScriptedModel(calls("flaky", key="a"), says("ok"))
    result = await Agent(model, tools=[flaky], capabilities=[Middlewares(own)]).run("go")
    assert results_of(result, 0)[0].text == "fine"
    assert len(tried) == 3


async def test_an_unsafe_tool_is_not_called_again() -> None:
    tried = []

    @tool
    def pay(sum: int) -> str:
        """Pay."""
        tried.append(sum)
        raise ValueError("lost the connection")

    own = ToolRetryMiddleware(max_retries=3, initial_delay=0)
    model = ScriptedModel(calls("pay", sum=1), says("I do not know"))
    result = await Agent(model, tools=[pay], capabilities=[Middlewares(own)]).run("go")
    assert tried == [1]
    assert results_of(result, 0)[0].status == "error"


async def test_errors_of_tools_are_put_into_words() -> None:
    @tool(effect="pure")
    def fail() -> str:
        """Fail."""
        raise ValueError("secret path")

    own = ToolErrorMiddleware(
        lambda error, request: f"{request.tool_call['name']} did not work: {type(error).__name__}"
    )
    result = await Agent(ScriptedModel(calls("fail"), says("ok")), tools=[fail], capabilities=[Middlewares(own)]).run(
        "go"
    )
    assert results_of(result, 0)[0].text == "fail did not work: ValueError"
    assert results_of(result, 0)[0].status == "error"


async def test_a_model_selects_the_tools() -> None:
    @tool(effect="pure")
    def weather() -> str:
        """The weather."""
        return "sun"

    model = ScriptedModel(says('{"tools": ["weather"]}'), says("fine"))
    own = LLMToolSelectorMiddleware(max_tools=1)
    result = await Agent(model, tools=[look, weather], capabilities=[Middlewares(own)]).run("Is it sunny?")
    assert result.text == "fine"
    assert model.requests[0].output is not None
    assert [spec.name for spec in model.requests[1].tools] == ["weather"]


async def test_a_tool_that_a_vendor_runs_is_refused() -> None:
    own = ProviderToolSearchMiddleware(searchable_tools=["look"])
    vendor = FakeAnthropic(messages=iter([AIMessage("never")]))
    result = await Agent(LangChainModel(vendor), tools=[look], capabilities=[Middlewares(own)]).run("go")
    assert "ProviderToolSearchMiddleware.wrap_model_call added the tool" in failure(result)


class FakeAnthropic(GenericFakeChatModel):
    """A chat model that says whose it is."""

    def _get_ls_params(self, stop: Any = None, **options: Any) -> Any:
        return {"ls_provider": "anthropic"}


async def test_old_results_are_cleared_from_requests() -> None:
    model = ScriptedModel(*[calls("look", name=f"{n}" * 400) for n in range(4)], says("done"))
    own = ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=300, keep=1)])
    result = await Agent(model, tools=[look], capabilities=[Middlewares(own)]).run("go")
    last = sent(model, 4)
    assert last.count("[cleared]") == 3
    assert last[-1].startswith("3333")
    assert results_of(result, 0)[0].text.startswith("0000")


async def test_todos_are_a_slot() -> None:
    todos = [{"content": "dig", "status": "in_progress"}]
    model = ScriptedModel(calls("write_todos", todos=todos), says("digging"))
    result = await Agent(model, capabilities=[Middlewares(TodoListMiddleware())]).run("go")
    assert result.slots["todos"] == todos
    assert "write_todos" in model.requests[0].system
    assert "dig" in results_of(result, 0)[0].text


async def test_todos_may_not_be_written_twice_at_once() -> None:
    todos = {"todos": [{"content": "dig", "status": "pending"}]}
    model = ScriptedModel(calls([("write_todos", todos), ("write_todos", todos)]), says("ok"))
    result = await Agent(model, capabilities=[Middlewares(TodoListMiddleware())]).run("go")
    assert [item.status for item in results_of(result, 0)] == ["error", "error"]
    assert result.slots["todos"] is None


REVIEWED = {"pay": True, "note": False}


@tool
def pay(sum: int) -> str:
    """Pay."""
    return f"paid {sum}"


@pytest.mark.parametrize("mode", ["batched", "per_call"])
@pytest.mark.parametrize(
    ("answer", "text", "status"),
    [
        (Approve(), "paid 5", "ok"),
        (Edit({"sum": 3}), "paid 3", "ok"),
        (Reject("too much"), "too much", "denied"),
        (Respond("I paid cash"), "I paid cash", "responded"),
    ],
)
async def test_people_review_calls(mode: Any, answer: Any, text: str, status: str) -> None:
    own = HumanInTheLoopMiddleware({"pay": True}, interrupt_mode=mode)
    agent = Agent(ScriptedModel(calls("pay", sum=5), says("ok")), tools=[pay], capabilities=[Middlewares(own)])
    result = await agent.run("go", session="s")
    [asked] = result.waiting_for
    assert asked.question.startswith("Tool execution requires approval\n\nTool: pay")
    result = await agent.resume("s", answers={asked.id: answer})
    assert result.text == "ok"
    assert text in results_of(result, 0)[0].text
    assert results_of(result, 0)[0].status == status


async def test_a_review_has_its_own_terms() -> None:
    config: Any = {
        "allowed_decisions": ["approve", "reject"],
        "description": lambda call, state, runtime: f"{call['name']} {call['args']['sum']}?",
        "when": lambda request: request.tool_call["args"]["sum"] > 9,
    }
    agent = Agent(
        ScriptedModel(calls([("pay", {"sum": 5}), ("pay", {"sum": 10})]), says("ok")),
        tools=[pay],
        capabilities=[Middlewares(HumanInTheLoopMiddleware({"pay": config}))],
    )
    result = await agent.run("go", session="s")
    [asked] = result.waiting_for
    assert (asked.question, asked.allow) == ("pay 10?", ("approve", "reject"))


async def test_a_model_stands_in_for_a_tool() -> None:
    ran: list[str] = []

    @tool
    def launch(name: str) -> str:
        """Launch."""
        ran.append(name)
        return "launched"

    own = LLMToolEmulator(tools=["launch"], model=chat(AIMessage("it would fly")))
    result = await Agent(ScriptedModel(calls("launch", name="x"), says("ok")), tools=[launch],
                         capabilities=[Middlewares(own)]).run("go")  # fmt: skip
    assert results_of(result, 0)[0].text == "it would fly"
    assert not ran


async def test_files_are_searched(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("treasure = 1\n")
    model = ScriptedModel(calls("glob_search", pattern="*.py"), calls("grep_search", pattern="treasure"), says("ok"))
    own = FilesystemFileSearchMiddleware(root_path=str(tmp_path), use_ripgrep=False)
    result = await Agent(model, capabilities=[Middlewares(own, effect="pure")]).run("go")
    assert ["a.py" in results_of(result, at)[0].text for at in (0, 1)] == [True, True]


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # LangChain leaves pipes open
async def test_a_shell_lives_as_long_as_the_turn(tmp_path: Path) -> None:
    model = ScriptedModel(calls("shell", command="x=7; cd /"), calls("shell", command="echo $x $PWD $$"), says("ok"))
    own = ShellToolMiddleware(workspace_root=tmp_path)
    result = await Agent(model, capabilities=[Middlewares(own)]).run("go")
    *words, pid = results_of(result, 1)[0].text.split()
    assert words == ["7", "/"]
    assert not _is_alive(int(pid))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().split() if Path("/proc").is_dir() else True


# ---------------------------------------------------------------- middlewares of one's own


class Order(AgentMiddleware):
    """Notes when it is called."""

    def __init__(self, label: str, seen: list[str]) -> None:
        super().__init__()
        self.label = label
        self.seen = seen

    @property
    def name(self) -> str:
        return self.label

    def before_agent(self, state: Any, runtime: Any) -> None:
        self.seen.append(f"{self.label} before_agent")

    async def abefore_model(self, state: Any, runtime: Any) -> None:
        self.seen.append(f"{self.label} before_model")

    def after_model(self, state: Any, runtime: Any) -> None:
        self.seen.append(f"{self.label} after_model")

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        self.seen.append(f"{self.label} after_agent")

    def wrap_model_call(self, request: Any, handler: Any) -> Any:
        self.seen.append(f"{self.label} (")
        response = handler(request)
        self.seen.append(f"{self.label} )")
        return response

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        self.seen.append(f"{self.label} [")
        response = await handler(request)
        self.seen.append(f"{self.label} ]")
        return response


ORDER = """a before_agent, b before_agent, a before_model, b before_model, a (, b (, b ), a ), b after_model,
a after_model, a [, b [, b ], a ], a before_model, b before_model, a (, b (, b ), a ), b after_model, a after_model,
b after_agent, a after_agent""".replace("\n", " ")


async def test_middlewares_run_in_the_order_of_langchain() -> None:
    seen: list[str] = []
    agent = Agent(ScriptedModel(calls("look", name="x"), says("7")), tools=[look],
                  capabilities=[Middlewares(Order("a", seen), Order("b", seen))])  # fmt: skip
    assert (await agent.run("go")).text == "7"
    assert ", ".join(seen) == ORDER
    again: list[str] = []
    agent = Agent(ScriptedModel(calls("look", name="x"), says("7")), tools=[look],
                  capabilities=[Middlewares(Order("a", again), Order("b", again))])  # fmt: skip
    stream = agent.stream("go")
    assert "".join([event.text async for event in stream if isinstance(event, TextDelta)]) == "7"
    assert ", ".join(again) == ORDER


class Counting(AgentState):
    count: NotRequired[Annotated[int, add]]
    private: NotRequired[Annotated[list[str], PrivateStateAttr, add]]
    this_run: NotRequired[Annotated[int, UntrackedValue]]
    newest: NotRequired[HumanMessage]


class Counter(AgentMiddleware):
    """Counts, in fields of all kinds."""

    state_schema = Counting

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[dict[str, Any]] = []

    def before_model(self, state: Any, runtime: Any) -> Any:
        self.seen.append({name: value for name, value in state.items() if name != "messages"})
        return {
            "count": 1,
            "private": ["x"],
            "this_run": state.get("this_run", 0) + 1,
            "newest": state["messages"][0],
            "unknown": 1,
        }


async def test_fields_of_the_state_are_slots() -> None:
    own = Counter()
    model = ScriptedModel(calls("look", name="x"), says("1"), says("2"))
    agent = Agent(model, tools=[look], capabilities=[Middlewares(own)])
    await agent.run("go", session="s", slots={"count": 10, "private": ["forged"]})
    result = await agent.run("go", session="s")
    assert {name: value for name, value in result.slots.items() if name != "newest"} == {"count": 13}
    assert [seen.get("count") for seen in own.seen] == [10, 11, 12]
    assert [seen.get("private") for seen in own.seen] == [None, ["x"], ["x", "x"]]
    assert [seen.get("this_run") for seen in own.seen] == [None, 1, None]
    assert isinstance(own.seen[1]["newest"], HumanMessage)


async def test_state_survives_a_suspension_and_another_process(tmp_path: Path) -> None:
    def agent(own: Counter) -> Agent[Any, Any]:
        review = HumanInTheLoopMiddleware({"pay": True})
        limit = ModelCallLimitMiddleware(run_limit=1)
        model = ScriptedModel(calls("pay", sum=1), says("never"))
        return Agent(model, tools=[pay], store=f"sqlite:///{tmp_path}/s.db",
                     capabilities=[Middlewares(own, review, limit)])  # fmt: skip

    first = agent(Counter())
    result = await first.run("go", session="s")
    assert isinstance(result.outcome, Suspended)
    await first.aclose()
    own = Counter()
    second = agent(own)
    result = await second.resume("s", answers={result.waiting_for[0].id: Approve()})
    assert own.seen == [{"count": 1, "private": ["x"], "this_run": 1, "newest": own.seen[0]["newest"],
                         "run_model_call_count": 1, "thread_model_call_count": 1}]  # fmt: skip
    assert "run limit (1/1)" in result.text
    await second.aclose()


KILLED = """
import os, sys
from windlass import Agent, tool
from windlass.compat.langchain import Middlewares
from windlass.testing import ScriptedModel, calls, crash_points, says
from langchain.agents.middleware import ModelCallLimitMiddleware, PIIMiddleware

@tool
def die() -> str:
    "Die."
    os._exit(9)

own = Middlewares(PIIMiddleware("email"), ModelCallLimitMiddleware(run_limit=2))
model = ScriptedModel(calls("die"), says("after"))
agent = Agent(model, tools=[die], store=f"sqlite:///{sys.argv[1]}", capabilities=[own])
agent.run_sync("mail ann@b.org", session="s")
"""


async def test_state_survives_a_kill(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    process = await asyncio.create_subprocess_exec(sys.executable, script, tmp_path / "k.db")
    assert await process.wait() == 9

    @tool
    def die() -> str:
        """Die."""
        raise AssertionError("an unsafe call is not repeated")

    model = ScriptedModel(says("I do not know"), says("never"))
    own = Middlewares(PIIMiddleware("email"), ModelCallLimitMiddleware(run_limit=2))
    agent = Agent(model, tools=[die], store=f"sqlite:///{tmp_path}/k.db", capabilities=[own])
    result = await agent.resume("s")
    assert result.text == "I do not know"
    assert sent(model, 0)[0] == "mail [REDACTED_EMAIL]"
    assert result.state.slots["thread_model_call_count"] == 2
    await agent.aclose()


def test_a_kill_anywhere_changes_nothing() -> None:
    report = crash_points("tests.compat.middleware_scene:scene")
    assert len(report.points) > 20


async def test_a_sub_agent_has_its_own_middlewares() -> None:
    inner = ScriptedModel(says("child"))
    child = Agent(inner, name="child", capabilities=[Middlewares(PIIMiddleware("email"))])
    model = ScriptedModel(calls("child", task="ask a@b.org"), says("ok"))
    own = Middlewares(ToolCallLimitMiddleware(run_limit=1))
    result = await Agent(model, tools=[child.as_tool()], capabilities=[own]).run("go")
    assert result.text == "ok"
    assert "[REDACTED_EMAIL]" in str(inner.requests[0].messages[0].text)


async def test_iterate_runs_them_too() -> None:
    own = Counter()
    agent = Agent(ScriptedModel(calls("look", name="x"), says("1")), tools=[look], capabilities=[Middlewares(own)])
    states = [state async for state in agent.iterate("go")]
    assert [dict(state.slots)["count"] for state in states] == [1, 2]


async def test_decorated_functions_are_middlewares() -> None:
    @before_model
    def greet(state: Any, runtime: Any) -> Any:
        return {"messages": [HumanMessage("by the way")]} if len(state["messages"]) == 1 else None

    @after_model(can_jump_to=["end"])
    async def stop(state: Any, runtime: Any) -> Any:
        return None

    @dynamic_prompt
    def prompt(request: Any) -> str:
        return f"You talk to {request.runtime.context['user']}."

    @wrap_model_call
    async def shout(request: Any, handler: Any) -> Any:
        response = await handler(request.override(tool_choice="any", model_settings={"temperature": 0.5}))
        return AIMessage(response.result[0].text.upper())

    @wrap_tool_call
    def loud(request: Any, handler: Any) -> Any:
        answer = handler(request.override(tool_call={**request.tool_call, "args": {"name": "y"}}))
        return ToolMessage(answer.text + "!", tool_call_id=request.tool_call["id"])

    model = ScriptedModel(calls("look", name="x"), says("seven"))
    agent = Agent(model, tools=[look], system="Be brief.", capabilities=[Middlewares(greet, stop, prompt, loud)])
    result = await agent.run("go", scope={"user": "Ann"})
    assert result.text == "seven"
    assert model.requests[0].system == "You talk to Ann."
    assert sent(model, 1)[:2] == ["go", "by the way"]
    assert results_of(result, 0)[0].text == "y is 7!"
    model = ScriptedModel(says("seven"))
    assert (await Agent(model, capabilities=[Middlewares(shout)]).run("go")).text == "SEVEN"
    assert dict(model.requests[0].settings) == {"temperature": 0.5, "tool_choice": "required"}


async def test_gates_see_the_call_that_a_wrap_passes_on() -> None:
    @wrap_tool_call
    async def change(request: Any, handler: Any) -> Any:
        return await handler(request.override(tool_call={**request.tool_call, "args": {"name": "bad"}}))

    agent = Agent(ScriptedModel(calls("look", name="x"), says("ok")), tools=[look], capabilities=[Middlewares(change)])

    @agent.gate(ToolCalling)
    def guard(event: ToolCalling) -> Deny | None:
        return Deny("no") if event.call.arguments["name"] == "bad" else None

    result = await agent.run("go")
    assert "no" in results_of(result, 0)[0].text
    assert "is 7" not in results_of(result, 0)[0].text


async def test_jumps_to_the_end() -> None:
    @before_agent(can_jump_to=["end"])
    def refuse(state: Any, runtime: Any) -> Any:
        return {"jump_to": "end", "messages": [AIMessage("We are closed.")]}

    model = ScriptedModel()
    result = await Agent(model, capabilities=[Middlewares(refuse)]).run("go")
    assert (result.text, model.requests) == ("We are closed.", [])

    @after_model(can_jump_to=["end"])
    def censor(state: Any, runtime: Any) -> Any:
        return {"jump_to": "end", "messages": [AIMessage("I may not say that.")]}

    result = await Agent(ScriptedModel(says("bad")), capabilities=[Middlewares(censor)]).run("go")
    assert result.text == "I may not say that."
    model = ScriptedModel(calls("look", name="x"))
    result = await Agent(model, tools=[look], capabilities=[Middlewares(censor)]).run("go")
    assert result.text == "I may not say that."
    assert results_of(result, 0)[0].status != "ok"


async def test_a_jump_that_is_not_declared_is_ignored_as_in_langgraph() -> None:
    @before_model
    def silent(state: Any, runtime: Any) -> Any:
        return {"jump_to": "end"}

    assert (await Agent(ScriptedModel(says("on")), capabilities=[Middlewares(silent)]).run("go")).text == "on"


async def test_jumps_to_the_model() -> None:
    class Critic(AgentMiddleware):
        @hook_config(can_jump_to=["model"])
        def after_model(self, state: Any, runtime: Any) -> Any:
            last = state["messages"][-1]
            if "draft" in str(last.text):
                return {"jump_to": "model", "messages": [RemoveMessage(id=last.id), HumanMessage("Better.")]}
            return None

    model = ScriptedModel(says("draft"), says("final"))
    result = await Agent(model, capabilities=[Middlewares(Critic())]).run("go")
    assert result.text == "final"
    assert sent(model, 1) == ["go", "Better."]

    class NoTools(AgentMiddleware):
        @hook_config(can_jump_to=["model"])
        def after_model(self, state: Any, runtime: Any) -> Any:
            return {"jump_to": "model"} if state["messages"][-1].tool_calls else None

    model = ScriptedModel(calls("look", name="x"), says("without"))
    result = await Agent(model, tools=[look], capabilities=[Middlewares(NoTools())]).run("go")
    assert result.text == "without"
    assert results_of(result, 0)[0].status == "denied"


async def test_jumps_to_the_tools_pass_the_gates() -> None:
    @before_model(can_jump_to=["tools"])
    def plan(state: Any, runtime: Any) -> Any:
        if len(state["messages"]) > 1:
            return None
        call = {"name": "look", "args": {"name": "x"}, "id": "c1", "type": "tool_call"}
        return {"jump_to": "tools", "messages": [AIMessage("", tool_calls=[call])]}

    model = ScriptedModel(says("it is 7"))
    agent = Agent(model, tools=[look], capabilities=[Middlewares(plan)])
    seen: list[str] = []

    @agent.gate(ToolCalling)
    def watch(event: ToolCalling) -> None:
        seen.append(event.call.name)

    result = await agent.run("go")
    assert (result.text, seen) == ("it is 7", ["look"])
    assert results_of(result, 0)[0].text == "x is 7"
    assert len(model.requests) == 1
    assert len(model.requests[0].messages) == 3


async def test_a_reply_is_rewritten_in_the_log() -> None:
    class Fix(AgentMiddleware):
        def after_model(self, state: Any, runtime: Any) -> Any:
            last = state["messages"][-1]
            if last.tool_calls:
                kept = [{**call, "args": {"name": "safe"}} for call in last.tool_calls[1:]]
                return {"messages": [last.model_copy(update={"tool_calls": kept})]}
            return {"messages": [AIMessage("fixed", id=last.id)]}

    model = ScriptedModel(calls([("look", {"name": "x"}), ("look", {"name": "y"})]), says("unfit"))
    agent = Agent(model, tools=[look], capabilities=[Middlewares(Fix())])
    result = await agent.run("go", session="s")
    assert result.text == "fixed"
    assert [item.text for item in results_of(result, 0)] == ["safe is 7"]
    assert "unfit" not in str(await agent.store.read("s"))


@langchain_tool
def two(tool_call_id: Annotated[str, InjectedToolCallId]) -> Any:
    """Add two."""
    return Command(update={"count": 2, "messages": [ToolMessage("added", tool_call_id=tool_call_id)]})


async def test_commands_update_the_state() -> None:
    class Deep(Counter):
        def __init__(self) -> None:
            super().__init__()
            self.tools = [two]

        async def awrap_model_call(self, request: Any, handler: Any) -> Any:
            response = await handler(request)
            return ExtendedModelResponse(response, Command(update={"count": 100}))

    model = ScriptedModel(calls([("two", {}), ("two", {})]), says("ok"))
    result = await Agent(model, capabilities=[Middlewares(Deep())]).run("go")
    assert [item.text for item in results_of(result, 0)] == ["added", "added"]
    assert result.slots["count"] == 1 + 100 + 2 + 2 + 1 + 100


async def test_a_store_and_a_writer_are_there() -> None:
    store = InMemoryStore()

    @before_model
    async def remember(state: Any, runtime: Any) -> None:
        await runtime.store.aput(("users",), "ann", {"seen": len(state["messages"])})
        runtime.stream_writer({"step": 1})

    stream = Agent(ScriptedModel(says("ok")), capabilities=[Middlewares(remember, store=store)]).stream("go")
    told = [event.text async for event in stream if isinstance(event, Progressed)]
    assert told == ["{'step': 1}"]
    item = store.get(("users",), "ann")
    assert item is not None
    assert item.value == {"seen": 1}


async def test_all_messages_can_be_taken_away() -> None:
    @wrap_model_call
    async def begin(request: Any, handler: Any) -> Any:
        return await handler(request.override(messages=[*request.messages, HumanMessage("begin")]))

    @before_model
    def forget(state: Any, runtime: Any) -> Any:
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES)]}

    model = ScriptedModel(says("one"), says("two"))
    agent = Agent(model, capabilities=[Middlewares(forget, begin)])
    await agent.run("first", session="s")
    await agent.run("second", session="s")
    assert [sent(model, 0), sent(model, 1)] == [["begin"], ["begin"]]


async def test_changed_messages_are_recorded_once() -> None:
    own = PIIMiddleware("email")
    model = ScriptedModel(*[calls("look", name="x") for _ in range(5)], says("done"))
    agent = Agent(model, tools=[look], capabilities=[Middlewares(own)])
    await agent.run("I am ann@example.org " + "and so on " * 50, session="s")
    written = [one.slot for one in await agent.store.read("s") if isinstance(one, SlotSet) and "EMAIL" in str(one)]
    assert written == ["middlewares.messages"]


@langchain_tool
def write(text: str) -> str:
    """Write."""
    get_stream_writer()(f"writing {text}")
    return str(get_runtime().context)


async def test_functions_of_langgraph_find_the_runtime() -> None:
    @before_model
    def keep(state: Any, runtime: Any) -> None:
        get_store().put(("users",), "ann", {"seen": len(state["messages"])})
        get_stream_writer()("keeping")

    @after_model
    def look_on(state: Any, runtime: Any) -> None:
        return None

    store = InMemoryStore()
    for of_middlewares in (True, False):
        own = Middlewares(keep, look_on, store=store, tools=[write] if of_middlewares else [])
        plain = [] if of_middlewares else langchain_tools([write])
        model = ScriptedModel(calls("write", text="a"), says("ok"))
        stream = Agent(model, tools=plain, capabilities=[own]).stream("go", scope="Ann")
        told = [event.text async for event in stream if isinstance(event, Progressed)]
        assert told == ["keeping", "writing a", "keeping"]
        assert results_of(stream.result, 0)[0].text == "Ann"
    item = store.get(("users",), "ann")
    assert item is not None
    assert item.value == {"seen": 3}


@langchain_tool
def confirm(text: str) -> str:
    """Ask a person."""
    return str(interrupt(text))


WAYS = {"ask": interrupt}


@langchain_tool
def confirm_late(text: str) -> str:
    """Ask a person, in a way that nobody sees beforehand."""
    return str(WAYS["ask"](text))


async def test_a_tool_that_interrupts_is_refused() -> None:
    for make in (lambda: langchain_tools([confirm]), lambda: Middlewares(tools=[confirm])):
        with pytest.raises(ConfigError, match=r"'confirm' calls interrupt\(\)"):
            make()
    model = ScriptedModel(calls("confirm_late", text="a"), says("ok"))
    result = await Agent(model, capabilities=[Middlewares(tools=[confirm_late])]).run("go")
    assert "calls interrupt(), which only LangGraph can resume" in results_of(result, 0)[0].text


async def test_all_messages_can_be_removed() -> None:
    @before_model
    def forget(state: Any, runtime: Any) -> Any:
        if len(state["messages"]) < 3:
            return None
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), HumanMessage("fresh")]}

    model = ScriptedModel(says("one"), says("two"))
    agent = Agent(model, capabilities=[Middlewares(forget)])
    await agent.run("first", session="s")
    result = await agent.run("second", session="s")
    assert sent(model, 1) == ["fresh"]
    assert len(result.messages) == 4


async def test_what_hooks_inject_stays_beside_a_message_that_changed() -> None:
    model = ScriptedModel(says("ok"))
    agent = Agent(model, capabilities=[Middlewares(PIIMiddleware("email"))])
    agent.inject(TurnStarting, name="facts")(_fact)
    await agent.run("I am a@b.org")
    assert [part.text for part in model.requests[0].messages[0].parts] == ["I am [REDACTED_EMAIL]", "A fact."]  # type: ignore[union-attr]


def _fact(event: TurnStarting) -> str:
    return "A fact."


async def test_errors_name_the_middleware() -> None:
    @before_model(name="Broken")
    def broken(state: Any, runtime: Any) -> Any:
        raise KeyError("x")

    assert "Broken.before_model failed: KeyError: 'x'" in failure(
        await Agent(ScriptedModel(), capabilities=[Middlewares(broken)]).run("go")
    )

    @wrap_model_call(name="Odd")
    def odd(request: Any, handler: Any) -> Any:
        return 5

    assert "Odd.wrap_model_call returned int" in failure(
        await Agent(ScriptedModel(), capabilities=[Middlewares(odd)]).run("go")
    )


@before_model
def asking(state: Any, runtime: Any) -> Any:
    """Asks a person, as only LangGraph can."""
    return interrupt("really?")


@after_agent(can_jump_to=["model"])
def looping(state: Any, runtime: Any) -> Any:
    """Goes back when the turn is over."""


def wrong(given: Any) -> Any:
    return given


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Middlewares(), "needs at least one"),
        (lambda: Middlewares(wrong(5)), "takes middlewares of LangChain, not 5"),
        (lambda: Middlewares(wrong(PIIMiddleware)), "write PIIMiddleware(…)"),
        (lambda: Middlewares(TodoListMiddleware(), TodoListMiddleware()), "two middlewares named 'TodoListMiddleware'"),
        (lambda: Middlewares(asking), "asking.before_model calls interrupt()"),
        (lambda: Middlewares(looping), "may jump to 'model', which is not possible here"),
        (lambda: Middlewares(TodoListMiddleware(), store=wrong(5)), "takes a store of LangGraph"),
    ],
)  # fmt: skip
def test_what_cannot_run_here_is_refused(make: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(words)):
        make()
