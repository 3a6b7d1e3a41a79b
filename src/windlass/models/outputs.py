"""How a model is asked for a typed answer: by its vendor's own means, through a tool, or with instructions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Mapping
from typing import Any

from windlass.deltas import AnyDelta, ArgumentsDelta, TextDelta, ThinkingDelta
from windlass.errors import ConfigError
from windlass.messages import (
    Message,
    ModelReply,
    ModelRequest,
    Part,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolSpec,
    as_reply,
)
from windlass.protocols import Model

from .settings import system_with_schema

MODES = ("auto", "native", "tool", "prompt")
TOOL = "final_answer"
"""The tool through which models give their answer in the mode `tool`."""
_DESCRIPTION = "Give your final answer. Call this when you have all that you need, and call nothing else beside it."


def takes_output(model: Model, request: ModelRequest) -> bool:
    """Whether the vendor can be given the schema of this request. A model says so with a method `takes_output`."""
    check = getattr(model, "takes_output", None)
    return True if check is None else bool(check(request))


def with_output_mode(model: Model, request: ModelRequest) -> Model:
    """The model, as the setting `output_mode` of a request with an output schema wants it asked."""
    mode = request.settings.get("output_mode")
    if mode is None or request.output is None:
        return model
    if mode not in MODES:
        raise ConfigError(f"output_mode={mode!r} must be one of {', '.join(MODES)}")
    native = mode == "native" or (mode == "auto" and takes_output(model, request))
    if mode == "native" and not takes_output(model, request):
        text = f"model {model.name!r} cannot be given the output schema of this request natively"
        raise ConfigError(f"{text}: use output_mode 'auto', 'tool' or 'prompt'")
    if native:
        return model
    return _Prompted(model) if mode == "prompt" else _ThroughTool(model)


class _Asked:
    """A model that gets another request, and whose reply is translated back."""

    def __init__(self, model: Model) -> None:
        self.name = model.name
        self._model = model
        if hasattr(model, "stream"):
            self.stream = self._stream

    async def reply(self, request: ModelRequest) -> ModelReply:
        """Send a request, and wait for the whole reply."""
        return self._answer(as_reply(await self._model.reply(self._request(request))))

    async def _stream(self, request: ModelRequest) -> AsyncGenerator[str | AnyDelta | ModelReply, None]:
        pieces: Any = self._model.stream(self._request(request))  # type: ignore[attr-defined]
        translation = self._translation()
        try:
            async for piece in pieces:
                if isinstance(piece, ModelReply | Message):
                    for held in translation.rest():
                        yield held
                    yield self._answer(as_reply(piece))
                else:
                    for translated in translation.translate(piece):
                        yield translated
        finally:
            if (close := getattr(pieces, "aclose", None)) is not None:
                await close()

    def _request(self, request: ModelRequest) -> ModelRequest:
        raise NotImplementedError

    def _translation(self) -> _Translation:
        return _Translation()

    def _answer(self, reply: ModelReply) -> ModelReply:
        return reply


class _Translation:
    """Passes the pieces of one reply on."""

    def translate(self, piece: Any) -> Iterable[Any]:
        """The pieces that take the place of one."""
        return (piece,)

    def rest(self) -> Iterable[Any]:
        """What was held back and must come before the whole reply."""
        return ()


class _Prompted(_Asked):
    """The model reads the schema in the system text."""

    def _request(self, request: ModelRequest) -> ModelRequest:
        assert request.output is not None
        return request.replace(system=system_with_schema(request.output, request.system), output=None)


class _ThroughTool(_Asked):
    """The answer is the arguments of a call. Both become the text of the reply."""

    def _request(self, request: ModelRequest) -> ModelRequest:
        if any(tool.name == TOOL for tool in request.tools):
            raise ConfigError(f"output_mode 'tool' needs a tool of its own named {TOOL!r}: rename yours")
        return request.replace(tools=_tools(request), output=None, settings=_settings(request))

    def _translation(self) -> _Translation:
        return _CallAsText()

    def _answer(self, reply: ModelReply) -> ModelReply:
        if all(call.name != TOOL for call in reply.message.tool_calls):
            return reply
        message = reply.message.replace(parts=tuple([_as_answer(part) for part in reply.message.parts]))
        done = reply.finish == "tool_calls" and not message.tool_calls
        return reply.replace(message=message, finish="stop" if done else reply.finish)


def _as_answer(part: Part) -> Part:
    """The answer as text. Text that a model writes beside it is not part of it, and becomes thinking."""
    if type(part) is TextPart:
        return ThinkingPart(part.text)
    return TextPart(part.json) if type(part) is ToolCallPart and part.name == TOOL else part


class _CallAsText(_Translation):
    """Makes the arguments of the answer text. Other text is held back until it is known what it is."""

    def __init__(self) -> None:
        self._answers: set[int] = set()
        self._held: list[TextDelta] = []

    def translate(self, piece: Any) -> Iterable[Any]:
        if isinstance(piece, str | TextDelta):
            text = TextDelta(piece) if isinstance(piece, str) else piece
            if self._answers:
                return (ThinkingDelta(text.text, text.part),)
            self._held.append(text)
            return ()
        if type(piece) is not ArgumentsDelta:
            return (piece,)
        before: list[Any] = []
        if piece.name == TOOL:
            before, self._held = [ThinkingDelta(held.text, held.part) for held in self._held], []
            self._answers.add(piece.part)
        return (*before, TextDelta(piece.text, piece.part) if piece.part in self._answers else piece)

    def rest(self) -> Iterable[Any]:
        return self._held


_latest: list[tuple[Any, Any, tuple[ToolSpec, ...]]] = []


def _tools(request: ModelRequest) -> tuple[ToolSpec, ...]:
    """The tools of a request and the one for the answer. Adapters encode the same tuple once, so it is kept."""
    for tools, output, both in _latest:
        if tools is request.tools and output is request.output:
            return both
    both = (*request.tools, ToolSpec(TOOL, _DESCRIPTION, _object(request.output)))
    _latest.insert(0, (request.tools, request.output, both))
    del _latest[16:]
    return both


def _object(schema: Any) -> Mapping[str, Any]:
    if schema.get("type") != "object":
        raise ConfigError("output_mode 'tool' needs a schema of an object, because arguments of a tool are one")
    checked: Mapping[str, Any] = schema
    return checked


def _settings(request: ModelRequest) -> dict[str, Any]:
    """The model must call a tool, unless the application says otherwise or the model thinks, which vendors refuse."""
    settings = dict(request.settings)
    choice = settings.get("tool_choice")
    if choice is None and settings.get("reasoning"):
        return settings
    if choice is None or choice == "none":
        settings["tool_choice"] = "required" if request.tools and choice is None else TOOL
    elif isinstance(choice, list | tuple):
        settings["tool_choice"] = [*choice, TOOL]
    return settings


__all__ = ["MODES", "TOOL", "takes_output", "with_output_mode"]
