"""The details of a turn in a real browser: who looked at a call, what a rewrite changed, streams, contexts, find."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from windlass.inspector.edits import edits_of
from windlass.inspector.pipelines import mediation
from windlass.messages import Message, ModelRequest, TextPart, ToolSpec
from windlass.stores import SQLiteStore
from windlass.testing import calls, says

from . import shop
from .test_pages import VIEWS as PAGES
from .test_pages import WIDTHS
from .test_pipeline import VIEWS as PIPELINE
from .test_security import ask


def test_the_details_of_a_call_name_the_gates_that_said_nothing(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8841", ".panel .chain")
    page.locator(".r", has_text="send_mail").first.click()
    panel = page.locator(".panel")
    expect(panel).to_contain_text("known_recipients")
    expect(panel).to_contain_text("gate said nothing")
    expect(panel).to_contain_text("add_signature rewrote the arguments")
    expect(panel).to_contain_text("unsafe")


def test_the_details_of_a_model_call_name_the_hooks_that_said_nothing(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8840", ".panel .chain")
    page.locator(".r-model").first.click()
    steps = page.locator(".panel .chain li").all_inner_texts()
    at = {step.split("\n")[0].split(" ")[0]: number for number, step in enumerate(steps)}
    assert at["hide_cards"] < at["called"] < at["no_promises"]
    assert "gate said nothing" in steps[at["no_promises"]].replace("\n", " ")


def test_an_unsafe_call_that_no_gate_looks_at_is_named_in_the_head_and_in_its_details(
    inspector: Any, opened: Callable[..., Any]
):
    page = opened(inspector).go("#/turn/desk-8832", ".panel .chain")
    expect(page.locator(".bareline")).to_have_text("no gate looks at scan")
    page.locator(".r", has_text="scan").first.click()
    expect(page.locator(".panel .n-error").first).to_contain_text("no gate looks at this tool")
    page.locator(".bareline").click()
    expect(page.locator(".matrix tr.bare")).to_contain_text("scan")


def test_a_rewrite_of_a_request_is_shown_word_by_word(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8841", ".panel .chain")
    page.keyboard.press("Home")
    page.keyboard.press("x")
    expect(page.locator(".panel del")).to_have_text("4929 1203 7781 0042.")
    expect(page.locator(".panel ins")).to_have_text("[card].")
    expect(page.locator(".panel")).to_contain_text("message 1, user")
    page.keyboard.press("r")
    page.get_by_text("The whole request as JSON").click()
    raw = page.locator(".panel .raw")
    expect(raw).to_contain_text('"name": "find_order"')
    sent = json.loads(raw.inner_text())
    assert "[card]" in sent["messages"][0]["parts"][0]["text"]
    assert sent["tools"][0]["schema"]["type"] == "object"


def test_a_streamed_reply_says_what_was_held_and_taken_back(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/clerk-3/1", ".panel .chain")
    panel = page.locator(".panel")
    expect(panel.locator("h2")).to_have_text("Model call, step 2")
    expect(panel).to_contain_text("3 chunks of 27 characters, the first after 500 ms")
    expect(panel).to_contain_text("whole_words")
    expect(panel).to_contain_text("the reply does not stand")
    assert page.locator(".fl.void").count() == 1


def test_the_context_of_every_call_stands_beside_a_turn_and_in_a_tab(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8841", ".panel .chain")
    page.keyboard.press("End")
    page.wait_for_selector(".ctxcol >> nth=4")
    page.get_by_role("link", name="Every call, with its prefix").click()
    page.wait_for_selector(".ctx")
    assert page.locator(".cx:not(.cxh)").count() == 5
    expect(page.locator(".ctx")).to_contain_text("92 %")
    expect(page.locator(".lede.first")).to_contain_text("The vendor's cache served 74 % of all input.")
    page.locator(".cx a").first.click()
    expect(page.locator(".panel h2")).to_have_text("Model call, step 1")
    assert "/turn/desk-8841/1/" in page.url


def test_what_breaks_the_cache_is_named_at_the_call(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8833b/2", ".panel")
    expect(page.locator(".chipsrow")).to_contain_text("cache broken by customer_profile")
    page.evaluate("location.hash = '#/pipeline/context/session/desk-8833b'")
    expect(page.locator(".cx.is-broken").first).to_contain_text("customer_profile")


def test_find_leads_to_rows_with_a_text_also_to_those_that_are_not_drawn(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8832", ".overfig")
    page.keyboard.press("/")
    page.keyboard.type("order 4463")
    expect(page.locator(".find")).to_contain_text("1 of 1")
    expect(page.locator('.r[aria-selected="true"]')).to_contain_text("order 4463: not found")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("known_recipients")
    expect(page.locator(".find")).to_contain_text("1 of 4")
    page.keyboard.press("Enter")
    expect(page.locator(".find")).to_contain_text("2 of 4")
    page.keyboard.press("Shift+Enter")
    expect(page.locator(".find")).to_contain_text("1 of 4")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("nothing of the kind")
    expect(page.locator(".find")).to_contain_text("no match")
    page.keyboard.press("Escape")
    expect(page.locator(".find")).to_be_hidden()
    page.keyboard.press("j")
    page.get_by_role("button", name="find").click()
    expect(page.get_by_role("searchbox", name="Find in this turn")).to_be_focused()


def test_a_row_has_an_address(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8841", ".panel .chain")
    page.keyboard.press("Home")
    page.keyboard.press("x")
    place = page.evaluate("location.hash")
    page.evaluate("location.hash = '#/sessions'")
    page.wait_for_selector(".tr[data-id]")
    page.evaluate("place => { location.hash = place }", place)
    expect(page.locator(".panel h2")).to_have_text("Model call, step 1")


def test_find_looks_into_whole_texts(inspector: Any):
    status, _, data = ask(inspector, "/api/sessions/hostile/turns/1/find?text=xxxxxxxxxxxxxxx")
    assert status == 200
    assert len(json.loads(data)["rows"]) == 1
    assert ask(inspector, "/api/sessions/hostile/turns/1/find?text=")[0] == 400


def described(**more: Any) -> dict[str, Any]:
    gate = {"kind": "gate", "event": "ToolCalling", "name": "limit", "tool": "pay"}
    shadow = {"kind": "gate", "event": "ToolCalling", "name": "score", "shadow": True}
    tools = [
        {"name": "pay", "effect": "unsafe"},
        {"name": "mail", "effect": "unsafe"},
        {"name": "look", "effect": "pure"},
    ]
    return {"hooks": [shadow, gate], "tools": tools, "transforms": [], **more}


def test_a_shadow_gate_cannot_refuse():
    found = mediation(described(), {})
    assert [one["name"] for one in found["pay"]["looks"]] == ["limit", "score"]
    assert {name: one["bare"] for name, one in found.items()} == {"pay": False, "mail": True, "look": False}
    assert not any(one["bare"] for one in mediation(described(unmatched="deny"), {}).values())


def test_a_description_of_an_older_version_says_nothing_about_gates():
    assert mediation({}, {"pay": "unsafe"}) == {"pay": {"effect": "unsafe", "looks": [], "bare": False}}


def message(text: str, role: Any = "user") -> Message:
    return Message(role, (TextPart(text),))


@pytest.mark.parametrize(
    ("after", "expected"),
    [
        (lambda a, b: [a, message("B")], [("message 2, user", "b", "B")]),
        (lambda a, b: [b], [("message 1, user", "a", None)]),
        (lambda a, b: [message("0"), a, b], [("message 1, user", None, "0")]),
        (lambda a, b: [a, b], []),
    ],
)
def test_edits_pair_messages_with_those_in_their_place(after: Any, expected: Any):
    a, b = message("a"), message("b")
    before = ModelRequest("s", (a, b))  # type: ignore[arg-type]
    changed = ModelRequest("s", tuple(after(a, b)))  # type: ignore[arg-type]
    assert [(one["where"], one["before"], one["after"]) for one in edits_of(before, changed)] == expected


def test_edits_name_fields_and_tools():
    before = ModelRequest("be kind", (), (ToolSpec("pay", "old"), ToolSpec("look")), "m")  # type: ignore[arg-type]
    found = edits_of(before, before.replace(system="be brief", tools=[ToolSpec("pay", "new")]))
    assert [one["where"] for one in found] == ["system", "tool pay", "tool look"]
    assert found[2]["after"] is None


def test_every_view_fits_when_it_is_zoomed_to_400_percent(inspector: Any, opened: Callable[..., Any]):
    one = opened(inspector, viewport={"width": 320, "height": 205})
    more = [("#/pipeline/context/session/desk-8833b", ".ctx"), ("#/evals", ".empty")]
    views = [view for view in [*PAGES, *PIPELINE, *more] if len(view) == 2 and "nothing" not in view[0]]
    for place, wait in views:
        page = one.go(place, wait)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), place


def test_a_new_question_is_announced_in_every_view(
    tmp_path: Path, started: Callable[..., Any], opened: Callable[..., Any]
):
    path = tmp_path / "asks.db"

    async def run(session: str, *script: Any) -> None:
        store = SQLiteStore(path)
        await shop.desk(store, *script).run("Money back!", session=session)
        await store.close()

    shop.in_thread(lambda: run("first", says("hello", usage=shop.use(10, 2))))
    page = opened(started(path)).page
    page.wait_for_selector('.tr[data-id="first"]')
    expect(page.locator("#store")).to_have_text("asks.db")
    page.wait_for_function(
        "performance.getEntriesByType('resource').some((one) => one.name.endsWith('/api/questions'))"
    )
    shop.in_thread(lambda: run("second", calls("refund", order="4480", amount=420, _usage=shop.use(10, 2))))
    page.evaluate("dispatchEvent(new Event('questions'))")
    expect(page.locator("#said")).to_have_text("A new question waits: Refund EUR 420.00 for order 4480?")
    expect(page.locator('#tabs [data-id="approvals"] .n')).to_have_text("1")


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_opens_inside_a_view_passes_axe(
    inspector: Any, opened: Callable[..., Any], axe: str, width: str, theme: str
):
    one = opened(inspector, viewport=WIDTHS[width], color_scheme=theme, bypass_csp=True)

    def check(what: str) -> None:
        found = one.page.evaluate("axe.run(document, {resultTypes: ['violations']})")
        assert not [(rule["id"], [node["html"][:160] for node in rule["nodes"]][:3]) for rule in found["violations"]], (
            what
        )

    page = one.go("#/turn/desk-8841", ".r")
    page.evaluate(axe)
    page.locator("#rows").focus()
    page.keyboard.press("End")
    page.wait_for_selector(".ctxcol", state="attached")
    check("contexts beside a turn")
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    page.keyboard.type("refund")
    expect(page.locator(".find")).to_contain_text("1 of")
    check("find")
    one.go("#/pipeline/context/session/desk-8833b", ".ctx")
    check("context")
    one.go("#/tree/lead-12", ".family")
    page.get_by_role("button", name="Steps of lead").click()
    page.wait_for_selector(".famstep")
    check("steps of a delegation")


def test_a_session_that_begins_before_the_stream_of_changes_is_not_missed(
    tmp_path: Path, started: Callable[..., Any], opened: Callable[..., Any]
):
    path = tmp_path / "early.db"

    async def run(session: str) -> None:
        store = SQLiteStore(path)
        await shop.desk(store, says("hello", usage=shop.use(10, 2))).run("Hi!", session=session)
        await store.close()

    shop.in_thread(lambda: run("first"))
    page = opened(started(path)).go("#/evals", ".empty")
    held: list[Any] = []
    page.route("**/api/events", lambda route: held.append(route))
    page.evaluate("location.hash = '#/sessions'")
    page.wait_for_selector('.tr[data-id="first"]')
    shop.in_thread(lambda: run("second"))
    assert held
    for route in held:
        route.continue_()
    page.wait_for_selector('.tr[data-id="second"]')
