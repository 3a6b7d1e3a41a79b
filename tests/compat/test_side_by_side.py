"""Middlewares as people write them do the same in LangChain's `create_agent` and here."""

from __future__ import annotations

import operator
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, NotRequired

import pytest
from langchain.agents import AgentState
from langchain.agents.middleware import (
    AgentMiddleware,
    ClearToolUsesEdit,
    ContextEditingMiddleware,
    ExtendedModelResponse,
    LLMToolEmulator,
    ModelCallLimitMiddleware,
    ModelFallbackMiddleware,
    ModelRetryMiddleware,
    PIIMiddleware,
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
from langchain.agents.middleware.types import ModelResponse
from langchain.tools import ToolRuntime
from langchain_core.messages import AIMessage, HumanMessage, RemoveMessage, SystemMessage, ToolMessage, trim_messages
from langchain_core.tools import ToolException, tool
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.store.memory import InMemoryStore
from langgraph.types import Command
from pydantic import BaseModel

from .langchain_sides import Script, Setup, Side, here, in_langchain

CASES: dict[str, tuple[Callable[[], Setup], tuple[str, ...]]] = {}
USED: Any = {"input_tokens": 50, "output_tokens": 2, "total_tokens": 52}


def case(*differs: str) -> Callable[[Callable[[], Setup]], Callable[[], Setup]]:
    """A case that both sides run. `differs` are the fields that are not the same: the docstring says why."""

    def keep(fn: Callable[[], Setup]) -> Callable[[], Setup]:
        assert fn.__doc__ or not differs
        CASES[fn.__name__] = fn, differs
        return fn

    return keep


@tool
def look(name: str) -> str:
    """Look something up."""
    return f"{name} is 7"


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool
def admin_delete(name: str) -> str:
    """Delete."""
    return "deleted"


def call(name: str, /, **arguments: Any) -> AIMessage:
    """A reply that calls one tool."""
    return AIMessage(
        "", tool_calls=[{"name": name, "args": arguments, "id": f"{name}:{arguments}"[:40], "type": "tool_call"}]
    )


@dataclass
class Ctx:
    """The context that a caller passes."""

    user_role: str
    user_name: str = "Ann"


def two_calls() -> AIMessage:
    """A reply that calls a tool twice."""
    calls: list[Any] = [
        {"name": "look", "args": {"name": name}, "id": f"call_{name}", "type": "tool_call"} for name in "xy"
    ]
    return AIMessage("", tool_calls=calls)


@case()
def dyn_prompt() -> Setup:
    @dynamic_prompt
    def prompt(request: Any) -> str:
        base = "You are helpful."
        if len(request.messages) > 2:
            base += "\nBe extra concise."
        if request.runtime.context.user_role == "expert":
            base += " Detailed."
        return base

    return Setup(
        model=Script(call("look", name="x"), AIMessage("done"), AIMessage("two")),
        tools=[look],
        middlewares=[prompt],
        turns=["go", "again"],
        context=Ctx("expert"),
    )


@case("asked")
def system_blocks() -> Setup:
    """Blocks of a system text become one text."""

    @wrap_model_call
    def add_context(request, handler):
        new = [*request.system_message.content_blocks, {"type": "text", "text": "Extra."}]
        return handler(request.override(system_message=SystemMessage(content=new)))

    return Setup(model=Script(AIMessage("done")), middlewares=[add_context], turns=["go"], system="Base.")


@case()
def dyn_model() -> Setup:
    big = Script(AIMessage("big says"), AIMessage("big again"), label="big")
    small = Script(AIMessage("small says"), label="small")

    @wrap_model_call
    def pick(request, handler):
        model = big if len(request.state["messages"]) > 2 else request.model
        return handler(request.override(model=model))

    return Setup(model=small, others=[big], middlewares=[pick], turns=["go", "two", "three"])


@case()
def dyn_tools() -> Setup:
    @wrap_model_call
    def role(request, handler):
        if request.runtime.context.user_role != "admin":
            request = request.override(tools=[t for t in request.tools if not t.name.startswith("admin_")])
        return handler(request)

    return Setup(
        model=Script(call("look", name="x"), AIMessage("done")),
        tools=[look, admin_delete],
        middlewares=[role],
        turns=["go"],
        context=Ctx("user"),
    )


@case()
def runtime_tools() -> Setup:
    @tool
    def calculate_tip(bill: float) -> str:
        """Tip."""
        return f"tip {bill / 5}"

    class Dyn(AgentMiddleware):
        def wrap_model_call(self, request, handler):
            return handler(request.override(tools=[*request.tools, calculate_tip]))

        async def awrap_model_call(self, request, handler):
            return await handler(request.override(tools=[*request.tools, calculate_tip]))

        def wrap_tool_call(self, request, handler):
            if request.tool_call["name"] == "calculate_tip":
                return handler(request.override(tool=calculate_tip))
            return handler(request)

        async def awrap_tool_call(self, request, handler):
            if request.tool_call["name"] == "calculate_tip":
                return await handler(request.override(tool=calculate_tip))
            return await handler(request)

    return Setup(
        model=Script(call("calculate_tip", bill=100.0), AIMessage("done")),
        tools=[look],
        middlewares=[Dyn()],
        turns=["go"],
    )


@case()
def trim() -> Setup:
    @before_model
    def trim_messages(state: AgentState, runtime) -> dict | None:
        messages = state["messages"]
        if len(messages) <= 3:
            return None
        first = messages[0]
        recent = messages[-3:] if len(messages) % 2 == 0 else messages[-4:]
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), first, *recent]}

    return Setup(
        model=Script(AIMessage("r1"), AIMessage("r2"), AIMessage("r3"), AIMessage("r4")),
        middlewares=[trim_messages],
        turns=["hi I am bob", "short poem", "same about dogs", "what is my name"],
    )


