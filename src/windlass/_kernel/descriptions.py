"""What an agent is made of, as the store keeps it: for drift between processes, and for replays."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec.structs import replace

from windlass._hooks.hooks import Hook
from windlass.context.assembly import Prompt
from windlass.masking import Mask
from windlass.tools import Tool


def describe(
    hooks: Iterable[Hook],
    tools: Iterable[Tool[..., Any]],
    criteria: Iterable[str],
    prompt: Prompt,
    mask: Mask | None,
) -> bytes:
    """The parts of an agent as plain data without secrets: stored once, under its hash."""
    tools = list(tools)
    shown = [{"name": tool.name, "digest": tool.digest} for tool in tools]
    rows = [
        {
            "kind": hook.kind,
            "event": hook.event.__name__,
            "name": hook.name,
            "band": hook.band,
            "priority": hook.priority,
        }
        for hook in hooks
    ]
    described: Any = replace(prompt, tools=tuple([tool.spec for tool in tools]))
    if mask is not None:
        described = mask.plain(msgspec.to_builtins(described, enc_hook=str))
    encoded = msgspec.Raw(msgspec.json.encode(described, enc_hook=str))
    return msgspec.json.encode(
        {"hooks": rows, "tools": shown, "criteria": list(criteria), "prompt": encoded}
    )
