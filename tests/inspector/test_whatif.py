"""What-if on the page: hooks off, on and new, by mouse and by keyboard; bounded, cancellable, and without writing."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from windlass.stores import SQLiteStore
from windlass.testing import says

from . import shop
from .test_security import ask

DESK = Path(__file__).with_name("desk.py")


@pytest.fixture(scope="module")
def with_agent(started: Callable[..., Any], database: Path) -> Any:
    """The inspector with the agent that recorded the sessions."""
    return started(database, "--agent", f"{DESK}:agent")


def tried(process: Any, **question: Any) -> tuple[int, list[Any]]:
    """Ask, and wait for the end; returns the status and the events, or the error."""
    body = json.dumps(question).encode()
    status, _, data = ask(process, "/api/whatif/run", method="POST", body=body, Content_Type="application/json")
    if status != 200:
        return status, [json.loads(data)["error"]]
    return status, [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: ")]


def found(events: list[Any]) -> dict[str, Any]:
    return {one["session"]: one for event in events for one in event["sessions"]}


def test_gates_are_switched_off_and_a_shadow_gate_on_by_keyboard(with_agent: Any, opened: Callable[..., Any]):
    page = opened(with_agent).go("#/whatif", ".switch")
    for name in ("refund_limit", "fraud_score"):
        page.locator(".switch", has_text=name).locator("input").focus()
        page.keyboard.press("Space")
    page.keyboard.press("g")
    page.wait_for_selector('.wi [data-id="desk-8843"]')
    expect(page.locator(".wi-go [role=status]")).to_contain_text("sessions in")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    text = page.locator('.wi [data-id="desk-8843"]').inner_text()
    assert "three refunds in thirty days" in text
    assert "Refund EUR 420.00 for order 4480?" in text
    assert "Ask" in text
    assert "Deny" in text
    track = page.locator('.wi [data-id="desk-8841"] .track')
    assert track.locator(".eq").count() >= 3
    assert track.locator(".d-deny").count() == 1
    assert track.locator(".na").count() >= 1
    assert "a person is no longer asked; it is refused" in page.locator(".flows").inner_text()
    page.keyboard.press("1")
    page.wait_for_selector(".tr[data-id]")
    page.keyboard.press("5")
    page.wait_for_selector('.wi [data-id="desk-8843"]')


def test_rules_take_the_place_of_a_recorded_gate(inspector: Any, opened: Callable[..., Any]):
    one = opened(inspector)
    page = one.go("#/whatif", ".switch")
    page.locator(".switch", has_text="known_recipients").click()
    page.get_by_label("Rules of a policy file").fill('deny = ["find_order(order=4417)"]')
    assert "--replaces known_recipients" in page.locator(".cmd").inner_text()
    page.get_by_role("button", name="Replay").click()
    page.wait_for_selector('.wi [data-id="mail-old"]')
    page.locator('.wi [data-id="mail-old"] button').click()
    text = page.locator('.wi [data-id="mail-old"]').inner_text()
    assert "permissions" in text
    assert "find_order" in text
    page.get_by_label("Rules of a policy file").fill("allow = [")
    page.get_by_role("button", name="Replay").click()
    page.wait_for_selector(".said:has-text('the rules')")
    [refused] = one.problems
    one.problems.clear()
    assert "400" in refused


def test_one_session_is_asked_from_its_turn(with_agent: Any, opened: Callable[..., Any]):
    page = opened(with_agent).go("#/turn/desk-8840", ".r")
    page.get_by_role("link", name="what if").click()
    page.wait_for_selector(".switch")
    page.locator(".switch", has_text="known_recipients").click()
    page.keyboard.press("g")
    page.wait_for_selector('.wi [data-id="desk-8840"]')
    assert "1 of 1 session differs" in page.locator(".wi-sum").inner_text().replace("\n", " ")
    assert "what was refused happens" in page.locator(".flows").inner_text()


def test_a_new_gate_of_the_agents_code_is_asked(started: Callable[..., Any], database: Path):
    _, events = tried(started(database, "--agent", f"{DESK}:stricter"), agent=True)
    differing = found(events)
    first = differing["mail-new"]["differences"][0]
    assert (first["was"], first["now"], first["now_by"]) == ("Allow", "Deny", ["opening_hours"])
    assert first["now_why"] == "the shop is closed"
    assert "desk-8840" not in differing


def test_without_changes_all_is_as_recorded_but_for_gates_that_are_gone_and_a_log_that_no_agent_wrote(with_agent: Any):
    status, events = tried(with_agent, agent=True)
    summary = events[-1]["summary"]
    assert status == 200
    assert events[-1]["over"]
    assert not events[-1]["stopped"]
    statuses = {name: one["status"] for name, one in found(events).items()}
    different = dict.fromkeys(("desk-8841", "clerk-3", "lead-12"), "different")
    assert statuses == {**different, "kinds": "failed"}
    gone = [found(events)[name]["differences"][0]["was_by"] for name in ("desk-8841", "clerk-3")]
    assert gone == [["all_answered"], ["no_dates"]]
    assert summary["same"] == summary["sessions"] - len(statuses)


def test_what_cannot_be_tried_is_an_error_in_words(inspector: Any, with_agent: Any):
    assert tried(inspector)[0] == 400
    assert tried(inspector, agent=True)[0] == 409
    assert tried(inspector, off=["x"], sessions=["nope"])[0] == 404
    assert tried(inspector, off=["x"], search="nothing like this")[0] == 400
    assert tried(inspector, off=["x"], code="import os")[0] == 400
    assert tried(inspector, rules="unmatched = 3")[1][0]["message"].startswith("the rules: ")
    status, [error] = tried(with_agent, agent=True, off=["nobody"])
    assert status == 400
    assert "known: add_signature" in error["message"]
    assert tried(inspector, rules='folder = "/"\ndeny = ["read(path=/etc/*)"]')[0] == 200


def test_another_origin_host_or_token_starts_nothing(inspector: Any):
    body = b'{"off": ["refund_limit"]}'
    for headers, status in (
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "rebound.attacker.test"}, 421),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Content_Type": "text/plain"}, 415),
    ):
        given = {"Content_Type": "application/json", **headers}
        assert ask(inspector, "/api/whatif/run", method="POST", body=body, **given)[0] == status


def test_one_at_a_time_the_page_stays_quick_and_leaving_ends_it(started: Callable[..., Any], tmp_path: Path):
    path = tmp_path / "many.db"

    async def record() -> None:
        store = SQLiteStore(path)
        for number in range(150):
            agent = shop.desk(store, shop.calls("find_order", order="1"), says("yes"))
            await agent.run("Is it there?", session=f"s{number}")
        await store.close()

    shop.in_thread(record)
    process = started(path, "--agent", f"{DESK}:slow")
    connection = http.client.HTTPConnection(urlsplit(process.address).netloc, timeout=20)
    headers = {"Authorization": f"Bearer {process.token}", "Content-Type": "application/json"}
    connection.request("POST", "/api/whatif/run", b'{"agent": true}', headers)
    response = connection.getresponse()
    line = response.readline()
    while not (line.startswith(b"data: ") and json.loads(line[6:])["done"] > 2):
        line = response.readline()
    assert not json.loads(line[6:])["over"]
    assert tried(process, agent=True)[1][0]["type"] == "busy"
    began = time.monotonic()
    assert ask(process, "/api/sessions")[0] == 200
    assert time.monotonic() - began < 5
    response.close()
    connection.close()
    until, answer = time.monotonic() + 10, list[Any]()
    while time.monotonic() < until:
        status, answer = tried(process, agent=True, sessions=["s1"])
        if status == 200:
            break
        time.sleep(0.05)
    assert answer[-1]["done"] == 1


def test_a_replay_writes_nothing(with_agent: Any, database: Path):
    before = {one: database.with_name(one).read_bytes() for one in ("shop.db",)}
    tried(with_agent, agent=True, off=["refund_limit"])
    assert {one: database.with_name(one).read_bytes() for one in before} == before


def test_a_hook_that_ends_its_process_ends_only_its_replay(started: Callable[..., Any], database: Path):
    process = started(database, "--agent", f"{DESK}:leaving")
    status, events = tried(process, agent=True, sessions=["desk-8840"])
    assert status == 200
    assert "SystemExit" in found(events)["desk-8840"]["error"]
    assert ask(process, "/api/sessions")[0] == 200
