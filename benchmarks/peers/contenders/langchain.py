"""LangChain: `create_agent` with middlewares, on LangGraph."""

from __future__ import annotations

import os

os.environ["LANGSMITH_TRACING"] = "false"

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from contender import DELTA, DELTAS, ENDLESS, Contender, Turn, Variant, hooked, script
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from work import work


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return work.add(a, b)


class Fake(BaseChatModel):
    @property
    def _llm_type(self) -> str:
        return "fake"

    def bind_tools(self, tools: Any, **options: Any) -> Any:
        return self

    def _generate(self, *args: Any, **options: Any) -> Any:
        raise NotImplementedError

    async def _agenerate(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> ChatResult:
        if work.delay:
            await asyncio.sleep(work.delay)
        message = AIMessage(content="done")
        if number := script.call_due(len(messages)):
            call = {"name": "add", "args": {"a": number, "b": 1}, "id": f"c{number}"}
            message = AIMessage(content="", tool_calls=[call])
        return ChatResult(generations=[ChatGeneration(message=message)])


class Streaming(Fake):
    async def _astream(self, messages: Any, stop: Any = None, run_manager: Any = None, **options: Any) -> Any:
        for _ in range(DELTAS):
            yield ChatGenerationChunk(message=AIMessageChunk(content=DELTA))


class WrapOnly(AgentMiddleware):
    def __init__(self, number: int) -> None:
        super().__init__()
        self._number = number

    @property
    def name(self) -> str:
        return f"no_op{self._number}"

    async def awrap_model_call(self, request: Any, handler: Any) -> Any:
        hooked()
        return await handler(request)

    async def awrap_tool_call(self, request: Any, handler: Any) -> Any:
        hooked()
        return await handler(request)


class NoOp(WrapOnly):
    async def abefore_model(self, state: Any, runtime: Any) -> None:
        hooked()

    async def aafter_model(self, state: Any, runtime: Any) -> None:
        hooked()


CONFIG = {"recursion_limit": ENDLESS}
INPUT = {"messages": [{"role": "user", "content": "go"}]}


class LangChain(Contender):
    name = "LangChain"
    distribution = "langchain"
    statement = "from langchain.agents import create_agent"
    hook_points = "`abefore_model` and `aafter_model` (nodes of the graph), `awrap_model_call`, `awrap_tool_call`"
    streams = ("`astream`, mode `messages`", "`astream_events` v3", "`astream_events` v3, 1 transformer")
    stores = ("`AsyncSqliteSaver` (default)", "`AsyncSqliteSaver`, sync", "`AsyncSqliteSaver`, exit")

    def __init__(self) -> None:
        wraps = Variant(lambda: self.make(hooks=5, hook=WrapOnly), lambda steps: 5 * (2 * steps - 1))
        self.variants = {"5 middlewares that only wrap": wraps}

    def make(self, hooks: int = 0, hook: type[WrapOnly] = NoOp, model: Any = None, **options: Any) -> Any:
        return create_agent(model or Fake(), [add], middleware=[hook(number) for number in range(hooks)], **options)

    def hook_calls(self, steps: int) -> int:
        return 4 * steps - 1

    async def turn(self, agent: Any) -> str:
        return (await agent.ainvoke(INPUT, CONFIG))["messages"][-1].content

    async def stream(self, variant: str) -> AsyncGenerator[str, None]:
        options = {"transformers": [self._transformer()]} if "transformer" in variant else {}
        agent = self.make(model=Streaming(), **options)
        if "messages" in variant:
            async for message, _ in agent.astream(INPUT, CONFIG, stream_mode="messages"):
                if message.content:
                    yield message.content
            return
        async for event in await agent.astream_events(INPUT, CONFIG, version="v3"):
            if event["method"] == "messages":
                data = event["params"]["data"]
                data = data[0] if isinstance(data, tuple | list) else data
                if data.get("event") == "content-block-delta":
                    yield data["delta"].get("text", "")

    @staticmethod
    def _transformer() -> Any:
        from langgraph.stream import StreamTransformer

        class PassOn(StreamTransformer):
            def init(self) -> dict[str, Any]:
                return {}

            async def aprocess(self, event: Any) -> bool:
                hooked()
                return True

        return PassOn

    @asynccontextmanager
    async def kept(self, variant: str, folder: str) -> AsyncIterator[Turn]:
        from langgraph.checkpoint.sqlite.aio import AsyncSqliteSaver

        durability = variant.rpartition(", ")[2] if ", " in variant else "async"
        async with AsyncSqliteSaver.from_conn_string(os.path.join(folder, "s.db")) as saver:
            await saver.setup()
            agent = self.make(checkpointer=saver)

            async def turn() -> str:
                config = {**CONFIG, "configurable": {"thread_id": "s"}}
                return (await agent.ainvoke(INPUT, config, durability=durability))["messages"][-1].content

            yield turn


CONTENDER = LangChain()