@case()
def delete_old() -> Setup:
    @after_model
    def delete_old_messages(state, runtime):
        messages = state["messages"]
        if len(messages) > 2:
            return {"messages": [RemoveMessage(id=m.id) for m in messages[:2]]}
        return None

    return Setup(
        model=Script(AIMessage("r1"), AIMessage("r2"), AIMessage("r3")),
        middlewares=[delete_old_messages],
        turns=["one", "two", "three"],
    )


@case()
def validate_response() -> Setup:
    @after_model
    def validate(state, runtime):
        last = state["messages"][-1]
        if any(w in last.content for w in ["password"]):
            return {"messages": [RemoveMessage(id=last.id)]}
        return None

    return Setup(
        model=Script(AIMessage("the password is x"), AIMessage("fine")), middlewares=[validate], turns=["one", "two"]
    )


@case()
def tool_errors() -> Setup:
    @tool
    def boom(x: int) -> str:
        """Boom."""
        raise ValueError("bad")

    @wrap_tool_call
    def handle(request, handler):
        try:
            return handler(request)
        except Exception as e:
            return ToolMessage(content=f"Tool error: ({e})", tool_call_id=request.tool_call["id"])

    return Setup(model=Script(call("boom", x=1), AIMessage("done")), tools=[boom], middlewares=[handle], turns=["one"])


@case()
def guard_before() -> Setup:
    class ContentFilter(AgentMiddleware):
        @hook_config(can_jump_to=["end"])
        def before_agent(self, state, runtime):
            if not state["messages"]:
                return None
            first = state["messages"][0]
            if first.type != "human":
                return None
            if "hack" in first.content.lower():
                return {"messages": [{"role": "assistant", "content": "I cannot."}], "jump_to": "end"}
            return None

    return Setup(model=Script(AIMessage("never")), middlewares=[ContentFilter()], turns=["How do I hack?", "and"])


@case("asked")
def guard_after_inplace() -> Setup:
    """LangGraph forgets in the next turn what was changed in place; here it lasts."""

    class Safety(AgentMiddleware):
        @hook_config(can_jump_to=["end"])
        def after_agent(self, state, runtime):
            last = state["messages"][-1]
            if "bomb" in last.content:
                last.content = "I cannot provide that."
            return

    return Setup(model=Script(AIMessage("a bomb is"), AIMessage("ok")), middlewares=[Safety()], turns=["one", "two"])


@case()
def guard_after_dict() -> Setup:
    @after_agent(can_jump_to=["end"])
    def safety(state, runtime):
        last = state["messages"][-1]
        if "bomb" in last.content:
            return {"messages": [AIMessage(id=last.id, content="I cannot provide that.")]}
        return None

    return Setup(model=Script(AIMessage("a bomb is"), AIMessage("ok")), middlewares=[safety], turns=["one", "two"])


@case("asked")
def after_model_inplace() -> Setup:
    """LangGraph forgets in the next turn what was changed in place; here it lasts."""

    @after_model
    def up(state, runtime):
        state["messages"][-1].content = state["messages"][-1].content.upper()

    return Setup(model=Script(AIMessage("hello"), AIMessage("ok")), middlewares=[up], turns=["one", "two"])


@case()
def before_model_inplace() -> Setup:
    @before_model
    def up(state, runtime):
        state["messages"][-1].content = state["messages"][-1].content.upper()

    return Setup(model=Script(AIMessage("hello"), AIMessage("ok")), middlewares=[up], turns=["one", "two"])


class CState(AgentState):
    model_call_count: NotRequired[int]
    user_id: NotRequired[str]


@case("texts")
def counter() -> Setup:
    """Without a new reply, ours has no text; the caller of LangGraph finds the last one of an older turn."""

    class CM(AgentMiddleware[CState]):
        state_schema = CState

        @hook_config(can_jump_to=["end"])
        def before_model(self, state, runtime):
            if state.get("model_call_count", 0) > 1:
                return {"jump_to": "end"}
            return None

        def after_model(self, state, runtime):
            return {"model_call_count": state.get("model_call_count", 0) + 1}

    return Setup(
        model=Script(AIMessage("1"), AIMessage("2"), AIMessage("3")),
        middlewares=[CM()],
        turns=["a", "b", "c"],
        slots={"user_id": "u"},
    )


class RState(AgentState):
    notes: Annotated[list[str], operator.add]
    total: Annotated[int, operator.add]


@case()
def reducers() -> Setup:
    class RM(AgentMiddleware[RState]):
        state_schema = RState

        def before_agent(self, state, runtime):
            return {"notes": ["start"], "total": 1}

        def before_model(self, state, runtime):
            return {"notes": [f"before {len(state['messages'])}"], "total": 1}

        def after_model(self, state, runtime):
            return {"notes": ["after"], "total": 1}

        def after_agent(self, state, runtime):
            return {"notes": ["end"], "total": 1}

    return Setup(
        model=Script(call("look", name="x"), AIMessage("2"), AIMessage("3")),
        tools=[look],
        middlewares=[RM()],
        turns=["a", "b"],
    )


@case()
def inject_dicts() -> Setup:
    @wrap_model_call
    def inject(request, handler):
        messages = [*request.messages, {"role": "user", "content": "Files: a.txt"}]
        return handler(request.override(messages=messages))

    return Setup(model=Script(AIMessage("1"), AIMessage("2")), middlewares=[inject], turns=["a", "b"])


