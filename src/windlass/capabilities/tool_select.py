"""ToolSelect: picks the tools for a message, without changing the list of tools that vendors cache."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from windlass.decisions import Deny
from windlass.events import ModelCalling, ToolCalling, TurnStarting
from windlass.messages import ModelRequest
from windlass.protocols import Model
from windlass.slots import Slot
from windlass.tools import Tool, tool
from windlass.turns import Turn

from .option_types import check_types
from .options import require, require_count, require_name
from .selected_tools import Selected, earlier_words, known_names, name_tests, turn_number, union
from .tool_ranking import ToolRanking

if TYPE_CHECKING:
    from windlass import Hooks

HINT = "Tools for this message: {names}. Other tools are not available now{find}."
DENIED = "it was not selected for this message; use {names}{find}"
FIND = ", unless find_tools finds them"
PROMPT = (
    "Pick the tools that an assistant needs to answer the user, the most important first, at most {most}. Reply with a "
    "JSON list of their names.\n\nTools:\n{tools}"
)

Names: TypeAlias = Sequence[str]
Picks: TypeAlias = Callable[[TurnStarting], Names | Awaitable[Names]]


class ToolSelect:
    """Pick the tools for each user message, at most `most`, and let the model call only those.

    `select` is `"search"` (tools whose descriptions share words with the message), a model that is asked, or a function
    of the `TurnStarting` event that returns names, async or not. It picks from the tools that `among` matches, by
    default those that no capability brought; tools that `always` matches, and all others, are never restricted.

    With `change="nothing"` every request has all tools, in the same bytes: a hint beside the message names the picked
    ones, and calls of others are denied. With `change="list"` requests have only tools that were picked in this
    session: the list grows at its end when a message needs another tool, and is the same otherwise. A model whose
    answer is invalid is asked again, `retries` times. Then, and if a search finds nothing, `otherwise` counts: "all"
    tools, "none", an "error", a list of names or a function of the event. With `find`, the model gets `find_tools`.
    """

    @check_types
    def __init__(
        self,
        select: Model | Picks | str = "search",
        *,
        most: int = 8,
        among: str | Sequence[str] | None = None,
        always: str | Sequence[str] = (),
        change: Literal["nothing", "list"] = "nothing",
        otherwise: Picks | Sequence[str] | str = "all",
        retries: int = 2,
        find: bool = False,
        name: str = "tool_select",
    ) -> None:
        require_name("ToolSelect", name)
        require_count("ToolSelect", "most", most)
        require_count("ToolSelect", "retries", retries, least=0)
        words = not isinstance(otherwise, str) or otherwise in ("all", "none", "error")
        require("ToolSelect", "otherwise", otherwise, words, "'all', 'none', 'error', a list of tools or a function")
        self.name, self.select, self.most, self.retries = name, select, most, retries
        self.change, self.otherwise, self.find = change, otherwise, find
        self.among = None if among is None else name_tests(among)
        self.always = name_tests(always)
        self._ranking: tuple[Mapping[str, Tool[..., Any]], ToolRanking] | None = None
        self._slot: Slot[Selected] = Slot(name, Selected, merge=Selected.plus, input=False, output=False)

    def install(self, registrar: Hooks) -> None:
        """Register the hooks that pick, offer and refuse tools."""
        given: Any = self.select
        is_model = hasattr(given, "reply") or (isinstance(given, str) and given != "search")
        model = registrar.model(given) if is_model else None

        async def pick(event: TurnStarting, turn: Turn[Any]) -> str | None:
            return await self._pick(event, turn, model)

        registrar.slot(self._slot)
        registrar.inject(TurnStarting, name=f"{self.name}.pick", priority=-50)(pick)
        registrar.gate(ToolCalling, name=f"{self.name}.refuse")(self._refuse)
        if self.change == "list":
            registrar.rewrite(ModelCalling, name=f"{self.name}.offer")(self._offer)
        if self.find:
            registrar.tool(self.find_tools)

    def summary(self) -> str:
        """The options, for `explain`."""
        given: Any = self.select
        by = (
            given
            if isinstance(given, str)
            else getattr(given, "name", None) or getattr(given, "__name__", "a function")
        )
        stays = "the list of tools stays the same" if self.change == "nothing" else "the list of tools grows"
        return f"at most {self.most} tools for a message, picked by {by}; {stays}"

    # ------------------------------------------------------------ picking

    def _candidates(self, turn: Turn[Any]) -> dict[str, Tool[..., Any]]:
        """The tools among which some are picked."""
        return {name: one for name, one in turn.tools.items() if self._is_candidate(one)}

    def _is_candidate(self, one: Tool[..., Any] | None) -> bool:
        if one is None or any(test(one.name) for test in self.always):
            return False
        return one.capability is None if self.among is None else any(test(one.name) for test in self.among)

    def _rank(self, text: str, turn: Turn[Any]) -> list[str]:
        """The candidates that a search finds. The words of an agent's tools are counted once."""
        if self._ranking is None or self._ranking[0] is not turn.tools:
            self._ranking = (turn.tools, ToolRanking([one.spec for one in self._candidates(turn).values()]))
        return self._ranking[1].rank(text)

    async def _pick(self, event: TurnStarting, turn: Turn[Any], model: str | None) -> str | None:
        candidates = self._candidates(turn)
        names = tuple(candidates)
        if len(candidates) > self.most:
            names = await self._picked(event, turn, candidates, model)
        before = turn.get(self._slot)
        turn.set(self._slot, Selected(turn_number(turn), names, union(before.offered, names)))
        if self.change == "list" or len(names) == len(candidates):
            return None
        return HINT.format(names=self._available(names, turn) or "none", find=FIND if self.find else "")

    def _available(self, names: Names, turn: Turn[Any]) -> str:
        """The tools that may be called: those that were picked, and those that are never restricted."""
        return ", ".join([*names, *[name for name, one in turn.tools.items() if not self._is_candidate(one)]])

    async def _picked(
        self, event: TurnStarting, turn: Turn[Any], candidates: dict[str, Tool[..., Any]], model: str | None
    ) -> tuple[str, ...]:
        try:
            if model is not None:
                found = await self._ask(event, turn, candidates, model)
            elif self.select == "search":
                found = union(self._rank(event.message.text, turn), self._rank(earlier_words(turn), turn))
            else:
                found = await _call(self.select, event)
            if found or self.select != "search":
                return known_names(found, candidates)[: self.most]
        except Exception as error:
            if self.otherwise == "error":
                raise
            turn.note("tool_select.failed", {"error": type(error).__name__, "text": str(error)[:500]})
        return await self._instead(event, candidates)

    async def _ask(
        self, event: TurnStarting, turn: Turn[Any], candidates: dict[str, Tool[..., Any]], model: str
    ) -> Names:
        lines = [f"- {name}: {' '.join(one.description.split())[:300]}" for name, one in candidates.items()]
        system = PROMPT.format(most=self.most, tools="\n".join(lines))
        kind: Any = list[Literal[tuple(candidates)]]  # type: ignore[misc]
        earlier = earlier_words(turn)
        text = f"Before, the user wrote:\n{earlier}\n\nNow:\n{event.message.text}" if earlier else event.message.text
        found: list[str] = await turn.ask(model, text, system=system, output=kind, repairs=self.retries)
        return found

    async def _instead(self, event: TurnStarting, candidates: dict[str, Tool[..., Any]]) -> tuple[str, ...]:
        match self.otherwise:
            case "all":
                return tuple(candidates)
            case "none" | "error":
                return ()
            case given if callable(given):
                return known_names(await _call(given, event), candidates)
            case names:
                return known_names(names, candidates)

    # ------------------------------------------------------------ enforcing

    def _refuse(self, event: ToolCalling, turn: Turn[Any]) -> Deny | None:
        selected = turn.get(self._slot)
        if (
            selected.turn != turn_number(turn)
            or event.call.name in selected.names
            or not self._is_candidate(event.tool)
        ):
            return None
        available = self._available(selected.names, turn) or "no tool"
        return Deny(DENIED.format(names=available, find=FIND if self.find else ""))

    def _offer(self, event: ModelCalling, turn: Turn[Any]) -> ModelRequest | None:
        """The request with the tools that were offered so far; those that are never restricted come first."""
        given = {spec.name: spec for spec in event.request.tools}
        fixed = [name for name in given if not self._is_candidate(turn.tools.get(name))]
        offered = [*fixed, *[name for name in turn.get(self._slot).offered if name in given and name not in fixed]]
        if len(offered) == len(given):
            return None
        return event.request.replace(tools=tuple([given[name] for name in offered]))

    @tool(effect="pure", inline=True)
    def find_tools(self, query: str, turn: Turn[Any]) -> str:
        """Find more tools by words. Those that are found can be called from your next reply on, until this turn ends.

        Args:
            query: what you want to do
        """
        candidates = self._candidates(turn)
        found = tuple(self._rank(query, turn)[: self.most])
        turn.set(self._slot, turn.get(self._slot).plus(Selected(turn_number(turn), found, found)))
        return "\n".join([f"- {name}: {' '.join(candidates[name].description.split())}" for name in found]) or "None."


async def _call(picks: Any, event: TurnStarting) -> Any:
    found = picks(event)
    return await found if inspect.isawaitable(found) else found
