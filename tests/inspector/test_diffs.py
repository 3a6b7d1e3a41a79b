"""Two sessions compared on the page: by keyboard from the list, by address, and as data."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import pytest
from playwright.sync_api import expect

from .test_security import ask


def compared(process: Any, left: str, right: str) -> Any:
    status, _, data = ask(process, f"/api/diff?left={quote(left, safe='')}&right={quote(right, safe='')}")
    assert status == 200
    return json.loads(data)


def test_two_sessions_are_marked_in_the_list_and_compared_by_key(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).page
    page.locator('.tr[data-id="mail-old"] a.name').focus()
    page.keyboard.press("c")
    page.wait_for_selector('.tr.marked[data-id="mail-old"]')
    page.locator('.tr[data-id="mail-new"] a.name').focus()
    page.keyboard.press("c")
    page.wait_for_selector(".diff .cols")
    assert page.url.endswith("#/diff/mail-old/mail-new")
    expect(page.locator(".lede")).to_contain_text("They part in turn 1, step 2")
    assert page.locator(".col .first mark").all_inner_texts()[0].find("leo@other.example") >= 0
    columns = page.locator(".col").all_inner_texts()
    assert "Deny" in columns[0]
    assert "sent to leo@fjell.example" in columns[1]
    assert page.locator(".track i.na, .track i[class^=d-]").count() == 1
    page.keyboard.press("s")
    page.wait_for_url("**/#/diff/mail-new/mail-old")


def test_a_session_is_the_same_as_itself_and_its_twin_is_chosen_from_a_list(inspector: Any, opened: Callable[..., Any]):
    one = opened(inspector)
    page = one.go("#/diff/mail-old/mail-old", ".alike")
    assert "The same happened in both" in page.locator(".diff").inner_text()
    page.get_by_role("link", name="Another one").click()
    page.locator(".choice", has_text="mail-new").click()
    page.wait_for_selector(".diff .cols")
    one.go("#/turn/mail-old", ".r")
    page.get_by_role("link", name="compare").click()
    page.get_by_label("with this one").fill("mail-new")
    page.keyboard.press("Enter")
    page.wait_for_selector(".diff .cols")


def test_rows_and_texts_of_a_comparison_are_bounded_and_inert(inspector: Any):
    found = compared(inspector, "hostile", "desk-8832")
    assert len(json.dumps(found)) < 400_000
    assert "\u202e" not in json.dumps(found, ensure_ascii=False)
    assert found["left"]["rows"][0]["text"].endswith(")")
    assert len(found["right"]["rows"]) <= 400


@pytest.mark.parametrize("query", ["left=mail-old", "left=mail-old&right=nope", "left=a&right=b&more=c", ""])
def test_a_comparison_that_cannot_be_made_is_an_error_in_words(inspector: Any, query: str):
    status, _, data = ask(inspector, f"/api/diff?{query}")
    assert status in (400, 404)
    assert json.loads(data)["error"]["message"]


def test_a_rewrite_is_told_by_its_new_text(inspector: Any):
    rows = compared(inspector, "mail-old", "desk-8841")["right"]["rows"]
    texts = [row["text"] for row in rows if row["kind"] == "rewritten"]
    assert texts[0].startswith("ModelCalling: The tent of order 4417")
    assert "[card]" in texts[0]
    assert any(text.startswith('ToolCalling: {"to":"ann@fjell.example"') for text in texts)
