"""The pages of the inspector in a real browser: what they show, by mouse and by keyboard, at both widths."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from windlass import Agent
from windlass import records as r
from windlass.messages import Message, ModelReply, TextPart, ToolCallPart, ToolResult
from windlass.stores import SQLiteStore
from windlass.testing import ScriptedModel, calls, says

from . import shop
from .conftest import violations

WIDTHS = {"wide": {"width": 1280, "height": 820}, "narrow": {"width": 390, "height": 800}}
VIEWS = [
    ("#/sessions", ".tr[data-id]"),
    ("#/turn/desk-8841", ".r"),
    ("#/turn/desk-8841", ".panel .raw", "Home", "j", "j", "Enter", "w"),
    ("#/turn/desk-8841", ".req .seg", "Home", "j", "j", "Enter", "r"),
    ("#/turn/desk-8841", ".find input", "Escape", "/"),
    ("#/turn/clerk-3/1", ".r"),
    ("#/turn/desk-8832", ".overfig"),
    ("#/turn/kinds", ".r"),
    ("#/turn/desk-8843", ".r"),
    ("#/turn/desk-8836", ".r"),
    ("#/turn/hostile", ".r"),
    ("#/approvals", ".askbox .callbox"),
    ("#/diff/mail-old/mail-new", ".diff .cols"),
    ("#/diff/hostile/desk-8841", ".diff .cols"),
    ("#/diff/mail-old", ".choice"),
    ("#/whatif", ".switch"),
    ("#/turn/nothing-like-this", ".empty"),
    ("#/breakpoints", ".empty"),
]


def texts(page: Any, selector: str) -> list[str]:
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def test_the_list_shows_waiting_sessions_first_with_what_they_ask(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).page
    page.wait_for_selector(".why:has-text('overloaded')")
    rows = texts(page, ".tr[data-id]")
    assert "leaks feathers" in rows[0]
    assert "asks: Refund EUR 420.00 for order 4480?" in rows[0]
    assert "Give me back the 174" in rows[1]
    kid = next(at for at, row in enumerate(rows) if "How many ropes" in row)
    assert "Plan the restock" in rows[kid - 1]
    failed = next(row for row in rows if "desk-8836" in row)
    assert "the vendor is overloaded" in failed


def test_search_finds_text_in_logs_and_filters_narrow_the_list(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).page
    page.keyboard.press("/")
    page.keyboard.type("receipt R-4417-7")
    expect(page.locator(".tr[data-id]")).to_have_count(1)
    assert "desk-8841" in texts(page, ".tr[data-id]")[0]
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("nothing like this")
    page.wait_for_selector("text=No session matches.")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.press("Delete")
    page.wait_for_selector(".tr[data-id] >> nth=5")
    page.get_by_role("button", name="Failed or stopped").click()
    assert all("desk-8836" in row or "kinds" in row for row in texts(page, ".tr[data-id]"))


def test_a_turn_shows_who_decided_and_keys_lead_through_it(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8841", ".panel .chain")
    body = page.locator("main").inner_text()
    for words in (
        "hide_cards",
        "no_promises",
        "refund_limit: Ask",
        "eve: Approve",
        "all_answered",
        "waited for a person",
    ):
        assert words in body, words
    assert page.locator(".panel h2").inner_text() == "refund"
    panel = page.locator(".panel").inner_text()
    assert "eve approved exactly these bytes" in panel
    assert "fraud_score" in panel
    assert "recorded only" in panel
    page.keyboard.press("Home")
    assert page.locator(".panel h2").inner_text() == "User message"
    page.keyboard.press("x")
    assert page.locator(".panel h2").inner_text() == "Model call, step 1"
    page.wait_for_selector(".panel ins:has-text('[card]')")
    page.keyboard.press("w")
    page.wait_for_selector('.panel .raw:has-text("ModelReplied")')
    page.keyboard.press("End")
    assert page.locator('.r[aria-selected="true"]').inner_text().startswith("Completed")
    page.keyboard.press("2")
    page.keyboard.press("1")
    page.wait_for_selector(".tr[data-id]")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_selector(".r")
    assert "desk-8843" in page.url


def test_every_row_of_a_log_with_rare_records_has_details(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/kinds", ".r")
    page.locator("#rows").focus()
    page.keyboard.press("Home")
    count = int(page.locator(".r").first.get_attribute("aria-setsize"))
    for at in range(count):
        assert page.locator(".panel").inner_text().strip(), at
        page.keyboard.press("j")
    assert "was cancelled" not in page.locator(".panel").inner_text()


def test_a_hostile_transcript_stays_text(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/hostile", ".panel .chain")
    for _ in range(12):
        page.keyboard.press("k")
    for _ in range(12):
        page.keyboard.press("j")
        page.keyboard.press("w")
        page.keyboard.press("d")
    assert "Inspector" in page.title()
    assert page.locator("main img, main script, main iframe, main a[href^=javascript]").count() == 0
    text = page.evaluate("document.body.textContent")
    assert "<script>" in text
    assert not [c for c in text if c in "\x1b\u202e\u202c\u2066\u2069\u200b"]


def test_a_running_session_grows_on_the_page_and_the_list_follows(
    tmp_path: Path, started: Callable[..., Any], opened: Callable[..., Any]
):
    path = tmp_path / "live.db"

    def run(session: str, *script: Any) -> None:
        async def go() -> None:
            store = SQLiteStore(path)
            agent: Agent[Any, Any] = Agent(ScriptedModel(*script), tools=[shop.find_order], store=store)
            await agent.run(f"Question of {session}", session=session)
            await store.close()

        shop.in_thread(go)

    run("first", says("one"))
    page = opened(started(path)).page
    run("second", calls("find_order", order="1"), says("two"))
    page.wait_for_selector('.tr[data-id="second"]')
    page.evaluate("location.hash = '#/turn/second'")
    page.wait_for_selector(".r-end")
    run("second", says("three"))
    page.wait_for_selector("nav.turns a >> text=2")


def test_five_thousand_steps_are_there_within_a_second_and_few_rows_are_drawn(
    tmp_path: Path, started: Callable[..., Any], opened: Callable[..., Any]
):
    path = tmp_path / "long.db"
    shop.in_thread(lambda: _many_steps(path, 5000))
    opened_page = opened(started(path))
    time.monotonic()
    page = opened_page.go("#/turn/long", ".r")
    assert int(page.locator(".r").first.get_attribute("aria-setsize")) > 10_000
    assert page.locator(".r").count() < 120
    page.keyboard.press("End")
    page.wait_for_selector(".r-end")
    assert page.locator(".r").count() < 120
    page.locator(".overbox").click(position={"x": 600, "y": 40})
    step = int(page.locator(".overbox").get_attribute("aria-valuenow"))
    assert 1500 < step < 3500


def _reply(call: str, step: int) -> ModelReply:
    parts = (TextPart("x" * 300), ToolCallPart(call, "find_order", f'{{"order":"{step}"}}'))
    return ModelReply(Message("assistant", parts), shop.use(900, 9))


async def _many_steps(path: Path, steps: int) -> None:
    store = SQLiteStore(path)
    log: list[r.Record] = [
        r.SessionOpened(agent="a"),
        r.TurnStarted(1, Message("user", (TextPart("go"),)), "t"),
        r.MessageAdded(),
    ]
    for step in range(1, steps + 1):
        call = f"long/{step}/1"
        log += [
            r.ModelReplied(step, _reply(call, step)),
            r.ToolCalled(call, "find_order"),
            r.ToolReturned(call, "find_order", ToolResult.of("y" * 2000)),
            r.StepEnded(step),
        ]
    for at in range(0, len(log), 1000):
        part = [record.replace(at=1e9 + at + n) for n, record in enumerate(log[at : at + 1000])]
        await store.append("long", part, at)
    await store.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_passes_axe_and_fits_its_width(
    inspector: Any, opened: Callable[..., Any], axe: str, width: str, theme: str, tmp_path: Path
):
    one = opened(inspector, viewport=WIDTHS[width], color_scheme=theme, bypass_csp=True)
    for place, wait, *keys in VIEWS:
        page = one.go(place, ".r" if keys else wait)
        for key in keys:
            page.keyboard.press(key)
        page.wait_for_selector(wait)
        page.wait_for_timeout(150)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
        assert not violations(page, axe), (place, *keys)
    one.problems[:] = [it for it in one.problems if "404" not in it and "nothing-like-this" not in it]


def test_a_planted_fault_is_found_by_axe_and_by_the_console(inspector: Any, opened: Callable[..., Any], axe: str):
    one = opened(inspector, bypass_csp=True)
    page = one.go("#/turn/desk-8841", ".r")
    assert not violations(page, axe)
    page.evaluate("document.querySelector('.turnhead').append(document.createElement('button'))")
    page.evaluate("document.querySelector('.turnhead').style.color = '#ddd'")
    assert {"button-name", "color-contrast"} <= {rule for rule, _ in violations(page, axe)}
    page.evaluate("setTimeout(() => { throw new Error('planted') })")
    page.wait_for_timeout(50)
    [problem] = one.problems
    one.problems.clear()
    assert "planted" in problem
