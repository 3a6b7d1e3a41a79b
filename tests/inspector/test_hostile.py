"""Logs that lie: impossible times and numbers, ids that are traps, and more of everything than fits a page."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from windlass import Allow, Deny, Usage
from windlass import records as r
from windlass.messages import Message, ModelReply, OpaquePart, TextPart, ToolCallPart, ToolResult
from windlass.outcomes import ErrorValue, Failed
from windlass.stores import SQLiteStore

from . import shop
from .test_security import ask

IDS = [
    "..", ".", "=", "a/b", "%2e%2e%2f", "x#y?z=1", "<img src=x onerror=alert(1)>", "javascript:alert(1)",
    "rtl\u202eabc", "zero\u200bwidth", "line\u2028break", "\u0430dmin", "\x1b[31mred", "'\"><svg/onload=alert(1)>",
]  # fmt: skip
ENDED = Failed(ErrorValue("Error", "over"))
ODD = "\ud800 lone \udfff \x00 \u2028 \ufeff \U000e0041 \u115f"


def a_log(*more: r.Record, text: str = "go", at: Callable[[int], float] = lambda n: 1.7e9 + n) -> list[r.Record]:
    log = [r.SessionOpened(agent="a"), r.TurnStarted(1, _user(text), "t"), r.MessageAdded(), *more]
    return [record.replace(at=at(number)) for number, record in enumerate(log)]


def _user(text: str) -> Message:
    return Message("user", (TextPart(text),))


def called(call: str, arguments: str, result: str = "ok") -> list[r.Record]:
    """A step with one call."""
    reply = ModelReply(Message("assistant", (TextPart("x"), ToolCallPart("pay", arguments, call))), Usage(10, 5))
    return [
        r.ModelReplied(1, reply),
        r.ToolDecided(call, Allow(), name="pay", json=arguments),
        r.ToolCalled(call, "pay", json=arguments),
        r.ToolReturned(call, "pay", ToolResult.of(result)),
        r.StepEnded(1),
    ]


def nested(depth: int) -> str:
    return '{"x":' + "[" * depth + "]" * depth + "}"


def logs() -> Iterable[tuple[str, list[r.Record]]]:
    step = called("c/1/1", "{}")
    yield "far", a_log(*step, at=lambda n: (1e9, 1e15, 1e18, 1e300, 1e308)[min(n, 4)])
    yield "old", a_log(*step, at=lambda n: n - 1e18)
    yield "back", a_log(*step, at=lambda n: 1.7e9 - 1000 * n)
    yield "both", a_log(*step, at=lambda n: 0.0 if n < 4 else 4e9)
    wild = Usage(2**60, 2**62, cached=-4, cost=1e308)
    reply = ModelReply(Message("assistant", (TextPart("x"), OpaquePart("v", [1], mediated=False))), wild)
    yield "steps", a_log(*[r.ModelReplied(number, reply) for number in (1, 10**9, -5, 2**53, *range(40))])
    spread = r.StreamTimes(1, 1, 1, 2**60, 2**60, 2**60, 1e308, -1e308, 1e308, 5.0, held=True)
    times = r.HookTimes("h", "ToolCalling", 2**62, 1e308, 1e308, ((2**40, 2**60), (-5, -9)))
    yield "hooks", a_log(r.HooksRan((times,), (spread,)))
    for depth in (900, 24_000, 100_000):
        yield f"nested {depth}", a_log(*called(f"n/1/{depth}", nested(depth), nested(depth)))
    yield "odd", a_log(*called("c/1/1", '{"x":"\\ud800","\\udfff":1}', ODD), text=ODD)
    yield (
        "many answers",
        a_log(r.HookDecided("TurnStarting", "t", None, tuple((f"hook{n}", Deny("no")) for n in range(30_000)))),
    )
    yield "many tasks", a_log(*[r.Delegated("", f"many tasks//1/{n}", "kid", "t" * 500) for n in range(3000)])
    yield "many rows", a_log(*[r.Noted("hook", "k", number) for number in range(45_000)])
    turns = [(r.TurnStarted(n, _user("q" * 300), "t"), r.TurnEnded(ENDED)) for n in range(1, 3001)]
    yield "many turns", [record.replace(at=1.7e9) for pair in turns for record in pair]
    yield "names", a_log(r.HookFailed("h" * 10_000, "E" * 10_000, ErrorValue("T" * 10_000, "m"), "e" * 10_000))
    yield "itself", a_log(r.Delegated("", "itself", "kid", "again"))
    for name in IDS:
        yield name, a_log(*called(f"{name}/1/1", '{"x":1}'), text=f"id {name}")


@pytest.fixture(scope="module")
def lies(tmp_path_factory: pytest.TempPathFactory, started: Callable[..., Any]) -> Any:
    path: Path = tmp_path_factory.mktemp("lies") / "lies.db"

    async def write() -> None:
        store = SQLiteStore(path)
        for name, log in logs():
            for at in range(0, len(log), 5000):
                await store.append(name, log[at : at + 5000], at)
        await store.close()

    shop.in_thread(write)
    return started(path)


NAMES = [name for name, _ in logs()]


def test_what_the_page_asks_about_a_lying_log_is_answered_and_bounded(lies: Any):
    for name in NAMES:
        part = quote(name, safe="") if name not in (".", "..", "=") else f"={name}"
        paths = ["", "/turns/0", "/verify", "/tree", "/records/2", "/records/4", "/rows/2", "/requests/4"]
        paths = [f"/api/sessions/{part}{path}" for path in paths]
        paths += [
            f"/api/{one}={quote(name, safe='')}" for one in ("digests?id", "pipeline?session", "diff?right=old&left")
        ]
        for path in paths:
            status, _, data = ask(lies, path)
            assert status in (200, 404), path
            assert len(data) < 8_000_000, path
            assert status == 200 or json.loads(data)["error"]["type"] in ("row_unknown", "request_unknown"), path


def test_lists_are_answered_although_some_logs_lie(lies: Any):
    for path in ("/api/sessions", "/api/questions", "/api/answers?tool=pay", "/api/rules?rule=pay", "/api/whatif",
                 "/api/pipeline", "/api/effects", "/api/sessions?search=lone"):  # fmt: skip
        assert ask(lies, path)[0] == 200, path


def test_a_lying_log_can_be_looked_at(lies: Any, opened: Callable[..., Any]):
    one = opened(lies)
    for name in NAMES:
        if name.startswith("many"):
            continue
        part = quote(name, safe="")
        page = one.go(f"#/turn/{part}", ".r")
        page.locator("#rows").focus()
        for key in ("Home", "j", "j", "w", "j", "d", "End"):
            page.keyboard.press(key)
        assert not page.locator("main img, main script, main iframe, main a[href^=javascript]").count(), name
        hidden = r"/[\u202a-\u202e\u2066-\u2069\u200b\u2028\u2029\x1b\x00]/.test(document.body.textContent)"
        assert not page.evaluate(hidden), name
        one.go(f"#/tree/{part}", ".family")
        one.go(f"#/pipeline/streams/session/{part}", ".pipehead")
        assert not one.problems, name


def test_more_than_fits_a_page_is_cut_and_says_so(lies: Any, opened: Callable[..., Any]):
    one = opened(lies)
    words = {
        "many answers": "hook1: Deny", "many tasks": "and 2,992 others", "many turns": "…",
        "many rows": "rows of this turn are not shown",
    }  # fmt: skip
    for name, said in words.items():
        page = one.go(f"#/turn/{quote(name)}", f'main:has-text("{said}") .r')
        assert page.locator(".r").count() < 200
        assert page.locator("nav.turns a").count() < 30
