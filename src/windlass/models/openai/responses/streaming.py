"""Events of Responses as deltas, and the whole reply that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import ConnectionFailed
from windlass.messages import ModelReply
from windlass.models.openai.errors import said

from .decode import decode

Event = Mapping[str, Any]


class ResponseStream:
    """Takes one event after the other; `reply` is the whole.

    The parts of an item have the places that `decode` will give them: items come one after the other.
    """

    def __init__(self) -> None:
        self._next = 0
        self._places: dict[tuple[int, int], int] = {}
        self._names: dict[int, str] = {}
        self._summaries: dict[int, int] = {}
        self._items: dict[int, Any] = {}
        self._whole: dict[str, Any] | None = None

    def feed(self, event: Event) -> Iterator[AnyDelta]:
        """The deltas of an event."""
        handle = self._events.get(event.get("type") or "")
        return handle(self, event) if handle else iter(())

    def reply(self) -> ModelReply:
        """The whole reply, if the stream came to its end."""
        if self._whole is None:
            raise ConnectionFailed("the answer broke off before its end", retryable=True)
        if not self._whole.get("output"):
            self._whole["output"] = [self._items[at] for at in sorted(self._items)]
        return decode(self._whole)

    def _place(self, item: int, content: int) -> int:
        place = self._places.get((item, content))
        if place is None:
            place = self._places[item, content] = self._next
            self._next += 1
        return place

    def _added(self, event: Event) -> Iterator[AnyDelta]:
        item = event["item"]
        self._names[event["output_index"]] = item.get("name") or ""
        if item.get("type") != "message":
            self._place(event["output_index"], 0)
        return iter(())

    def _content_added(self, event: Event) -> Iterator[AnyDelta]:
        self._place(event["output_index"], event["content_index"])
        return iter(())

    def _done(self, event: Event) -> Iterator[AnyDelta]:
        item = event["item"]
        self._items[event["output_index"]] = item
        if item.get("type") == "message" and item.get("phase"):
            self._place(event["output_index"], -1)
        return iter(())

    def _text(self, event: Event) -> Iterator[AnyDelta]:
        yield TextDelta(event["delta"], self._place(event["output_index"], event["content_index"]))

    def _summary(self, event: Event) -> Iterator[AnyDelta]:
        yield from self._thinking(event["output_index"], event.get("summary_index") or 0, event["delta"])

    def _reasoning(self, event: Event) -> Iterator[AnyDelta]:
        yield from self._thinking(event["output_index"], event.get("content_index") or 0, event["delta"])

    def _thinking(self, item: int, piece: int, text: str) -> Iterator[AnyDelta]:
        """Pieces of reasoning are parted by an empty line, as they are in the whole."""
        place = self._place(item, 0)
        gaps = piece - self._summaries.get(item, 0)
        self._summaries[item] = piece
        yield ThinkingDelta("\n\n" * max(0, gaps) + text, place)

    def _arguments(self, event: Event) -> Iterator[AnyDelta]:
        item = event["output_index"]
        yield ArgumentsDelta(event["delta"], self._place(item, 0), name=self._names.get(item, ""))

    def _ended(self, event: Event) -> Iterator[AnyDelta]:
        self._whole = dict(event["response"])
        return iter(())

    def _failed(self, event: Event) -> Iterator[AnyDelta]:
        response = event.get("response") or {}
        raise said(response.get("error") or event)

    _events: ClassVar[dict[str, Callable[[Any, Event], Iterator[AnyDelta]]]] = {
        "response.output_item.added": _added,
        "response.content_part.added": _content_added,
        "response.output_item.done": _done,
        "response.output_text.delta": _text,
        "response.refusal.delta": _text,
        "response.reasoning_summary_text.delta": _summary,
        "response.reasoning_text.delta": _reasoning,
        "response.function_call_arguments.delta": _arguments,
        "response.completed": _ended,
        "response.incomplete": _ended,
        "response.failed": _failed,
        "error": _failed,
    }
