"""What a server asks back while one of its tools runs: questions to people, and requests to a model."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

import msgspec
from mcp_types import INVALID_REQUEST, CreateMessageResult, ElicitResult, ErrorData, TextContent

from windlass.approvals import ask_approver
from windlass.decisions import Approve, Edit, Respond
from windlass.messages import Message, ModelReply, digest
from windlass.records import Asked
from windlass.turns import Turn
from windlass.types import Approver

from .contents import Limits, content_parts
from .listings import plain_text
from .schemas import checker

_QUESTION = 2_000
_SAMPLES = 10
"""How often a server may ask the model during one call."""
_STOPS = {"length": "maxTokens", "stop": "endTurn"}


class Conversation:
    """A call that runs, for what the server asks during it. It belongs to the event loop of the agent."""

    def __init__(self, server: str, turn: Turn[Any], approvers: tuple[Approver, ...], patience: float) -> None:
        self.server = server
        self.turn = turn
        self._approvers = approvers
        self._patience = patience
        self._loop = asyncio.get_running_loop()
        self._running: set[Future[Any]] = set()
        self._questions = self._samples = 0

    # ------------------------------------------------------------ on the worker

    async def elicit(self, params: Any) -> Any:
        """Ask people what the server wants to know."""
        return await self._on_the_agents_loop(self._elicit(params))

    async def sample(self, params: Any) -> Any:
        """Ask the model of the turn what the server wants to know."""
        return await self._on_the_agents_loop(self._sample(params))

    async def _on_the_agents_loop(self, work: Any) -> Any:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._running.add(future)
        try:
            return await asyncio.wrap_future(future)
        except Exception as error:
            return ErrorData(code=INVALID_REQUEST, message=f"the client refused: {type(error).__name__}")
        finally:
            self._running.discard(future)

    # ------------------------------------------------------------ on the agent's loop

    def end(self) -> None:
        """The call is over: nobody waits for answers any more."""
        for future in list(self._running):
            future.cancel()

    async def _elicit(self, params: Any) -> ElicitResult:
        self._questions += 1
        message = plain_text(params.message, _QUESTION)
        schema: Mapping[str, Any] = getattr(params, "requested_schema", None) or {}
        details = {"server": self.server, "schema": schema}
        if address := getattr(params, "url", None):
            details["url"] = plain_text(address, _QUESTION)
        asked = Asked(
            f"{self.turn.session_id}/mcp/{self.server}/{self._questions}",
            "ToolCalled",
            f"The MCP server {self.server!r} asks: {message}",
            ("approve", "edit", "reject", "respond"),
            digest(message, msgspec.json.encode(details).decode()),
            (f"mcp:{self.server}",),
            details=details,
            text=message,
        )
        content, why = await self._answer(asked, schema)
        noted = {"server": self.server, "question": message, "action": "decline" if content is None else "accept"}
        self.turn.note("mcp.elicitation", noted | ({"reason": why} if why else {}))
        if content is None:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content=None if address else content)

    async def _answer(self, asked: Asked, schema: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
        """The content of the first answer that fits; otherwise None, and why."""
        why = "nobody answered"
        try:
            async with self.turn.timeout(self._patience):
                for approver in self._approvers:
                    try:
                        given = await ask_approver(
                            self.turn.session_id, approver, asked, self.turn, self.turn.now, lambda call: None
                        )
                    except Exception as error:
                        why = f"an approver failed: {type(error).__name__}"
                        continue
                    if given is not None:
                        return _content(given.answer, schema)
        except TimeoutError:
            why = f"nobody answered within {self._patience:g} s"
        return None, why

    async def _sample(self, params: Any) -> CreateMessageResult | ErrorData:
        self._samples += 1
        if self._samples > _SAMPLES:
            return ErrorData(code=INVALID_REQUEST, message=f"a call may ask the model {_SAMPLES} times")
        if params.tools:
            return ErrorData(code=INVALID_REQUEST, message="the client does not offer tools in sampling")
        messages = [Message(one.role, content_parts(_blocks(one.content), Limits())) for one in params.messages]
        settings = {"max_tokens": params.max_tokens, "temperature": params.temperature, "stop": params.stop_sequences}
        reply: ModelReply = await self.turn.ask(
            self.turn.model,
            messages,
            system=plain_text(params.system_prompt or "", 20_000),
            settings={name: value for name, value in settings.items() if value is not None},
        )
        return CreateMessageResult(
            role="assistant",
            content=TextContent(type="text", text=reply.text),
            model=reply.model or self.turn.model,
            stop_reason=_STOPS.get(reply.finish, reply.finish),
        )


def _blocks(content: Any) -> list[Any]:
    return content if isinstance(content, list) else [content]


def _content(answer: object, schema: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """What a person's answer says, as the schema wants it; otherwise None, and why."""
    properties = schema.get("properties", {})
    defaults = {name: one["default"] for name, one in properties.items() if "default" in one}
    match answer:
        case Edit(arguments=arguments):
            given = {**defaults, **dict(arguments)}
        case Approve():
            given = defaults
        case Respond(text=text):
            given = {**defaults, **_read(text, list(properties))}
        case _:
            return None, "a person declined"
    wrong = checker(schema)(given)
    return (given, "") if wrong is None else (None, f"the answer does not fit: {wrong[:300]}")


def _read(text: str, names: list[str]) -> dict[str, Any]:
    """A text as the only value, or as a JSON object."""
    if len(names) == 1:
        return {names[0]: text}
    try:
        read = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    return read if isinstance(read, dict) else {}


__all__ = ["Conversation"]
