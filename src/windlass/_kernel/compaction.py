"""Compaction: planned by a strategy, judged by the hooks, then one record.

Until that is written nothing changes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from msgspec import Struct

from windlass.checking import checked_history, read_back
from windlass.context.assembly import instructions
from windlass.context.budget import Meter
from windlass.context.compaction import Compactor, Window, parted, safe_range
from windlass.decisions import Deny
from windlass.errors import CompactionError, ConfigError, ContextOverflow
from windlass.events import Compacting
from windlass.events import Compaction as Plan
from windlass.messages import Message
from windlass.outcomes import error_value
from windlass.policies import category_of
from windlass.records import Compacted, ErrorHandled, HookFailed
from windlass.states import over, step_id
from windlass.turns import Asker, Host, Turn

from .journal import Journal
from .questions import Questions
from .side_calls import Unrecorded
from .site import Site

AGAIN = 1.1
"""A strategy that was denied, or gained nothing, is asked again when the context has grown by this
factor."""

RELIEF = 0.5
"""Once this part of a request that was too large is left, no further strategy is asked."""


class Compaction(Struct, eq=False):
    """Compacts what models are shown of a session.

    `_asked_at` has the size of the context when a strategy last gained nothing; `_relieved_step` is
    the step whose request was too large and was compacted for that.
    """

    _journal: Journal
    _site: Site
    _questions: Questions
    meter: Meter | None
    _asked_at: dict[str, int] = {}
    _relieved_step: int = 0

    async def run(self) -> None:
        """Ask every strategy once, in their order."""
        fold, window = self._journal.fold, self.window()
        for compactor in self._journal.program.compactors:
            before = self._asked_at.get(compactor.name)
            if before is not None and window.tokens < before * AGAIN:
                self._asked_at[compactor.name] = min(before, window.tokens)
                continue
            plan = compactor.plan(window)
            if plan is None:
                continue
            about = f"{step_id(fold.session, fold.steps + 1)}/compact"
            try:
                made = await self._carry_out(compactor, plan, window, about)
            except ConfigError:
                raise
            except Exception as error:  # the request may fit all the same: if it does not, `relieve` asks once more
                made = None
                failed = HookFailed(
                    compactor.name, "Compacting", error_value(error), effect="not compacted"
                )
                self._journal.record(failed)
            self._asked_at[compactor.name] = window.tokens if made is None else 0
            window = self.window()

    async def run_now(self, instructions: str) -> tuple[Compacted, ...]:
        """Ask every strategy once, due or not. Returns what they replaced."""
        done: list[Compacted] = []
        about = f"{self._journal.fold.session}/compact"
        for compactor in self._journal.program.compactors:
            made = await self._force(compactor, "asked for", about, instructions)
            done += [] if made is None else [made]
        return tuple(done)

    async def relieve(self, error: ContextOverflow) -> bool:
        """After a request that was too large: ask strategies, due or not, until enough is gone.
        Once in a step.

        Whether it is worth another try.
        """
        journal, fold = self._journal, self._journal.fold
        number = fold.steps + 1
        if not journal.program.compactors or self._relieved_step == number:
            return False
        self._relieved_step = number
        enough = self.window().tokens * RELIEF
        about, reason = (
            f"{step_id(fold.session, number)}/overflow",
            "the request was too large for the model",
        )
        done = False
        failed: Exception | None = None
        for compactor in journal.program.compactors:
            if not done or self.window().tokens > enough:
                try:
                    done = await self._force(compactor, reason, about) is not None or done
                except Exception as raised:
                    failed = failed or raised
        if failed is not None and not done:
            raise failed from error
        if done:
            handled = ErrorHandled(
                error_value(error), category_of(error), "retry", "compaction", number
            )
            journal.record(handled)
        return done

    async def _force(
        self, compactor: Compactor, reason: str, about: str, instructions: str = ""
    ) -> Compacted | None:
        window = self.window()
        plan = compactor.plan(window, forced=True)
        if plan is None:
            return None
        plan = _planned(compactor.name, plan)
        plan = plan.replace(instructions=instructions or plan.instructions, reason=reason)
        return await self._carry_out(compactor, plan, window, about)

    def window(self) -> Window:
        """What the next request would show, and how much room there is."""
        program, fold, meter = self._journal.program, self._journal.fold, self.meter
        assert meter is not None
        name = program.model_name
        system, tools = instructions(fold, program)
        tokens = meter.theirs(meter.ours(system, tools, fold.shown), name)
        limit = program.budget.limit(name, program.settings)
        room = None if limit is None else max(limit - program.injection_reserve, 0)
        return Window(
            fold.session, fold.shown, fold.place, not over(fold), fold.compactions, tokens, room, meter, name,
            program.models,
        )  # fmt: skip

    async def _carry_out(
        self, compactor: Compactor, plan: Plan, window: Window, about: str
    ) -> Compacted | None:
        """One compaction, as a whole or not at all: None if it was denied, or there is nothing to
        cut or to gain."""
        journal, site = self._journal, self._site
        plan = _planned(compactor.name, plan)
        if (point := site.hooks.at(Compacting)) is not None:
            passage = site.passage(point, Compacting(plan, site.turn), f"{about}/{compactor.name}")
            plan = (await passage.rewrite()).plan
            if isinstance(await self._questions.decide(passage), Deny):
                return None
        found = safe_range(window.messages, *plan.range)
        if found is None:
            return None
        plan = plan.replace(range=found)
        given = await compactor.replace(
            plan, window, site.turn_of(compactor.name, "Compacting", about)
        )
        made = compacted(compactor.name, plan, window, given)
        if made is None:
            return None
        record = made.replace(at=0.0)
        journal.record(record)
        await journal.commit()
        return record


def prepare_compaction(journal: Journal, site: Site) -> None:
    """The turn has ended: strategies may write ahead what will soon be due."""
    about = f"{journal.fold.session}/t{journal.fold.turns}/ahead"
    for compactor in journal.program.compactors:
        if (prepares := getattr(compactor, "prepare", None)) is not None:
            asker = Asker("Compacting", about, compactor.name, (compactor.name,), recorded=False)
            try:
                prepares(Turn(cast(Host, Unrecorded(site)), asker=asker))
            except Exception as error:
                failed = HookFailed(
                    compactor.name, "TurnEnded", error_value(error), effect="not prepared"
                )
                journal.record(failed)


def _planned(name: str, plan: object) -> Plan:
    """What a strategy plans, in its name."""
    try:
        if type(plan) is not Plan:
            raise TypeError(f"expected a Compaction, got {type(plan).__name__}")
        made: Plan = read_back(plan.replace(by=name), Plan)
    except TypeError as error:
        raise CompactionError(
            f"compactor {name!r} returned an invalid plan; nothing was changed: {error}"
        ) from None
    return made


def compacted(name: str, plan: Plan, window: Window, given: Sequence[Message]) -> Compacted | None:
    """The record of it, with what stays as numbers.

    Refused if it parts a pair; None if it is no smaller.
    """
    start, end = plan.range
    old = window.messages[start:end]
    try:
        given = checked_history(given, old)
    except TypeError as error:
        text = f"compactor {name!r} returned an invalid message; nothing was changed: {error}"
        raise CompactionError(text) from None
    numbers = {id(message): start + at for at, message in enumerate(old)}
    new: list[Message | int] = [numbers.get(id(message), message) for message in given]
    place = window.place
    if start <= place < end and window.stays(place) and place not in new:
        later = [
            at for at, message in enumerate(new) if isinstance(message, int) and message > place
        ]
        new.insert(later[0] if later else len(new), place)
    shown = [window.messages[one] if isinstance(one, int) else one for one in new]
    if parted(old, shown):
        raise CompactionError(
            f"compactor {name!r} parted a call from its result; nothing was changed"
        )
    before, after = window.size(old), window.size(shown)
    if after >= before:
        return None
    sizes = window.tokens, window.tokens - before + after
    return Compacted(plan.range, tuple(new), name, plan.reason, *sizes)
