"""The types of everything that can be plugged in: hooks per verb, criteria, capabilities."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Concatenate, Protocol, TypeAlias, TypeVar, Union

from .decisions import AnyResolution, Says, Vote
from .events import Event
from .messages import ContentPart, Message, ModelReply, ModelRequest, ToolCall, ToolResult
from .records import Asked, Fact, Injected
from .states import State, Step
from .turns import Turn

E = TypeVar("E")
D = TypeVar("D")
P = TypeVar("P")
FactT = TypeVar("FactT", bound=Fact)

AnyEvent: TypeAlias = Event[Any, Any, Any]
Injection: TypeAlias = str | ContentPart | Sequence[str | ContentPart] | Injected | None
Replied: TypeAlias = ModelReply | Message | str

ObserveHook: TypeAlias = Callable[Concatenate[FactT, ...], object]
InjectHook: TypeAlias = Callable[Concatenate[E, ...], Injection | Awaitable[Injection]]
RewriteHook: TypeAlias = Callable[Concatenate[E, ...], P | Awaitable[P | None] | None]
GateHook: TypeAlias = Callable[Concatenate[E, ...], D | Awaitable[D | None] | None]
SaysHook: TypeAlias = Callable[Concatenate[E, ...], Says | D | Awaitable[Says | D | None] | None]

CallModel: TypeAlias = Callable[[ModelRequest], Awaitable[ModelReply]]
CallTool: TypeAlias = Callable[[ToolCall], Awaitable[ToolResult]]
RunStep: TypeAlias = Callable[..., Awaitable[Step]]
RunTurn: TypeAlias = Callable[["Turn[Any]"], Awaitable[State]]

ModelWrap: TypeAlias = Callable[Concatenate[ModelRequest, CallModel, ...], Awaitable[Replied] | Replied]
ToolWrap: TypeAlias = Callable[Concatenate[ToolCall, CallTool, ...], object]
StepWrap: TypeAlias = Callable[Concatenate[State, RunStep, ...], object]
TurnWrap: TypeAlias = Callable[Concatenate["Turn[Any]", RunTurn, ...], object]

Resolved: TypeAlias = AnyResolution | Awaitable[AnyResolution | None] | None
Approver: TypeAlias = Callable[[Asked], Resolved] | Callable[[Asked, "Turn[Any]"], Resolved]
Criterion: TypeAlias = Callable[[State], Union[Vote, "tuple[Vote, str]", None]]


class Transformer(Protocol):
    """Changes a stream of text. One instance serves one attempt of one model call and one channel.

    `feed` gets each chunk and yields any number of chunks; `flush` yields what was held back when the stream ends.
    """

    def feed(self, text: str, /) -> Iterable[str]:
        """Get the next chunk, and yield what may be released."""
        ...

    def flush(self) -> Iterable[str]:
        """Yield what was held back: the stream has ended."""
        ...
