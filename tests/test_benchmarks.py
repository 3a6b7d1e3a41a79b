"""The benchmarks measure what they say: a run is complete, undone work fails it, plots are self-contained."""

import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

PROJECT = Path(__file__).resolve().parent.parent
BENCHMARKS = PROJECT / "benchmarks"
PEERS = BENCHMARKS / "peers"
LOCKS = PROJECT / "requirements" / "peers"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the benchmarks read memory from /proc")


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], capture_output=True, text=True, cwd=PROJECT, timeout=200)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The shortest possible run of Windlass and the loop written by hand, both in this environment."""
    path = tmp_path_factory.mktemp("peers") / "peers.json"
    options = ("--contenders", "windlass,handloop", "--share", "0.001", "--json", str(path))
    done = run(str(PEERS / "run.py"), *options)
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads(path.read_text())
    return found


def test_a_run_measures_every_job_of_every_contender(results: dict[str, Any]):
    assert results["about"]["failures"] == []
    for name in ("windlass", "handloop"):
        found = results["contenders"][name]
        jobs = {"footprint", "imports", "step", "hooks", "construct", "idle", "concurrent", "stream", "store", "resume"}
        assert set(found) == jobs
        assert all(found["step"][size]["cpu"] > 0 for size in ("10", "100", "400"))
        assert all(costs["bytes"]["400"] > costs["bytes"]["100"] > 0 for costs in found["store"].values())


def test_a_run_compares_like_with_like(results: dict[str, Any]):
    ours, by_hand = results["contenders"]["windlass"], results["contenders"]["handloop"]
    assert ours["step"]["400"]["cpu"] > by_hand["step"]["400"]["cpu"]
    assert ours["hooks"]["20"]["cpu"] > ours["hooks"]["0"]["cpu"]


CHEATS = {
    "it says something else": ("step", "async def turn(agent): return 'finished'"),
    "it calls no tool": ("step", "async def turn(agent): return 'done'"),
    "it calls no hook": ("hooks", "async def turn(agent): return await real.turn(contender.make())"),
    "it calls no hook among many turns": ("concurrent", "async def turn(agent): return 'done'"),
    "it loses a piece": (
        "stream",
        """
async def stream(variant):
    count = 0
    async for piece in real.stream(variant):
        count += 1
        if count > 1:
            yield piece
""",
    ),
    "it does not store the turn": (
        "resume",
        """
from contextlib import asynccontextmanager
@asynccontextmanager
async def kept(variant, folder):
    async def turn():
        return await real.turn(real.make())
    yield turn
""",
    ),
}


@pytest.mark.parametrize("cheat", CHEATS)
def test_a_contender_that_does_not_do_the_work_fails_the_run(cheat: str):
    job, code = CHEATS[cheat]
    name = re.search(r"async def (turn|stream|kept)\(", code)
    assert name is not None
    program = f"""
import sys
sys.path += [{str(PEERS)!r}, {str(BENCHMARKS)!r}]
import measure
real, contender = measure.load("handloop"), measure.load("handloop")
{code}
contender.{name[1]} = {name[1]}
measure.measure(contender, {job!r}, 0.001)
"""
    done = run("-c", program)
    assert done.returncode == 1
    assert "RuntimeError" in done.stderr.splitlines()[-1]


def test_every_peer_is_locked_with_hashes_and_without_addresses():
    contenders = {path.stem for path in (PEERS / "contenders").glob("*.py")}
    assert {path.stem for path in LOCKS.glob("*.txt")} == contenders
    for path in LOCKS.glob("*.txt"):
        text = path.read_text()
        pins = [line for line in text.splitlines() if line and not line.startswith((" ", "#"))]
        assert all("==" in pin for pin in pins), path
        assert text.count("--hash=sha256:") >= len(pins), path
        assert "://" not in text, path


def test_the_load_benchmark_measures_sessions_at_once(tmp_path: Path):
    path = tmp_path / "load.json"
    options = ("--sessions", "20", "--seconds", "0.2", "--soak", "0.02", "--json", str(path), "--folder", str(tmp_path))
    done = run(str(BENCHMARKS / "load.py"), *options)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(path.read_text())
    assert found["memory"]["last"]["transcript_kb"] > found["memory"]["first"]["transcript_kb"] > 0
    assert all(load["steps_per_second"] > 0 for load in found["saturation"].values())
    assert found["soak"]["steps"] > 0
    assert not list(tmp_path.glob("load-*")), "the files stay"


# ---------------------------------------------------------------- plots and pages


@pytest.fixture(scope="module")
def plots() -> ModuleType:
    return load(PROJECT / "docs" / "plots.py")


def load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_plot_is_one_self_contained_picture_for_light_and_dark(plots: ModuleType):
    drawn = [
        plots.bars("Cost <&>", "µs", {"A & B": 3.2, "C": 2500}, {"C": "ours"}),
        plots.lines("Growth", "µs", [10, 100, 400], {"A": [1, 2, 30], "B": [1, 2, 29]}, {}),
    ]
    for svg in drawn:
        root = ElementTree.fromstring(svg)
        assert root.get("role") == "img"
        assert root.get("aria-label")
        assert "prefers-color-scheme: dark" in svg
        assert "<script" not in svg
        assert not re.search(r"(href|url|@import)", svg.replace("http://www.w3.org/2000/svg", ""))


def test_the_same_data_give_the_same_plot(plots: ModuleType):
    code = (
        f"import sys; sys.path.insert(0, {str(PROJECT / 'docs')!r}); import plots; "
        "print(plots.bars('t', 'u', {'a': 1.5, 'b': 20}, {}))"
    )
    seeds = [{**os.environ, "PYTHONHASHSEED": seed} for seed in ("1", "2")]
    texts = [subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True) for env in seeds]
    assert texts[0].stdout == texts[1].stdout == plots.bars("t", "u", {"a": 1.5, "b": 20}, {}) + "\n"


def test_a_longer_bar_stands_for_a_larger_value(plots: ModuleType):
    root = ElementTree.fromstring(plots.bars("t", "u", {"a": 2, "b": 20, "c": 21}, {}))
    widths = [float(bar.attrib["width"]) for bar in root.iter("{http://www.w3.org/2000/svg}rect")]
    assert widths == sorted(widths)
    assert len(set(widths)) == 3


def test_labels_of_lines_do_not_overlap(plots: ModuleType):
    heights = sorted(plots.spread({"a": 100.0, "b": 101.0, "c": 99.5, "d": 200.0}).values())
    assert all(second - first >= 14 for first, second in itertools.pairwise(heights))


def test_the_page_lists_what_others_do_better():
    pages = load(PROJECT / "docs" / "benchmark_pages.py")
    assert pages._beaten("x", 10.0, {"A": 9.0, "B": 11.0, "C": 8.0}) == ["- x: C 8.00, A 9.00; Windlass 10.0."]
    assert pages._beaten("x", 10.0, {"B": 11.0}) == []
