"""The documentation as a site: it is whole, asks no other host for anything, and can be read wherever it is opened."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

PROJECT = Path(__file__).resolve().parent.parent
FLAGS = "no-sandbox disable-gpu disable-quic no-first-run disable-background-networking disable-component-update"


@pytest.fixture(scope="module")
def builder() -> ModuleType:
    spec = importlib.util.spec_from_file_location("build_site", PROJECT / "docs" / "build_site.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make site` builds it."""
    folder = tmp_path_factory.mktemp("build")
    command = [sys.executable, str(PROJECT / "docs" / "build_site.py"), "--into", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return folder / "site"


class References(HTMLParser):
    """What a page loads, where it links, and the places in it that can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []
        self.places: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.places |= {given[name] for name in ("id", "name") if name in given}
        if tag == "a" and "href" in given:
            self.linked.append(given["href"])
        elif "src" in given or (tag == "link" and "href" in given):
            self.loaded.append(given.get("src") or given["href"])


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, References]:
    return {path: References(path.read_text(encoding="utf-8")) for path in site.rglob("*.html") if path.stem != "404"}


def test_every_page_of_the_docs_is_on_the_site(site):
    for page in (PROJECT / "docs").rglob("*.md"):
        name = page.relative_to(PROJECT / "docs").with_suffix(".html").as_posix()
        assert (site / re.sub(r"\bREADME\.html$", "index.html", name)).exists(), page


def test_all_links_and_pictures_of_all_pages_lead_somewhere_on_the_site(pages):
    broken = []
    for path, found in pages.items():
        for target in (*found.linked, *found.loaded):
            parts = urlsplit(target)
            if parts.scheme or parts.netloc:
                continue
            meant = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not meant.is_file():
                broken.append(f"{path.name}: {target}")
            elif anchor and meant in pages and anchor not in pages[meant].places:
                broken.append(f"{path.name}: there is no place {target}")
    assert broken == []


def test_no_page_and_no_stylesheet_loads_anything_from_another_host(site, pages):
    assert {url for found in pages.values() for url in found.loaded if urlsplit(url).netloc} == set()
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]
    assert [
        found for text in styles for found in re.findall(r"(?:url\(|@import )[\"']?((?:https?:)?//[^\"')]+)", text)
    ] == []


def test_a_link_to_nothing_fails_the_build_and_is_named(builder, monkeypatch, tmp_path):
    docs = tmp_path / "repository" / "docs"
    shutil.copytree(PROJECT / "docs" / "site", docs / "site")
    (docs / "README.md").write_text("# Home\n\nSee [there](gone.md).\n", encoding="utf-8")
    monkeypatch.setattr(builder, "DOCS", docs)
    monkeypatch.setattr(builder, "PROJECT", docs.parent)
    with pytest.raises(builder.Problem, match=r"docs/README\.md: there is no gone\.md"):
        builder.Source(tmp_path / "pages").stage()


@pytest.mark.parametrize(
    ("sections", "problem"),
    [
        ([{"title": "Home", "pages": ["README.md"]}], r"the navigation lacks other\.md"),
        ([{"title": "Home", "pages": ["README.md", "README.md", "other.md"]}], r"README\.md is no page, or is named"),
        ([{"title": "Home", "pages": ["README.md", "gone.md"]}], r"gone\.md is no page, or is named twice"),
    ],
)
def test_the_navigation_has_every_page_exactly_once(builder, tmp_path, sections, problem):
    with pytest.raises(builder.Problem, match=problem):
        builder.Navigation(["README.md", "other.md"], tmp_path).build(sections)


# ---------------------------------------------------------------- in a browser


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    handler = functools.partial(Quiet, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    path = shutil.which("chromium")
    if path is None:
        if os.environ.get("WINDLASS_REQUIRE_CHROMIUM"):
            raise RuntimeError("chromium is missing, but its tests are required")
        pytest.skip("chromium is not installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        flags = [f"--{flag}" for flag in FLAGS.split()]
        chromium = playwright.chromium.launch(executable_path=path, headless=True, args=flags)
        yield chromium
        chromium.close()


READ_FIRST = ["index.html", "start.html", "concepts.html", "comparison.html", "reference/api/agent/Agent.html"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_pages_fit_the_window_and_follow_its_colours_without_the_network(browser, address, width, scheme):
    context = browser.new_context(viewport={"width": width, "height": 800}, color_scheme=scheme)
    page = context.new_page()
    asked, problems = list[str](), list[str]()
    page.on("request", lambda request: asked.append(request.url))
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    for name in READ_FIRST:
        page.goto(f"{address}/{name}")
        page.wait_for_selector("h1")
        assert page.evaluate("document.documentElement.scrollWidth") <= width, name
        red = int(re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[0])
        assert (red < 80) == (scheme == "dark"), name
    context.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []
    assert problems == []


def test_search_finds_a_page(browser, address):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    page.goto(f"{address}/index.html")
    page.get_by_role("button", name="Search").click()
    page.locator("dialog input").fill("crash_points")
    page.locator("dialog a[href*='guides/crash-testing.html']").first.wait_for()
    page.close()