@case()
def inject_message() -> Setup:
    @wrap_model_call
    async def inject(request, handler):
        return await handler(request.override(messages=[*request.messages, HumanMessage("Files: a.txt")]))

    return Setup(model=Script(AIMessage("1"), AIMessage("2")), middlewares=[inject], turns=["a", "b"])


@case()
def retry() -> Setup:
    @wrap_model_call
    def again(request, handler):
        for i in range(3):
            try:
                return handler(request)
            except Exception:
                if i == 2:
                    raise
        return None

    return Setup(model=Script(RuntimeError("x"), RuntimeError("y"), AIMessage("ok")), middlewares=[again], turns=["a"])


@case()
def transform_inplace() -> Setup:
    @wrap_model_call
    def up(request, handler):
        response = handler(request)
        response.result[0].content = response.result[0].content.upper()
        return response

    return Setup(model=Script(AIMessage("hello"), AIMessage("b")), middlewares=[up], turns=["a", "b"])


@case()
def short_circuit() -> Setup:
    @wrap_model_call
    def cached(request, handler):
        if "cached" in request.messages[-1].content:
            return AIMessage("from cache")
        return handler(request)

    return Setup(model=Script(AIMessage("real")), middlewares=[cached], turns=["cached", "b"])


@case()
def order() -> Setup:
    class M(AgentMiddleware):
        def __init__(self, n):
            super().__init__()
            self.n = n

        @property
        def name(self):
            return self.n

        def _m(self, w):
            return {"messages": [HumanMessage(f"{self.n} {w}")]}

        def before_agent(self, state, runtime):
            return self._m("ba")

        def before_model(self, state, runtime):
            return self._m("bm")

        def after_agent(self, state, runtime):
            return self._m("aa")

        def wrap_model_call(self, request, handler):
            r = handler(request.override(system_prompt=(request.system_prompt or "") + f" {self.n}<"))
            r.result[0].content += f">{self.n}"
            return r

        async def awrap_model_call(self, request, handler):
            r = await handler(request.override(system_prompt=(request.system_prompt or "") + f" {self.n}<"))
            r.result[0].content += f">{self.n}"
            return r

    return Setup(
        model=Script(AIMessage("x"), AIMessage("y")), middlewares=[M("m1"), M("m2")], turns=["a", "b"], system="S"
    )


@case()
def after_model_human() -> Setup:
    @after_model
    def follow(state, runtime):
        return {"messages": [HumanMessage("noted")]} if not state["messages"][-1].tool_calls else None

    return Setup(
        model=Script(call("look", name="x"), AIMessage("x"), AIMessage("y")),
        tools=[look],
        middlewares=[follow],
        turns=["a", "b"],
    )


@case()
def jump_model() -> Setup:
    class Crit(AgentMiddleware):
        @hook_config(can_jump_to=["model"])
        def after_model(self, state, runtime):
            if "draft" in state["messages"][-1].content:
                return {"jump_to": "model", "messages": [HumanMessage("better")]}
            return None

    return Setup(
        model=Script(AIMessage("draft"), AIMessage("final"), AIMessage("next")), middlewares=[Crit()], turns=["a", "b"]
    )


@case()
def jump_end_tools() -> Setup:
    @after_model(can_jump_to=["end"])
    def stop(state, runtime):
        if state["messages"][-1].tool_calls:
            return {"jump_to": "end"}
        return None

    return Setup(
        model=Script(call("look", name="x"), AIMessage("never")), tools=[look], middlewares=[stop], turns=["a"]
    )


@case()
def jump_end_tools_msg() -> Setup:
    @after_model(can_jump_to=["end"])
    def stop(state, runtime):
        last = state["messages"][-1]
        if last.tool_calls:
            return {
                "jump_to": "end",
                "messages": [ToolMessage("blocked", tool_call_id=c["id"]) for c in last.tool_calls]
                + [AIMessage("stopped")],
            }
        return None

    return Setup(
        model=Script(call("look", name="x"), AIMessage("second")), tools=[look], middlewares=[stop], turns=["a", "b"]
    )


@case()
def tool_command() -> Setup:
    class S(AgentState):
        seen: NotRequired[Annotated[list[str], operator.add]]

    @tool
    def note(what: str, runtime: ToolRuntime[Any, Any]) -> Command:
        """Note."""
        return Command(
            update={
                "seen": [what, str(len(runtime.state["messages"])), runtime.context.user_name],
                "messages": [ToolMessage("noted", tool_call_id=runtime.tool_call_id)],
            }
        )

    class M(AgentMiddleware):
        state_schema = S
        tools = (note,)

    return Setup(
        model=Script(call("note", what="w"), AIMessage("done")), middlewares=[M()], turns=["a"], context=Ctx("x")
    )


@case()
def agent_tool_runtime() -> Setup:
    class S(AgentState):
        seen: NotRequired[Annotated[list[str], operator.add]]

    @tool
    def note(what: str, runtime: ToolRuntime[Any, Any]) -> Command:
        """Note."""
        return Command(
            update={
                "seen": [what, runtime.context.user_name],
                "messages": [ToolMessage("noted", tool_call_id=runtime.tool_call_id)],
            }
        )

    class M(AgentMiddleware):
        state_schema = S

    return Setup(
        model=Script(call("note", what="w"), AIMessage("done")),
        tools=[note],
        middlewares=[M()],
        turns=["a"],
        context=Ctx("x"),
    )


