"""OfficeHours: some tools only run while people are there to notice."""

from collections.abc import Sequence
from datetime import datetime, time, timedelta
from typing import Any, Literal
from zoneinfo import ZoneInfo

from windlass import Ask, Deny, Hooks, ToolCalling, Turn
from windlass.errors import ConfigError

DAYS = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


class OfficeHours:
    """Run some tools only in office hours. At other times the model reads when they open again.

    `tools` are names or patterns; by default all tools that are declared `destructive`. With `outside="ask"`, a person
    is asked at other times, instead of a refusal. Office hours are from `opens` to `closes` on some `days`, in a
    `timezone`.
    """

    def __init__(
        self,
        tools: str | Sequence[str] | None = None,
        *,
        opens: str = "09:00",
        closes: str = "17:00",
        days: Sequence[str] = DAYS[:5],
        timezone: str = "UTC",
        outside: Literal["deny", "ask"] = "deny",
        name: str = "office_hours",
    ) -> None:
        if outside not in ("deny", "ask"):
            raise ConfigError(f"OfficeHours(outside={outside!r}): outside must be 'deny' or 'ask'")
        if not days or not set(days) <= set(DAYS):
            raise ConfigError(f"OfficeHours(days={days!r}): days must be some of {', '.join(DAYS)}")
        self.name = name
        self.tools = tools
        self.days = tuple(day for day in DAYS if day in days)
        self.outside = outside
        try:
            self.opens, self.closes = time.fromisoformat(opens), time.fromisoformat(closes)
            self.zone = ZoneInfo(timezone)
        except (ValueError, LookupError, TypeError) as error:
            raise ConfigError(f"OfficeHours: {error}") from error
        if self.opens >= self.closes:
            raise ConfigError(f"OfficeHours(opens={opens!r}, closes={closes!r}): it must open before it closes")

    def install(self, registrar: Hooks) -> None:
        """Register the gate, for the tools that have office hours."""
        if self.tools is None:
            register = registrar.gate(ToolCalling, name=self.name, when=_is_destructive)
        else:
            register = registrar.gate(ToolCalling, name=self.name, tool=self.tools)
        register(self.keep_hours)

    def keep_hours(self, event: ToolCalling, turn: Turn[Any]) -> Deny | Ask | None:
        """Refuse a call outside office hours, or ask a person about it."""
        now = datetime.fromtimestamp(turn.now(), self.zone)
        if self._is_open(now):
            return None
        if self.outside == "ask":
            return Ask(f"Run {event.call.name!r} outside office hours ({self.summary()})?")
        opening = f"{self._next_opening(now):%A at %H:%M}"
        return Deny(f"{event.call.name!r} runs only in office hours ({self.summary()}); they begin again on {opening}")

    def summary(self) -> str:
        """The hours, for `explain`."""
        return f"{', '.join(self.days)} {self.opens:%H:%M} to {self.closes:%H:%M} {self.zone.key}"

    def _is_open(self, now: datetime) -> bool:
        return DAYS[now.weekday()] in self.days and self.opens <= now.time() < self.closes

    def _next_opening(self, now: datetime) -> datetime:
        """The next time at which the office opens, at most a week from now."""
        coming = [datetime.combine(now.date() + timedelta(days), self.opens, self.zone) for days in range(8)]
        return next(moment for moment in coming if moment > now and DAYS[moment.weekday()] in self.days)


def _is_destructive(event: ToolCalling) -> bool:
    return event.tool is not None and event.tool.annotations.destructive is True
