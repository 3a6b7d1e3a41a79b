"""The tools of a server as an agent has them: registered, renewed when a session starts, asked about when changed."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from windlass.decisions import Ask
from windlass.errors import ToolError
from windlass.events import SessionStarting, Setup, ToolCalling
from windlass.messages import ToolCall, ToolResult, ToolSpec
from windlass.storage import Storage
from windlass.tools.definitions import EffectClass
from windlass.tools.schema_tools import SchemaTool
from windlass.turns import Turn
from windlass.types import Approver

from .listings import Listing, Offer
from .resources import install_resources
from .servers import MCPError

if TYPE_CHECKING:
    from windlass import Assembly, Hooks

    from .sources import Source


class Rules(Struct, frozen=True, kw_only=True):
    """How an agent treats the tools of a server; the options of `MCP` have the same names."""

    effects: Mapping[str, EffectClass] = {}
    trust_hints: bool = False
    resources: bool = True
    optional: bool = False
    timeout: float | None = None
    answer_timeout: float = 300.0

    def effect(self, offer: Offer) -> EffectClass:
        """The effect class of a tool."""
        for pattern, effect in self.effects.items():
            if fnmatchcase(offer.tool, pattern):
                return effect
        if self.trust_hints and offer.read_only:
            return "pure"
        return "idempotent" if self.trust_hints and offer.idempotent else "unsafe"


class Offering:
    """The tools of a server in one agent. `listing` is what the agent is assembled with.

    `_used` has the digests of the tools that this process has called. The store has them for all processes: a digest is
    stored when a call runs, which is after all gates have let it pass.
    """

    def __init__(self, server: str, source: Source, listing: Listing, rules: Rules) -> None:
        self._server = server
        self._source = source
        self._listing = listing
        self._rules = rules
        self._assembled = frozenset(listing.by_name())
        self._used: dict[str, str] = {}
        self._pins: Storage | None = None
        self._approvers: tuple[Approver, ...] = ()

    def install(self, registrar: Hooks) -> None:
        """Register tools and hooks."""
        label = f"mcp:{self._server}"
        self._pins = registrar.storage(f"mcp.{self._server}")
        for offer in self._listing.offers:
            registrar.tool(self._tool(offer))
        if self._listing.resources and self._rules.resources:
            install_resources(registrar, self._server, self._source, self._rules.timeout)
        registrar.check(self._see_approvers)
        registrar.rewrite(SessionStarting, name=f"{label} tools")(self._renew)
        registrar.gate(ToolCalling, tool=self._is_listed, name=f"{label} changes")(self._ask_about_change)
        registrar.wrap(ToolCall, tool=self._is_new, name=f"{label} new tools")(self._run_new)

    def _see_approvers(self, assembly: Assembly) -> None:
        self._approvers = assembly.approvers

    def _tool(self, offer: Offer) -> SchemaTool:
        name, effect = offer.name, self._rules.effect(offer)

        async def call_tool(arguments: dict[str, Any], turn: Turn[Any]) -> ToolResult:
            return await self._run(name, arguments, turn)

        return SchemaTool(
            call_tool,
            name=name,
            description=offer.description,
            schema=offer.schema,
            check=lambda arguments: self._source.check(name, arguments),
            effect=effect,
            read_only=effect == "pure",
            destructive=None if effect == "pure" else offer.destructive,
            open_world=offer.open_world,
            timeout=self._rules.timeout,
        )

    async def _run(self, name: str, arguments: dict[str, Any], turn: Turn[Any]) -> ToolResult:
        offer = self._source.offer(name)
        if offer is None:
            raise ToolError(f"the MCP server {self._server!r} does not have the tool {name!r} any more")
        if self._used.get(name) != offer.digest and self._pins is not None:
            await self._pins.put(name, offer.digest)
            self._used[name] = offer.digest
        if self._source.announced:
            turn.note("mcp.tools_announced", {"server": self._server})
        from .conversations import Conversation

        conversation = Conversation(self._server, turn, self._approvers, self._rules.answer_timeout)
        return await self._source.call(offer.tool, arguments, conversation)

    # ------------------------------------------------------------ hooks

    async def _renew(self, event: SessionStarting, turn: Turn[Any]) -> Setup | None:
        """Offer a new session the tools that the server has now."""
        try:
            current = await self._source.refresh()
        except (MCPError, ToolError, TimeoutError) as error:
            if not self._rules.optional:
                raise
            turn.note("mcp.unavailable", {"server": self._server, "error": str(error)[:500]})
            current = Listing()
        if change := self._listing.difference(current):
            shown = {kind: names[:50] for kind, names in change.items()}
            turn.note("mcp.tools_changed", {"server": self._server, **shown})
        return self._with_current(event.setup, current)

    def _with_current(self, setup: Setup, current: Listing) -> Setup | None:
        """The setup with the tools that the server has now; None if nothing changes.

        A session that was given only some of the agent's tools gets no new ones.
        """
        now, known = current.by_name(), {spec.name for spec in setup.tools}
        specs: list[ToolSpec] = []
        for spec in setup.tools:
            if spec.name not in self._assembled:
                specs.append(spec)
            elif (offer := now.get(spec.name)) is not None:
                same = (spec.description, spec.schema) == (offer.description, offer.schema)
                specs.append(spec if same else _spec(offer))
        if self._assembled <= known:
            specs += [_spec(offer) for name, offer in now.items() if name not in known]
        return None if tuple(specs) == setup.tools else setup.replace(tools=tuple(specs))

    def _is_listed(self, call: ToolCall) -> bool:
        return self._source.offer(call.name) is not None

    async def _ask_about_change(self, event: ToolCalling) -> Ask | None:
        """Ask before a tool runs that is not described as it was when it last ran."""
        offer = self._source.offer(event.call.name)
        if offer is None or self._pins is None or self._is_another(offer.name, event.turn):
            return None
        known = self._used.get(offer.name) or await self._pins.get(offer.name)
        if known is None or known == offer.digest:
            return None
        return Ask(
            f"The MCP server {self._server!r} has changed the description or the schema of {offer.name!r} since it "
            "was last used. Run it?",
            details={"description": offer.description[:1000]},
        )

    def _is_another(self, name: str, turn: Turn[Any]) -> bool:
        """Whether a tool that is not of this server has the name."""
        return name not in self._assembled and name in turn.tools

    def _is_new(self, call: ToolCall) -> bool:
        return call.name not in self._assembled and self._is_listed(call)

    async def _run_new(self, call: ToolCall, call_next: Any, turn: Turn[Any]) -> Any:
        """Run a tool that the server did not have when the agent was assembled, in sessions that were offered it."""
        opened = turn.state.opened
        offered = opened is not None and any(spec.name == call.name for spec in opened.tools or ())
        if not offered or self._is_another(call.name, turn):
            return await call_next(call)
        if (wrong := self._source.check(call.name, call.arguments)) is not None:
            raise ToolError(f"tool {call.name!r} was not run: {wrong}")
        return await self._run(call.name, dict(call.arguments), turn)


def _spec(offer: Offer) -> ToolSpec:
    return ToolSpec(offer.name, offer.description, offer.schema)


__all__ = ["Offering", "Rules"]
