"""Turns the events of a Responses stream into deltas and, at the end, the whole reply."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from operator import itemgetter
from typing import Any, ClassVar, TypeAlias

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import ConnectionFailed
from windlass.messages import ModelReply
from windlass.models.openai.client_tools import ClientTools, arguments_in, tool_for
from windlass.models.openai.errors import error_from
from windlass.models.parts import text_in

from .decode import NO_TOOLS, VENDOR, decode, mediated, message_details, thoughts

Event: TypeAlias = Mapping[str, Any]
Key: TypeAlias = int | str | None
_KINDS = {"message": "text", "reasoning": "thinking", "function_call": "call"}


class ResponseStream:
    """Reads one event after another; `reply` is the whole reply.

    The parts of an item get the places that `decode` will give them: items come one after another. Some servers use one
    place for several items, and number their pieces through. So thinking, text and calls are kept apart, and pieces are
    counted as they come.
    """

    def __init__(self, vendor: str = VENDOR, *, states_cost: bool = False, tools: ClientTools = NO_TOOLS) -> None:
        self._vendor = vendor
        self._tools = tools
        self._states_cost = states_cost
        self._next = 0
        self._places: dict[tuple[Key, str, Any], int] = {}
        self._pieces: dict[tuple[Key, str], list[Any]] = {}
        self._reserved: dict[tuple[Key, str], int] = {}
        self._items: list[tuple[int, Any]] = []
        self._kinds: dict[Key, str] = {}
        self._names: dict[Key, str] = {}
        self._whole: dict[str, Any] | None = None

    @property
    def complete(self) -> bool:
        """Whether the whole reply has come."""
        return self._whole is not None

    def end(self) -> None:
        """Nothing to do: the end of a Responses stream is an event."""

    def feed(self, event: Event) -> Iterator[AnyDelta]:
        """The deltas of an event."""
        handle = self._events.get(event.get("type") or "")
        return handle(self, event) if handle else iter(())

    def reply(self) -> ModelReply:
        """The whole reply; raises if the stream broke off."""
        if self._whole is None:
            raise ConnectionFailed("the answer broke off before its end", retryable=True)
        if not self._whole.get("output"):
            self._whole["output"] = [item for _, item in sorted(self._items, key=itemgetter(0))]
        return decode(self._whole, self._vendor, states_cost=self._states_cost, tools=self._tools)

    def _place(self, item: Key, kind: str, piece: Any) -> int:
        """The place of a piece of an item: the one reserved for its first piece, or the next."""
        place = self._places.get((item, kind, piece))
        if place is None:
            place = self._places[item, kind, piece] = self._reserved.pop((item, kind), self._next)
            self._pieces.setdefault((item, kind), []).append(piece)
            self._next = max(self._next, place + 1)
        return place

    def _added(self, event: Event) -> Iterator[AnyDelta]:
        item, key = event["item"], _key(event)
        ours = tool_for(item, self._tools) is not None
        kind = self._kinds[key] = "call" if ours else _KINDS.get(item.get("type") or "", "opaque")
        self._names[key] = text_in(item, "name")
        for piece in self._pieces.pop((key, kind), ()):
            del self._places[key, kind, piece]
        if kind != "text":
            self._reserved[key, kind] = self._next
            self._next += 1
        return iter(())

    def _content_added(self, event: Event) -> Iterator[AnyDelta]:
        key = _key(event)
        if self._kinds.get(key, "text") == "text":
            self._place(key, "text", event.get("content_index") or 0)
        return iter(())

    def _done(self, event: Event) -> Iterator[AnyDelta]:
        item, key = event["item"], _key(event)
        self._items.append((event.get("output_index") or 0, item))
        if (name := tool_for(item, self._tools)) is not None and mediated(item):
            yield ArgumentsDelta(arguments_in(item), self._place(key, "call", 0), name=name)
        elif item.get("type") == "message":
            self._next += len(list(message_details(item, self._vendor)))
        elif item.get("type") == "reasoning":
            known = len(self._pieces.get((key, "thinking"), ())) + ((key, "thinking") in self._reserved)
            self._next += max(0, len(thoughts(item)) - known)

    def _text(self, event: Event) -> Iterator[AnyDelta]:
        yield TextDelta(text_in(event, "delta"), self._place(_key(event), "text", event.get("content_index") or 0))

    def _summary(self, event: Event) -> Iterator[AnyDelta]:
        piece = ("summary", event.get("summary_index") or 0)
        yield ThinkingDelta(text_in(event, "delta"), self._place(_key(event), "thinking", piece))

    def _reasoning(self, event: Event) -> Iterator[AnyDelta]:
        piece = event.get("content_index") or 0
        yield ThinkingDelta(text_in(event, "delta"), self._place(_key(event), "thinking", piece))

    def _arguments(self, event: Event) -> Iterator[AnyDelta]:
        item = _key(event)
        yield ArgumentsDelta(text_in(event, "delta"), self._place(item, "call", 0), name=self._names.get(item, ""))

    def _ended(self, event: Event) -> Iterator[AnyDelta]:
        self._whole = dict(event["response"])
        return iter(())

    def _failed(self, event: Event) -> Iterator[AnyDelta]:
        response = event.get("response") or {}
        raise error_from(response.get("error") or event.get("error") or event, "the response failed")

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
    """The item that an event belongs to: its place in the output, or its id if the server sends no places."""
    at = event.get("output_index")
    return at if at is not None else event.get("item_id") or (event.get("item") or {}).get("id")