@case()
def usage_seen() -> Setup:
    class S(AgentState):
        tokens: NotRequired[int]

    class M(AgentMiddleware):
        state_schema = S

        def after_model(self, state, runtime):
            u = state["messages"][-1].usage_metadata
            return {"tokens": state.get("tokens", 0) + (u["total_tokens"] if u else 0)}

        def before_model(self, state, runtime):
            t = sum(
                m.usage_metadata["total_tokens"]
                for m in state["messages"]
                if isinstance(m, AIMessage) and m.usage_metadata
            )
            return {"messages": [HumanMessage(f"used {t}")]} if t else None

    u = {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    return Setup(
        model=Script(AIMessage("x", usage_metadata=u), AIMessage("y", usage_metadata=u)),
        middlewares=[M()],
        turns=["a", "b"],
    )


@case()
def metadata_seen() -> Setup:
    @before_model
    def m(state, runtime):
        last = [m for m in state["messages"] if isinstance(m, AIMessage)]
        if last:
            return {
                "messages": [HumanMessage(f"{last[-1].response_metadata} {last[-1].additional_kwargs} {last[-1].name}")]
            }
        return None

    return Setup(
        model=Script(
            AIMessage("x", response_metadata={"model_name": "m1"}, additional_kwargs={"k": "v"}, name="bot"),
            AIMessage("y"),
        ),
        middlewares=[m],
        turns=["a", "b"],
    )


@case()
def thinking_kept() -> Setup:
    @before_model
    def m(state, runtime):
        return None

    c = call("look", name="x")
    c.content = [{"type": "thinking", "thinking": "hm", "signature": "sig"}, {"type": "text", "text": "I look."}]
    return Setup(model=Script(c, AIMessage("y"), AIMessage("z")), tools=[look], middlewares=[m], turns=["a", "b"])


@case()
def before_sees_artifact() -> Setup:
    @tool(response_format="content_and_artifact")
    def art(x: str):
        """Art."""
        return "short", {"rows": [1, 2]}

    @before_model
    def see(state, runtime):
        m = state["messages"][-1]
        if isinstance(m, ToolMessage):
            return {"messages": [HumanMessage(f"{m.artifact}")]}
        return None

    return Setup(model=Script(call("art", x="1"), AIMessage("y")), tools=[art], middlewares=[see], turns=["a"])


@case()
def return_direct() -> Setup:
    @tool(return_direct=True)
    def direct(x: str) -> str:
        """Direct."""
        return "the answer"

    @before_model
    def n(state, runtime):
        return None

    return Setup(model=Script(call("direct", x="1"), AIMessage("never")), tools=[direct], middlewares=[n], turns=["a"])


@case()
def parallel_calls() -> Setup:
    m = AIMessage(
        "",
        tool_calls=[
            {"name": "look", "args": {"name": "x"}, "id": "a1", "type": "tool_call"},
            {"name": "add", "args": {"a": 1, "b": 2}, "id": "a2", "type": "tool_call"},
        ],
    )

    @wrap_tool_call
    def see(request, handler):
        r = handler(request)
        r.content = f"<{r.content}>"
        return r

    return Setup(model=Script(m, AIMessage("y")), tools=[look, add], middlewares=[see], turns=["a"])


@case()
def tool_exception() -> Setup:
    @tool
    def te(x: str) -> str:
        """T."""
        raise ToolException("there is nothing")

    te.handle_tool_error = True

    @before_model
    def n(state, runtime):
        return None

    return Setup(model=Script(call("te", x="x"), AIMessage("y")), tools=[te], middlewares=[n], turns=["a"])


@case()
def synthetic_tool_msg() -> Setup:
    @after_model
    def answer(state, runtime):
        last = state["messages"][-1]
        if last.tool_calls:
            return {
                "messages": [ToolMessage("synthetic", tool_call_id=c["id"], name=c["name"]) for c in last.tool_calls]
            }
        return None

    return Setup(model=Script(call("look", name="x"), AIMessage("y")), tools=[look], middlewares=[answer], turns=["a"])


@case()
def edit_calls() -> Setup:
    @after_model
    def edit(state, runtime):
        last = state["messages"][-1]
        if last.tool_calls:
            calls = [{**c, "args": {"name": "z"}} for c in last.tool_calls]
            return {"messages": [last.model_copy(update={"tool_calls": calls})]}
        return None

    return Setup(model=Script(call("look", name="x"), AIMessage("y")), tools=[look], middlewares=[edit], turns=["a"])


@case()
def edit_calls_inplace() -> Setup:
    @after_model
    def edit(state, runtime):
        for c in state["messages"][-1].tool_calls:
            c["args"] = {"name": "z"}

    return Setup(model=Script(call("look", name="x"), AIMessage("y")), tools=[look], middlewares=[edit], turns=["a"])


@case()
def wrap_tool_state_cmd() -> Setup:
    class S(AgentState):
        n: NotRequired[Annotated[int, operator.add]]

    class M(AgentMiddleware):
        state_schema = S

        def wrap_tool_call(self, request, handler):
            r = handler(request)
            return Command(update={"messages": [r], "n": 1})

        async def awrap_tool_call(self, request, handler):
            r = await handler(request)
            return Command(update={"messages": [r], "n": 1})

    m = AIMessage(
        "",
        tool_calls=[
            {"name": "look", "args": {"name": "x"}, "id": "a1", "type": "tool_call"},
            {"name": "look", "args": {"name": "y"}, "id": "a2", "type": "tool_call"},
        ],
    )
    return Setup(model=Script(m, AIMessage("y")), tools=[look], middlewares=[M()], turns=["a"])


@case()
def settings() -> Setup:
    @wrap_model_call
    def s(request, handler):
        return handler(request.override(tool_choice="any", model_settings={"temperature": 0.3, "max_tokens": 5}))

    return Setup(model=Script(call("look", name="x"), AIMessage("y")), tools=[look], middlewares=[s], turns=["a"])


@case()
def wrap_extended() -> Setup:
    class S(AgentState):
        n: NotRequired[Annotated[int, operator.add]]

    class M(AgentMiddleware):
        state_schema = S

        def wrap_model_call(self, request, handler):
            return ExtendedModelResponse(model_response=handler(request), command=Command(update={"n": 1}))

        async def awrap_model_call(self, request, handler):
            return ExtendedModelResponse(model_response=await handler(request), command=Command(update={"n": 1}))

    return Setup(model=Script(call("look", name="x"), AIMessage("y")), tools=[look], middlewares=[M()], turns=["a"])


@case()
def store_mem() -> Setup:
    store = InMemoryStore()

    @before_agent
    def remember(state, runtime):
        runtime.store.put(("u",), "k", {"v": state["messages"][-1].content})

    @dynamic_prompt
    def p(request):
        item = request.runtime.store.get(("u",), "k")
        return f"Knows {item.value['v']}"

    return Setup(model=Script(AIMessage("y"), AIMessage("z")), middlewares=[remember, p], turns=["a", "b"], store=store)


@case()
def trim_util() -> Setup:
    @before_model
    def t(state, runtime):
        kept = trim_messages(state["messages"], strategy="last", token_counter=len, max_tokens=3, start_on="human")
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *kept]}

    return Setup(
        model=Script(AIMessage("1"), call("look", name="x"), AIMessage("2"), AIMessage("3")),
        tools=[look],
        middlewares=[t],
        turns=["a", "b", "c"],
    )


