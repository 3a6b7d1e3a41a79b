"""Questions answered on the page, by mouse and by keyboard, and what the answers do."""

from __future__ import annotations

import json
import sqlite3
import time
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Approve, Ask, ToolCalling, tool
from windlass.records import Answered, ToolReturned
from windlass.stores import SQLiteStore
from windlass.testing import ScriptedModel, calls

from . import shop
from .conftest import violations
from .test_security import ask


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's own folder for settings, which the inspector writes rules to."""
    monkeypatch.setenv("WINDLASS_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config" / "rules.toml"


@pytest.fixture
def waiting(tmp_path: Path, own: Path, started: Callable[..., Any]) -> tuple[Any, Path]:
    """An inspector that may answer, on a store with three questions."""
    path = tmp_path / "waiting.db"

    async def record() -> None:
        store = SQLiteStore(path)
        shop.CLOCK.start = time.time() - shop.CLOCK.monotonic() - 1000
        await shop.waiting(store)
        await store.close()

    shop.in_thread(record)
    return started(path, "--control"), path


def resumed(path: Path, session: str) -> list[Any]:
    """Resume a session with its answers; returns the answers and results in its log."""

    async def run() -> list[Any]:
        store = SQLiteStore(path)
        await shop.desk(store, shop.says("done")).resume(session)
        log = await store.read(session)
        await store.close()
        return [record for record in log if isinstance(record, Answered | ToolReturned)]

    return shop.in_thread(run)


def test_approve_by_key_and_the_call_runs_at_the_next_resume(waiting: Any, opened: Callable[..., Any]):
    process, path = waiting
    page = opened(process).go("#/approvals", ".askbox .acts .btn")
    page.locator(".askitem", has_text="4480").click()
    page.keyboard.press("a")
    page.wait_for_selector(".askbox .verdict:has-text('Approve')")
    answered, returned = resumed(path, "desk-8843")[-2:]
    assert isinstance(answered.answer, Approve)
    assert returned.result.text.startswith("refunded EUR 420.00")


def test_edit_by_mouse_marks_the_field_and_the_edited_call_runs(waiting: Any, opened: Callable[..., Any]):
    process, path = waiting
    one = opened(process)
    page = one.go("#/approvals", ".askbox .acts .btn")
    page.locator(".askitem", has_text="4480").click()
    page.get_by_role("button", name="Edit first").click()
    page.get_by_label("amount").fill("ninety")
    page.get_by_role("button", name="Approve with these changes").click()
    page.wait_for_selector(".said:has-text('not valid JSON')")
    page.get_by_label("amount").fill('"90"')
    page.get_by_role("button", name="Approve with these changes").click()
    page.wait_for_selector(".said:has-text('cannot become a text')")
    page.get_by_label("amount").fill("90")
    assert page.locator(".f.chg").count() == 1
    page.get_by_role("button", name="Approve with these changes").click()
    page.wait_for_selector(".askbox .verdict:has-text('Edit')")
    assert resumed(path, "desk-8843")[-1].result.text.startswith("refunded EUR 90.00")
    [refused] = one.problems
    one.problems.clear()
    assert "409" in refused


def test_reject_and_respond_by_keyboard(waiting: Any, opened: Callable[..., Any]):
    process, path = waiting
    page = opened(process).go("#/approvals", ".askbox .acts .btn")
    page.locator(".askitem", has_text="4466").click()
    page.keyboard.press("n")
    page.keyboard.type("Ask for the receipt first.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".askbox .verdict:has-text('Reject')")
    page.keyboard.press("Escape")
    page.locator(".askitem", has_text="4467").click()
    page.get_by_role("button", name="Respond instead").click()
    page.keyboard.type("It was refunded by hand.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".askbox .verdict:has-text('Respond')")
    returned = [record for record in resumed(path, "desk-8844") if isinstance(record, ToolReturned)]
    assert "Ask for the receipt first." in returned[0].result.text
    assert returned[1].result.text == "It was refunded by hand."


def test_a_rule_is_tried_saved_in_the_users_own_file_and_used(waiting: Any, opened: Callable[..., Any], own: Path):
    process, _ = waiting
    page = opened(process).go("#/approvals", ".askbox .acts .btn")
    page.locator(".askitem", has_text="4480").click()
    page.keyboard.press("m")
    page.wait_for_selector(".rule:has-text('1 of 3')")
    page.get_by_label("Rule").fill("refund(order=44*)")
    page.wait_for_selector(".rule:has-text('3 of 3')")
    page.get_by_role("button", name="Save the rule and approve").click()
    page.wait_for_selector(".askbox .verdict:has-text('Approve')")
    [rule] = tomllib.loads(own.read_text())["rules"]
    assert rule["allow"] == "refund(order=44*)"


def test_without_control_there_are_no_buttons_and_no_route(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/approvals", ".askbox .callbox")
    assert page.locator(".acts .btn").count() == 0
    page.keyboard.press("a")
    page.keyboard.press("m")
    assert page.locator(".rule").count() == 0
    assert "windlass ui --control" in page.locator(".askbox").inner_text()
    assert ask(inspector, "/api/answer", method="POST", body=b"{}", Content_Type="application/json")[0] == 404


def test_wrong_answers_are_refused(waiting: Any):
    process, _ = waiting
    questions = json.loads(ask(process, "/api/questions")[2])["questions"]
    one = next(q for q in questions if q["session"] == "desk-8843")
    asked = one["asked"]
    good = {"session": "desk-8843", "question": asked["id"], "digest": asked["digest"], "answer": "approve"}

    def send(body: Any, **headers: str) -> int:
        headers = {"Content_Type": "application/json", **headers}
        return ask(process, "/api/answer", method="POST", body=json.dumps(body).encode(), **headers)[0]

    assert send({**good, "digest": "other"}) == 409
    assert send({**good, "question": "desk-8843/9/9"}) == 409
    assert send({**good, "rule": "send_mail"}) == 400
    assert send({**good, "rule": "((("}) == 400
    assert send({**good, "answer": "edit", "arguments": {"order": "1"}}) == 409
    assert send({**good, "nope": 1}) == 400
    assert send(good, Content_Type="text/plain") == 415
    assert send(good, Origin="https://evil.example") == 403
    assert send(good) == 200
    assert send(good) == 409


def test_a_request_shows_origins_blame_and_cache(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8841", ".panel .chain")
    page.locator("#rows").focus()
    page.locator(".r-model").nth(1).click()
    page.keyboard.press("r")
    page.wait_for_selector(".req .seg")
    text = page.locator(".panel").inner_text()
    assert "injected by hooks" in text
    assert "customer_profile" in text
    assert "from the vendor's cache" in text
    assert "new in this call" in text
    assert "[card]" in text
    assert "4929" not in text


def test_the_ledger_says_what_a_kill_would_mean(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/turn/desk-8843", ".r")
    page.locator("#rows").focus()
    page.keyboard.press("End")
    page.wait_for_selector(".ledger")
    assert "still waits for an answer" in page.locator(".ledger").inner_text()


def test_every_state_of_an_answer_passes_axe_at_both_widths(waiting: Any, opened: Callable[..., Any], axe: str):
    process, _ = waiting
    for width, theme in ((1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")):
        one = opened(process, viewport={"width": width, "height": 800}, color_scheme=theme, bypass_csp=True)
        page = one.go("#/approvals", ".askbox .acts .btn")
        for key, wait in (("", ".acts"), ("e", ".fields input"), ("n", "#words"), ("m", ".rule b")):
            if key:
                page.keyboard.press(key)
            page.wait_for_selector(wait)
            page.wait_for_timeout(100)
            assert not violations(page, axe), (key, width, theme)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), (key, width)
            page.keyboard.press("Escape")
            page.keyboard.press("Escape")


def test_edit_by_keyboard_and_approve_and_reject_by_mouse(waiting: Any, opened: Callable[..., Any]):
    process, path = waiting
    page = opened(process).go("#/approvals", ".askbox .acts .btn")
    while "4480" not in page.locator(".askbox h2").inner_text():
        page.keyboard.press("j")
    page.keyboard.press("e")
    for _ in range(8):
        if page.evaluate("document.activeElement.name") == "amount":
            break
        page.keyboard.press("Tab")
    page.keyboard.press("ControlOrMeta+a")
    page.keyboard.type("75")
    page.keyboard.press("Enter")
    page.wait_for_selector(".askbox .verdict:has-text('Edit')")
    page.locator(".askitem", has_text="4466").click()
    page.get_by_role("button", name="Approve", exact=False).first.click()
    page.wait_for_selector(".askbox .verdict:has-text('Approve')")
    page.locator(".askitem", has_text="4467").click()
    page.get_by_role("button", name="Reject").click()
    page.locator("#words").fill("Too much.")
    page.get_by_role("button", name="Reject").click()
    page.wait_for_selector(".askbox .verdict:has-text('Reject')")
    assert resumed(path, "desk-8843")[-1].result.text.startswith("refunded EUR 75.00")
    texts = [record.result.text for record in resumed(path, "desk-8844") if isinstance(record, ToolReturned)]
    assert any(text.startswith("refunded EUR 174.00") for text in texts)
    assert any("Too much." in text for text in texts)


@pytest.fixture
def odd(tmp_path: Path, own: Path, started: Callable[..., Any]) -> Any:
    """Questions that are hard to show: one nested deeply, a long one, and one whose log is damaged."""
    path = tmp_path / "odd.db"

    async def record() -> None:
        store = SQLiteStore(path)
        for name, value in (("deep", _nested(850)), ("long", "x" * 60_000), ("sound", 500), ("broken", 500)):
            agent: Agent[Any, Any] = Agent(ScriptedModel(calls("take", what=value)), tools=[take], store=store)
            agent.gate(ToolCalling, name="asks")(lambda event: Ask("May I?"))
            await agent.run(f"Take the {name} one.", session=name)
        await store.close()

    shop.in_thread(record)
    with sqlite3.connect(path) as db:
        db.execute("UPDATE batches SET data = x'00' WHERE session = (SELECT number FROM sessions WHERE id = 'broken')")
    return started(path, "--control")


@tool
def take(what: Any) -> str:
    """Take it."""
    return "taken"


def _nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


def _nested_json(depth: int) -> str:
    return "[" * (depth + 1) + "]" * (depth + 1)


def test_a_question_that_cannot_be_shown_stops_no_other_one(odd: Any, opened: Callable[..., Any]):
    page = opened(odd).go("#/approvals", ".askitem")
    names = page.locator(".askitem code").all_inner_texts()
    assert set(names) == {"deep", "long", "sound"}
    assert "logs are damaged are not shown: broken" in page.locator("main").inner_text()
    page.locator(".askitem", has_text="long").click()
    page.wait_for_selector("text=This is too long to show whole")
    assert page.locator(".acts .btn").count() == 0
    page.locator(".askitem", has_text="deep").click()
    page.wait_for_selector(".askbox:has-text('the deep one')")
    cut = page.get_by_text("This is too long to show whole").count()
    assert cut or _nested_json(850) in page.locator(".askbox .fields").inner_text()
    assert bool(cut) != bool(page.locator(".acts .btn").count())
    page.locator(".askitem", has_text="sound").click()
    page.keyboard.press("a")
    page.wait_for_selector(".askbox .verdict:has-text('Approve')")
    assert ask(odd, "/api/answers?tool=take")[0] == 200
    assert ask(odd, "/api/rules?rule=take")[0] == 200
