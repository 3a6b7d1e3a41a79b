"""Breakpoints of a live process: paused, looked at, changed, decided and released, by mouse and by keyboard."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from playwright.sync_api import expect

from windlass import records as r
from windlass.cli import main
from windlass.stores import SQLiteStore

from . import shop
from .test_security import ask

DESK = Path(__file__).with_name("desk.py")


class Live:
    """`windlass run --inspect` in a process of its own."""

    def __init__(self, store: Path, *arguments: str, target: str = "talking") -> None:
        self.store = store
        self.process = subprocess.Popen(
            [sys.executable, "-m", "windlass", "run", "--agent", f"{DESK}:{target}", "--store", f"sqlite:///{store}",
             "--session", "live", "--inspect", *arguments, "Where is my tent?"],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"(http://127\.0\.0\.1:\d+)/#token=(\S+)", line)
        if found is None:
            raise AssertionError(line + self.process.stderr.read())
        self.address, self.token = found.groups()
        self.url = found[0]

    def state(self) -> Any:
        return json.loads(ask(self, "/api/breakpoints")[2])

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        given = {"Content_Type": "application/json", **headers}
        data = ask(self, f"/api/breakpoints/{path}", method="POST", body=json.dumps(body).encode(), **given)
        return data[0], json.loads(data[2])

    def pause(self) -> Any:
        """The first turn that waits."""
        until = time.monotonic() + 10
        while time.monotonic() < until:
            if paused := self.state()["paused"]:
                return paused[0]
            time.sleep(0.02)
        raise AssertionError("nothing paused")

    def ended(self) -> tuple[str, list[Any]]:
        """What the command printed, and the log."""
        out, err = self.process.communicate(timeout=20)

        async def read() -> list[Any]:
            store = SQLiteStore(self.store)
            log = list(await store.read("live"))
            await store.verify("live")
            await store.close()
            return log

        return out + err, shop.in_thread(read)


@pytest.fixture
def live(tmp_path: Path) -> Iterator[Callable[..., Live]]:
    processes: list[Live] = []

    def start(*arguments: str, target: str = "talking") -> Live:
        processes.append(Live(tmp_path / f"live{len(processes)}.db", *arguments, target=target))
        return processes[-1]

    yield start
    for one in processes:
        if one.process.poll() is None:
            one.process.kill()
        one.process.communicate()


def of(log: list[Any], kind: type) -> list[Any]:
    return [record for record in log if isinstance(record, kind)]


def leave(page: Any) -> None:
    """Close a page: what it asks of a process that has ended is a problem of its console."""
    page.context.close()
    page.problems.clear()


def test_arguments_are_changed_and_a_result_refused_by_keyboard(live: Callable[..., Live], opened: Callable[..., Any]):
    process = live("--break", "ToolCalling:send_*", "--break", "ToolReturning:find_order")
    one = opened(process)
    page = one.go("#/breakpoints", ".pausebox h2:has-text('ToolCalling')")
    assert "ann@fjell.example" in page.locator(".pausebox").inner_text()
    page.keyboard.press("e")
    page.get_by_label("text").fill("It came on 9 November.\nFjell")
    assert page.locator(".f.chg").count() == 1
    page.get_by_role("button", name="Go on with these changes").click()
    page.wait_for_selector(".pausebox h2:has-text('ToolReturning')")
    page.keyboard.press("n")
    page.keyboard.type("The customer may not see this.")
    page.keyboard.press("Enter")
    page.wait_for_selector(".said:has-text('Deny, in your name')")
    assert "changed it" in page.locator(".past").inner_text()
    output, log = process.ended()
    leave(one)
    assert "I have written to you." in output
    [rewritten] = [it for it in of(log, r.Rewritten) if it.hook == "breakpoint.ToolCalling.edit"]
    assert "It came on 9 November." in rewritten.fields["json"]
    results = {it.name: it.result for it in of(log, r.ToolReturned)}
    assert "The customer may not see this." in results["find_order"].text
    assert results["send_mail"].text == "sent to ann@fjell.example"
    notes = [it.data for it in of(log, r.Noted) if it.kind == "breakpoint"]
    assert [(it["event"], it["did"], it["edited"]) for it in notes] == [
        ("ToolCalling", "went on", True),
        ("ToolReturning", "Deny", False),
    ]
    assert all(it["by"] for it in notes)


def test_a_breakpoint_is_set_and_removed_on_the_page_and_text_is_added(
    live: Callable[..., Live], opened: Callable[..., Any]
):
    process = live("--break", "TurnStarting")
    one = opened(process)
    page = one.page
    page.wait_for_selector('.tabs [data-id="breakpoints"] .n')
    page.keyboard.press("5" if page.locator(".tabs a").count() == 5 else "9")
    one.go("#/breakpoints", ".pausebox")
    page.get_by_role("button", name="Pause at TurnStarting").click()
    page.get_by_role("button", name="Pause at ToolCalling").focus()
    page.keyboard.press("Enter")
    page.get_by_label("Only for this tool at ToolCalling").fill("find_order")
    page.keyboard.press("Enter")
    expect(page.locator(".bp-row.set")).to_have_count(1)
    page.locator("h1").click()
    page.keyboard.press("i")
    page.keyboard.type("The customer is in a hurry.")
    page.get_by_role("button", name="Add this and go on").click()
    page.wait_for_selector(".pausebox h2:has-text('ToolCalling')")
    page.get_by_role("button", name="Halt").click()
    page.keyboard.type("Enough for today.")
    page.keyboard.press("Enter")
    output, log = process.ended()
    leave(one)
    assert process.process.returncode == 4
    assert "Enough for today." in output
    [injected] = [it for it in of(log, r.Injected) if it.hook.startswith("breakpoint")]
    assert injected.parts[0].text == "The customer is in a hurry."
    assert not of(log, r.ToolCalled)


def test_what_does_not_fit_is_refused_and_the_turn_still_waits(live: Callable[..., Live]):
    process = live("--break", "ToolCalling:send_mail")
    one = process.pause()
    for reply, words in (
        ({"arguments": {"to": 5, "text": "x"}}, "the arguments do not fit"),
        ({"arguments": {"nobody": "x"}}, "the arguments do not fit"),
        ({"text": "x"}, "no text that could be changed"),
        ({"verdict": "Regenerate"}, "ToolCalling takes Halt"),
        ({"verdict": "__import__"}, "ToolCalling takes Halt"),
        ({"nope": 1}, "not valid"),
    ):
        status, answer = process.post("answer", {"pause": one["pause"], **reply})
        assert status == 400
        assert words in answer["error"]["message"]
    for chosen, words in (
        ({"event": "Nothing"}, "there is no event"),
        ({"event": "TurnEnding", "tool": "x"}, "not about"),
    ):
        status, answer = process.post("set", {"breakpoints": [chosen]})
        assert status == 400
        assert words in answer["error"]["message"]
    assert process.state()["set"] == [{"event": "ToolCalling", "tool": "send_mail"}]
    assert process.post("answer", {"pause": 99})[0] == 409
    assert process.post("answer", {"pause": one["pause"]})[0] == 200
    assert process.post("answer", {"pause": one["pause"]})[0] in (409, 200)
    assert "I have written to you." in process.ended()[0]


def test_other_origins_hosts_and_tokens_reach_no_breakpoint(live: Callable[..., Live], inspector: Any):
    process = live("--break", "ToolCalling")
    one = process.pause()
    for path, body in (("answer", {"pause": one["pause"]}), ("set", {"breakpoints": []})):
        assert process.post(path, body, Origin="https://evil.example")[0] == 403
        assert process.post(path, body, Host="rebound.attacker.test")[0] == 421
        assert process.post(path, body, Authorization="Bearer wrong")[0] == 401
        assert process.post(path, body, Content_Type="text/plain")[0] == 415
    for path in ("/api/breakpoints", "/api/breakpoints/events"):
        assert ask(process, path, token="wrong")[0] == 401
        assert ask(inspector, path)[0] == 404
    assert ask(inspector, "/api/breakpoints/set", method="POST", body=b"{}", Content_Type="application/json")[0] == 404
    assert ask(process, "/api/answer", method="POST", body=json.dumps(
        {"session": "someone-else", "question": "x", "digest": "x", "answer": "approve"}
    ).encode(), Content_Type="application/json")[0] == 403  # fmt: skip
    assert process.state()["paused"]


def test_ctrl_c_ends_a_paused_turn(live: Callable[..., Live]):
    process = live("--break", "ToolCalling")
    process.pause()
    process.process.send_signal(2)
    _, log = process.ended()
    assert process.process.returncode == 130
    [note] = [it.data for it in of(log, r.Noted) if it.kind == "breakpoint"]
    assert note["how"] == "the turn was cancelled"
    assert not note["by"]


def test_a_process_that_is_killed_while_it_is_paused_leaves_a_turn_that_another_one_resumes(live: Callable[..., Live]):
    process = live("--break", "ToolCalling:send_mail")
    process.pause()
    process.process.kill()
    _, log = process.ended()
    assert not of(log, r.TurnEnded)
    assert "send_mail" not in [it.name for it in of(log, r.ToolCalled)]

    async def resume() -> tuple[Any, list[Any]]:
        store = SQLiteStore(process.store)
        result = await shop.desk(store, shop.says("I have written to you.")).resume("live")
        found = list(await store.read("live"))
        await store.verify("live")
        await store.close()
        return result, found

    result, log = shop.in_thread(resume)
    assert result.text == "I have written to you."
    assert [it.name for it in of(log, r.ToolCalled)] == ["find_order", "send_mail"]


def test_a_page_that_is_closed_lets_the_turn_wait_for_another_one(
    live: Callable[..., Live], opened: Callable[..., Any]
):
    process = live("--break", "ToolCalling:send_mail")
    one = opened(process)
    one.go("#/breakpoints", ".pausebox")
    leave(one)
    other = opened(process)
    page = other.go("#/breakpoints", ".pausebox")
    page.get_by_role("button", name="Deny").click()
    page.keyboard.type("Not now.")
    page.get_by_role("button", name="Deny").click()
    page.wait_for_selector(".said:has-text('Deny, in your name')")
    _, log = process.ended()
    leave(other)
    assert [it.result.text for it in of(log, r.ToolReturned) if "Not now." in it.result.text]


def test_a_hostile_payload_stays_text_and_every_state_passes_axe(
    live: Callable[..., Live], opened: Callable[..., Any], axe: str
):
    process = live("--break", "ToolCalling:send_mail", target="hostile")
    for width, theme in ((1280, "light"), (390, "dark")):
        one = opened(process, viewport={"width": width, "height": 800}, color_scheme=theme, bypass_csp=True)
        page = one.go("#/breakpoints", ".pausebox")
        text = page.evaluate("document.body.textContent")
        assert "<script>" in text
        assert not [c for c in text if c in "\x1b\u202e\u202c\u2066\u2069\u200b"]
        assert page.locator("main img, main script, main iframe").count() == 0
        for key in ("", "e", "Escape", "n"):
            if key:
                page.keyboard.press(key)
            page.wait_for_timeout(100)
            page.evaluate(axe)
            found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            assert not [(it["id"], [node["html"][:120] for node in it["nodes"]]) for it in found["violations"]], key
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        leave(one)


def test_options_that_make_no_sense_are_refused(tmp_path: Path):
    base = ["run", "--agent", f"{DESK}:talking", "--store", f"sqlite:///{tmp_path}/x.db", "hi"]
    for more, words in (
        (["--inspect", "--break", "Nothing"], "there is no event 'Nothing'"),
        (["--break", "TurnEnding:pay"], "not about a tool"),
    ):
        result = CliRunner().invoke(main, [*base, *more])
        assert result.exit_code in (1, 2)
        assert words in result.output
