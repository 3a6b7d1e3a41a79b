"""Heads of hash chains to keep outside the store: printed, read back, and compared with a store."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import click

from windlass._text import visible_id
from windlass.errors import StoreError
from windlass.logs import SessionInfo
from windlass.protocols import Store


class Head(NamedTuple):
    """The link of a session's chain after a number of records."""

    session: str
    records: int
    link: str

    def columns(self) -> tuple[str, str, str]:
        """The head as columns. An unusual id is a JSON string."""
        return visible_id(self.session), str(self.records), self.link

    def json(self) -> str:
        """The head as a JSON object on one line."""
        return json.dumps({"session": self.session, "records": self.records, "head": self.link}, ensure_ascii=False)


async def head_of(store: Store, info: SessionInfo) -> Head:
    """The present head of a session. The chain before it is not checked."""
    batches = await store.batches(info.session, info.records - 1)
    end = batches[-1].seq + batches[-1].count if batches else 0
    if end < info.records:
        raise StoreError(
            f"the log of session {info.session!r} is broken: its row says that it has {info.records} records, "
            f"but record {info.records} is missing"
        )
    return Head(info.session, end, batches[-1].link.hex())


async def compare(store: Store, kept: Head, infos: Mapping[str, SessionInfo]) -> str | None:
    """What is wrong with a session, compared with a head that was kept; None if the head is still on its chain.

    The session may have grown since. `infos` has all sessions of the store, erased ones too.
    """
    name, info = visible_id(kept.session), infos.get(kept.session)
    if info is None:
        return f"{name}: missing; it had {kept.records} records"
    if info.status == "erased":
        known = getattr(info, "head", "")
        if info.records < kept.records or (info.records == kept.records and known not in ("", kept.link)):
            return f"{name}: different; it is erased, and its tombstone does not have the kept head"
        return f"{name}: erased; it had {kept.records} records"
    for batch in await store.batches(kept.session, kept.records - 1):
        if batch.seq + batch.count == kept.records:
            if batch.link.hex() == kept.link:
                return None
            return f"{name}: different; the link after record {kept.records} is {batch.link.hex()}, not {kept.link}"
    if info.records < kept.records:
        return f"{name}: shorter; it has {info.records} records, but it had {kept.records}"
    return f"{name}: different; it has no link after record {kept.records}"


def read_heads(file: Path) -> list[Head]:
    """The heads in a file that `windlass sessions head` has written, with or without --json."""
    try:
        lines = file.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise click.ClickException(f"{file} cannot be read: {error}") from error
    heads: list[Head] = []
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                heads.append(_parse(line.rstrip("\r")))
            except (ValueError, TypeError, KeyError):
                raise click.ClickException(
                    f"{file}, line {number} is not a head: write the file with `windlass sessions head`"
                ) from None
    return heads


def _parse(line: str) -> Head:
    if line.startswith("{"):
        plain = json.loads(line)
        session, records, link = plain["session"], plain["records"], plain["head"]
    else:
        name, number, link = line.split("\t")
        session, records = json.loads(name) if name.startswith('"') else name, int(number)
    if not isinstance(session, str) or not isinstance(records, int) or records < 1:
        raise ValueError(line)
    return Head(session, records, bytes.fromhex(link).hex())