@case()
def wrap_model_trim() -> Setup:
    @wrap_model_call
    def t(request, handler):
        return handler(request.override(messages=request.messages[-1:]))

    return Setup(model=Script(AIMessage("1"), AIMessage("2"), AIMessage("3")), middlewares=[t], turns=["a", "b", "c"])


@case()
def wrap_tool_shortcut() -> Setup:
    @wrap_tool_call
    def t(request, handler):
        return ToolMessage(content="cached", tool_call_id=request.tool_call["id"], name=request.tool_call["name"])

    return Setup(model=Script(call("look", name="x"), AIMessage("2")), tools=[look], middlewares=[t], turns=["a"])


@case("asked")
def wrap_tool_args() -> Setup:
    """What a wrap changes in place changes the call that is run, and not what the model said."""

    @wrap_tool_call
    def t(request, handler):
        request.tool_call["args"]["name"] = "q"
        return handler(request)

    return Setup(model=Script(call("look", name="x"), AIMessage("2")), tools=[look], middlewares=[t], turns=["a"])


@case()
def state_schema_arg() -> Setup:
    class S(AgentState):
        prefs: NotRequired[dict]

    @before_model
    def t(state, runtime):
        return {"prefs": {**state.get("prefs", {}), "seen": len(state["messages"])}}

    return Setup(
        model=Script(AIMessage("1"), AIMessage("2")),
        middlewares=[t],
        turns=["a", "b"],
        state_schema=S,
        slots={"prefs": {"lang": "en"}},
    )


class Pref(BaseModel):
    lang: str = "en"
    n: int = 0


class PS(AgentState):
    pref: NotRequired[Pref]


@case("values")
def pydantic_state() -> Setup:
    """A slot has the JSON form of a value."""
    S = PS

    class M(AgentMiddleware):
        state_schema = S

        def before_model(self, state, runtime):
            p = state.get("pref") or Pref()
            return {"pref": Pref(lang=p.lang, n=p.n + 1), "messages": [HumanMessage(f"n {p.n} {type(p).__name__}")]}

    return Setup(model=Script(AIMessage("1"), AIMessage("2")), middlewares=[M()], turns=["a", "b"])


@case()
def multi_blocks() -> Setup:
    h = HumanMessage(content=[{"type": "text", "text": "one"}, {"type": "text", "text": "two"}])

    @before_model
    def t(state, runtime):
        if len(state["messages"]) == 1:
            return {"messages": [h.model_copy()]}
        return None

    return Setup(model=Script(AIMessage("1"), AIMessage("2")), middlewares=[t], turns=["a", "b"])


@case()
def named_human() -> Setup:
    @before_model
    def t(state, runtime):
        if len(state["messages"]) == 1:
            return {"messages": [HumanMessage("hi", name="bob")]}
        return None

    return Setup(model=Script(AIMessage("1"), AIMessage("2")), middlewares=[t], turns=["a", "b"])


@case()
def file_block() -> Setup:
    @before_model
    def t(state, runtime):
        if len(state["messages"]) == 1:
            return {
                "messages": [
                    HumanMessage(
                        [
                            {"type": "text", "text": "see"},
                            {"type": "file", "base64": "JVBERg==", "mime_type": "application/pdf"},
                            {"type": "audio", "base64": "AAAA", "mime_type": "audio/wav"},
                        ]
                    )
                ]
            }
        return None

    return Setup(model=Script(AIMessage("1"), AIMessage("2")), middlewares=[t], turns=["a", "b"])


@case("asked")
def add_system_msg() -> Setup:
    """A system message among the others becomes part of the system text."""

    @before_model
    def t(state, runtime):
        if len(state["messages"]) == 1:
            return {"messages": [SystemMessage("mid")]}
        return None

    return Setup(model=Script(AIMessage("1"), AIMessage("2")), middlewares=[t], turns=["a", "b"], system="S")


