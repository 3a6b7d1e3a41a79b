"""Hooks as data: legal on any agent, deterministic, and readable when a test fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

from msgspec import Struct

from windlass.decisions import Says
from windlass.events import EVENTS, FACTS
from windlass.messages import Message, ModelCall, ModelReply, ModelRequest, TextPart, ToolCall, ToolResult
from windlass.records import Injected
from windlass.states import Step
from windlass.turns import Turn

KINDS: dict[str, type] = {kind.__name__: kind for kind in (*EVENTS, *FACTS, ModelCall, ToolCall, Step, Turn)}
"""Everything that a hook can be registered for, by name."""

When = Literal["always", "first", "later"]


class PlannedHook(Struct, frozen=True):
    """One hook of a set: its verb, the event or call it is registered for, and what it does.

    - `gate` returns `answer`, or raises it
    - `rewrite` marks the payload with its name
    - `inject` adds its name, as `does` says: `transient`, `durable` or `unrecorded`
    - `hook` does those of `rewrite`, `decide` and `inject` that `does` names
    - `wrap` calls the inner function `once` or `twice`; with `instead`, it returns its name and does not call it
    - `transform` changes text: `shout` makes each chunk upper case, `hold` releases the text at its end
    - `observe` does nothing

    Gates, rewrites, injections and hooks act always, or only in the first step of a turn, or only later: see `when`.
    """

    name: str
    verb: Literal["observe", "inject", "rewrite", "gate", "hook", "wrap", "transform"]
    on: str = ""
    does: str = ""
    answer: Any = None
    when: When = "always"
    plain: bool = False
    options: Mapping[str, Any] = {}

    def install(self, registrar: Any, /) -> None:
        """Register this hook."""
        if self.verb == "transform":
            registrar.transform(name=self.name, **self.options)(_TRANSFORMERS[self.does])
        else:
            register = getattr(registrar, self.verb)(KINDS[self.on], name=self.name, **self.options)
            register(self._wrap() if self.verb == "wrap" else self._function())

    def _function(self) -> Callable[[Any], Any]:
        def plain(event: Any) -> Any:
            return self._behave(event)

        async def awaited(event: Any) -> Any:
            return self._behave(event)

        return plain if self.plain else awaited

    def _behave(self, event: Any) -> Any:
        if self.verb == "observe" or not self._is_now(event.turn.steps):
            return None
        if isinstance(self.answer, Exception):
            raise self.answer
        if self.verb == "gate":
            return self.answer
        if self.verb == "rewrite":
            return _mark(getattr(event, event.payload), self.name)
        if self.verb == "inject":
            return Injected(f"[{self.name}]", durable=self.does == "durable", record=self.does != "unrecorded")
        return Says(
            rewrite=_mark(getattr(event, event.payload), self.name) if "rewrite" in self.does else None,
            decision=self.answer if "decide" in self.does else None,
            inject=f"[{self.name}]" if "inject" in self.does else None,
        )

    def _is_now(self, steps: int) -> bool:
        return self.when == "always" or (self.when == "first") == (steps == 0)

    def _wrap(self) -> Callable[[Any, Any], Any]:
        def plain(value: Any, call_next: Any) -> Any:
            for _ in range(1, self._calls()):
                call_next(value)
            return call_next(value) if self._calls() else f"[{self.name}]"

        async def awaited(value: Any, call_next: Any) -> Any:
            for _ in range(1, self._calls()):
                await call_next(value)
            return await call_next(value) if self._calls() else f"[{self.name}]"

        return plain if self.plain else awaited

    def _calls(self) -> int:
        return {"instead": 0, "twice": 2}.get(self.does, 1)


class HookSet(Struct, frozen=True):
    """Some planned hooks. `install(agent)` registers them. Without hooks in the guard band it is also a capability."""

    hooks: tuple[PlannedHook, ...] = ()

    def install(self, registrar: Any, /) -> None:
        """Register all of them."""
        for hook in self.hooks:
            hook.install(registrar)


def _mark(payload: Any, name: str) -> Any:
    """Add a name to a payload in a way that is legal for its kind; None for other kinds."""
    mark = f" [{name}]"
    match payload:
        case str():
            return payload + mark
        case Message(role="user"):
            return payload.replace(parts=(*payload.parts, TextPart(mark)))
        case ModelRequest():
            return payload.replace(system=payload.system + mark)
        case ModelReply(message=message):
            return payload.replace(message=message.replace(parts=(*message.parts, TextPart(mark))))
        case ToolCall():
            arguments = {k: v + mark if isinstance(v, str) else v for k, v in payload.arguments.items()}
            return payload.replace(arguments=arguments)
        case ToolResult():
            return payload.replace(content=(*payload.content, TextPart(mark)))
        case _:
            return None


class Shout:
    """A transformer that changes each chunk separately."""

    def feed(self, text: str, /) -> Iterable[str]:
        return [text.upper()]

    def flush(self) -> Iterable[str]:
        return []


class Hold:
    """A transformer that holds all text back until the end, and releases it in chunks of its own."""

    def __init__(self) -> None:
        self.held = ""

    def feed(self, text: str, /) -> Iterable[str]:
        self.held += text
        return []

    def flush(self) -> Iterable[str]:
        return [self.held[start : start + 3] for start in range(0, len(self.held), 3)]


_TRANSFORMERS: dict[str, type] = {"shout": Shout, "hold": Hold}
