"""The pictures of the inspector in the documentation are taken here; `make shots` writes them to docs/images."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from windlass.stores import SQLiteStore

from . import shop

PROJECT = Path(__file__).resolve().parents[2]
IMAGES = PROJECT / "docs" / "images"
SIZES = {"wide": (1280, 800), "short": (1280, 560), "narrow": (390, 780)}
LARGEST = 240_000


class Shot(NamedTuple):
    """A picture: where to go, what to wait for, and what to do there first."""

    name: str
    place: str
    wait: str
    keys: str = ""
    size: str = "wide"
    click: str = ""
    evals: bool = False


SHOTS = [
    Shot("sessions", "#/sessions", ".tr[data-id]"),
    Shot("turn", "#/turn/desk-8841", ".panel .chain"),
    Shot("turn-narrow", "#/turn/desk-8841", ".r", size="narrow"),
    Shot("long-turn", "#/turn/desk-8832", ".overfig"),
    Shot("request", "#/turn/desk-8841", ".panel .chain", keys="Home j j r"),
    Shot("pipeline", "#/pipeline/hooks/agent/desk", ".rail"),
    Shot("context", "#/pipeline/context/session/desk-8833b", ".ctx", size="short"),
    Shot("approvals", "#/approvals", ".askbox .callbox", size="short"),
    Shot("evals", "#/evals/tuesday.json/monday.json", ".versus", keys="x Enter", evals=True),
]
FILES = [
    (shot, theme, f"{shot.name}{suffix}.png") for shot in SHOTS for theme, suffix in (("light", ""), ("dark", "-dark"))
]


WRITING = bool(os.environ.get("WINDLASS_SHOTS"))
TAKEN = FILES if WRITING else FILES[::2]
"""Without `make shots`, the light ones."""


@pytest.fixture(scope="module")
def showroom(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sessions of the shop, without those that only a test can love."""
    path = tmp_path_factory.mktemp("showroom") / "shop.db"

    async def run() -> None:
        store = SQLiteStore(path)
        try:
            await shop.record(store, rare=False)
        finally:
            await store.close()

    shop.in_thread(run)
    return path


@pytest.fixture(scope="module")
def trials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with saved evaluations, and the store of their trials."""
    folder = tmp_path_factory.mktemp("trials")

    async def run() -> None:
        store = SQLiteStore(folder / "trials.db")
        try:
            await shop.evaluations(store, folder)
        finally:
            await store.close()

    shop.in_thread(run)
    return folder


@pytest.mark.parametrize(("shot", "theme", "file"), TAKEN, ids=[file for _, _, file in TAKEN])
def test_a_picture_has_its_size_and_is_small(
    shot: Shot,
    theme: str,
    file: str,
    showroom: Path,
    trials: Path,
    started: Any,
    opened: Callable[..., Any],
    tmp_path: Path,
):
    width, height = SIZES[shot.size]
    process = _process(started, trials / "trials.db", "--evals", trials) if shot.evals else _process(started, showroom)
    options = {"viewport": {"width": width, "height": height}, "color_scheme": theme, "timezone_id": "UTC"}
    page = opened(process, **options).go(shot.place, shot.wait)
    for key in shot.keys.split():
        page.keyboard.press(key)
    if shot.click:
        page.locator(shot.click).first.click()
    page.wait_for_timeout(300)  # transitions
    folder = IMAGES if WRITING else tmp_path
    folder.mkdir(exist_ok=True)
    page.screenshot(path=folder / file, animations="disabled", caret="hide")
    assert size_of(folder / file) == (width, height)
    assert (folder / file).stat().st_size < LARGEST


_PROCESSES: dict[Path, Any] = {}


def _process(started: Callable[..., Any], path: Path, *more: str | Path) -> Any:
    if path not in _PROCESSES:
        _PROCESSES[path] = started(path, "--control", *more)
    return _PROCESSES[path]


def size_of(path: Path) -> tuple[int, int]:
    """Width and height of a PNG."""
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


def test_the_pictures_in_the_docs_are_those_that_are_taken_here():
    assert {path.name for path in IMAGES.glob("*.png")} == {file for _, _, file in FILES}
    for shot, _, file in FILES:
        assert size_of(IMAGES / file) == SIZES[shot.size]
        assert (IMAGES / file).stat().st_size < LARGEST


def test_every_picture_is_on_a_page_for_both_themes_with_words_that_say_what_it_shows():
    pages = "\n".join(
        path.read_text(encoding="utf-8") for path in [PROJECT / "README.md", *(PROJECT / "docs").rglob("*.md")]
    )
    for shot in SHOTS:
        shown = re.search(
            rf'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="\S*images/{shot.name}-dark\.png">\s*'
            rf'<img alt="([^"]+)" src="\S*images/{shot.name}\.png">\s*</picture>',
            pages,
        )
        assert shown, f"no page shows {shot.name}.png and {shot.name}-dark.png"
        assert len(shown[1]) > 30