@case()
def after_model_append_ai() -> Setup:
    @after_model
    def t(state, runtime):
        if not state["messages"][-1].tool_calls:
            return {"messages": [AIMessage("PS")]}
        return None

    return Setup(model=Script(AIMessage("1"), AIMessage("2")), middlewares=[t], turns=["a", "b"])


@case()
def before_agent_every_turn() -> Setup:
    n = []

    @before_agent
    def t(state, runtime):
        n.append(1)
        return {"messages": [HumanMessage(f"turn {len(n)}")]}

    return Setup(
        model=Script(call("look", name="x"), AIMessage("1"), AIMessage("2")),
        tools=[look],
        middlewares=[t],
        turns=["a", "b"],
    )


@case()
def summar() -> Setup:
    m = SummarizationMiddleware(
        model=Script(AIMessage("SUM"), AIMessage("SUM2")), trigger=("messages", 4), keep=("messages", 2)
    )
    return Setup(
        model=Script(AIMessage("1"), AIMessage("2"), AIMessage("3"), AIMessage("4")),
        middlewares=[m],
        turns=["a", "b", "c", "d"],
    )


@case()
def summar_tokens() -> Setup:
    m = SummarizationMiddleware(
        model=Script(AIMessage("SUM"), AIMessage("SUM2")), trigger=("tokens", 40), keep=("messages", 2)
    )

    def u(n: int) -> Any:
        return {"input_tokens": n, "output_tokens": 2, "total_tokens": n + 2}

    return Setup(
        model=Script(
            *[
                AIMessage(str(n), usage_metadata=u(50 * n), response_metadata={"model_provider": "x"})
                for n in range(1, 5)
            ]
        ),
        middlewares=[m],
        turns=["a", "b", "c", "d"],
    )


@case()
def pii() -> Setup:
    return Setup(
        model=Script(call("look", name="ann@x.org"), AIMessage("mail bob@x.org"), AIMessage("z")),
        tools=[look],
        middlewares=[PIIMiddleware("email", apply_to_output=True, apply_to_tool_results=True)],
        turns=["I am eve@x.org", "b"],
    )


@case()
def pii_block() -> Setup:
    return Setup(
        model=Script(AIMessage("z")),
        tools=[look],
        middlewares=[PIIMiddleware("email", strategy="block")],
        turns=["I am eve@x.org"],
    )


@case()
def call_limit() -> Setup:
    return Setup(
        model=Script(call("look", name="x"), call("look", name="y"), AIMessage("z")),
        tools=[look],
        middlewares=[ModelCallLimitMiddleware(run_limit=1)],
        turns=["a", "b"],
    )


@case()
def tool_limit() -> Setup:
    return Setup(
        model=Script(call("look", name="x"), call("look", name="y"), AIMessage("z")),
        tools=[look],
        middlewares=[ToolCallLimitMiddleware(run_limit=1)],
        turns=["a"],
    )


@case()
def tool_limit_end() -> Setup:
    return Setup(
        model=Script(call("look", name="x"), call("look", name="y"), AIMessage("z")),
        tools=[look],
        middlewares=[ToolCallLimitMiddleware(run_limit=1, exit_behavior="end")],
        turns=["a", "b"],
    )


@case()
def tool_limit_error() -> Setup:
    return Setup(
        model=Script(call("look", name="x"), call("look", name="y"), AIMessage("z")),
        tools=[look],
        middlewares=[ToolCallLimitMiddleware(run_limit=1, exit_behavior="error")],
        turns=["a"],
    )


@case()
def fallback() -> Setup:
    f = Script(AIMessage("from fallback"), label="other")
    return Setup(model=Script(RuntimeError("down")), others=[f], middlewares=[ModelFallbackMiddleware(f)], turns=["a"])


@case()
def model_retry() -> Setup:
    return Setup(
        model=Script(RuntimeError("down"), AIMessage("ok")),
        middlewares=[ModelRetryMiddleware(max_retries=2, initial_delay=0)],
        turns=["a"],
    )


@case()
def tool_retry() -> Setup:
    n = []

    @tool
    def flaky(x: str) -> str:
        """F."""
        n.append(1)
        if len(n) < 3:
            raise ValueError("not yet")
        return "fine"

    return Setup(
        model=Script(call("flaky", x="1"), AIMessage("ok")),
        tools=[flaky],
        middlewares=[ToolRetryMiddleware(max_retries=3, initial_delay=0)],
        turns=["a"],
    )


@case()
def tool_retry_fail() -> Setup:
    @tool
    def flaky(x: str) -> str:
        """F."""
        raise ValueError("not yet")

    return Setup(
        model=Script(call("flaky", x="1"), AIMessage("ok")),
        tools=[flaky],
        middlewares=[ToolRetryMiddleware(max_retries=1, initial_delay=0)],
        turns=["a"],
    )


@case()
def context_editing() -> Setup:
    return Setup(
        model=Script(*[call("look", name=str(n) * 400) for n in range(4)], AIMessage("ok")),
        tools=[look],
        middlewares=[ContextEditingMiddleware(edits=[ClearToolUsesEdit(trigger=300, keep=1)])],
        turns=["a"],
    )


@case("asked")
def todo() -> Setup:
    """Blocks of a system text become one text."""
    return Setup(
        model=Script(call("write_todos", todos=[{"content": "dig", "status": "pending"}]), AIMessage("ok")),
        middlewares=[TodoListMiddleware()],
        turns=["a"],
        system="S",
    )


@case()
def emulator() -> Setup:
    return Setup(
        model=Script(call("look", name="x"), AIMessage("ok")),
        tools=[look],
        middlewares=[LLMToolEmulator(model=Script(AIMessage("emulated")))],
        turns=["a"],
    )


