"""The same middlewares in LangChain's `create_agent` and in our agent, with the same scripted chat model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from langchain.agents import create_agent
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.checkpoint.memory import InMemorySaver

from windlass import Agent, Failed
from windlass.compat.langchain import LangChainModel, Middlewares, langchain_tools
from windlass.errors import ConfigError


class Script(BaseChatModel):
    """A chat model that follows a script and keeps what it is asked: messages, tools and options."""

    label: str
    replies: list[Any]
    asked: list[Asked]

    def __init__(self, *replies: AIMessage | Exception, label: str = "model") -> None:
        given: dict[str, Any] = {"label": label, "replies": list(replies), "asked": []}
        super().__init__(**given)

    @property
    def _llm_type(self) -> str:
        return "script"

    def bind_tools(self, tools: Any, *, tool_choice: Any = None, **options: Any) -> Any:
        chosen = {} if tool_choice is None else {"tool_choice": tool_choice}
        return self.bind(tools=[convert_to_openai_tool(one) for one in tools], **chosen, **options)

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        tools = sorted(one["function"]["name"] for one in options.pop("tools", ()))
        self.asked.append(Asked(self.label, plain(messages), tools, options))
        if not self.replies:
            raise RuntimeError("the script is over")
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return ChatResult(generations=[ChatGeneration(message=reply.model_copy(deep=True))])


class Asked(NamedTuple):
    model: str
    messages: list[Any]
    tools: list[str]
    options: dict[str, Any]


Script.model_rebuild()


def plain(messages: Sequence[BaseMessage]) -> list[Any]:
    """Messages as they are compared: calls by their number, since each side has ids of its own."""
    numbers: dict[str, int] = {}
    found = []
    for message in messages:
        entry: dict[str, Any] = {"type": message.type, "content": message.content}
        if isinstance(message, AIMessage) and message.tool_calls:
            for call in message.tool_calls:
                numbers.setdefault(str(call["id"]), len(numbers) + 1)
            entry["calls"] = [(numbers[str(call["id"])], call["name"], call["args"]) for call in message.tool_calls]
        if isinstance(message, ToolMessage):
            entry |= {"of": numbers.get(message.tool_call_id), "status": message.status}
        elif message.name:
            entry["name"] = message.name
        found.append(entry)
    return found


class Setup(NamedTuple):
    """What both sides get. Each side makes its own with the function of the case."""

    middlewares: Sequence[Any]
    model: Script
    tools: Sequence[Any] = ()
    turns: Sequence[str] = ("go",)
    system: str | None = None
    others: Sequence[Script] = ()
    context: Any = None
    store: Any = None
    state_schema: Any = None
    slots: Mapping[str, Any] = {}


class Side(NamedTuple):
    asked: list[Asked]
    texts: list[str]
    values: dict[str, Any]
    failed: bool = False


async def in_langchain(case: Callable[[], Setup], *, plain_calls: bool = False) -> Side:
    """Run a case in LangChain. Middlewares that have only plain wraps can only be called without a loop."""
    made = case()
    agent: Any = create_agent(
        made.model,
        list(made.tools),
        system_prompt=made.system,
        middleware=made.middlewares,
        checkpointer=InMemorySaver(),
        store=made.store,
        context_schema=type(made.context) if made.context is not None else None,
        state_schema=made.state_schema,
    )
    texts: list[str] = []
    values: dict[str, Any] = {}
    for turn in made.turns:
        given = {"messages": [("user", turn)], **made.slots}
        options: dict[str, Any] = {"config": {"configurable": {"thread_id": "s"}}, "context": made.context}
        try:
            if plain_calls:
                result = await asyncio.to_thread(agent.invoke, given, **options)
            else:
                result = await agent.ainvoke(given, **options)
        except NotImplementedError:
            assert not plain_calls
            return await in_langchain(case, plain_calls=True)
        except Exception:
            return Side(_asked(made), texts, values, failed=True)
        last = next((one for one in reversed(result["messages"]) if one.type != "human"), None)
        texts.append(str(last.text) if last is not None else "")
        values = {name: value for name, value in result.items() if name not in ("messages", "structured_response")}
    return Side(_asked(made), texts, values)


async def here(case: Callable[[], Setup]) -> Side:
    """Run a case in our agent."""
    made = case()
    own = [tool for tool in made.tools if _needs_langgraph(tool)]
    capability = Middlewares(
        *made.middlewares, tools=own, state_schema=made.state_schema, store=made.store, effect="pure"
    )
    agent: Agent[Any, Any] = Agent(
        LangChainModel(made.model),
        tools=langchain_tools([tool for tool in made.tools if tool not in own], effect="pure"),
        system=made.system or "",
        capabilities=[capability],
    )
    texts: list[str] = []
    values: dict[str, Any] = {}
    for turn in made.turns:
        slots = dict(made.slots) if made.slots else None
        result = await agent.run(turn, session="s", scope=made.context, slots=slots)
        if isinstance(result.outcome, Failed):
            return Side(_asked(made), texts, values, failed=True)
        texts.append(result.text)
        values = {name: value for name, value in result.slots.items() if value is not None}
    return Side(_asked(made), texts, values)


def _needs_langgraph(tool: Any) -> bool:
    try:
        langchain_tools([tool])
    except ConfigError:
        return True
    return False


def _asked(made: Setup) -> list[Asked]:
    return [one for model in (made.model, *made.others) for one in model.asked]
