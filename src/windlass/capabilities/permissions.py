"""Permissions: rules as data that allow, deny or ask about tool calls; the strictest rule wins."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeAlias

from msgspec import structs

from windlass.decisions import Allow, Ask, Deny
from windlass.events import ToolCalling
from windlass.messages import ToolCall

from .commands import Command, commands_of, is_parsed
from .option_types import check_types
from .options import require_name
from .paths import PARAMETERS
from .rule_checks import rule_problems, tool_problems
from .rule_files import read_policy
from .rules import KINDS, NO, YES, Kind, Rule, RuleSet, Setting, Subject
from .shell_parser import Unparsable
from .verdicts import Verdict, doubt_about, reason_of, strictest

if TYPE_CHECKING:
    from windlass import Hooks, Tool

SHELLS: Mapping[str, str] = {"bash": "command", "Bash": "command", "sh": "command", "shell": "command"}
"""Tools that run shell commands unless the policy says otherwise, each with the parameter that has the command."""

Decide: TypeAlias = Callable[[ToolCall, "Verdict"], Allow | Ask | Deny | None]

_MAX_TOOLS = 512
_NOTHING = Subject({}, "")
_ALLOW = Allow()
log = logging.getLogger("windlass")


class _Rules(NamedTuple):
    """The rules about one tool."""

    deny: RuleSet
    ask: RuleSet
    allow: RuleSet

    exist: bool
    takes_apart: bool
    """Whether a rule compares something of a call. If none does, all calls of the tool get the same verdict."""


class Permissions:
    """Allow, deny or ask about tool calls by rules such as `"read"`, `"bash(git status *)"` or `"write(path=src/)"`.

    The strictest rule that matches wins: deny, then ask, then allow. `unmatched` is for calls that no rule matches.
    Sub-agents inherit the rules beside their own, so they may do no more than this agent.

    Relative paths start at `folder`, by default the current directory. `paths` names the parameters that hold paths,
    and `shells` the tools that run shell commands, each with its parameter. `asks` is how to ask: a template for the
    questions, with their approvers, expiry and so on.
    """

    @check_types
    def __init__(
        self,
        *,
        allow: Iterable[str] = (),
        deny: Iterable[str] = (),
        ask: Iterable[str] = (),
        unmatched: Kind = "ask",
        folder: str | os.PathLike[str] | None = None,
        paths: Iterable[str] | None = None,
        shells: Mapping[str, str] | None = None,
        asks: Ask | None = None,
        name: str = "permissions",
    ) -> None:
        given: dict[Kind, Iterable[str]] = {"allow": allow, "ask": ask, "deny": deny}
        self.rules = tuple([Rule(kind, text) for kind in KINDS for text in given[kind]])
        require_name("Permissions", name)
        self.name = name
        self.unmatched: Kind = unmatched
        self.asks = Ask() if asks is None else asks
        known = PARAMETERS if paths is None else frozenset(paths)
        start = os.path.abspath(os.getcwd() if folder is None else os.path.expanduser(folder))
        self.setting = Setting(start, known, dict(SHELLS if shells is None else shells))
        self._by_tool: dict[str, _Rules] = {}
        self._verdicts: dict[str, Verdict] = {}

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        asks: Ask | None = None,
        log_problems: bool = True,
        name: str = "permissions",
    ) -> Self:
        """Read a policy file in TOML or YAML. With `log_problems`, what `problems` finds is logged."""
        policy = read_policy(Path(path))
        loaded = cls(
            allow=policy.listed("allow"),
            deny=policy.listed("deny"),
            ask=policy.listed("ask"),
            unmatched=policy.unmatched,
            folder=policy.folder,
            paths=policy.paths,
            shells=policy.shells,
            asks=asks,
            name=name,
        )
        for problem in loaded.problems() if log_problems else ():
            log.warning("policy %s: %s", path, problem)
        return loaded

    # ------------------------------------------------------------ the verdict

    def check(self, call: ToolCall) -> Verdict:
        """What the rules say about a call. A shell command is parsed, which takes some milliseconds the first time."""
        rules = self._rules_of(call.name)
        if not rules.takes_apart:
            found = self._verdicts.get(call.name)
            if found is None:
                found = self._verdicts[call.name] = self._judge(rules, _NOTHING, None, "")
            return found
        subject = Subject(call.arguments, self.setting.folder)
        parts: Iterable[Command | None] = (None,)
        script = self._script(call.name, subject.arguments, rules)
        problem = ""
        if script is not None:
            try:
                parts = _commands(script)
            except Unparsable as error:
                problem = str(error)
        verdicts = [self._judge(rules, subject, part, problem) for part in parts]
        return strictest(verdicts) if verdicts else Verdict(self.unmatched)

    def _script(self, tool: str, arguments: Mapping[str, Any], rules: _Rules) -> tuple[object] | None:
        """The shell command of a call, if rules look into it. It should be a text."""
        if tool not in self.setting.shells or not rules.takes_apart:
            return None
        return (arguments.get(self.setting.shells[tool]),)

    def _judge(self, rules: _Rules, subject: Subject, part: Command | None, problem: str) -> Verdict:
        """What the rules say about a call, or about one command of it."""
        about = "" if part is None else part.text
        doubt: Verdict | None = None
        for bound in (rules.deny, rules.ask):
            for one in bound.candidates(subject, part, parsed=not problem):
                found = one.match(subject, part)
                if found == YES and (part is None or not part.hidden):
                    return Verdict(one.rule.kind, one.rule, command=about)
                if found != NO and doubt is None:
                    doubt = Verdict("ask", one.rule, problem or doubt_about(part), about)
        return strictest([verdict for verdict in (doubt, self._permit(rules, subject, part, problem)) if verdict])

    def _permit(self, rules: _Rules, subject: Subject, part: Command | None, problem: str) -> Verdict:
        """What the rules that allow say, or what holds for unmatched calls."""
        about = "" if part is None else part.text
        if part is not None and part.hidden:
            return Verdict("allow", None)
        for one in rules.allow.candidates(subject, part, parsed=not problem):
            if one.match(subject, part) != NO:
                return Verdict("allow", one.rule, command=about)
        if problem and self.unmatched == "allow" and rules.takes_apart:
            return Verdict("ask", None, problem)
        return Verdict(self.unmatched, None, problem, about)

    def _rules_of(self, tool: str) -> _Rules:
        found = self._by_tool.get(tool)
        if found is None:
            if len(self._by_tool) >= _MAX_TOOLS:  # a model may invent any number of names
                self._by_tool.clear()
                self._verdicts.clear()
            about = [rule for rule in self.rules if rule.matches_tool(tool)]
            by_kind = {
                kind: [rule.for_tool(tool, self.setting) for rule in about if rule.kind == kind] for kind in KINDS
            }
            takes_apart = any(rule.tests for rules in by_kind.values() for rule in rules)
            deny, ask, allow = [RuleSet(by_kind[kind]) for kind in reversed(KINDS)]
            found = self._by_tool[tool] = _Rules(deny, ask, allow, bool(about), takes_apart)
        return found

    # ------------------------------------------------------------ the capability

    async def judge(self, call: ToolCall) -> Verdict:
        """What the rules say about a call, as `check` does, but a shell command is parsed beside the event loop."""
        script = self._script(call.name, call.arguments, self._rules_of(call.name))
        if script is not None and isinstance(script[0], str) and not is_parsed(script[0]):
            await asyncio.get_running_loop().run_in_executor(None, self.check, call)
        return self.check(call)

    def install(self, registrar: Hooks) -> None:
        """Register the gate. Sub-agents inherit it."""
        self.install_gate(registrar, self.name, self._decision)

    def install_gate(self, registrar: Hooks, name: str, decide: Decide) -> None:
        """Register a gate that answers what `decide` makes of a call and its verdict."""

        def permit(event: ToolCalling) -> Any:
            if event.call.name in self.setting.shells:
                return permit_command(event)
            return decide(event.call, self.check(event.call))

        async def permit_command(event: ToolCalling) -> Allow | Ask | Deny | None:
            return decide(event.call, await self.judge(event.call))

        gate = registrar.gate(ToolCalling, name=name, inherit=True, when=self._may_speak)
        gate(permit)

    def _may_speak(self, event: ToolCalling) -> bool:
        """Whether a rule is about the tool, or calls that no rule matches are not simply allowed."""
        return self.unmatched != "allow" or self._rules_of(event.call.name).exist

    def _decision(self, call: ToolCall, verdict: Verdict) -> Allow | Ask | Deny | None:
        match verdict.decision:
            case "deny":
                return Deny(reason_of(verdict))
            case "ask":
                rule = None if verdict.rule is None else repr(verdict.rule)
                details = {**self.asks.details, "permissions": {"rule": rule, "why": verdict.why}}
                question = self.asks.question
                if question == Ask().question:
                    question = f"Allow this call of {call.name}? {verdict}"
                return structs.replace(self.asks, question=question, details=details)
            case "allow":
                return None if verdict.rule is None else _ALLOW

    def problems(self) -> list[str]:
        """What is odd about the rules: those that never count because others are stricter or wider, and more."""
        return rule_problems(self.rules, self.setting)

    def warnings(self, tools: Mapping[str, Tool[..., Any]]) -> list[str]:
        """The problems of the rules, also those that match none of these tools; `explain` shows them."""
        return [*self.problems(), *tool_problems(self.rules, tools, self.setting)]

    def summary(self) -> str:
        """The rules in one line, for `explain`."""
        counts = [f"{sum([rule.kind == kind for rule in self.rules])} {kind}" for kind in reversed(KINDS)]
        return f"rules: {', '.join(counts)}; other calls: {self.unmatched}"


def _commands(script: tuple[object]) -> tuple[Command, ...]:
    if not isinstance(script[0], str):
        raise Unparsable("the command is not a text")
    return commands_of(script[0])
