"""Offload: shows the model the beginning of a big result and a handle to read the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from windlass.context.compaction import Window
from windlass.errors import ConfigError, ToolError
from windlass.events import Compaction
from windlass.messages import ContentPart, Message, TextPart, ToolResultPart
from windlass.tools import tool
from windlass.turns import Turn

from .cutting import check_text
from .excerpts import excerpt
from .option_types import check_types

if TYPE_CHECKING:
    from windlass import Hooks

CHARACTERS = 4
"""The approximate characters of a token in ASCII text; half as many in other text."""


class Offload:
    """Show only a preview of tool results with more than `over` tokens. `preview` is its size in tokens.

    The whole text stays in the transcript, and the tool `read_result` reads it from there by the id of the call. A
    result is cut before the model first sees it, or by `agent.compact`; otherwise it does not change once seen.
    """

    @check_types
    def __init__(self, over: int = 4000, *, preview: int = 400, name: str = "offload") -> None:
        check_text("Offload", "name", name)
        for option, value in (("over", over), ("preview", preview)):
            if type(value) is not int or value < 1:
                raise ConfigError(f"Offload: {option}={value!r} must be a whole number of tokens above 0")
        if preview * 2 > over:
            raise ConfigError(f"Offload: preview={preview} must be at most half of over={over}, or it saves too little")
        self.name = name
        self.over = over
        self.preview = preview

    def install(self, registrar: Hooks) -> None:
        """Register this strategy and its tool."""
        registrar.compactor(self)
        registrar.tool(self.read_result)

    @tool(effect="pure", inline=True)
    def read_result(self, handle: str, turn: Turn[Any], offset: int = 0, length: int = 8000) -> str:
        """Read more of a tool result that was too long to be shown whole.

        Args:
            handle: the handle that was given with the beginning of the result
            offset: from which character on
            length: how many characters
        """
        text = _result_text(turn, handle)
        if text is None:
            raise ToolError(f"there is no result with the handle {handle!r}; use one that was given with a result")
        most = self.over * (CHARACTERS if text.isascii() else CHARACTERS // 2)
        return excerpt(text, offset, min(length, most), what="the result")

    def plan(self, window: Window, *, forced: bool = False) -> Compaction | None:
        """The latest results, if one of them is too big; if `forced`, all results."""
        messages = window.messages
        end = len(messages)
        start = 0
        if not forced:
            start = next((at for at in range(end - 1, -1, -1) if messages[at].role == "assistant"), end)
        big = [at for at in range(start, end) if self._cut(messages[at], window) is not messages[at]]
        if not big:
            return None
        cuts = window.cuts()
        first = max(cut for cut in cuts if cut <= big[0])
        last = min((cut for cut in cuts if cut > big[-1]), default=None)
        return None if last is None else Compaction((first, last), reason=f"results over {self.over} tokens")

    async def replace(self, plan: Compaction, window: Window, turn: Turn[Any]) -> Sequence[Message]:
        """The same messages with previews of big results."""
        start, end = plan.range
        return [self._cut(message, window) for message in window.messages[start:end]]

    def _cut(self, message: Message, window: Window) -> Message:
        """A message with previews of its big results; the same object if it has none."""
        if message.role != "tool":
            return message
        parts = tuple(
            [self._preview(part, window) if isinstance(part, ToolResultPart) else part for part in message.parts]
        )
        changed = any(new is not old for new, old in zip(parts, message.parts, strict=True))
        return message.replace(parts=parts) if changed else message

    def _preview(self, part: ToolResultPart, window: Window) -> ToolResultPart:
        text = part.text
        if part.name == "read_result" or (tokens := window.text(text)) <= self.over:
            return part
        start = text[: max(len(text) * self.preview // tokens, 1)]
        more = f'read_result(handle="{part.call_id}", offset={len(start)})'
        preview = f"{start}\n[These are {len(start)} of {len(text)} characters. Read on with {more}.]"
        others: list[ContentPart] = [inner for inner in part.content if not isinstance(inner, TextPart)]
        return part.replace(content=(TextPart(preview, origin=self.name), *others))

    def explained(self, window: int | None) -> Mapping[str, Any]:
        """The options and notes for `agent.explain()`."""
        return {"over": self.over, "preview": self.preview, "notes": []}


def _result_text(turn: Turn[Any], handle: str) -> str | None:
    """The text of a call's result in the transcript; None without such a result."""
    for message in reversed(list(turn.state.messages)):
        for part in message.parts if message.role == "tool" else ():
            if isinstance(part, ToolResultPart) and part.call_id == handle:
                return part.text
    return None
