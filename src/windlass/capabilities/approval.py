"""Approval: people decide about calls before they run; rules and programs may answer for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from msgspec import structs

from windlass.decisions import ANSWER_KINDS, Ask, Stage
from windlass.errors import ConfigError
from windlass.events import ToolCalling
from windlass.messages import ToolCall
from windlass.types import Approver

from .option_types import check_types
from .options import require_name
from .permissions import Permissions
from .remembered_rules import RememberedRules
from .verdicts import Verdict

if TYPE_CHECKING:
    from windlass import Hooks, Tool

When: TypeAlias = str | Iterable[str] | Callable[[ToolCalling], bool] | None


class Approval:
    """Ask people before some calls run.

    `when` says which calls: rules such as `"bash(git push *)"`, or a function of the event that returns true. By
    default, calls of tools that are not `pure`. With `[]` it asks nothing itself and only answers what others ask.

    `question`, `allow`, `approvers`, `quorum`, `escalate`, `stages`, `expires`, `default`, `details` and `priority` are
    those of `Ask`; the question may be a function of the call. `by` answers in this process, in this order: functions,
    such as `at_the_terminal`, and `AutoApprove` or `Webhook`. With `remember`, an approval that comes with a rule
    (`Approve(remember="bash(git *)")`) adds it to the user's own rule file, or to the file that is named, and
    questions that such a rule answers are approved. Sub-agents inherit the gate.
    """

    @check_types
    def __init__(
        self,
        when: When = None,
        *,
        question: str | Callable[[ToolCall], str] = "",
        allow: Iterable[str] = ANSWER_KINDS,
        approvers: Iterable[str] | None = None,
        quorum: int = 1,
        escalate: tuple[float, Sequence[str]] | None = None,
        stages: Iterable[Stage] = (),
        expires: float | None = None,
        default: Literal["approve", "reject"] = "reject",
        details: Mapping[str, Any] | None = None,
        priority: int = 0,
        by: Iterable[Approver | Any] = (),
        remember: bool | str | Path = False,
        name: str = "approval",
    ) -> None:
        require_name("Approval", name)
        self.name = name
        self.when = _when(when)
        self.question = question
        self.by = tuple(by)
        if wrong := [one for one in self.by if not callable(one) and not hasattr(one, "install")]:
            raise ConfigError(f"Approval(by=…): {wrong[0]!r} is neither a function nor something like AutoApprove(…)")
        try:
            self.ask = Ask(
                allow=tuple(allow),
                approvers=None if approvers is None else _names(approvers),
                quorum=quorum,
                escalate=None if escalate is None else (escalate[0], _names(escalate[1])),
                stages=tuple(stages),
                expires=expires,
                default=default,
                details=dict(details or {}),
                priority=priority,
            )
        except ValueError as error:
            raise ConfigError(str(error).replace("Ask(", "Approval(", 1)) from error
        rules = Path(remember) if isinstance(remember, str | Path) else None
        self.remembered = RememberedRules(rules, gates=("permissions", name)) if remember else None

    def install(self, registrar: Hooks) -> None:
        """Register the gate that asks, and what answers."""
        if isinstance(self.when, Permissions):
            self.when.install_gate(registrar, self.name, self._ask_if_matched)
        elif self.when is not None:
            due = self.when

            def ask(event: ToolCalling) -> Ask | None:
                return self._ask(event.call) if due(event) else None

            registrar.gate(ToolCalling, name=self.name, inherit=True)(ask)
        for one in self.by:
            if (install := getattr(one, "install", None)) is not None:
                install(registrar)
            else:
                registrar.approver(one)
        if self.remembered is not None:
            self.remembered.install(registrar)

    def _ask_if_matched(self, call: ToolCall, verdict: Verdict) -> Ask | None:
        return self._ask(call) if verdict.decision == "ask" else None

    def _ask(self, call: ToolCall) -> Ask:
        question = self.question(call) if callable(self.question) else self.question
        return structs.replace(self.ask, question=question or f"May {call.name} run?")

    def warnings(self, tools: Mapping[str, Tool[..., Any]]) -> list[str]:
        """Rules that match none of these tools, and what else is odd about the rules; `explain` shows it."""
        return self.when.warnings(tools) if isinstance(self.when, Permissions) else []

    def summary(self) -> str:
        """The terms in one line, for `explain`."""
        people = "anyone" if self.ask.approvers is None else ", ".join(self.ask.approvers)
        if self.ask.stages:
            people = ", then ".join([" or ".join(stage.approvers) for stage in self.ask.stages])
        many = f"{self.ask.quorum} of " if self.ask.quorum > 1 else ""
        expiry = "" if self.ask.expires is None else f"; after {self.ask.expires:g} s: {self.ask.default}"
        return ("asks nothing itself" if self.when is None else f"asks {many}{people}{expiry}") + (
            "" if self.remembered is None else f"; remembers rules in {self.remembered.path}"
        )


def _when(when: Any) -> Permissions | Callable[[ToolCalling], bool] | None:
    if when is None:
        return _is_not_pure
    if callable(when):
        return cast("Callable[[ToolCalling], bool]", when)
    rules = [when] if isinstance(when, str) else list(when) if isinstance(when, Iterable) else None
    if rules is None:
        raise ConfigError(f"Approval(when={when!r}) takes rules such as 'bash(git push *)', or a function of the event")
    return Permissions(ask=rules, unmatched="allow") if rules else None


def _is_not_pure(event: ToolCalling) -> bool:
    return event.tool is None or event.tool.effect != "pure"


def _names(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise ConfigError(f"Approval(approvers={names!r}) takes a list of names")
    return tuple(names)
