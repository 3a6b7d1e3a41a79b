"""Budget: limits what a turn, a session or a user may spend, and warns before it forbids."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from urllib.parse import quote

from windlass.criteria import ActiveTimeLimit, CostLimit, Deadline, Limit, StepLimit, TokenLimit
from windlass.decisions import Deny, Halt
from windlass.errors import ConfigError
from windlass.events import ModelCalling, StepStarting, ToolCalling, TurnStarting
from windlass.messages import ModelCall, ModelReply, ModelRequest
from windlass.prices import AnyPrice, Price
from windlass.turns import Turn
from windlass.types import CallModel

from .budget_accounts import UNITS, Account, root_of, spent_in
from .option_types import check_types
from .options import require, require_amount, require_count, require_name

if TYPE_CHECKING:
    from windlass import Hooks

Per: TypeAlias = Literal["turn", "session"] | Callable[[Any], str | None]
WARNING = "budget.warning"
"""The kind of the note that a warning is."""


class Budget:
    """Limit what may be spent: `Budget(usd=1.0)`, `Budget(tokens=50_000, per="session")`.

    `tokens` are input and output tokens, `usd` is the cost, `steps` counts steps, `seconds` is active time, and
    `deadline` is a time in seconds since the epoch; each of them stops the turn. Tool calls beyond `calls` are denied,
    or stop the turn with `then="stop"`; with `tools`, only calls of these tools count. Sub-agents spend from the budget
    of the agent that called them.

    `per` is what the budget is for: a turn, a session, or a key that a function takes from the scope of a run, such as
    the user; the spending of a session or key is kept in the store, shared by all processes. With `window`, the budget
    of a key is renewed so many seconds after its first use.

    At the fraction `warn_at` of a limit a note `budget.warning` is made, once per turn; with `tell_model` the model
    reads it, too. If the cost of a model is not known, a budget in USD refuses to call it; `prices` states prices by
    the names of models, and `unknown_cost="allow"` lets an unknown cost count as nothing. `name` is the name of the
    capability and of its storage.
    """

    @check_types
    def __init__(
        self,
        *,
        tokens: int | None = None,
        usd: float | None = None,
        steps: int | None = None,
        calls: int | None = None,
        tools: str | Sequence[str] | None = None,
        then: Literal["deny", "stop"] = "deny",
        seconds: float | None = None,
        deadline: float | None = None,
        per: Per = "turn",
        window: float | None = None,
        warn_at: float | None = 0.8,
        tell_model: bool = False,
        unknown_cost: Literal["refuse", "allow"] = "refuse",
        prices: Mapping[str, AnyPrice] | None = None,
        name: str = "budget",
    ) -> None:
        require_name("Budget", name)
        self.name = name
        for option, count in (("tokens", tokens), ("steps", steps), ("calls", calls)):
            if count is not None:
                require_count("Budget", option, count)
        for option, amount in (("usd", usd), ("seconds", seconds), ("deadline", deadline), ("window", window)):
            if amount is not None:
                require_amount("Budget", option, amount)
        if all(limit is None for limit in (tokens, usd, steps, calls, seconds, deadline)):
            raise ConfigError("Budget() limits nothing: give tokens, usd, steps, calls, seconds or deadline")
        if calls is None and (tools is not None or then != "deny"):
            raise ConfigError("Budget: tools and then are only for a budget of calls: pass calls=")
        if tools is not None and not tools:
            raise ConfigError("Budget: tools names no tools; leave it out to count the calls of all tools")
        if window is not None and not callable(per):
            raise ConfigError("Budget: window is only for a budget per key: pass per=, a function of the scope")
        if warn_at is not None:
            require("Budget", "warn_at", warn_at, 0 < warn_at < 1, "a fraction between 0 and 1, or None")
        given = {"tokens": tokens, "usd": usd, "steps": steps, "seconds": seconds}
        self.limits = {kind: amount for kind, amount in given.items() if amount is not None}
        self.calls = calls
        self.tools = [tools] if isinstance(tools, str) else None if tools is None else list(tools)
        self.then = then
        self.deadline = deadline
        self.per = per
        self.window = window
        self.warn_at = warn_at
        self.tell_model = tell_model
        self.lenient = unknown_cost == "allow"
        self.prices = {model: Price.of(price) for model, price in (prices or {}).items()}

    def install(self, registrar: Hooks) -> None:
        """Register limits, and the hooks that count and warn."""
        if self.prices:
            registrar.wrap(ModelCall, side_calls=True, inherit=True, name=f"{self.name}.price")(self._state_cost)
        if "usd" in self.limits and not self.lenient:
            registrar.gate(ModelCalling, inherit=True, name=f"{self.name}.known")(self._refuse_unknown)
        if self.deadline is not None:
            registrar.criterion(Deadline(at=self.deadline))
        if self.per == "turn":
            self._install_for_turn(registrar)
        elif self.limits:
            Account(self, registrar.storage(self.name)).install(registrar)
        if self.calls is not None:
            self._limit_calls(registrar, self.calls)
        if self.tell_model and self.warn_at is not None:
            registrar.inject(StepStarting, name=f"{self.name}.tell")(_tell_model)

    # ------------------------------------------------------------ a turn

    def _install_for_turn(self, registrar: Hooks) -> None:
        makers: dict[str, Callable[[Any], Limit]] = {
            "tokens": TokenLimit,
            "usd": lambda usd: CostLimit(usd, allow_unknown=self.lenient),
            "steps": StepLimit,
            "seconds": ActiveTimeLimit,
        }
        for kind, amount in self.limits.items():
            registrar.criterion(makers[kind](amount))
        if self.warn_at is not None and self.limits:

            @registrar.gate(ModelCalling, name=f"{self.name}.warn", when=self._is_near)
            def warn(event: ModelCalling, turn: Turn[Any]) -> None:
                self.warn(turn, spent_in(turn))

    def _is_near(self, event: ModelCalling) -> bool:
        """Whether the turn has spent enough of a limit for a warning."""
        turn, warn_at = event.turn, self.warn_at or 1.0
        for kind, limit in self.limits.items():
            spent = turn.usage.total if kind == "tokens" else spent_in(turn)[kind]
            if spent >= warn_at * limit:
                return True
        return False

    def warn(self, turn: Turn[Any], spent: Mapping[str, float]) -> None:
        """Note the limits of which the fraction `warn_at` is in `spent`, each once per turn."""
        if self.warn_at is None:
            return
        due = [kind for kind, limit in self.limits.items() if spent[kind] >= self.warn_at * limit]
        noted = [note.data["limit"] for note in _warnings(turn)] if due else []
        for kind in due:
            if kind not in noted:
                turn.note(WARNING, {"limit": kind, "spent": spent[kind], "of": self.limits[kind], "per": self.words})

    @property
    def words(self) -> str:
        """What the budget is for."""
        return "key" if callable(self.per) else self.per

    # ------------------------------------------------------------ costs

    async def _state_cost(self, request: ModelRequest, call_next: CallModel) -> ModelReply:
        reply = await call_next(request)
        price = self.prices.get(request.model)
        if price is None or reply.usage.cost is not None:
            return reply
        return reply.replace(usage=reply.usage.replace(cost=price.cost(reply.usage)))

    def _refuse_unknown(self, event: ModelCalling, turn: Turn[Any]) -> Halt | None:
        model = event.request.model
        if model in self.prices or turn.knows_cost(model):
            return None
        return Halt(
            f"the cost of model {model!r} is unknown, so a budget in USD cannot hold: state a price with "
            f"Budget(prices={{{model!r}: (input, output)}}), set knows_cost = True on your own model if its replies "
            "have a cost, or allow it with unknown_cost='allow'"
        )

    # ------------------------------------------------------------ tool calls

    def _limit_calls(self, registrar: Hooks, limit: int) -> None:
        storage = registrar.storage(self.name)
        only: Any = {} if self.tools is None else {"tool": self.tools}
        counted = "calls" if self.tools is None else f"calls/{quote(','.join(self.tools), safe='')}"
        of_tools = "" if self.tools is None else f" of {', '.join(self.tools)}"

        @registrar.gate(ToolCalling, inherit=True, costly=True, name=f"{self.name}.calls", **only)
        async def count_call(event: ToolCalling, turn: Turn[Any]) -> Deny | Halt | None:
            key = self.key_of(turn)
            if key is None:
                return None
            taken = await storage.take(f"{key}/{counted}", limit=limit, ttl=self.window, once=event.call.id)
            if taken:
                return None
            why = f"the budget of {limit} tool calls{of_tools} per {self.words} is used up"
            return Halt(why) if self.then == "stop" else Deny(why)

        if self.per == "turn":

            @registrar.gate(TurnStarting, name=f"{self.name}.renew")
            async def renew(event: TurnStarting, turn: Turn[Any]) -> None:
                await storage.delete(f"{self.key_of(turn)}/{counted}")

    def key_of(self, turn: Turn[Any]) -> str | None:
        """The key that this turn spends from; None if the function says that no budget applies."""
        if not callable(self.per):
            return quote(root_of(turn.session_id), safe="")
        key: object = self.per(turn.scope)
        if key is None:
            return None
        if not isinstance(key, str) or not key:
            raise ConfigError(f"Budget(per=…) returned {key!r}; it must return a text, or None for no budget")
        return quote(key, safe="")


def _warnings(turn: Turn[Any]) -> Iterable[Any]:
    state = turn.state.turn
    return [note for note in state.notes if note.kind == WARNING] if state is not None else ()


def _tell_model(event: StepStarting, turn: Turn[Any]) -> str | None:
    """Tell the model which limits it is near."""
    near = [f"{note.data['spent']:g} of {note.data['of']:g} {UNITS[note.data['limit']]}" for note in _warnings(turn)]
    return f"The budget is nearly used up: {', '.join(near)}. Finish soon." if near else None
