"""Tools that note what they were called with."""

from __future__ import annotations

import asyncio
from typing import Any

from windlass import tool


class Ran:
    """Tools of each class of effects, and the calls that they have executed."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        ran = self.calls

        @tool
        async def send(to: str) -> str:
            """Send."""
            ran.append(to)
            return f"sent to {to}"

        @tool(effect="idempotent")
        async def charge(amount: int, idempotency_key: str) -> str:
            """Charge."""
            ran.append((amount, idempotency_key))
            return "charged"

        @tool(effect="pure")
        async def look(what: str) -> str:
            """Look."""
            ran.append(what)
            return f"saw {what}"

        @tool(retry="safe")
        async def ping(to: str) -> str:
            """Ping."""
            ran.append(to)
            return "pong"

        @tool(effect="pure", inline=True)
        def add(a: int) -> str:
            """Add."""
            ran.append(("add", a))
            return f"added {a}"

        @tool(effect="pure", inline=True)
        def delete(a: int) -> str:
            """Delete."""
            ran.append(("delete", a))
            return f"deleted {a}"

        @tool
        async def do(x: int) -> str:
            """Do something once."""
            ran.append(x)
            await asyncio.sleep(0)
            return f"did {x}"

        self.add, self.do = add, do
        self.tools = [send, charge, look, ping, add, delete, do]
