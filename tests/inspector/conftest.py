"""The inspector as users start it, on a recorded store, and a real Chromium to look at it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.npm import install

from . import shop

FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


class Process:
    """`windlass ui` in a process of its own."""

    def __init__(self, *arguments: str | Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "windlass", "ui", *map(str, arguments), "--port", "0"],
            stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )  # fmt: skip
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        found = re.search(r"(http://127\.0\.0\.1:\d+)/#token=(\S+)", line)
        if found is None:
            raise AssertionError(line + self.process.stderr.read())
        self.address, self.token = found.groups()
        self.url = found[0]

    def end(self) -> int:
        """End it as Ctrl-C does; returns the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(10)


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The recorded store."""
    return shop.database(tmp_path_factory.mktemp("shop"))


@pytest.fixture(scope="session")
def started() -> Iterator[Callable[..., Process]]:
    """Starts `windlass ui`; all are ended with the tests."""
    processes: list[Process] = []

    def start(*arguments: str | Path) -> Process:
        processes.append(Process(*arguments))
        return processes[-1]

    yield start
    for process in processes:
        if process.process.poll() is None:
            process.process.kill()
        process.process.wait()
        assert process.process.stderr is not None
        process.process.stderr.close()


@pytest.fixture(scope="session")
def inspector(started: Callable[..., Process], database: Path) -> Process:
    """The inspector on the recorded store, only for reading."""
    return started(database)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Chromium without a window. Its event loop runs in this thread, so these modules test nothing async."""
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("WINDLASS_REQUIRE_CHROMIUM"):
            raise RuntimeError("chromium is missing, but its tests are required")
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=path, headless=True, args=FLAGS)
        yield chromium
        chromium.close()


class Page:
    """A page of the inspector. Whatever its console says is kept."""

    def __init__(self, browser: Any, process: Process, **options: Any) -> None:
        options = {"viewport": {"width": 1280, "height": 820}, **options}
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.page.set_default_timeout(30_000)
        self.problems: list[str] = []
        self.page.on("console", lambda message: self.problems.append(f"{message.type}: {message.text}"))
        self.page.on("pageerror", lambda error: self.problems.append(str(error)))
        self.page.on("dialog", lambda dialog: (self.problems.append("a dialog"), dialog.dismiss()))
        self.page.goto(process.url)
        self.page.wait_for_selector(".tr[data-id], .sessions .empty")

    def go(self, place: str, wait: str) -> Any:
        """Open a view, and wait until it is there."""
        self.page.evaluate("place => { location.hash = place }", place)
        self.page.wait_for_selector(wait)
        return self.page


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Page]]:
    """Opens pages. At the end of the test their consoles must be empty."""
    pages: list[Page] = []

    def open_page(process: Process, **options: Any) -> Page:
        pages.append(Page(browser, process, **options))
        return pages[-1]

    yield open_page
    problems = [problem for page in pages for problem in page.problems]
    for page in pages:
        page.context.close()
    assert not problems


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe."""
    return (install(Path(__file__).with_name("axe"), "axe") / "axe-core" / "axe.min.js").read_text(encoding="utf-8")


def violations(page: Any, axe: str) -> list[Any]:
    """What axe finds on a page: rules with the elements that break them."""
    if not page.evaluate("'axe' in window"):
        page.evaluate(axe)
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [(rule["id"], [node["html"][:160] for node in rule["nodes"]][:3]) for rule in found["violations"]]
