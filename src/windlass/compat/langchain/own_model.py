"""The agent's own model as a chat model of LangChain, for middlewares that ask a model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple, TypeVar

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable, RunnableLambda
from langgraph.runtime import Runtime
from pydantic import BaseModel

from windlass.compat.conversations import read_conversation
from windlass.errors import ConfigError, HookError
from windlass.messages import ModelReply
from windlass.turns import Turn

from .runtimes import configured

T = TypeVar("T")


class Work(NamedTuple):
    """The turn and the loop on which a middleware works."""

    turn: Turn[Any]
    loop: asyncio.AbstractEventLoop
    name: str


_work: ContextVar[Work | None] = ContextVar("langchain_middleware", default=None)


@contextmanager
def working(
    turn: Turn[Any], loop: asyncio.AbstractEventLoop, name: str, runtime: Runtime[Any]
) -> Generator[None, None, None]:
    """Within this, chat models of the agent ask through the turn, and LangGraph's functions find the runtime."""
    token = _work.set(Work(turn, loop, name))
    try:
        with configured(turn, runtime):
            yield
    finally:
        _work.reset(token)


class AgentModel(BaseChatModel):
    """A model of the agent as a chat model."""

    model: str = ""

    def __init__(self, model: str = "", **options: Any) -> None:
        given: dict[str, Any] = {"model": model, **options}
        super().__init__(**given)

    @property
    def _llm_type(self) -> str:
        return "windlass"

    def _generate(self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any) -> ChatResult:
        return _from_thread(self._ask(messages, stop))

    async def _agenerate(
        self, messages: list[BaseMessage], stop: Any = None, run_manager: Any = None, **_: Any
    ) -> ChatResult:
        return await self._ask(messages, stop)

    async def _ask(self, messages: Sequence[BaseMessage], stop: Any) -> ChatResult:
        reply = await self._reply(messages, **({"stop": list(stop)} if stop else {}))
        used = {
            "input_tokens": reply.usage.input,
            "output_tokens": reply.usage.output,
            "total_tokens": reply.usage.input + reply.usage.output,
        }
        return ChatResult(generations=[ChatGeneration(message=AIMessage(reply.text, usage_metadata=used))])

    async def _reply(self, messages: Any, **options: Any) -> ModelReply:
        turn = _at_work().turn
        read = read_conversation("langchain", list(messages))
        reply: ModelReply = await turn.ask(self.model or turn.model, read.messages, system=read.system, **options)
        return reply

    def with_structured_output(self, schema: Any, *, include_raw: bool = False, **_: Any) -> Runnable[Any, Any]:
        """Ask for an answer that fits a schema: a JSON schema, or a class of pydantic."""
        kind = schema if isinstance(schema, type) and issubclass(schema, BaseModel) else None
        given = kind.model_json_schema() if kind is not None else schema
        if not isinstance(given, dict):
            raise ConfigError("agent_model().with_structured_output takes a JSON schema or a class of pydantic")

        async def ask(messages: Any) -> Any:
            reply = await self._reply(self._convert_input(messages).to_messages(), output=given)
            problem = answer = None
            try:
                answer = json.loads(reply.text) if kind is None else kind.model_validate_json(reply.text)
            except ValueError as error:
                if not include_raw:
                    raise
                problem = error
            if include_raw:
                return {"raw": AIMessage(reply.text), "parsed": answer, "parsing_error": problem}
            return answer

        def ask_from_thread(messages: Any) -> Any:
            return _from_thread(ask(messages))

        return RunnableLambda(ask_from_thread, afunc=ask)

    def bind_tools(self, tools: Any, **_: Any) -> Any:
        """Refuse: tools belong to the agent."""
        raise ConfigError("agent_model() cannot be given tools: give them to the agent, or ask another chat model")


def agent_model(model: str = "") -> BaseChatModel:
    """The agent's own model as a chat model, for middlewares: `SummarizationMiddleware(agent_model(), …)`.

    It asks with `turn.ask`: the call is recorded and charged, guards look at it, and a resumed turn reads it from the
    log. `model` is the name of one of the agent's models; by default it is that of the turn. It works inside a
    middleware of `Middlewares` only.
    """
    return AgentModel(model)


def _at_work() -> Work:
    work = _work.get()
    if work is None:
        raise ConfigError("agent_model() works only inside a middleware of Middlewares(…), while its turn runs")
    return work


def _from_thread(asking: Coroutine[Any, Any, T]) -> T:
    """Run on the loop of the turn what a plain middleware asks in its thread."""
    try:
        work = _at_work()
        if _running_loop() is work.loop:
            raise HookError(
                f"{work.name} calls agent_model() without await on the event loop, which would block it; use `ainvoke`",
                hook=work.name,
            )
    except BaseException:
        asking.close()
        raise
    return asyncio.run_coroutine_threadsafe(asking, work.loop).result()


def _running_loop() -> asyncio.AbstractEventLoop | None:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def in_thread(fn: Callable[..., T], *given: Any) -> Coroutine[Any, Any, T]:
    """Run a plain method of a middleware in a thread."""
    return asyncio.to_thread(fn, *given)
