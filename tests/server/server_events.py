"""Reads server-sent events as a browser does."""

from __future__ import annotations

import json
from collections.abc import AsyncIterable, AsyncIterator, Iterable, Iterator
from typing import Any, NamedTuple


class Event(NamedTuple):
    name: str
    id: str
    data: Any


def _event(block: list[str]) -> Event | None:
    fields = dict(line.split(": ", 1) for line in block if not line.startswith(":"))
    return (
        Event(fields.get("event", ""), fields.get("id", ""), json.loads(fields["data"])) if "data" in fields else None
    )


def read(lines: Iterable[str]) -> Iterator[Event]:
    block: list[str] = []
    for line in lines:
        if line:
            block.append(line)
        else:
            if (event := _event(block)) is not None:
                yield event
            block = []


async def read_live(lines: AsyncIterable[str]) -> AsyncIterator[Event]:
    block: list[str] = []
    async for line in lines:
        if line:
            block.append(line)
        else:
            if (event := _event(block)) is not None:
                yield event
            block = []
