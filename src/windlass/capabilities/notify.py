"""Notify: tells a webhook or a function that a turn waits for a person, failed or ended."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from windlass.outcomes import Cancelled, Failed, Stopped
from windlass.records import Asked, Suspended, TurnEnded
from windlass.turns import Turn

from .option_types import check_types
from .options import require_count, require_name, require_seconds
from .posting import Poster, check_url

if TYPE_CHECKING:
    from windlass import Hooks

Occasion = Literal["suspended", "completed", "stopped", "failed", "cancelled"]
Notification: TypeAlias = dict[str, Any]


class Notify:
    """Tell `target` when a turn is suspended, fails or ends: a URL that gets a POST with JSON, or a function.

    The log is read behind a stored cursor, so a notification outlives a crash and arrives at least once; its `id` says
    which ones are the same. A target that fails is tried again, `tries` times in all, with growing pauses, and is then
    skipped, which is recorded. No turn waits for it.

    `on` lists the occasions. With `secret`, the header `X-Windlass-Signature` has `sha256=` and the HMAC of the body.
    `content` adds the answer and the questions' text. `headers` are sent along.
    """

    @check_types
    def __init__(
        self,
        target: str | Callable[[Notification], object],
        *,
        on: Occasion | Iterable[Occasion] = ("suspended", "failed", "stopped"),
        secret: str | None = None,
        headers: dict[str, str] | None = None,
        content: bool = False,
        timeout: float = 10.0,
        tries: int = 8,
        name: str = "notify",
    ) -> None:
        require_name("Notify", name)
        require_seconds("Notify", "timeout", timeout)
        require_count("Notify", "tries", tries)
        self.name = name
        self.on = (on,) if isinstance(on, str) else tuple(on)
        url = "" if callable(target) else check_url("Notify", "target", target)
        self.target = target if callable(target) else Poster(url, secret, dict(headers or {}), timeout)
        self.content = content
        self.tries = tries

    def install(self, registrar: Hooks) -> None:
        """Observe, durably, how turns go."""

        def notify(fact: Suspended | TurnEnded, session_id: str) -> object:
            return self._send(self._notification(fact, session_id))

        def notify_fully(fact: Suspended | TurnEnded, turn: Turn[Any]) -> object:
            notification = self._notification(fact, turn.session_id)
            if isinstance(fact, TurnEnded):
                notification["text"] = turn.state.text
            return self._send(notification)

        hook = notify_fully if self.content else notify
        if "suspended" in self.on:
            registrar.observe(Suspended, durable=True, tries=self.tries, name=f"{self.name}_suspended")(hook)
        if set(self.on) - {"suspended"}:
            registrar.observe(TurnEnded, durable=True, tries=self.tries, name=f"{self.name}_ended")(hook)

    def _notification(self, fact: Suspended | TurnEnded, session: str) -> Notification:
        made: Notification = {"id": f"{session}:{fact.seq}", "session": session, "at": fact.at}
        if isinstance(fact, Suspended):
            return made | {"occasion": "suspended", "questions": [self._question(asked) for asked in fact.waiting_for]}
        outcome = fact.outcome
        made["occasion"] = type(outcome).__name__.lower()
        if isinstance(outcome, Failed):
            made["error"] = outcome.error.type
        elif isinstance(outcome, Stopped):
            made["reason"] = outcome.reason.value
        elif isinstance(outcome, Cancelled):
            made["reason"] = outcome.reason
        return made

    def _question(self, asked: Asked) -> dict[str, Any]:
        shown = {
            "id": asked.id,
            "event": asked.event,
            "tool": None if asked.call is None else asked.call.name,
            "approvers": asked.approvers,
            "expires_at": asked.expires_at,
        }
        return shown | {"question": asked.question} if self.content else shown

    def _send(self, notification: Notification) -> object:
        if notification["occasion"] not in self.on:
            return None
        if not isinstance(self.target, Poster):
            return self.target(notification)
        self.target.post(notification, notification["id"])
        return None
