"""Evaluations in a real browser: runs, their cases and trials, and what another run changed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from windlass.evals import EvalRun
from windlass.evals.runs import TrialReport
from windlass.stores import SQLiteStore

from . import shop
from .test_pages import WIDTHS
from .test_security import ask


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the sessions of two runs, and the runs as files."""
    path = tmp_path_factory.mktemp("evals")

    async def record() -> None:
        store = SQLiteStore(path / "evals.db")
        await shop.evaluations(store, path)
        await store.close()

    shop.in_thread(record)
    (path / "other.json").write_text('{"no": "run"}', encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def evals(folder: Path, started: Callable[..., Any]) -> Any:
    """The inspector on that store, with the runs of the folder."""
    return started(folder / "evals.db", "--evals", folder)


def test_a_run_shows_its_cases_and_why_a_trial_failed_and_leads_to_its_session(evals: Any, opened: Callable[..., Any]):
    page = opened(evals).go("#/evals", ".cases .tr[aria-rowindex]")
    assert [text.split("\n")[0] for text in page.locator(".runitem b").all_inner_texts()] == ["tuesday", "monday"]
    expect(page.locator(".facts")).to_contain_text("14 of 18")
    case = page.locator('.cases [data-id="mail to a stranger"]')
    assert case.locator(".dot.bad").count() == 1
    case.get_by_role("button").click()
    expect(case).to_contain_text("no call of it was denied; calls made: send_mail")
    expect(page.locator('.cases [data-id="no promises"]')).to_contain_text("the judge was not reached")
    case.get_by_role("link", name="Open its session").first.click()
    page.wait_for_selector(".panel")
    expect(page.locator(".turnhead")).to_contain_text("Write to leo@other.example.")


def test_two_runs_show_which_cases_became_better_or_worse_by_keyboard(evals: Any, opened: Callable[..., Any]):
    page = opened(evals).go("#/sessions", ".tr[data-id]")
    page.keyboard.press("6")
    page.wait_for_selector(".cases .tr[aria-rowindex]")
    page.get_by_label("Compared with").select_option("monday.json")
    expect(page.locator(".versus")).to_contain_text("1 case worse")
    expect(page.locator(".versus")).to_contain_text("2 cases better")
    page.locator("h1").click()
    page.keyboard.press("x")
    page.keyboard.press("Enter")
    worse = page.locator('.cases [data-id="mail to a stranger"]')
    expect(worse).to_contain_text("100 % → 66.7 %")
    expect(worse.locator(".trial")).to_have_count(3)
    page.keyboard.press("Enter")
    expect(worse.locator(".trial")).to_have_count(0)
    page.get_by_role("button", name="Better").click()
    expect(page.locator(".cases .tr[aria-rowindex]")).to_have_count(2)
    page.keyboard.press("]")
    expect(page.locator(".runhead h2")).to_have_text("monday")


def test_a_run_that_is_saved_later_is_there_after_a_reload(evals: Any, folder: Path, opened: Callable[..., Any]):
    page = opened(evals).go("#/evals", ".runitem")
    assert page.locator(".runitem").count() == 2
    new = folder / "wednesday.json"
    new.write_text((folder / "monday.json").read_text(encoding="utf-8"), encoding="utf-8")
    try:
        page.evaluate("location.hash = '#/sessions'")
        page.wait_for_selector(".tr[data-id]")
        page.evaluate("location.hash = '#/evals/wednesday.json'")
        expect(page.locator(".runhead h2")).to_have_text("wednesday")
    finally:
        new.unlink()


def test_without_runs_the_page_says_how_to_make_one(inspector: Any, opened: Callable[..., Any]):
    page = opened(inspector).go("#/evals", ".empty")
    expect(page.locator(".empty")).to_contain_text("windlass eval cases.yaml")


def test_unknown_runs_and_files_that_are_none_are_refused(evals: Any, database: Path, folder: Path):
    assert ask(evals, "/api/evals?run=none")[0] == 404
    assert ask(evals, "/api/evals?run=../evals.db")[0] == 404
    status, _, data = ask(evals, "/api/evals?run=tuesday.json&before=monday.json")
    assert status == 200
    assert json.loads(data)["before"]["same"] == 2
    command = [
        sys.executable,
        "-m",
        "windlass",
        "ui",
        str(database),
        "--port",
        "0",
        "--evals",
        str(folder / "other.json"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert "is not a saved evaluation" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_huge_run_is_bounded_and_trials_that_did_not_pass_are_kept(
    folder: Path, started: Callable[..., Any], tmp_path: Path
):
    trials = [TrialReport("a", number, passed=number != 5000, text="x" * 9000) for number in range(1, 6001)]
    EvalRun("desk", tuple(trials), 1.0, 6000).save(tmp_path / "huge.json")
    process = started(folder / "evals.db", "--evals", tmp_path)
    _, _, data = ask(process, "/api/evals")
    assert len(data) < 2_000_000
    case = json.loads(data)["run"]["cases"][0]
    assert case["of"] == 6000
    assert len(case["trials"]) == 500
    assert [one["n"] for one in case["trials"] if not one["passed"]] == [5000]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_evaluations_pass_axe_and_fit(evals: Any, opened: Callable[..., Any], axe: str, width: str, theme: str):
    page = opened(evals, viewport=WIDTHS[width], color_scheme=theme, bypass_csp=True)
    page = page.go("#/evals/tuesday.json/monday.json", ".cases .tr[aria-rowindex]")
    page.keyboard.press("x")
    page.keyboard.press("Enter")
    page.wait_for_selector(".trial")
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    assert not [(rule["id"], [node["html"][:160] for node in rule["nodes"]][:3]) for rule in found["violations"]]
