"""The transcript that hooks read: a view of the log as JSON lines, written as far as it has grown."""

from __future__ import annotations

import asyncio
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from windlass.messages import Message, ModelReply, TextPart, ThinkingPart, ToolCall, ToolCallPart, ToolResultPart, Usage
from windlass.tools import Tool
from windlass.turns import Turn

from .aliases import Aliases
from .contexts import is_of, without
from .naming import call_id
from .responses import failure_of

_SPACE = uuid.UUID("6d1ff0a5-3c52-5d0e-9b57-1f0b86d9a9a1")
_INLINE = 64
"""So many messages are written on the event loop; more are written beside it."""


class _Scene(NamedTuple):
    """What lines have in common that are written together, and the latest replies by the ids of their messages."""

    model: str
    at: str
    tools: Mapping[str, Tool[..., Any]]
    replies: Mapping[str, ModelReply]


class Transcript:
    """The file of one session. What was written stays; new messages are appended."""

    def __init__(
        self,
        path: Path,
        session: str,
        cwd: str,
        *,
        mask: Callable[[Any], Any],
        aliases: Aliases,
        origin: str,
        agent: str = "",
    ) -> None:
        self.path = path
        self._origin = origin
        self._aliases = aliases
        self._common = {"isSidechain": bool(agent), "userType": "external", "cwd": cwd, "sessionId": session}
        self._common |= {"agentId": agent} if agent else {}
        self._mask = mask
        self._messages = 0
        self._lines = 0
        self._parent: str | None = None
        self._early: set[str] = set()
        self._begun = False
        self._lock = asyncio.Lock()

    def begin(self) -> None:
        """Make the file if nothing was written yet."""
        if not self._begun and not self.path.exists():
            self._write([])
            self._begun = False

    async def update(self, turn: Turn[Any]) -> None:
        """Write what is new in the conversation, and the reply of the step under way."""
        async with self._lock:
            context = turn.context
            if len(context) < self._messages:  # the turn was rewound: go on from there
                self._messages = len(context)
            fresh = context[self._messages :] if len(context) > self._messages else []
            reply = _open_reply(turn)
            if not fresh and self._begun and (reply is None or reply[0] in self._early):
                return
            scene = _Scene(turn.model, _time(turn.now()), turn.tools, _latest_replies(turn))

            def write() -> None:
                self._write([*self._entries(fresh, reply, scene)])

            self._messages = len(context)
            if len(fresh) > _INLINE:
                await asyncio.to_thread(write)
            else:
                write()

    def _entries(
        self, fresh: Iterable[Message], reply: tuple[str, ModelReply] | None, scene: _Scene
    ) -> Iterator[dict[str, Any]]:
        for message in fresh:
            if message.role == "assistant" and message.id in self._early:
                self._early.discard(message.id)
                continue
            yield from self._of(message, scene)
        if reply is not None and reply[0] not in self._early:
            self._early.add(reply[0])
            yield from self._of(reply[1].message, scene)

    def _of(self, message: Message, scene: _Scene) -> Iterator[dict[str, Any]]:
        """The lines of a message: one for each block of the assistant, one for each result, one for anything else."""
        if message.role == "assistant":
            reply = scene.replies.get(message.id)
            common = {
                "id": self._message_id(message),
                "type": "message",
                "role": "assistant",
                "model": (reply.model if reply is not None else None) or scene.model,
            }
            ending = {
                "stop_reason": "tool_use" if message.tool_calls else "end_turn",
                "stop_sequence": None,
                "usage": _usage(reply),
            }
            for block in self._blocks(message, scene):
                yield self._line("assistant", {**common, "content": [block], **ending}, scene.at)
        elif is_of(message, self._origin) and not str(message.origin).endswith("Stop"):
            about = {"type": "hook_additional_context", "content": [message.text]}
            yield self._line("attachment", about, scene.at, "attachment")
        elif message.role == "user":
            line = self._line("user", {"role": "user", "content": message.text}, scene.at)
            yield line if message.origin is None else {**line, "isMeta": True}
        else:
            for block in self._blocks(message, scene):
                line = self._line("user", {"role": "user", "content": [block]}, scene.at)
                yield {**line, "toolUseResult": block.get("content", "")}

    def _blocks(self, message: Message, scene: _Scene) -> list[dict[str, Any]]:
        """The parts of a message as blocks of the Messages API. Calls have the names and fields that hooks know."""
        blocks: list[dict[str, Any]] = []
        for part in message.parts:
            match part:
                case TextPart():
                    blocks.append({"type": "text", "text": part.text})
                case ThinkingPart():
                    blocks.append({"type": "thinking", "thinking": part.text})
                case ToolCallPart():
                    call = ToolCall(part.id, part.name, part.json)
                    view = self._aliases.view(call, scene.tools.get(part.name))
                    blocks.append({"type": "tool_use", "id": call_id(part.id), "name": view.tool, "input": view.input})
                case ToolResultPart():
                    own = part.replace(content=without(part.content, self._origin))
                    failure = failure_of(self._aliases.name_of(part.name, scene.tools.get(part.name)), own)
                    text = own.text if failure is None else failure
                    result = {"type": "tool_result", "tool_use_id": call_id(part.call_id), "content": text}
                    blocks.append(result if failure is None else {**result, "is_error": True})
                case _:
                    blocks.append({"type": type(part).__name__.removesuffix("Part").lower()})
        return blocks

    def _message_id(self, message: Message) -> str:
        return "msg_" + uuid.uuid5(_SPACE, f"{self._common['sessionId']} {message.id}").hex[:24]

    def _line(self, kind: str, message: Any, at: str, field: str = "message") -> dict[str, Any]:
        own = str(uuid.uuid5(_SPACE, f"{self._common['sessionId']} {self.path.name} {self._lines}"))
        line = {"parentUuid": self._parent, **self._common, "type": kind, field: message}
        self._parent, self._lines = own, self._lines + 1
        return {**line, "uuid": own, "timestamp": at}

    def _write(self, lines: list[dict[str, Any]]) -> None:
        data = b"".join([_encoded(self._mask(line)) + b"\n" for line in lines])
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (0 if self._begun else os.O_TRUNC)
        if not self._begun:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(self.path, flags, 0o600)
        try:
            while data:
                data = data[os.write(descriptor, data) :]
        finally:
            os.close(descriptor)
        self._begun = True


def _encoded(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        import json

        return json.dumps(value, separators=(",", ":")).encode()


def _latest_replies(turn: Turn[Any]) -> dict[str, ModelReply]:
    """The replies of the step under way and of the latest one, by the ids that their messages have."""
    state, found = turn.state, dict[str, ModelReply]()
    last = state.turn.last if state.turn is not None else None
    for step in (last, state.open):
        if step is not None and step.reply is not None:
            found[step.reply.message.id or ""] = step.reply
    return found


def _usage(reply: ModelReply | None) -> dict[str, Any]:
    """What a reply cost, in the words of the Messages API: input does not include what was cached."""
    used = Usage() if reply is None else reply.usage
    return {
        "input_tokens": max(used.input - used.cached - used.cache_written, 0),
        "cache_creation_input_tokens": used.cache_written,
        "cache_read_input_tokens": used.cached,
        "output_tokens": used.output,
        "service_tier": "standard",
    }


def _open_reply(turn: Turn[Any]) -> tuple[str, ModelReply] | None:
    """The reply of the step under way, which enters the conversation at its end, and the id it will have there."""
    step = turn.state.open
    if step is None or step.reply is None:
        return None
    return f"{turn.session_id}/{step.number}", step.reply


def _time(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"
