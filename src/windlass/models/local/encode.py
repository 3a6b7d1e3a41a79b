"""Encodes requests for llama.cpp: with tools if the model's template supports them, else with calls as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass.errors import BadRequest
from windlass.messages import Message, ModelRequest, ToolCallPart, ToolResultPart, ToolSpec
from windlass.models.history import IdOf, Wire
from windlass.models.openai.chat.encode import ChatEncoder
from windlass.models.openai.dialects import Dialect

from .calls import bounded, call_as_text, call_schema, describe_tools
from .engine import llama_cpp

DIALECT = Dialect("local", media=(), lacks=("service_tier",))
GUIDANCE = "%llguidance"
SAID = r"/[^{\s](.|\n)*/"
SAID_IN_GBNF = r"[^{ \t\n] [^\x00]*"


class LocalEncoder:
    """Encodes requests to one model, and returns the tools whose calls will be text in the answer."""

    def __init__(self, model: str, small: bool) -> None:
        self._small = small
        self._native = ChatEncoder(model, DIALECT)
        self._textual = _TextualEncoder(model, DIALECT)

    def body(
        self, request: ModelRequest, settings: Mapping[str, Any], knows_tools: bool
    ) -> tuple[Wire, tuple[ToolSpec, ...]]:
        """The body of the request, and the tools whose calls will be text in the answer."""
        choice = settings.get("tool_choice", "auto") if request.tools else "none"
        tools: tuple[ToolSpec, ...] = ()
        if knows_tools and choice in ("auto", "none"):
            body = self._native.body(self._with_bounds(request), settings, streaming=True)
        else:
            body, tools = self._textual_body(request, settings, choice)
        return {**body, "return_progress": True}, tools

    def _with_bounds(self, request: ModelRequest) -> ModelRequest:
        return request.replace(output=bounded(request.output)) if self._small and request.output else request

    def _textual_body(
        self, request: ModelRequest, settings: Mapping[str, Any], choice: str
    ) -> tuple[Wire, tuple[ToolSpec, ...]]:
        texts = (request.system, choice != "none" and describe_tools(request.tools))
        system = "\n\n".join(text for text in texts if text)
        plain = self._with_bounds(request.replace(system=system, tools=()))
        body = self._textual.body(plain, settings, streaming=True)
        if choice == "none":
            if request.tools and request.output is None:
                body["grammar"] = text_only()
            return body, ()
        tools = _chosen(request.tools, choice)
        forced = choice != "auto"
        schema = call_schema(tools, self._small, None if forced else request.output)
        if forced or request.output is not None:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}
        else:
            body["grammar"] = or_text(llama_cpp.json_schema_to_grammar(schema))
        return body, tools


def _chosen(tools: tuple[ToolSpec, ...], choice: str) -> tuple[ToolSpec, ...]:
    if choice in ("auto", "required"):
        return tools
    chosen = tuple(tool for tool in tools if tool.name == choice)
    if not chosen:
        raise BadRequest(
            f"tool_choice={choice!r} is not a tool; the tools are {', '.join(tool.name for tool in tools)}"
        )
    return chosen


def text_only() -> str:
    """A grammar for any text that does not begin with a brace, in the grammar language of this llama.cpp."""
    if llama_cpp.json_schema_to_grammar({"type": "null"}).startswith(GUIDANCE):
        return f"{GUIDANCE} {{}}\nstart: {SAID}\n"
    return f"root ::= {SAID_IN_GBNF}\n"


def or_text(grammar: str) -> str:
    """A grammar that also accepts any text that does not begin with a brace."""
    if grammar.startswith(GUIDANCE):
        return grammar.replace("start: ", "start: call | said\ncall: ", 1) + f"\nsaid: {SAID}\n"
    lines = [f"{line} | said" if line.startswith("root ::= ") else line for line in grammar.splitlines()]
    return "\n".join([*lines, f"said ::= {SAID_IN_GBNF}", ""])


class _TextualEncoder(ChatEncoder):
    """For templates that support only roles and texts: calls and results become text."""

    def _message(self, message: Message, id_of: IdOf) -> list[Wire]:
        calls = [call_as_text(part.name, part.json) for part in message.tool_calls]
        results = [f"{part.name} answered: {part.text}" for part in message.parts if type(part) is ToolResultPart]
        rest = tuple(part for part in message.parts if type(part) not in (ToolCallPart, ToolResultPart))
        content = super()._message(message.replace(parts=rest), id_of)[0]["content"] if rest else ""
        role = "assistant" if message.role == "assistant" else "user"
        return [{"role": role, "content": _join(results, content, calls)}]


def _join(before: list[str], content: Any, after: list[str]) -> Any:
    """Texts joined to one text; with a picture among them, a list."""
    items = content if isinstance(content, list) else [{"type": "text", "text": content}] if content else []
    all_items = [*map(_text, before), *items, *map(_text, after)]
    if all(item["type"] == "text" for item in all_items):
        return "\n\n".join(item["text"] for item in all_items)
    return all_items


def _text(text: str) -> Wire:
    return {"type": "text", "text": text}