@case()
def tool_error_mw() -> Setup:
    @tool
    def flaky(x: str) -> str:
        """F."""
        raise ValueError("not yet")

    return Setup(
        model=Script(call("flaky", x="1"), AIMessage("ok")),
        tools=[flaky],
        middlewares=[ToolErrorMiddleware(lambda e, r: "oops")],
        turns=["a"],
    )


@case()
def mixed_results() -> Setup:
    @after_model
    def m(state, runtime):
        last = state["messages"][-1]
        if last.tool_calls:
            return {"messages": [ToolMessage("given", tool_call_id=last.tool_calls[0]["id"], name="look")]}
        return None

    return Setup([m], Script(two_calls(), AIMessage("ok")), tools=[look])


@case()
def reply_without_calls() -> Setup:
    @after_model
    def m(state, runtime):
        last = state["messages"][-1]
        if last.tool_calls:
            return {"messages": [AIMessage("no tools today", id=last.id)]}
        return None

    return Setup([m], Script(two_calls(), AIMessage("next")), tools=[look], turns=["a", "b"])


@case()
def command_from_node() -> Setup:
    class S(AgentState):
        n: NotRequired[int]

    class M(AgentMiddleware):
        state_schema = S

        def before_model(self, state, runtime):
            return Command(update={"n": 3, "messages": [HumanMessage("cmd")]})

    return Setup([M()], Script(AIMessage("ok")))


@case()
def twice() -> Setup:
    @wrap_model_call
    async def m(request, handler):
        await handler(request)
        return await handler(request)

    return Setup([m], Script(AIMessage("one"), AIMessage("two"), AIMessage("3"), AIMessage("4")), turns=["a", "b"])


@case()
def tuple_and_str() -> Setup:
    @before_model
    def m(state, runtime):
        if len(state["messages"]) == 1:
            return {"messages": [("user", "tuple"), {"role": "assistant", "content": "dict"}, "string"]}
        return None

    return Setup([m], Script(AIMessage("ok"), AIMessage("b")), turns=["a", "b"])


@case()
def single_message() -> Setup:
    @before_model
    def m(state, runtime):
        if len(state["messages"]) == 1:
            return {"messages": HumanMessage("one")}
        return None

    return Setup([m], Script(AIMessage("ok")))


@case()
def async_all() -> Setup:
    class S(AgentState):
        log: Annotated[list[str], operator.add]

    class M(AgentMiddleware):
        state_schema = S

        async def abefore_agent(self, state, runtime):
            return {"log": ["ba"]}

        async def abefore_model(self, state, runtime):
            return {"log": ["bm"]}

        async def aafter_model(self, state, runtime):
            return {"log": ["am"]}

        async def aafter_agent(self, state, runtime):
            return {"log": ["aa"]}

        async def awrap_model_call(self, request, handler):
            return await handler(request)

        async def awrap_tool_call(self, request, handler):
            return await handler(request)

    return Setup([M()], Script(two_calls(), AIMessage("ok")), tools=[look])


@case()
def before_agent_jump_model() -> Setup:
    class S(AgentState):
        log: Annotated[list[str], operator.add]

    class M(AgentMiddleware):
        state_schema = S

        @hook_config(can_jump_to=["model"])
        def before_agent(self, state, runtime):
            return {"jump_to": "model", "log": ["1"]}

    class N(AgentMiddleware):
        state_schema = S

        def before_agent(self, state, runtime):
            return {"log": ["2"]}

        def before_model(self, state, runtime):
            return {"log": ["bm"]}

    return Setup([M(), N()], Script(AIMessage("ok")))


@case()
def before_model_jump_tools() -> Setup:
    @before_model(can_jump_to=["tools"])
    def m(state, runtime):
        if len(state["messages"]) == 1:
            return {"jump_to": "tools", "messages": [call("look", name="q")]}
        return None

    return Setup([m], Script(AIMessage("ok"), AIMessage("two")), tools=[look], turns=["a", "b"])


@case()
def after_model_two_jumps() -> Setup:
    class S(AgentState):
        log: Annotated[list[str], operator.add]

    class M(AgentMiddleware):
        state_schema = S

        @hook_config(can_jump_to=["end"])
        def after_model(self, state, runtime):
            return {"log": ["first in list"]}

    class N(AgentMiddleware):
        state_schema = S

        @hook_config(can_jump_to=["end"])
        def after_model(self, state, runtime):
            return {"jump_to": "end", "log": ["jumps"]}

        def after_agent(self, state, runtime):
            return {"log": ["after agent"]}

    return Setup([M(), N()], Script(AIMessage("ok")), tools=[look])


@case()
def remove_pair() -> Setup:
    @before_model
    def m(state, runtime):
        tools = [x for x in state["messages"] if x.type == "tool"]
        if len(tools) > 1:
            first = tools[0]
            ai = next(x for x in state["messages"] if x.type == "ai" and x.tool_calls)
            return {"messages": [RemoveMessage(id=first.id), RemoveMessage(id=ai.id)]}
        return None

    return Setup(
        [m],
        Script(call("look", name="1"), call("look", name="2"), call("look", name="3"), AIMessage("ok"), AIMessage("b")),
        tools=[look],
        turns=["a", "b"],
    )


@case()
def edit_tool_result() -> Setup:
    @before_model
    def m(state, runtime):
        out = [
            ToolMessage(x.content + "!", tool_call_id=x.tool_call_id, id=x.id, name=x.name)
            for x in state["messages"]
            if x.type == "tool" and not x.content.endswith("!")
        ]
        return {"messages": out} if out else None

    return Setup(
        [m],
        Script(two_calls(), call("look", name="z"), AIMessage("ok"), AIMessage("b")),
        tools=[look],
        turns=["a", "b"],
    )


