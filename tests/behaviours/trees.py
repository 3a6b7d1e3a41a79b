"""Agents with sub-agents, as several tests need them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from windlass import (
    Agent,
    Ask,
    ModelRequest,
    ToolCalling,
    ToolReturned,
    fold,
    tool,
)
from windlass.records import decode, encode
from windlass.testing import FunctionModel, calls, says

S1 = "s1"
CALL, CHILD = "s1/1/1", "s1//1/1"


def asked_for(text: str = "done", tool: str = "child", **arguments: Any) -> FunctionModel:
    """A model that hands over one task and says something once it has a result. It keeps nothing: a log is enough."""
    given = arguments or {"task": "do it"}
    return FunctionModel(lambda r: says(text) if r.messages[-1].role == "tool" else calls(tool, **given))


def working(tool: str = "work", text: str = "worked") -> FunctionModel:
    """A model that calls one tool and says something about the result."""
    return FunctionModel(lambda r: says(text) if r.messages[-1].role == "tool" else calls(tool))


class Tree:
    """A parent with a child, both scripted, and a tool of the child's that notes its calls."""

    def __init__(
        self,
        *,
        child: Any = None,
        parent: Any = None,
        child_options: dict[str, Any] | None = None,
        share: float | None = None,
        tools: Sequence[str] | None = None,
        store: Any = None,
        **options: Any,
    ) -> None:
        self.ran: list[str] = []
        ran = self.ran

        @tool
        async def work() -> str:
            """Work."""
            ran.append("work")
            return "some work"

        self.work = work
        self.child: Agent[Any, Any] = Agent(child or working(), name="child", tools=[work], **child_options or {})
        made = self.child.as_tool(share=share, tools=tools)
        self.parent: Agent[Any, Any] = Agent(parent or asked_for(), name="parent", tools=[made], store=store, **options)

    async def run(self, session: str = S1) -> Any:
        return await self.parent.run("go", session=session)

    async def log(self, session: str = CHILD) -> list[Any]:
        return list(await self.parent.store.read(session))

    async def find(self, kind: type, session: str = S1) -> list[Any]:
        return [record for record in await self.log(session) if isinstance(record, kind)]

    async def result(self) -> Any:
        """What the parent's model read of the child."""
        return (await self.find(ToolReturned))[0].result


async def sound(agent: Agent[Any, Any]) -> None:
    """All logs of an agent's store fold, also once written down and read again."""
    for session in await agent.store.sessions():
        log = list(await agent.store.read(session))
        assert fold(session, [decode(encode(record)) for record in log]) == fold(session, log)


def nested(depth: int, **root: Any) -> tuple[Agent[Any, Any], list[str]]:
    """An agent whose child's child's … child has a tool."""
    ran: list[str] = []

    @tool
    def wipe() -> str:
        """Wipe."""
        ran.append("wiped")
        return "wiped"

    agent: Agent[Any, Any] = Agent(working("wipe"), name="a0", tools=[wipe])
    for level in range(1, depth):
        below, options = agent.as_tool(), root if level == depth - 1 else {}
        agent = Agent(asked_for("up", f"a{level - 1}"), name=f"a{level}", tools=[below], **options)
    return agent, ran


class Notes(Struct):
    """What was noted."""

    lines: list[str] = []


class Asking:
    """Root, two middle agents, each with a leaf whose tool must be approved; and a tool of the root's."""

    def __init__(
        self, store: Any = None, ran: list[str] | None = None, clock: Any = None, ask: Ask | None = None
    ) -> None:
        self.ran: list[str] = [] if ran is None else ran
        noted = self.ran

        @tool
        async def send(to: str) -> str:
            """Send."""
            noted.append(to)
            return f"sent to {to}"

        @tool
        async def look() -> str:
            """Look."""
            noted.append("look")
            return "seen"

        def leaf(request: ModelRequest) -> Any:
            first, last = request.messages[0].parts[0], request.messages[-1]
            return says(last.parts[0].text) if last.role == "tool" else calls("send", to=first.text)  # type: ignore[union-attr]

        def middle(request: ModelRequest) -> Any:
            first, last = request.messages[0].parts[0], request.messages[-1]
            return says(last.parts[0].text) if last.role == "tool" else calls("leaf", task=first.text)  # type: ignore[union-attr]

        def root(request: ModelRequest) -> Any:
            if request.messages[-1].role == "tool":
                return says("; ".join(part.text for part in request.messages[-1].parts))  # type: ignore[union-attr]
            return calls([("middle", {"task": "ann"}), ("look", {}), ("middle", {"task": "bob"})])

        self.leaf: Agent[Any, Any] = Agent(FunctionModel(leaf), name="leaf", tools=[send])
        self.leaf.gate(ToolCalling, name="ask")(lambda event: ask or Ask(f"Send to {event.call.arguments['to']}?"))
        self.middle: Agent[Any, Any] = Agent(FunctionModel(middle), name="middle", tools=[self.leaf.as_tool()])
        self.root: Agent[Any, Any] = Agent(
            FunctionModel(root), name="root", tools=[self.middle.as_tool(), look], store=store, clock=clock
        )
