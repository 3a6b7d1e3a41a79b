"""Logging: one structured log line for each fact worth a line."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from windlass.errors import ConfigError
from windlass.records import (
    Fact,
)

from .log_lines import DEBUG, LINES, ODD, Fields
from .option_types import check_types
from .options import require_count, require_name

if TYPE_CHECKING:
    from windlass import Hooks


class Logging:
    """Write a line to Python's `logging` for each fact of at least `level`.

    The message is `turn_ended session=s1 outcome=completed …`; the same fields are in the attribute `windlass` of the
    log record, for formatters that write JSON. What people and models said is left out unless `content` is true; then
    each text has at most `limit` characters. Secrets of the application are masked in any case.
    """

    @check_types
    def __init__(
        self,
        logger: logging.Logger | str = "windlass.agent",
        *,
        level: int | str = "INFO",
        content: bool = False,
        limit: int = 200,
        name: str = "logging",
    ) -> None:
        require_name("Logging", name)
        require_count("Logging", "limit", limit)
        self.name = name
        self.logger = logging.getLogger(logger) if isinstance(logger, str) else logger
        self.level = _level(level)
        self.content = content
        self.limit = limit

    def install(self, registrar: Hooks) -> None:
        """Observe the facts whose lines can reach the level."""

        def log_fact(fact: Fact, session_id: str) -> None:
            self.write(fact, session_id)

        for fact, (highest, _) in LINES.items():
            if highest >= self.level:
                when: Any = {"when": ODD[fact]} if fact in ODD and self.level > DEBUG else {}
                registrar.observe(fact, name=f"{self.name}_{_snake(fact)}", **when)(log_fact)

    def write(self, fact: Fact, session_id: str) -> None:
        """Write the line of a fact."""
        level, fields, quoted = LINES[type(fact)][1](fact)
        if level < self.level or not self.logger.isEnabledFor(level):
            return
        event = _snake(type(fact))
        shown: dict[str, Any] = {"session": session_id, **_present(fields)}
        if self.content:
            shown |= {key: self._cut(value) for key, value in _present(quoted).items()}
        text = " ".join([event, *[f"{key}={_plain(value)}" for key, value in shown.items()]])
        self.logger.log(level, "%s", text, extra={"windlass": {"event": event, "at": fact.at, **shown}})

    def _cut(self, value: Any) -> Any:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        return text if len(text) <= self.limit else f"{text[: self.limit]}… ({len(text)} characters)"


def _present(fields: Fields) -> dict[str, Any]:
    return {key: value for key, value in fields.items() if value or type(value) in (int, float)}


def _plain(value: Any) -> str:
    """A value without spaces and control characters, or quoted."""
    if isinstance(value, list | tuple):
        value = ",".join(map(str, value))
    text = str(value)
    return text if text.isascii() and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def _snake(fact: type[Fact]) -> str:
    return "".join([f"_{one.lower()}" if one.isupper() else one for one in fact.__name__]).lstrip("_")


def _level(level: int | str) -> int:
    known = logging.getLevelNamesMapping()
    if isinstance(level, str) and level.upper() in known:
        return known[level.upper()]
    if type(level) is int:
        return level
    raise ConfigError(f"Logging: level={level!r} is not a level; use one of {', '.join(known)}, or a number")
