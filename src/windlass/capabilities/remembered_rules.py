"""Rules that people made while they approved: kept in the user's own folder, and asked before a person is."""

from __future__ import annotations

import json
import logging
import os
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from windlass.decisions import Approve
from windlass.errors import ConfigError
from windlass.matching import parse_rule
from windlass.records import Answered, Asked
from windlass.turns import Turn

from .option_types import check_types
from .permissions import Permissions
from .rule_files import read_policy

if TYPE_CHECKING:
    from windlass import Hooks

log = logging.getLogger("windlass")


def user_rules() -> Path:
    """The user's own rule file, in the folder that the platform has for settings; `WINDLASS_CONFIG` names another
    folder."""
    if own := os.environ.get("WINDLASS_CONFIG"):
        folder = Path(own)
    elif sys.platform == "darwin":
        folder = Path.home() / "Library" / "Application Support" / "windlass"
    elif sys.platform == "win32":
        folder = Path(os.environ.get("APPDATA") or Path.home() / "AppData" / "Roaming", "windlass")
    else:
        folder = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config", "windlass")
    return folder.expanduser() / "rules.toml"


def add_rule(path: Path, rule: str, *, by: str = "", at: float = 0.0) -> bool:
    """Add a rule that allows to a TOML file, unless it has it; the rest of the file stays as it is."""
    parse_rule(rule)
    if path.exists() and rule in read_policy(path).listed("allow"):
        return False
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    lines = ["", "[[rules]]", f"allow = {_toml(rule)}", f"by = {_toml(by)}"]
    lines += [f"at = {_toml(datetime.fromtimestamp(at, UTC).isoformat(timespec='seconds'))}", ""]
    descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write("\n".join(lines))
    return True


def _toml(text: str) -> str:
    """A text as a TOML string: JSON writes the same, but for one character."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


class RememberedRules:
    """Adds the rules of approvals to a file, and approves calls that a rule of the file allows.

    `path` is the file, by default the user's own. Only questions of the `gates` that anyone may answer are approved.
    The file is read for every question, so it can be edited at any time; rules in it that ask or deny count, too.
    """

    @check_types
    def __init__(self, path: Path | None = None, *, gates: tuple[str, ...] = ("permissions", "approval")) -> None:
        self.path = user_rules() if path is None else path.expanduser().absolute()
        if path is not None and self.path.resolve().is_relative_to(Path.cwd().resolve()):
            text = f"rules are not remembered in {str(self.path)!r}: it is in the workspace, which the agent may change"
            raise ConfigError(text)
        self.gates = frozenset(gates)
        self.name = "remembered_rules"

    def install(self, registrar: Hooks) -> None:
        """Register the observer that writes, and the approver that reads."""

        @registrar.observe(Answered, when=_has_rule, wait=True, thread=True, name="remember_rule")
        def remember_rule(fact: Answered) -> None:
            assert isinstance(fact.answer, Approve)
            assert fact.answer.remember is not None
            if add_rule(self.path, fact.answer.remember, by=fact.by, at=fact.at):
                log.info("rule %s was added to %s", fact.answer.remember, self.path)

        async def remembered_rule(asked: Asked, turn: Turn[Any]) -> Approve | None:
            may_answer = asked.approvers is None and "approve" in asked.allow and self.gates.issuperset(asked.by)
            if asked.call is None or not may_answer or not self.path.exists():
                return None
            policy = read_policy(self.path)
            rules = Permissions(
                allow=policy.listed("allow"), ask=policy.listed("ask"), deny=policy.listed("deny"), unmatched="ask"
            )
            found = await rules.judge(asked.call)
            if found.decision != "allow" or found.rule is None:
                return None
            return Approve(by=f"rule {found.rule.text}", digest=asked.digest)

        registrar.approver(remembered_rule)


def _has_rule(fact: Answered) -> bool:
    return isinstance(fact.answer, Approve) and fact.answer.remember is not None and not fact.expired
