"""Every kind of record: in the recorded shop, in a row of a turn, and as raw text on the page."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from playwright.sync_api import expect

from windlass.inspector.score import Score
from windlass.records import KINDS, Record
from windlass.stores import SQLiteStore

from . import shop

ELSEWHERE = {"SessionOpened", "SessionEnded", "MessageAdded", "HeldReleased", "StepEnded", "InboxTaken", "Concluded",
             "TurnEnded", "Evaluated", "HooksRan"}  # fmt: skip
"""Kinds without a row of their own: they open, close or conclude something that has one, or are summed up."""


def logs(path: Path) -> dict[str, list[Record]]:
    async def read() -> dict[str, list[Record]]:
        store = SQLiteStore(path)
        found = {name: list(await store.read(name)) for name in await store.sessions()}
        await store.close()
        return found

    return shop.in_thread(read)


def test_the_recorded_shop_has_every_kind_of_record(database: Path):
    found = {type(record).__struct_config__.tag for log in logs(database).values() for record in log}
    assert found == set(KINDS)


def test_every_kind_of_record_is_shown_by_a_row_with_its_raw_text(
    database: Path, inspector: Any, opened: Callable[..., Any]
):
    places: dict[str, tuple[str, int, dict[str, Any], int]] = {}
    for name, log in logs(database).items():
        score = Score(name)
        score.extend(log)
        for turn in score.turns:
            for row in turn.rows:
                for number in [row["n"], *row.get("more", ())][:8]:
                    kind = str(type(log[number - 1]).__struct_config__.tag)
                    places.setdefault(kind, (name, turn.n, row, number))
    assert set(KINDS) - set(places) <= ELSEWHERE
    one = opened(inspector)
    for kind, (name, turn, row, number) in places.items():
        call = f":{row['call']}" if row.get("call") else ""
        one.go("#/sessions", ".tr[data-id]")
        page = one.go(
            f"#/turn/{quote(name, safe='')}/{turn}/{quote(str(row['n']) + call, safe='')}", ".r[aria-selected=true]"
        )
        page.keyboard.press("w")
        raw = page.locator(f'.panel [aria-label="Record {number}"]')
        expect(raw).to_contain_text(f'"kind": "{kind}"')
