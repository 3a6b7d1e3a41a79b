"""AutoApprove: a delegation; it approves some calls for a person, for some time, and only so often."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import TYPE_CHECKING, Any

from windlass.decisions import Approve
from windlass.errors import ConfigError
from windlass.records import Asked
from windlass.turns import Turn

from .option_types import check_types
from .options import require, require_amount, require_count
from .permissions import Permissions

if TYPE_CHECKING:
    from windlass import Hooks


class AutoApprove:
    """Approve questions about calls that `when` matches: rules such as `"pay(euros=?)"`, compared strictly, or a
    function of the question and the turn that returns true.

    It ends at the time `until`, seconds since the epoch or a datetime with a time zone, and after so many `uses`. They
    are counted in the agent's store, for all sessions and processes, under the name `by`. `gates` limits it to
    questions of these gates.

    It answers only what `by` may answer: a question that names approvers must name it. An instance is a capability, or
    one of `Approval(by=[…])`.
    """

    @check_types
    def __init__(
        self,
        when: str | Iterable[str] | Callable[[Asked, Turn[Any]], bool],
        *,
        until: float | datetime | None = None,
        uses: int | None = None,
        gates: Iterable[str] | None = None,
        by: str = "auto",
    ) -> None:
        if callable(when):
            self.when: Permissions | Callable[[Asked, Turn[Any]], bool] = when
        else:
            self.when = Permissions(allow=[when] if isinstance(when, str) else when, unmatched="ask")
        if isinstance(until, datetime) and until.tzinfo is None:
            raise ConfigError(f"AutoApprove(until={until!r}) needs a time zone, such as datetime.UTC")
        if uses is not None:
            require_count("AutoApprove", "uses", uses)
        require("AutoApprove", "by", by, by != "", "a name")
        self.until = until.timestamp() if isinstance(until, datetime) else until
        if self.until is not None:
            require_amount("AutoApprove", "until", self.until)
        self.uses = uses
        self.gates = None if gates is None else frozenset(gates)
        self.by = self.name = by

    def install(self, registrar: Hooks) -> None:
        """Register the approver."""
        storage = registrar.storage("auto_approve") if self.uses is not None else None

        async def auto_approve(asked: Asked, turn: Turn[Any]) -> Approve | None:
            if not self._may_answer(asked) or not await self._is_due(asked, turn):
                return None
            if storage is not None and self.uses is not None:
                question = f"{turn.session_id}:{asked.id}:{asked.digest}"
                if not await storage.take(self.by, limit=self.uses, once=question):
                    return None
            return Approve(by=self.by, digest=asked.digest)

        registrar.approver(auto_approve)

    def _may_answer(self, asked: Asked) -> bool:
        """Whether the question takes an approval of this name."""
        named = asked.approvers is None or self.by in asked.approvers
        asked_by = self.gates is None or self.gates.issuperset(asked.by)
        return named and asked_by and "approve" in asked.allow

    async def _is_due(self, asked: Asked, turn: Turn[Any]) -> bool:
        if self.until is not None and turn.now() >= self.until:
            return False
        if not isinstance(self.when, Permissions):
            return self.when(asked, turn)
        return asked.call is not None and (await self.when.judge(asked.call)).decision == "allow"

    def summary(self) -> str:
        """The delegation in one line, for `explain`."""
        what = (
            ", ".join([rule.text for rule in self.when.rules]) if isinstance(self.when, Permissions) else "a function"
        )
        times = "" if self.uses is None else f", at most {self.uses} times"
        return f"approves {what}{times}" + ("" if self.until is None else f", until {self.until:.0f}")
