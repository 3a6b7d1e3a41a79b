"""Adapt: an agent monitors itself, analyses what it observed, plans a change and makes it, within bounds (MAPE-K)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import convert, to_builtins
from msgspec.structs import replace

from windlass.decisions import Vote
from windlass.errors import ConfigError
from windlass.events import Continuing, ModelCalling, StepStarting, TurnEnding, TurnStarting
from windlass.messages import ModelRequest, Value
from windlass.outcomes import Completed
from windlass.records import Fact, Noted
from windlass.slots import Slot
from windlass.states import stop_reason
from windlass.turns import Turn

from .adaptations import Adaptation, AdaptationRule, Bounds, Knowledge
from .fallback import settings_for
from .monitoring import Monitored, SharedKnowledge, observe
from .option_types import check_types
from .options import require, require_count, require_name

if TYPE_CHECKING:
    from windlass import Hooks

LARGEST_WINDOW = 50
"""A note holds the observations of the window, and has at most 8 KB."""


class Replayed(Value, frozen=True, gc=True):
    """An adaptation in the log (`recorded`), and what the rules make of the same facts now (`now`)."""

    recorded: Adaptation
    now: Adaptation | None


class Adapt:
    """Let an agent adapt itself by `rules`, within `bounds`.

    After each step and each turn it adds an observation to its knowledge, which keeps the latest `window` of them, for
    each session; with `share=True`, for all sessions of the store together. The first rule whose condition holds makes
    a change: it switches the model, the mode, settings or limits, from the next model call on. Then a new window
    begins. Every adaptation is a note with its reason and the facts it is based on. Changes outside the bounds are
    refused: when the agent is made, or, if a function computes them, by a note.
    """

    @check_types
    def __init__(
        self,
        rules: Sequence[AdaptationRule],
        bounds: Bounds,
        *,
        window: int = 10,
        share: bool = False,
        name: str = "adapt",
    ) -> None:
        require_name("Adapt", name)
        require_count("Adapt", "window", window)
        require("Adapt", "window", window, window <= LARGEST_WINDOW, f"at most {LARGEST_WINDOW}")
        require("Adapt", "rules", rules, bool(rules), "one or more AdaptationRule(…)")
        if (wrong := bounds.problem()) is not None:
            raise ConfigError(f"Adapt: {wrong}")
        for number, rule in enumerate(rules, 1):
            if (wrong := rule.problem(bounds, window)) is not None:
                raise ConfigError(f"Adapt: rule {number}{f' ({rule.reason})' if rule.reason else ''}: {wrong}")
        self.rules, self.bounds, self.window, self.share, self.name = tuple(rules), bounds, window, share, name

    def install(self, registrar: Hooks) -> None:
        """Bring the models and the slot, and register the hooks."""
        models = {
            given: registrar.model(model) for given, model in zip(self.bounds.names, self.bounds.models, strict=True)
        }
        slot: Slot[Monitored] = registrar.slot(Slot(self.name, Monitored, input=False, output=False))

        shared = SharedKnowledge(registrar.storage(self.name), self.window) if self.share else None

        async def learn(event: TurnStarting, turn: Turn[Any]) -> None:
            known = turn.get(slot)
            current = Adaptation() if shared is None else await shared.current()
            if current != known.knowledge.current:
                turn.set(slot, replace(known, knowledge=Knowledge((), current)))

        async def monitor_step(event: StepStarting, turn: Turn[Any]) -> None:
            await self._monitor(turn, slot, shared)

        async def monitor_end(event: TurnEnding, turn: Turn[Any]) -> None:
            reason = stop_reason(event.outcome)
            outcome = "completed" if isinstance(event.outcome, Completed) else str(reason)
            await self._monitor(turn, slot, shared, outcome)

        def execute(event: ModelCalling) -> ModelRequest | None:
            current = event.turn.get(slot).knowledge.current
            return None if current == Adaptation() else self._adapted(event.request, current, models)

        def keep_limits(event: Continuing, turn: Turn[Any]) -> tuple[Vote, str] | None:
            limits = turn.get(slot).knowledge.current.limits
            last = event.state.turn.last if event.state.turn is not None else None
            if not limits or last is None or not last.calls:  # it stops by itself
                return None
            spent = {"steps": turn.steps, "tokens": turn.usage.total, "usd": turn.usage.cost, "seconds": turn.active}
            reached = [name for name, limit in limits.items() if _at(spent[name], limit)]
            why = ", ".join([f"{spent[name]} of {limits[name]:g} {name}" for name in reached])
            return (Vote.FORBID, why) if reached else None

        if shared is not None:
            registrar.gate(TurnStarting, name=f"{self.name}.learn")(learn)
        registrar.gate(StepStarting, name=f"{self.name}.step")(monitor_step)
        registrar.gate(TurnEnding, name=f"{self.name}.end", live=True)(monitor_end)
        registrar.rewrite(ModelCalling, name=self.name)(execute)
        if self.bounds.limits:
            registrar.gate(Continuing, name=f"{self.name}.limits")(keep_limits)

    def summary(self) -> str:
        """What may be adapted, for `explain`."""
        bounds = self.bounds
        kinds = {"models": bounds.names, "modes": bounds.modes, "settings": bounds.settings, "limits": bounds.limits}
        may = "; ".join([f"{kind}: {', '.join(names)}" for kind, names in kinds.items() if names])
        return f"{len(self.rules)} rules over {self.window} observations; {may}"

    def decide(self, knowledge: Knowledge) -> tuple[Adaptation, str] | None:
        """The change that the rules make of what is known, with its reason; None if they make none.

        It depends on the knowledge alone. A change that would alter nothing is none. If a rule raises, the change is
        that error, which no bounds allow.
        """
        for number, rule in enumerate(self.rules, 1):
            try:
                if len(knowledge.observations) < rule.least or not rule.when(knowledge):
                    continue
                given: Any = rule.adaptation
                change: Any = given(knowledge) if callable(given) else given
            except Exception as error:
                change = error
            if change is not None and not _is_in_force(change, knowledge.current):
                return change, rule.reason or f"rule {number}"
        return None

    def replay(self, facts: Iterable[Fact]) -> list[Replayed]:
        """The adaptations in a log, each with what the rules make of the same facts now."""
        notes = [fact for fact in facts if isinstance(fact, Noted) and fact.kind == self.name]
        return [Replayed(convert(note.data["change"], Adaptation), self._redecide(note)) for note in notes]

    def _redecide(self, note: Noted) -> Adaptation | None:
        decided = self.decide(convert(note.data["knowledge"], Knowledge))
        return None if decided is None or self.bounds.refusal(decided[0]) is not None else decided[0]

    # ------------------------------------------------------------ monitor, analyse, plan

    async def _monitor(
        self, turn: Turn[Any], slot: Slot[Monitored], shared: SharedKnowledge | None, outcome: str = ""
    ) -> None:
        """Add what the log has gained to the knowledge; then adapt, if a rule says so."""
        state, known = turn.state.turn, turn.get(slot)
        observed = None if state is None else observe(state, known, outcome)
        if state is None or observed is None:
            return
        new, seen = observed
        key = f"{turn.session_id} {state.number} {seen.steps}{outcome and ' end'}"
        if shared is None:
            observations = (*known.knowledge.observations, new)[-self.window :]
        else:
            observations = await shared.add(key, new, turn.now())
        knowledge = Knowledge(observations, known.knowledge.current)
        if (decided := self.decide(knowledge)) is not None:
            knowledge = self._plan(turn, knowledge, *decided)
            if shared is not None:
                await shared.begin(key, observations, knowledge.current)
        kept = knowledge if shared is None else Knowledge((), knowledge.current)
        turn.set(slot, Monitored(kept, state.number, seen))

    def _plan(self, turn: Turn[Any], knowledge: Knowledge, change: Adaptation, reason: str) -> Knowledge:
        """The knowledge after a change; a new window begins."""
        facts = {"knowledge": to_builtins(knowledge)}
        if (refusal := self.bounds.refusal(change)) is not None:
            turn.note(f"{self.name}.refused", {"reason": reason, "why": refusal, **facts})
            return Knowledge((), knowledge.current)
        current = knowledge.current.after(change)
        changed = {"change": to_builtins(change), "current": to_builtins(current)}
        turn.note(self.name, {"reason": reason, **changed, **facts})
        return Knowledge((), current)

    # ------------------------------------------------------------ execute

    def _adapted(self, request: ModelRequest, current: Adaptation, models: dict[str, str]) -> ModelRequest:
        model = request.model if current.model is None else models[current.model]
        mode = "" if current.mode is None else self.bounds.modes[current.mode]
        system = "\n\n".join([text for text in (request.system, mode) if text])
        settings = {**settings_for(model, request), **current.settings}
        return request.replace(model=model, system=system, settings=settings)


def _is_in_force(change: object, current: Adaptation) -> bool:
    return isinstance(change, Adaptation) and current.after(change) == current


def _at(spent: float | None, limit: float) -> bool:
    """Whether a limit is reached; an unknown cost counts as reached."""
    return spent is None or spent >= limit
