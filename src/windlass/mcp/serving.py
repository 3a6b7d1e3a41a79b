"""An agent as an MCP server: a tool that runs a turn, and a tool that answers what a turn asks."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Literal

from mcp.server.mcpserver import Context, MCPServer
from mcp_types import CallToolResult, TextContent, ToolAnnotations

from windlass.decisions import AnyResolution, Approve, Edit, Reject, Respond
from windlass.errors import WindlassError
from windlass.events import StepStarted
from windlass.outcomes import Failed
from windlass.records import ToolCalled

if TYPE_CHECKING:
    from windlass import Agent, Result

ScopeOf = Callable[[str], Awaitable[Any]]
_BY = "mcp"
"""Who answers questions through the server."""


def agent_server(agent: Agent[Any, Any], *, scope: ScopeOf | None = None, answers: bool = True) -> MCPServer:
    """A server with the tools `run` and, with `answers`, `answer`.

    `scope` returns the scope of a session. A turn runs in the task of its request: a client that cancels the request
    cancels the turn. What was done until then is in the agent's store.
    """
    server = MCPServer(agent.name, log_level="WARNING")

    async def drive(session: str, ctx: Context[Any, Any], message: str | None, given: Any) -> CallToolResult:
        try:
            made = None if scope is None else await scope(session)
            stream = agent.stream(message, session=session, answers=given, scope=made)
            async with stream:
                done = 0
                async for event in stream:
                    if isinstance(event, StepStarted | ToolCalled):
                        done += 1
                        await ctx.report_progress(done, None, _words(event))
            return _reported(stream.result)
        except WindlassError as error:
            return _result(f"{type(error).__name__}: {error}", {"session": session, "status": "refused"}, is_error=True)

    async def run(message: str, ctx: Context[Any, Any], session: str = "") -> CallToolResult:
        """Give the agent a message, and wait for its answer.

        Without a session a new conversation begins; pass the session of an earlier result to continue that one. If the
        status is `suspended`, the turn waits for answers to the listed questions.
        """
        return await drive(session or f"mcp-{os.urandom(6).hex()}", ctx, message, None)

    async def answer(
        session: str,
        question: str,
        decision: Literal["approve", "reject", "respond", "edit"],
        ctx: Context[Any, Any],
        text: str = "",
        arguments: dict[str, Any] | None = None,
    ) -> CallToolResult:
        """Answer a question of a suspended turn, by its id, and go on with the turn.

        `text` is the message of a `reject`, or the result that the agent reads for a `respond`. `arguments` are those
        of an `edit`: the call runs with them.
        """
        return await drive(session, ctx, None, {question: _resolution(decision, text, arguments or {})})

    server.add_tool(run, annotations=ToolAnnotations(destructive_hint=True, open_world_hint=True))
    if answers:
        server.add_tool(answer, annotations=ToolAnnotations(destructive_hint=True, open_world_hint=True))
    return server


def _resolution(decision: str, text: str, arguments: dict[str, Any]) -> AnyResolution:
    match decision:
        case "approve":
            return Approve(by=_BY)
        case "respond":
            return Respond(text, by=_BY)
        case "edit":
            return Edit(arguments, by=_BY)
        case _:
            return Reject(text, by=_BY)


def _words(event: StepStarted | ToolCalled) -> str:
    return f"calls {event.name}" if isinstance(event, ToolCalled) else "thinks"


def _reported(result: Result[Any]) -> CallToolResult:
    """The outcome of a turn: its text, or what it waits for."""
    status = type(result.outcome).__name__.lower()
    data: dict[str, Any] = {"session": result.session_id, "status": status}
    if isinstance(result.outcome, Failed):
        error = result.outcome.error
        return _result(f"{error.type}: {error.message}", data, is_error=True)
    if not result.waiting_for:
        return _result(result.partial_text, data)
    data["questions"] = [
        {
            "id": asked.id,
            "question": asked.question,
            "allow": list(asked.allow),
            **({} if asked.call is None else {"tool": asked.call.name, "arguments": asked.call.arguments}),
        }
        for asked in result.waiting_for
    ]
    lines = [f"- {asked.id}: {asked.question}" for asked in result.waiting_for]
    head = f"The turn of session {result.session_id} is suspended. It waits for answers to:"
    return _result("\n".join([head, *lines]), data)


def _result(text: str, data: dict[str, Any], *, is_error: bool = False) -> CallToolResult:
    content: list[Any] = [TextContent(type="text", text=text.encode("utf-8", "replace").decode())]
    return CallToolResult(content=content, structured_content=data, is_error=is_error)


__all__ = ["agent_server"]
