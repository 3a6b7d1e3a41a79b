"""Events of Responses as deltas, and the whole reply that they make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar, TypeAlias

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import ConnectionFailed
from windlass.messages import ModelReply
from windlass.models.openai.errors import said
from windlass.models.parts import text_in

from .decode import about, decode, thoughts

Event: TypeAlias = Mapping[str, Any]
Key: TypeAlias = int | str | None


class ResponseStream:
    """Takes one event after the other; `reply` is the whole.

    The parts of an item have the places that `decode` will give them: items come one after the other.
    """

    def __init__(self) -> None:
        self._next = 0
        self._places: dict[tuple[Key, int], int] = {}
        self._names: dict[Key, str] = {}
        self._shown: dict[Key, int] = {}
        self._items: dict[Key, Any] = {}
        self._whole: dict[str, Any] | None = None

    @property
    def complete(self) -> bool:
        """Whether the whole has been told."""
        return self._whole is not None

    def end(self) -> None:
        """The server says that it is done, which here it need not."""

    def feed(self, event: Event) -> Iterator[AnyDelta]:
        """The deltas of an event."""
        handle = self._events.get(event.get("type") or "")
        return handle(self, event) if handle else iter(())

    def reply(self) -> ModelReply:
        """The whole reply, if the stream came to its end."""
        if self._whole is None:
            raise ConnectionFailed("the answer broke off before its end", retryable=True)
        if not self._whole.get("output"):
            self._whole["output"] = list(self._items.values())
        return decode(self._whole)

    def _place(self, item: Key, content: int) -> int:
        place = self._places.get((item, content))
        if place is None:
            place = self._places[item, content] = self._next
            self._next += 1
        return place

    def _added(self, event: Event) -> Iterator[AnyDelta]:
        item, key = event["item"], _key(event)
        self._names[key] = text_in(item, "name")
        if item.get("type") != "message":
            self._place(key, 0)
        return iter(())

    def _content_added(self, event: Event) -> Iterator[AnyDelta]:
        self._place(_key(event), event.get("content_index") or 0)
        return iter(())

    def _done(self, event: Event) -> Iterator[AnyDelta]:
        item, key = event["item"], _key(event)
        self._items[key] = item
        if item.get("type") == "message":
            for at, _ in enumerate(about(item), 1):
                self._place(key, -at)
        elif item.get("type") == "reasoning":
            for at, _ in enumerate(thoughts(item)):
                self._place(key, at)
        return iter(())

    def _text(self, event: Event) -> Iterator[AnyDelta]:
        yield TextDelta(text_in(event, "delta"), self._place(_key(event), event.get("content_index") or 0))

    def _summary(self, event: Event) -> Iterator[AnyDelta]:
        key = _key(event)
        piece = self._shown.get(key, 0) + (event.get("summary_index") or 0)
        yield ThinkingDelta(text_in(event, "delta"), self._place(key, piece))

    def _reasoning(self, event: Event) -> Iterator[AnyDelta]:
        key, piece = _key(event), event.get("content_index") or 0
        self._shown[key] = piece + 1
        yield ThinkingDelta(text_in(event, "delta"), self._place(key, piece))

    def _arguments(self, event: Event) -> Iterator[AnyDelta]:
        item = _key(event)
        yield ArgumentsDelta(text_in(event, "delta"), self._place(item, 0), name=self._names.get(item, ""))

    def _ended(self, event: Event) -> Iterator[AnyDelta]:
        self._whole = dict(event["response"])
        return iter(())

    def _failed(self, event: Event) -> Iterator[AnyDelta]:
        response = event.get("response") or {}
        raise said(response.get("error") or event.get("error") or event, "the response failed")

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


def _key(event: Event) -> Key:
    """The item that an event belongs to: its place in the output, or its id where a server gives no places."""
    at = event.get("output_index")
    return at if at is not None else event.get("item_id") or (event.get("item") or {}).get("id")
