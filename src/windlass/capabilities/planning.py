"""Planning: a list of things to do that the model writes, keeps up to date and is reminded of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from msgspec import Meta, Struct

from windlass.decisions import Veto
from windlass.errors import ToolError
from windlass.events import StepStarting, Stopping
from windlass.slots import Slot
from windlass.states import State
from windlass.tools import tool
from windlass.turns import Turn

from .option_types import check_types
from .options import require_count, require_name

if TYPE_CHECKING:
    from windlass import Assembly, Hooks, Result

Status: TypeAlias = Literal["pending", "in_progress", "done", "dropped"]
STATUSES: tuple[Status, ...] = ("pending", "in_progress", "done", "dropped")
OPEN: tuple[Status, ...] = ("in_progress", "pending")
SHOWN = 10
"""How many open items a reminder has, so that it stays small; it says how many more there are."""
LONGEST = 300
"""How many characters the text of an item may have."""


class PlanItem(Struct, frozen=True):
    """One thing to do: its `text` and its `status`."""

    text: Annotated[str, Meta(min_length=1, max_length=LONGEST)]
    status: Status = "pending"


class Plan(Struct, frozen=True):
    """What the model wants to do: the `items` in order, and the number of the `step` that last changed them."""

    items: tuple[PlanItem, ...] = ()
    step: int = 0

    def __post_init__(self) -> None:
        started = [str(number) for number, item in enumerate(self.items, 1) if item.status == "in_progress"]
        if len(started) > 1:
            raise ValueError(f"items {' and '.join(started)} are in progress; at most one may be")

    @property
    def open(self) -> tuple[PlanItem, ...]:
        """The items that are pending or in progress."""
        return tuple([item for item in self.items if item.status in OPEN])

    def __str__(self) -> str:
        return "\n".join(self._lines(STATUSES)) or "no items"

    def _lines(self, statuses: Sequence[Status]) -> list[str]:
        items = enumerate(self.items, 1)
        return [f"{number}. [{item.status}] {item.text}" for number, item in items if item.status in statuses]

    def reminder(self) -> str:
        """The open items, at most `SHOWN` of them, the one in progress first."""
        lines = [*self._lines(("in_progress",)), *self._lines(("pending",))]
        more = [f"… and {len(lines) - SHOWN} more"] if len(lines) > SHOWN else []
        return "\n".join([*lines[:SHOWN], *more])

    def summary(self) -> str:
        """How many items have which status."""
        counts = Counter([item.status for item in self.items])
        return ", ".join([f"{counts[status]} {status}" for status in STATUSES if counts[status]]) or "no items"


class Planning:
    """Give the model a plan: `write_todos` writes the whole list, `update_todo` changes one item.

    An item is pending, in_progress, done or dropped, and at most one is in progress. The plan is kept in the slot
    `name`, so it survives a crash, a resume, a fork and a compaction. The model is reminded of open items, for that
    step only: when a turn starts, and after every `remind` steps without a change of the plan. With
    `finish_first=True`, the first stop of a turn with open items is vetoed. A list has at most `max_items`.
    """

    @check_types
    def __init__(
        self,
        *,
        remind: int | None = 10,
        finish_first: bool = False,
        max_items: int = 50,
        name: str = "planning",
    ) -> None:
        require_name("Planning", name)
        if remind is not None:
            require_count("Planning", "remind", remind)
        require_count("Planning", "max_items", max_items)
        self.name = name
        self.remind, self.finish_first, self.max_items = remind, finish_first, max_items
        self._slot: Slot[Plan] = Slot(name, Plan)
        self._vetoed: Slot[int] = Slot(f"{name}.vetoed", int, input=False, output=False)

    def install(self, registrar: Hooks) -> None:
        """Register the slot, the tools, the reminder and the veto."""
        registrar.slot(self._slot)
        registrar.tool(self.write_todos)
        registrar.tool(self.update_todo)
        if self.remind is not None:
            registrar.inject(StepStarting, name=f"{self.name}.reminder")(self._remind)
        if self.finish_first:
            registrar.slot(self._vetoed)
            known: list[Assembly] = []
            registrar.check(known.append)

            def finish_first(event: Stopping, turn: Turn[Any]) -> Veto | None:
                return self._veto(turn, known[-1].bounds["max_vetoes"])

            registrar.gate(Stopping, name=f"{self.name}.finish_first")(finish_first)

    def summary(self) -> str:
        """The options, for `explain`."""
        reminds = "never reminds" if self.remind is None else f"reminds after {self.remind} steps"
        vetoes = ["vetoes one stop with open items"] if self.finish_first else []
        return ", ".join([f"at most {self.max_items} items", reminds, *vetoes])

    @tool(effect="idempotent", inline=True)
    def write_todos(self, items: list[PlanItem], turn: Turn[Any]) -> str:
        """Write your plan: the whole list of things to do, in order. It replaces the list you had.

        Use it for work that needs three or more steps. At most one item may be in_progress.

        Args:
            items: the things to do, each a short text and its status
        """
        _require_alone(turn)
        if len(items) > self.max_items:
            raise ToolError(f"a plan has at most {self.max_items} items; this one has {len(items)}. Join some of them.")
        return self._store(turn, items)

    @tool(effect="idempotent", inline=True)
    def update_todo(
        self, item: int, status: Status, turn: Turn[Any], text: str | None = None, start: int | None = None
    ) -> str:
        """Change one item of your plan, and start another one if you like.

        Args:
            item: the number of the item, from 1 on
            status: its new status
            text: its new text, if it changes
            start: the number of an item to start next; it becomes in_progress
        """
        _require_alone(turn)
        items = list(turn.get(self._slot).items)
        for number in (item, *([] if start is None else [start])):
            if not 1 <= number <= len(items):
                known = f"it has items 1 to {len(items)}" if items else "it is empty: call write_todos first"
                raise ToolError(f"the plan has no item {number}; {known}")
        if item == start and status != "in_progress":
            raise ToolError(f"item {item} cannot be {status} and be started in one call")
        old = items[item - 1]
        if text is not None and not 1 <= len(text) <= LONGEST:
            raise ToolError(f"the text of an item has 1 to {LONGEST} characters")
        items[item - 1] = PlanItem(old.text if text is None else text, status)
        if start is not None:
            items[start - 1] = PlanItem(items[start - 1].text, "in_progress")
        return self._store(turn, items)

    def _store(self, turn: Turn[Any], items: Sequence[PlanItem]) -> str:
        try:
            plan = Plan(tuple(items), turn.state.steps + 1)
        except ValueError as error:
            raise ToolError(f"the plan was not changed: {error}. Set the others to another status.") from error
        turn.set(self._slot, plan)
        return f"The plan has {plan.summary()}."

    def _remind(self, event: StepStarting, turn: Turn[Any]) -> str | None:
        assert self.remind is not None
        plan = turn.get(self._slot)
        if not plan.open:
            return None
        idle = turn.state.steps - plan.step
        if turn.steps and (not idle or idle % self.remind):
            return None
        return f"These items of your plan are open. Keep it up to date with update_todo.\n{plan.reminder()}"

    def _veto(self, turn: Turn[Any], most: int) -> Veto | None:
        """Veto the stop if items are open, once in a turn and not beyond the bound, which would end the turn."""
        plan, state = turn.get(self._slot), turn.state
        if not plan.open or turn.get(self._vetoed) == state.turns or state.turn is None or state.turn.vetoes >= most:
            return None
        turn.set(self._vetoed, state.turns)
        return Veto(f"Your plan has open items. Finish them or set them to dropped, then answer.\n{plan.reminder()}")


def plan_of(source: Result[Any] | State, name: str = "planning") -> Plan:
    """The plan in `source`, a result or a state, as the last step left it; an empty one if the model has written none.

    `name` is the name of the `Planning`.
    """
    state = source if isinstance(source, State) else source.state
    return Slot(name, Plan).load(state.slots)


def _require_alone(turn: Turn[Any]) -> None:
    """Raise if the step has several calls that change the plan: their order would decide."""
    step = turn.state.open
    changes = [call for call in (step.calls if step is not None else ()) if call.proposed.name in _TOOLS]
    if len(changes) > 1:
        raise ToolError("the plan can be changed by one call at a time, so none of these calls was applied")


_TOOLS = (Planning.write_todos.name, Planning.update_todo.name)
