"""What governs agents, in a real browser: hooks along the lifecycle, coverage, costs, streams, effects and changes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass.stores import SQLiteStore

from . import shop
from .conftest import violations
from .test_pages import WIDTHS

VIEWS = [
    ("#/pipeline/hooks/agent/desk", ".rail"),
    ("#/pipeline/hooks/session/clerk-3/1", ".rail"),
    ("#/pipeline/coverage/session/clerk-3", ".matrix"),
    ("#/pipeline/cost/agent/desk", ".facts"),
    ("#/pipeline/streams/session/clerk-3", ".streams"),
    ("#/pipeline/effects", ".fates"),
    ("#/pipeline/changes/session/clerk-3", ".drift"),
    ("#/pipeline/streams/agent/lead", ".empty"),
    ("#/tree/lead-12", ".family"),
]


def hook(page: Any, name: str) -> str:
    """The row of a hook."""
    return str(page.locator(".hooks .hook", has=page.locator(f".nm b:text-is('{name}')")).inner_text())


def test_hooks_stand_along_the_lifecycle_with_what_they_said_and_took(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/pipeline/hooks/agent/desk", ".rail")
    assert "no_promises holds the stream" in page.locator(".pipehead").inner_text()
    points = page.locator(".rail .pthead b").all_inner_texts()
    assert points.index("TurnStarting") < points.index("ModelCalling") < points.index("ModelReplying")
    assert points.index("the model is asked") < points.index("ToolCalling") < points.index("the tool runs")
    assert "90 ms" in hook(page, "customer_profile")
    assert "guard" in hook(page, "hide_cards")
    assert "of 5" in hook(page, "refund_limit")
    assert "on refund; if it fails: Deny" in hook(page, "refund_limit")
    assert "shadow gate" in hook(page, "fraud_score")
    assert "answered questions of gates" in hook(page, "eve")
    assert "of another version of this agent" in hook(page, "all_answered")
    assert "≤ 1 µs" in hook(page, "add_signature")  # silent or not, all of its calls are counted
    page.get_by_text("Hooks as a table").click()
    assert page.locator(".behind tbody tr").count() >= 7


def test_arrow_keys_lead_through_the_tabs_and_each_has_an_address(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/pipeline/hooks/agent/desk", ".rail")
    page.get_by_role("tab", name="Hooks").focus()
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".matrix")
    assert page.url.endswith("#/pipeline/coverage/agent/desk")
    assert page.evaluate("document.activeElement.textContent") == "Coverage"
    page.keyboard.press("End")
    page.wait_for_selector(".drift")
    page.keyboard.press("ArrowRight")
    page.wait_for_selector(".rail")
    page.keyboard.press("Home")
    page.keyboard.press("]")
    page.wait_for_selector(".matrix")
    assert page.get_by_role("tabpanel").get_attribute("aria-labelledby") == "tab-coverage"


def test_a_turn_leads_to_the_hooks_of_that_turn(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/clerk-3/1", ".r")
    page.get_by_role("link", name="hooks of this turn").click()
    page.wait_for_selector(".rail")
    assert "143 tok" in hook(page, "fits_the_task")
    assert "of 1" in hook(page, "fits_the_task")
    assert "costly" in hook(page, "fits_the_task")
    assert "on find_*" in hook(page, "fits_the_task")
    assert "4.0 ms" in hook(page, "note_time")
    assert page.locator(".hooks .hook .nm b:text-is('only_staff')").count() == 0
    page.get_by_role("link", name="all turns").click()
    page.wait_for_selector(".nm b:text-is('only_staff')")
    assert "second_look holds the stream" in page.locator(".pipehead").inner_text()


def test_coverage_names_effects_that_nobody_looks_at(inspector: Any, opened: Callable[..., Any]):
    one = opened(inspector)
    page = one.go("#/pipeline/coverage/agent/desk", ".matrix")
    assert "scan is unsafe, and no gate looks at it" in page.locator("main").text_content()
    assert page.locator(".matrix .bare th").all_inner_texts() == ["scan"]
    mail = page.locator(".matrix tbody tr", has_text="send_mail").inner_text()
    assert "asked about every call" in mail
    page = one.go("#/pipeline/coverage/session/clerk-3", ".matrix")
    page.wait_for_selector(".matrix .bare:has-text('web_search')")
    assert "not mediated" in page.locator(".matrix .bare").inner_text()
    assert page.locator(".matrix .p-maybe .slot").count() == 1


def test_costs_of_hooks_stand_beside_those_of_the_agent(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/pipeline/cost/session/clerk-3", ".facts")
    body = page.locator("main").inner_text()
    assert "143 of" in body
    assert "fits_the_task" in body
    page = opened(inspector).go("#/pipeline/cost/agent/desk", ".overtime")
    page.get_by_text("Work over time as a table").click()
    assert page.locator(".behind tbody tr").count() > 2
    page.locator(".costs a", has_text="desk-8841").click()
    page.wait_for_selector(".costs a:has-text('turn 1')")


def test_streams_show_what_was_held_and_taken_back(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/pipeline/streams/session/clerk-3", ".streams")
    body = page.locator("main").inner_text()
    assert "taken back" in body
    assert "held until judged" in body
    assert "whole_words" in body
    assert page.locator(".went.void").count() == 2  # one is in the legend
    assert page.locator(".stlane .gap").count() >= 1


def test_the_ledger_of_the_store_says_what_is_in_doubt(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/pipeline/effects", ".fates")
    rows = page.locator(".fates tbody tr").all_inner_texts()
    assert "outcome unknown" in rows[0]
    assert "kinds" in rows[0]
    assert sum("waits for a person" in row for row in rows) == 3
    page.locator(".fates a", has_text="desk-8843").click()
    page.wait_for_selector(".r")


def test_a_change_of_the_pipeline_is_named_with_its_turn(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/pipeline/changes/session/clerk-3", ".drift")
    body = page.locator(".drift").inner_text()
    assert "only_staff (gate on ToolCalling) is new" in body
    assert "clerk-3, turn 2" in body


def test_a_delegation_is_one_score(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/lead-12", ".r")
    page.get_by_role("link", name="all on one axis").click()
    page.wait_for_selector(".family")
    assert page.locator(".famname a").all_inner_texts() == ["lead", "stock"]
    assert page.locator(".fam[data-depth='1'] .k-model").count() == 2
    box = [page.locator(f".fam[data-depth='{n}'] .whole").bounding_box() for n in (0, 1)]
    assert box[0]["x"] < box[1]["x"]
    assert box[0]["width"] > box[1]["width"]
    page.locator(".famname a", has_text="stock").click()
    page.wait_for_selector(".r")
    assert "lead-12%2F" in page.url


def test_a_sentence_of_a_request_leads_to_the_hook_that_put_it_there(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8841", ".panel .chain")
    page.locator(".r-model").first.click()
    page.keyboard.press("r")
    page.wait_for_selector(".sent")
    page.locator(".sent", has_text="[card]").click()
    page.wait_for_selector(".guilt:has-text('hide_cards')")
    assert "changed this at ModelCalling" in page.locator(".guilt").inner_text()
    assert "4929" in page.locator(".guilt del").inner_text()
    page.locator(".sent", has_text="I want my money back").click()
    assert "the user wrote this" in page.locator(".guilt").inner_text()
    page.locator(".sent", has_text="with us since 2019").last.focus()
    page.keyboard.press("Enter")
    assert "customer_profile put this here at TurnStarting" in page.locator(".guilt").inner_text()
    page.keyboard.press("Enter")
    assert page.locator(".guilt").count() == 0


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_view_of_the_pipeline_passes_axe_and_fits_its_width(
    inspector: Any, opened: Callable[..., Any], axe: str, width: str, theme: str
):
    one = opened(inspector, viewport=WIDTHS[width], color_scheme=theme, bypass_csp=True)
    for place, wait in VIEWS:
        page = one.go(place, wait)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place
        assert not violations(page, axe), place


def test_an_empty_store_teaches_what_to_do(tmp_path: Path, started: Callable[..., Any], browser: Any):
    path = tmp_path / "empty.db"

    async def make() -> None:
        store = SQLiteStore(path)
        await store.find()
        await store.close()

    shop.in_thread(make)
    process = started(path)
    page = browser.new_page()
    page.goto(process.url)
    for place, words in (("hooks", "measure_hooks=True"), ("effects", "Nothing is in doubt")):
        page.evaluate("place => { location.hash = place }", f"#/pipeline/{place}")
        page.wait_for_selector(f".empty:has-text('{words}')")
    page.close()


def test_a_delegation_opens_to_the_steps_of_each_agent_by_keyboard(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/tree/lead-12", ".family")
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("ArrowRight")
    steps = page.locator(".famstep")
    assert [one.split("\n")[0] for one in steps.all_inner_texts()] == ["model", "find_stock", "model"]
    assert "rope" in steps.nth(1).inner_text()
    page.keyboard.press("ArrowLeft")
    assert steps.count() == 0
    page.get_by_role("button", name="Steps of lead").click()
    steps.filter(has_text="find_order").get_by_role("link").click()
    page.wait_for_selector(".panel h2:text-is('find_order')")
