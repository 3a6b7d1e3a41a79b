"""How stable the prefix of a session's requests was: what vendors could serve from their caches, and what broke it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any

import msgspec
from msgspec import Struct

from windlass.messages import (
    MediaPart,
    Message,
    ModelRequest,
    Part,
    TextPart,
    ToolResultPart,
    Value,
    json_with_surrogates,
)

from .budget import LARGE, MESSAGE, PLAUSIBLE, Counter, pieces, sections_of
from .replay import Call


class Break(Value, frozen=True):
    """What broke a prefix. `kind` is one of `KINDS`, `by` names the hook, strategy or agent."""

    kind: str
    by: str
    detail: str


KINDS = {
    "model": "the request went to another model",
    "tools": "the list of tools changed",
    "system": "the system text changed",
    "rewrite": "a rewrite changed messages of the history",
    "wrap": "a wrap changed the request, and the log does not say how",
    "compaction": "a range of the history was replaced",
    "rewind": "the history was cut",
    "turn": "parts that were injected for a turn disappeared with it",
    "injection": "an injected part appeared or disappeared before the tail",
    "history": "something else in the history changed",
}
"""The kinds of breaks, with a description of each."""


class Prefix(Value, frozen=True):
    """How one call's request relates to the request of the previous call.

    `tokens` is the size of the request, and `stable` how many tokens at its start are the same as in the previous call:
    in the vendor's count if it is known, else estimated. `cached` is what the vendor reports as served from its cache.
    `hash` covers the request up to its tail, without the parts of this step only: in a stable session, the next request
    starts with exactly that part. If it does not, `broken` says why.
    """

    step: int
    round: int
    attempt: int
    turn: int
    hash: str
    tokens: int
    stable: int
    cached: int
    broken: Break | None = None
    exact: bool = True

    def __str__(self) -> str:
        known = f"step {self.step}: {self.tokens:,} tokens, {self.stable:,} stable, {self.cached:,} cached"
        return (
            known
            if self.broken is None
            else f"{known}; broken by {self.broken.by or 'an unknown cause'}: {self.broken.detail}"
        )


class Filling(Struct, frozen=True):
    """The tokens of a request by origin, in the order of their first appearance."""

    tokens: int
    origins: dict[str, int]
    vendor: bool


def prefixes(calls: Iterable[Call], count: Callable[[str], int] | None = None) -> tuple[Prefix, ...]:
    """How stable the prefixes of some calls were, each compared with the previous one."""
    counter, hashed = Counter(count), _Hash()
    found: list[Prefix] = []
    factors: dict[str, float] = {}
    before: Call | None = None
    for call in calls:
        broken = None if before is None else broken_by(before, call)
        ours = _size(call.request, counter)
        factor = _factor(call, ours, factors)
        same = 0 if before is None else _common(before.request, call.request, counter)
        digest = hashed.of(call, afresh=broken is not None)
        place = call.step, call.round, call.attempt, call.turn
        sizes = round(ours * factor), round(same * factor), call.usage.cached
        found.append(Prefix(*place, digest, *sizes, broken, not call.inexact))
        before = call
    return tuple(found)


def filling(request: ModelRequest, vendor: int = 0, count: Callable[[str], int] | None = None) -> Filling:
    """The tokens of a request by origin, scaled to the vendor's count if that is known and plausible."""
    sizes: dict[str, int] = {}
    for origin, size in pieces(request, Counter(count)):
        sizes[origin] = sizes.get(origin, 0) + size
    ours = sum(sizes.values())
    plausible = ours >= LARGE and PLAUSIBLE[0] < vendor / ours < PLAUSIBLE[1]
    factor = vendor / ours if plausible else 1.0
    scaled = {origin: round(size * factor) for origin, size in sizes.items()}
    return Filling(vendor if plausible else ours, scaled, plausible)


def _factor(call: Call, ours: int, factors: dict[str, float]) -> float:
    """The ratio of the vendor's count to ours, from this call or else from the last call that had one."""
    model = call.request.model
    if ours >= LARGE and PLAUSIBLE[0] < (factor := call.usage.input / ours) < PLAUSIBLE[1]:
        factors[model] = factor
    return factors.get(model, 1.0)


def _size(request: ModelRequest, counter: Counter) -> int:
    return counter.fixed(request.system, request.tools) + sum([counter.message(one) for one in request.messages])


# ---------------------------------------------------------------- common prefixes


def _common(before: ModelRequest, after: ModelRequest, counter: Counter) -> int:
    """Our count of the common start of two requests: tools, then the system text, then messages."""
    if before.model != after.model:
        return 0
    tools = _leading(before.tools, after.tools)
    size = sum([counter.tool(spec) for spec in after.tools[:tools]])
    if not tools == len(before.tools) == len(after.tools):
        return size
    if before.system != after.system:
        sections = sections_of(after)
        same = _leading(sections_of(before), sections)
        return size + sum([counter.text(section.text) for section in sections[:same]])
    size += counter.text(after.system) if after.system else 0
    old, new = list(before.messages), list(after.messages)
    same = _leading(old, new)
    size += sum([counter.message(message) for message in new[:same]])
    if same < min(len(old), len(new)) and old[same].role == new[same].role:
        size += MESSAGE + _common_parts(old[same].parts, new[same].parts, counter)
    return size


