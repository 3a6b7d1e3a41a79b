"""`wrap_model_call` as a wrap of the model call: requests and replies in LangChain's words, and back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from langchain.agents.middleware.types import ExtendedModelResponse, ModelRequest, ModelResponse
from langchain.agents.structured_output import AutoStrategy, ProviderStrategy, ToolStrategy
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, SystemMessage, convert_to_messages
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from msgspec.structs import replace
from pydantic import TypeAdapter

from windlass import messages as ours
from windlass.errors import HookError
from windlass.messages import ModelReply, ToolSpec, as_reply
from windlass.turns import Turn

from .models import LangChainModel
from .own_model import AgentModel, working
from .runs import Memory, Run, update_of
from .transcripts import Transcript, reply_of_message, reply_with_ids

OVERRIDE = "langchain:override"
"""The name of the model that stands for a chat model which a middleware made while it ran."""

_CHOICES = {"required": "any"}
_OUR_CHOICES = {"any": "required"}
_override: ContextVar[BaseChatModel | None] = ContextVar("langchain_override", default=None)
loop_at_work: ContextVar[asyncio.AbstractEventLoop | None] = ContextVar("langchain_loop", default=None)


class OverrideModel:
    """The chat model that a middleware put into its request, if the agent did not know it before."""

    name = OVERRIDE

    async def reply(self, request: ours.ModelRequest) -> Any:
        """Ask the chat model."""
        return await self._model().reply(request)

    async def stream(self, request: ours.ModelRequest) -> AsyncGenerator[Any, None]:
        """Ask the chat model, piece by piece."""
        async for piece in self._model().stream(request):
            yield piece

    def _model(self) -> LangChainModel:
        chat = _override.get()
        if chat is None:
            raise HookError(f"model {OVERRIDE!r} is only there while a middleware overrides the model", hook=OVERRIDE)
        return LangChainModel(chat)


@contextmanager
def _overridden(chat: BaseChatModel | None) -> Any:
    token = _override.set(chat)
    try:
        yield
    finally:
        _override.reset(token)


class Tools:
    """The tools of a request as tools of LangChain, and back."""

    def __init__(self, known: Mapping[str, BaseTool]) -> None:
        self._known = dict(known)
        self._made: dict[str, tuple[Any, BaseTool]] = {}

    def of(self, spec: ToolSpec) -> BaseTool:
        """The tool of LangChain for one that a request names."""
        if (known := self._known.get(spec.name)) is not None:
            return known
        made = self._made.get(spec.name)
        if made is None or made[0] is not spec:
            schema = {"type": "object", "properties": {}, **spec.schema}
            described = StructuredTool(
                name=spec.name, description=spec.description or spec.name, args_schema=schema, func=_refuse(spec.name)
            )
            made = self._made[spec.name] = (spec, described)
        return made[1]

    def back(self, tools: Any, specs: tuple[ToolSpec, ...], name: str) -> tuple[ToolSpec, ...]:
        """The tools that a middleware left or added."""
        by_name = {spec.name: spec for spec in specs}
        found = [self._spec(tool, by_name, name) for tool in tools]
        return specs if len(found) == len(specs) and all(map(_same, found, specs)) else tuple(found)

    def _spec(self, tool: Any, by_name: Mapping[str, ToolSpec], name: str) -> ToolSpec:
        spec = by_name.get(getattr(tool, "name", ""))
        if spec is not None and self.of(spec) is tool:
            return spec
        if isinstance(tool, dict) and tool.get("type", "function") != "function":
            raise HookError(
                f"{name} added the tool {tool.get('name') or tool['type']!r} that a vendor runs itself; give it to the "
                "agent's model instead",
                hook=name,
            )
        described = convert_to_openai_tool(tool)["function"]
        schema = {"type": "object", "properties": {}, **described.get("parameters", {})}
        made = ToolSpec(described["name"], described.get("description", ""), schema)
        return spec if spec == made and spec is not None else made


def _same(one: Any, other: Any) -> bool:
    return one is other


def _refuse(name: str) -> Callable[..., Any]:
    def run(**_: Any) -> Any:
        raise HookError(f"tool {name!r} of the agent is run by `handler` only, which asks the gates", hook=name)

    return run


class ModelWraps:
    """What the wraps of all middlewares share. `models` are those of the agent, once it is compiled."""

    def __init__(self, memory: Memory, tools: Tools, chats: Mapping[int, str]) -> None:
        self.memory = memory
        self.tools = tools
        self.models: Mapping[str, Any] = {}
        self._chats = dict(chats)

    def wrap_of(self, middleware: Any, *, is_async: bool) -> Callable[..., Any]:
        """The wrap that runs a middleware: an async one, or one that runs in a thread."""
        name = f"{middleware.name}.wrap_model_call"

        async def wrap(request: Any, call_next: Any, turn: Turn[Any]) -> Any:
            call = _Call(self, request, turn, name)

            async def handler(changed: ModelRequest[Any]) -> ModelResponse[Any]:
                sent, chat = call.back(changed)
                with _overridden(chat):
                    return call.response(await call_next(sent))

            with working(turn, asyncio.get_running_loop(), name, call.given.runtime):
                return call.reply(await middleware.awrap_model_call(call.given, handler))

        def wrap_in_thread(request: Any, call_next: Any, turn: Turn[Any]) -> Any:
            call = _Call(self, request, turn, name)

            def handler(changed: ModelRequest[Any]) -> ModelResponse[Any]:
                sent, chat = call.back(changed)
                with _overridden(chat):
                    return call.response(call_next(sent))

            loop = loop_at_work.get()
            assert loop is not None
            with working(turn, loop, name, call.given.runtime):
                return call.reply(middleware.wrap_model_call(call.given, handler))

        return wrap if is_async else wrap_in_thread

    def chat_of(self, name: str) -> BaseChatModel:
        """A model of the agent as a chat model."""
        model = self.models.get(name)
        return model.chat if isinstance(model, LangChainModel) else AgentModel(name)

    def model_of(self, chat: Any, before: BaseChatModel, request: ours.ModelRequest) -> tuple[str, Any]:
        """The name of the model to ask, and the chat model itself if the agent does not know it."""
        if chat is before:
            return request.model, None
        if isinstance(chat, AgentModel):
            return chat.model or request.model, None
        for name, model in self.models.items():
            if isinstance(model, LangChainModel) and model.chat is chat:
                return name, None
        if (known := self._chats.get(id(chat))) is not None:
            return known, None
        return OVERRIDE, chat


class _Call:
    """One call of a middleware's wrap."""

    def __init__(self, wraps: ModelWraps, request: ours.ModelRequest, turn: Turn[Any], name: str) -> None:
        self._wraps = wraps
        self._request = request
        self._turn = turn
        self._name = name
        self._run = Run(wraps.memory, turn)
        self._sent = Transcript.of(request.messages)
        self._replies: list[tuple[AIMessage, AIMessage, ModelReply]] = []
        settings = dict(request.settings)
        choice = settings.pop("tool_choice", None)
        self._format: Any = ProviderStrategy(schema=dict(request.output)) if request.output is not None else None
        self.given: ModelRequest[Any] = ModelRequest(
            model=wraps.chat_of(request.model),
            messages=self._sent.seen(self._run.view.__class__()),  # type: ignore[arg-type]
            system_message=SystemMessage(request.system) if request.system else None,
            tool_choice=_CHOICES.get(choice, choice) if isinstance(choice, str) else choice,
            tools=[wraps.tools.of(spec) for spec in request.tools],
            response_format=self._format,
            state=self._run.state,  # type: ignore[arg-type]
            runtime=wraps.memory.runtime(turn),
            model_settings=settings,
        )

    def back(self, changed: Any) -> tuple[ours.ModelRequest, BaseChatModel | None]:
        """The request that a middleware passes on."""
        if not isinstance(changed, ModelRequest):
            raise HookError(f"{self._name} called its handler with {type(changed).__name__}", hook=self._name)
        given, request = self.given, self._request
        model, chat = self._wraps.model_of(changed.model, given.model, request)
        changes: dict[str, Any] = {} if model == request.model else {"model": model}
        system = str(changed.system_message.text) if changed.system_message is not None else ""
        messages = request.messages
        if changed.messages is not given.messages or changed.messages != self._sent.seen(self._run.view.__class__()):
            given_messages = convert_to_messages(changed.messages)
            rest = [message for message in given_messages if not isinstance(message, SystemMessage)]
            added = [str(message.text) for message in given_messages if isinstance(message, SystemMessage)]
            system = "\n\n".join([text for text in (system, *added) if text])
            made = self._sent.back(rest)
            if len(made) != len(messages) or not all(map(_same, made, messages)):
                changes["messages"] = made
        if system != request.system:
            changes |= {"system": system, "sections": ()}
        tools = self._wraps.tools.back(changed.tools, request.tools, self._name)
        if tools is not request.tools:
            changes["tools"] = tools
        changes |= self._settings(changed)
        if changed.response_format is not given.response_format:
            changes["output"] = _schema(changed.response_format, self._name)
        return (request.replace(**changes) if changes else request), chat

    def _settings(self, changed: ModelRequest[Any]) -> dict[str, Any]:
        choice = changed.tool_choice
        choice = _OUR_CHOICES.get(choice, choice) if isinstance(choice, str) else choice
        settings = dict(changed.model_settings)
        if choice is not None:
            settings["tool_choice"] = choice
        return {} if settings == dict(self._request.settings) else {"settings": settings}

    def response(self, reply: Any) -> ModelResponse[Any]:
        """The reply as a middleware sees it."""
        given = as_reply(reply)
        message = self._message(given)
        self._replies.append((message, message.model_copy(deep=True), given))
        parsed = None
        if self._request.output is not None and not given.tool_calls:
            try:
                parsed = json.loads(given.text)
            except ValueError:
                parsed = None
        return ModelResponse(result=[message], structured_response=parsed)

    def _message(self, reply: ModelReply) -> AIMessage:
        step = f"{self._turn.session_id}/{self._turn.state.steps + 1}"
        [message] = self._run.transcript.with_reply(reply_with_ids(reply, step), reply).entries[-1].shown
        assert isinstance(message, AIMessage)
        return message

    def reply(self, result: Any) -> Any:
        """What leaves the wrap: the reply itself if the middleware did not change it."""
        command = None
        if isinstance(result, ExtendedModelResponse):
            result, command = result.model_response, result.command
        messages: list[BaseMessage] = [result] if isinstance(result, AIMessage) else []
        if isinstance(result, ModelResponse):
            messages = list(result.result)
        at = next((n for n, one in enumerate(messages) if isinstance(one, AIMessage)), None)
        if at is None:
            raise HookError(
                f"{self._name} returned {type(result).__name__} without an AI message; it must return a ModelResponse "
                "or an AIMessage",
                hook=self._name,
            )
        reply = self._unchanged(messages[at])
        rest = [message for n, message in enumerate(messages) if n != at]
        update = None if command is None else update_of(self._name, command)
        if rest or update:
            self._keep(reply, rest, update)
        return reply

    def _unchanged(self, message: Any) -> ModelReply:
        for shown, original, reply in reversed(self._replies):
            if message is shown or message.id == shown.id:
                if message == original:
                    return reply
                made = reply_of_message(message, reply.message.replace(parts=_with_ids(reply, self._turn)))
                return reply.replace(message=_without_ids(made))
        made = _without_ids(reply_of_message(message))
        return ModelReply(made, finish="tool_calls" if made.tool_calls else "stop")

    def _keep(self, reply: ModelReply, rest: list[BaseMessage], update: Any) -> None:
        """Apply what the middleware says of the state, beside the reply."""
        step = self._turn.state.steps + 1
        message = reply_with_ids(reply, f"{self._turn.session_id}/{step}")
        run = Run(self._wraps.memory, self._turn, reply)
        if rest:
            run.apply(self._name, {"messages": rest})
        run.apply(self._name, update)
        results = run.take_results([call.id for call in message.tool_calls])
        if results:
            known = run.view.results if run.view.of_step(step) else {}
            run.view = _with_results(run.view, step, {**known, **results})
        run.keep(whole=False)


def _with_results(view: Any, step: int, results: dict[str, Any]) -> Any:
    return replace(view, step=step, results=results, jump="" if view.step != step else view.jump)


def _with_ids(reply: ModelReply, turn: Turn[Any]) -> Any:
    return reply_with_ids(reply, f"{turn.session_id}/{turn.state.steps + 1}").parts


def _without_ids(message: ours.Message) -> ours.Message:
    """The message of a reply: the log gives its calls their ids."""
    parts = [part.replace(id="") if isinstance(part, ours.ToolCallPart) else part for part in message.parts]
    return message.replace(parts=tuple(parts))


def _schema(given: Any, name: str) -> dict[str, Any] | None:
    """The JSON schema of a `response_format`."""
    if isinstance(given, ToolStrategy | ProviderStrategy | AutoStrategy):
        given = given.schema
    if given is None or isinstance(given, dict):
        return given
    try:
        return TypeAdapter(given).json_schema()
    except Exception as error:
        raise HookError(f"{name} set response_format to {given!r:.80}, which has no JSON schema", hook=name) from error