@case()
def wrap_drops_tool_messages() -> Setup:
    @wrap_model_call
    async def m(request, handler):
        return await handler(
            request.override(
                messages=[x for x in request.messages if x.type != "tool" and not getattr(x, "tool_calls", None)]
            )
        )

    return Setup([m], Script(two_calls(), AIMessage("ok")), tools=[look])


@case()
def wrap_returns_two_calls() -> Setup:
    @wrap_model_call
    async def m(request, handler):
        r = await handler(request)
        return ModelResponse(result=[*r.result, HumanMessage("also")])

    return Setup([m], Script(AIMessage("ok"), AIMessage("b")), turns=["a", "b"])


@case()
def two_summaries() -> Setup:
    return Setup(
        [
            SummarizationMiddleware(
                Script(*[AIMessage(f"S{i}") for i in range(5)]), trigger=("messages", 5), keep=("messages", 2)
            )
        ],
        Script(*[x for i in range(5) for x in (call("look", name=str(i)), AIMessage(f"r{i}"))]),
        tools=[look],
        turns=list("abcde"),
    )


@case()
def limits_and_pii() -> Setup:
    return Setup(
        [
            PIIMiddleware("email", apply_to_output=True),
            PIIMiddleware("ip", strategy="mask", apply_to_tool_results=True),
            ToolCallLimitMiddleware(thread_limit=2),
            ModelCallLimitMiddleware(thread_limit=4),
            SummarizationMiddleware(
                Script(*[AIMessage(f"S{i}") for i in range(5)]), trigger=("messages", 6), keep=("messages", 3)
            ),
        ],
        Script(
            two_calls(), AIMessage("mail a@b.org"), call("look", name="1.2.3.4"), AIMessage("ok"), AIMessage("never")
        ),
        tools=[look],
        turns=["I am 10.0.0.1 c@d.org", "b", "c"],
    )


@case()
def human_edit_first() -> Setup:
    @before_agent
    def m(state, runtime):
        first = state["messages"][0]
        return {"messages": [HumanMessage("rewritten", id=first.id)]}

    return Setup([m], Script(two_calls(), AIMessage("ok"), AIMessage("b")), tools=[look], turns=["a", "b"])


@case()
def dyn_tool_override_tool() -> Setup:
    @tool
    def better(name: str) -> str:
        """Better."""
        return f"better {name}"

    @wrap_tool_call
    async def m(request, handler):
        return await handler(request.override(tool=better))

    return Setup([m], Script(call("look", name="x"), AIMessage("ok")), tools=[look, better])


@case("texts", "failed")
def error_in_after_agent() -> Setup:
    """The turn is over by then: it is not failed, but its text is withheld."""

    @after_agent
    def m(state, runtime):
        raise ValueError("x")

    return Setup([m], Script(AIMessage("ok")))


@case()
def empty_tools_model() -> Setup:
    @wrap_model_call
    async def m(request, handler):
        return await handler(request.override(tools=[]))

    return Setup([m], Script(AIMessage("ok")), tools=[look])


@pytest.mark.parametrize("name", CASES)
async def test_both_sides_do_the_same(name: str) -> None:
    case, differs = CASES[name]
    there, ours = await in_langchain(case), await here(case)
    for field in Side._fields:
        if field in differs:
            assert getattr(there, field) != getattr(ours, field), f"{field} is the same now: say so"
        else:
            assert getattr(ours, field) == getattr(there, field)


def rewrites(seed: int) -> Setup:
    """Two middlewares that add, change, remove and replace messages at random, in place or not, over eight turns."""
    dice = random.Random(seed)

    def rewrite(state: Any, *, before: bool) -> Any:
        messages = state["messages"]
        people = [one for one in messages if one.type == "human"]
        results = [one for one in messages if one.type == "tool"]
        match dice.randrange(7):
            case 0:
                return {"messages": [HumanMessage(f"added {dice.randrange(100)}")]}
            case 1 if people:
                chosen = dice.choice(people)
                return {"messages": [HumanMessage(f"{chosen.content}*", id=chosen.id)]}
            case 2 if len(people) > 1:
                return {"messages": [RemoveMessage(id=dice.choice(people[:-1]).id)]}
            case 3 if before and messages[-1].type == "human":
                return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *people[-3:]]}
            case 4 if results:
                chosen = dice.choice(results)
                return {"messages": [ToolMessage(f"{chosen.content}~", id=chosen.id, tool_call_id=chosen.tool_call_id)]}
            case 5 if people and before:
                dice.choice(people).content += "#"
        return None

    class First(AgentMiddleware):
        def before_model(self, state: Any, runtime: Any) -> Any:
            return rewrite(state, before=True)

        def after_model(self, state: Any, runtime: Any) -> Any:
            return None if state["messages"][-1].tool_calls else rewrite(state, before=False)

    class Second(AgentMiddleware):
        def before_model(self, state: Any, runtime: Any) -> Any:
            return rewrite(state, before=True)

    replies: list[AIMessage | Exception] = []
    for number in range(12):
        replies += [call("look", name=f"{number}")] if dice.random() < 0.5 else []
        replies.append(AIMessage(f"reply {number}"))
    return Setup([First(), Second()], Script(*replies), tools=[look], turns=[f"turn {number}" for number in range(8)])


@pytest.mark.parametrize("seed", range(12))
async def test_messages_rewritten_at_random_are_the_same_on_both_sides(seed: int) -> None:
    assert await here(lambda: rewrites(seed)) == await in_langchain(lambda: rewrites(seed))
