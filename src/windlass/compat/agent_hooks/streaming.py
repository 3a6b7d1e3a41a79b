"""Text that streams: each piece is released after a verdict on all text up to its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agent_hooks import HostError, InterceptionRecord

from windlass.turns import Turn

from .emissions import HookedSession, refusal_of


class MediatedText:
    """The transformer of one attempt. It holds one piece back, so that the last piece is known to be the last.

    `judged` is the text that interceptors have permitted, `refusal` why they refused the next piece.
    """

    def __init__(self, session: HookedSession, turn: Turn[Any]) -> None:
        self._session = session
        self._turn = turn
        self._held = ""
        self._refused: InterceptionRecord | None = None
        self.judged = ""
        self.refusal: str | None = None

    def feed(self, text: str) -> Sequence[str]:
        """The piece before this one, if it is permitted. After a refusal nothing is released."""
        if self.refusal is not None:
            return ()
        held, self._held = self._held, text
        return self._released(held, "incremental")

    def flush(self) -> Sequence[str]:
        """The last piece, after a verdict on the whole text."""
        if self.refusal is not None:
            return ()
        held, self._held = self._held, ""
        return self._released(held, "stop")

    def break_off(self, turn: Turn[Any]) -> str | None:
        """The stream has broken off. Text that is left, and that nobody has judged, is refused; returns why."""
        if self.refusal is None and self._held:
            self._take(self._session.fail(self._context(self._held, "stop"), HostError.STREAMING_UNSUPPORTED))
        return self.tell(turn)

    def tell(self, turn: Turn[Any]) -> str | None:
        """Note the refusal in the log, and return it."""
        if self._refused is not None:
            self._session.told(self._refused, turn)
        return self.refusal

    def _released(self, piece: str, finish: str) -> Sequence[str]:
        if not piece:
            return ()
        context = self._context(piece, finish)
        before = context["response"]["content"]
        record = self._session.emit_now(context)
        if record.proceeds and context["response"]["content"] == before:
            self.judged += piece
            return (piece,)
        if record.proceeds:
            self.refusal = "an interceptor changes text that is already streaming; it can only refuse it"
        else:
            self._take(record)
        return ()

    def _take(self, record: InterceptionRecord) -> None:
        """Stop here if a record refuses; in `evaluate_only` it does not."""
        self._held, self._refused = "", record
        if not record.proceeds:
            self.refusal = refusal_of(record.verdict)

    def _context(self, piece: str, finish: str) -> dict[str, Any]:
        text = self.judged + piece
        return self._session.builder(self._turn).post_model_call(
            model_id="model", content=text, tool_calls=[], finish_reason=finish
        )
