"""The `serve-mcp` command: offers an agent as an MCP server."""

from __future__ import annotations

import asyncio
import os
import secrets
from typing import Any

import click

from windlass import Agent
from windlass.errors import ConfigError

from .loading import ScopeFactory, agent_argument, make_scope, scope_option
from .output import echo
from .stores import serve_until_stopped

TOKEN = "WINDLASS_MCP_TOKEN"


@click.command("serve-mcp")
@agent_argument
@scope_option
@click.option("--http", is_flag=True, help="Serve streamable HTTP on 127.0.0.1, and not the standard streams.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="The port for --http. By default a free one.")
@click.option("--no-answers", is_flag=True, help="Leave out the tool with which clients answer questions of a turn.")
def serve_mcp(agent: Agent[Any, Any], scope: ScopeFactory | None, http: bool, port: int, no_answers: bool) -> None:
    """Offer an agent as a server of the Model Context Protocol.

    Clients get the tools `run` and `answer`. Without --http the server speaks over standard input and output and ends
    when the input ends. With --http clients need a token: the variable WINDLASS_MCP_TOKEN, or a new one, which is
    printed with the address.
    """

    async def scope_of(session: str) -> Any:
        return await make_scope(scope, session)

    async def work() -> None:
        try:
            from windlass.mcp.http import serve_http
            from windlass.mcp.serving import agent_server
        except ModuleNotFoundError as error:
            raise ConfigError("serve-mcp needs the extra 'mcp': pip install 'windlass[mcp]'") from error
        server = agent_server(agent, scope=None if scope is None else scope_of, answers=not no_answers)
        try:
            if http:
                given = os.environ.get(TOKEN)
                token = given or secrets.token_urlsafe(24)
                await serve_http(server, port=port, token=token, ready=lambda url: _tell(url, None if given else token))
            else:
                await server.run_stdio_async()
        finally:
            await agent.aclose()
            await agent.store.close()

    agent.compile()
    serve_until_stopped(lambda: asyncio.run(work()))


def _tell(url: str, token: str | None) -> None:
    echo(f"listening on {url}", err=True)
    if token is not None:
        echo(f"token: {token}", err=True)
