"""Webhook: sends questions to a URL, which may answer at once or leave the answer to a person."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any, cast

import msgspec

from windlass.decisions import AnyResolution, Approve, Edit, Reject, Respond
from windlass.errors import StaleAnswer
from windlass.records import Asked, Suspended
from windlass.turns import Turn

from .option_types import check_types
from .options import require_count, require_name, require_seconds
from .posting import Poster, check_url

if TYPE_CHECKING:
    from windlass import Hooks

log = logging.getLogger("windlass")


class Webhook:
    """Send every question that waits to `url`: a POST with JSON. No turn waits for it.

    A response with a JSON object such as `{"answer": "approve", "by": "ann"}` is an answer: it goes into the session's
    inbox and counts at the next `resume`. Any other response of 2xx leaves the question open: answer it later with
    `agent.resolve`. A question is sent at least once, also after a crash; its `key` says which ones are the same. A URL
    that fails is tried again, `tries` times in all, with growing pauses, and is then skipped, which is recorded.

    With `secret`, the header `X-Windlass-Signature` has `sha256=` and the HMAC of the body, and an answer counts only
    if its response is signed likewise. `headers` are sent along. An instance is a capability, or one of
    `Approval(by=[…])`.
    """

    @check_types
    def __init__(
        self,
        url: str,
        *,
        secret: str | None = None,
        headers: dict[str, str] | None = None,
        timeout: float = 10.0,
        tries: int = 8,
        name: str = "webhook",
    ) -> None:
        require_name("Webhook", name)
        require_seconds("Webhook", "timeout", timeout)
        require_count("Webhook", "tries", tries)
        self.url = check_url("Webhook", "url", url)
        self._poster = Poster(url, secret, dict(headers or {}), timeout)
        self.tries = tries
        self.name = name

    def install(self, registrar: Hooks) -> None:
        """Observe, durably, which questions wait."""

        @registrar.observe(Suspended, durable=True, tries=self.tries, name=self.name)
        async def send_questions(fact: Suspended, turn: Turn[Any]) -> None:
            for asked in fact.waiting_for:
                question = {"key": f"{turn.session_id}:{fact.seq}:{asked.id}", "session": turn.session_id}
                question |= question_of(asked)
                body = await asyncio.to_thread(self._post, cast("dict[str, Any]", registrar.mask(question)))
                answer = self._read(asked, body)
                if answer is not None:
                    try:
                        await registrar.resolve(turn.session_id, asked.id, answer)
                    except StaleAnswer as error:
                        log.info("webhook %s: %s", self.url, error)

    def _post(self, question: dict[str, Any]) -> bytes:
        """The body of the response. An answer that is not signed as it must be is empty."""
        response = self._poster.post(question, question["key"])
        if response.body and not self._poster.has_signed(response):
            log.warning("webhook %s: the answer to %s is not signed, so it does not count", self.url, question["id"])
            return b""
        return response.body

    def _read(self, asked: Asked, body: bytes) -> AnyResolution | None:
        try:
            return answer_from(body, asked.digest)
        except ValueError as error:
            log.warning("webhook %s: the answer to %s does not count: %s", self.url, asked.id, error)
            return None

    def summary(self) -> str:
        """Where questions go, for `explain`."""
        return f"sends questions to {self.url}"


def question_of(asked: Asked) -> dict[str, Any]:
    """A question as JSON, with all that a person needs to answer it."""
    return {
        "id": asked.id,
        "digest": asked.digest,
        "question": asked.question,
        "event": asked.event,
        "tool": None if asked.call is None else asked.call.name,
        "arguments": None if asked.call is None else asked.call.arguments,
        "text": asked.text if asked.reply is None else asked.reply.text,
        "allow": list(asked.allow),
        "approvers": None if asked.approvers is None else list(asked.approvers),
        "expires_at": asked.expires_at,
        "default": asked.default,
        "details": dict(asked.details),
        "priority": asked.priority,
    }


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    """An answer as JSON."""

    answer: str
    by: str | None = None
    arguments: dict[str, Any] | None = None
    message: str = ""
    text: str = ""
    remember: str | None = None
    digest: str | None = None


def answer_from(body: bytes, digest: str | None = None) -> AnyResolution | None:
    """The answer in a JSON object, for `agent.resolve`; None if the body has none. A wrong one raises `ValueError`.

    `{"answer": "approve"}`, with `by` and `remember`; `{"answer": "edit", "arguments": {…}}`;
    `{"answer": "reject", "message": "…"}`; `{"answer": "respond", "text": "…"}`. `digest` is that of what was reviewed.
    """
    if not body.strip().startswith(b"{") or b'"answer"' not in body:
        return None
    try:
        given = msgspec.json.decode(body, type=_Answer)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from error
    reviewed = given.digest or digest
    match given.answer:
        case "approve":
            return Approve(given.by, given.remember, reviewed)
        case "edit" if given.arguments is not None:
            return Edit(given.arguments, given.by, reviewed)
        case "reject":
            return Reject(given.message, given.by, reviewed)
        case "respond":
            return Respond(given.text, given.by, reviewed)
        case _:
            raise ValueError(f"{given.answer!r} must be approve, edit (with arguments), reject or respond")