def _common_parts(old: Sequence[Part], new: Sequence[Part], counter: Counter) -> int:
    same = _leading(old, new)
    size = sum([counter.part(part) for part in new[:same]])
    if same < min(len(old), len(new)):
        before, after = old[same], new[same]
        if isinstance(before, ToolResultPart) and isinstance(after, ToolResultPart) and before.call_id == after.call_id:
            size += MESSAGE + _common_parts(before.content, after.content, counter)
    return size


def _leading(old: Sequence[Any], new: Sequence[Any]) -> int:
    """The length of the common start of two sequences."""
    at = 0
    for one, other in zip(old, new, strict=False):
        if one is not other and one != other:
            break
        at += 1
    return at


class _Hash:
    """The hash of the lasting part of a growing request. Only new messages are hashed."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=8)
        self._length = -1

    def of(self, call: Call, *, afresh: bool) -> str:
        request, messages = call.request, list(call.lasting)
        if afresh or not 0 <= self._length <= len(messages):
            self._hash = blake2b(_bytes((request.model, request.tools, request.system)), digest_size=8)
            self._length = 0
        for message in messages[self._length :]:
            self._hash.update(_bytes(message))
        self._length = len(messages)
        return self._hash.hexdigest()


def _bytes(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except UnicodeEncodeError:  # a lone surrogate
        return json_with_surrogates(msgspec.to_builtins(value, enc_hook=str)).encode()


# ---------------------------------------------------------------- breaks


def broken_by(before: Call, after: Call) -> Break | None:
    """What broke the prefix between two calls; None if the second extends the lasting part of the first."""
    old, new = before.request, after.request
    if old.model != new.model:
        return Break(
            "model",
            _changer(before, after, "model"),
            f"the previous call went to {old.model!r}, this one to {new.model!r}",
        )
    if old.tools != new.tools:
        return Break("tools", _changer(before, after, "tools"), _tools(old, new))
    if old.system != new.system:
        return Break("system", _changer(before, after, "system"), "the system text differs from the previous call")
    lasting, now = list(before.lasting), list(after.lasting)
    at = _leading(lasting, now)
    if at < len(lasting):
        return _of_messages(before, after, at, lasting[at], now[at] if at < len(now) else None)
    wraps = [text for call in (before, after) for text in call.inexact if text.startswith("a wrap")]
    if wraps:
        return Break("wrap", wraps[0].partition("(")[2].rstrip(")"), KINDS["wrap"])
    return None


def _changer(before: Call, after: Call, field: str) -> str:
    """What changed a field between two calls: hooks that rewrote it in one of them, or a change of the agent."""
    hooks = dict.fromkeys([hook for call in (before, after) for hook, fields in call.rewritten if field in fields])
    return ", ".join(hooks) or ("the agent" if before.pipeline != after.pipeline else "")


def _tools(old: ModelRequest, new: ModelRequest) -> str:
    """How two lists of tools differ."""
    was, now = [spec.name for spec in old.tools], [spec.name for spec in new.tools]
    gone, added = [name for name in was if name not in now], [name for name in now if name not in was]
    texts = [f"{', '.join(names)} {what}" for names, what in ((gone, "removed"), (added, "added")) if names]
    return f"tools: {'; '.join(texts) or ('order changed' if was != now else 'descriptions changed')}"


def _of_messages(before: Call, after: Call, at: int, old: Message, new: Message | None) -> Break:
    """What changed this message of the history."""
    hooks = [hook for call in (before, after) for hook, fields in call.rewritten if "messages" in fields]
    if hooks:
        names = ", ".join(dict.fromkeys(hooks))
        return Break("rewrite", names, f"message {at} differs from the one that was sent before")
    for change in after.changes:
        if at >= change.start:
            return Break(change.kind, change.by, f"{KINDS[change.kind]}, from message {change.start} on")
    gone = _origins(old, new)
    added = [] if new is None else _origins(new, old)
    if by := ", ".join(dict.fromkeys([*gone, *added])):
        if before.turn != after.turn:
            return Break("turn", by, f"what it injected for turn {before.turn} is gone from message {at}")
        what = "disappeared from" if gone else "appeared in"
        return Break("injection", by, f"what it injected {what} message {at}")
    return Break("history", "the agent" if before.pipeline != after.pipeline else "", f"message {at} has changed")


def _origins(message: Message, other: Message | None) -> list[str]:
    """The origins of the parts that are in the first message and not in the other."""
    known = [] if other is None else _leaves(other)
    return [part.origin for part in _leaves(message) if part.origin is not None and part not in known]


def _leaves(message: Message) -> list[TextPart | MediaPart]:
    parts = [
        inner for part in message.parts for inner in (part.content if isinstance(part, ToolResultPart) else (part,))
    ]
    return [part for part in parts if isinstance(part, TextPart | MediaPart)]


__all__ = ["KINDS", "Break", "Filling", "Prefix", "filling", "prefixes"]
