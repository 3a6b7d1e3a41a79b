"""`windlass show`, `why` and `sessions list` on a store with all kinds of records, on a terminal and in a pipe."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from rich.cells import cell_len
from tests.inspector import shop

from windlass import Agent
from windlass.cli import main
from windlass.cli.painting import COLOURS, PLAIN_SHAPES, SHAPES, Paint
from windlass.cli.turn_tree import read_turn
from windlass.cli.waterfall import Scale, Waterfall
from windlass.inspector.phrases import ENDS, STATES
from windlass.inspector.score import TONES
from windlass.stores import SQLiteStore
from windlass.testing import FunctionModel, says

from .terminals import Terminal

WINDLASS = [sys.executable, "-m", "windlass"]
STATIC = Path(__file__).parents[2] / "src" / "windlass" / "inspector" / "static" / "js"
ESCAPES = r"\x1b\[[0-9;]*m"
OBEYED = "[\x00-\x08\x0b-\x0c\x0e-\x1f\x7f\u200b\u202a-\u202e\u2066-\u2069]"


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return shop.database(tmp_path_factory.mktemp("shop"))


@pytest.fixture(autouse=True)
def store(database: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINDLASS_STORE", f"sqlite:///{database}")


def piped(*arguments: str) -> str:
    done = CliRunner().invoke(main, [*arguments])
    assert (done.exit_code, done.stderr) == (0, "")
    return done.stdout


def on_terminal(folder: Path, *arguments: str, columns: int = 80, **environment: str) -> tuple[list[str], str]:
    """The lines of the screen, and what the terminal got."""
    with Terminal(folder, *arguments, rows=900, columns=columns, **environment) as terminal:
        assert terminal.ends() == 0
    return terminal.screen.splitlines(), terminal.raw.decode()


# ---------------------------------------------------------------- one turn


def test_a_row_says_when_who_what_and_what_it_cost():
    lines = piped("show", "desk-8841").splitlines()
    assert lines[0] == "desk-8841 · desk · turn 1"
    # Gates in shadow mode work beside the others, so how long those took depends on when a commit is ready.
    assert re.fullmatch(
        r"5 model calls · 3,765 in \(74% cached\), 156 out · \$0\.0108 · model 7\.4 s · "
        r"tools 2\.\d s · hooks [\d.]+ ms · people 6 m 12 s",
        lines[1],
    )
    assert "6 m 12 s" in lines[3]
    assert lines[3].endswith("█ model  ▄ tool  ░ person")
    told = [line[31:].strip() for line in lines]
    assert "model  1.3 s, 527 in, 27 out, $0.0032" in told
    assert "Let me look at both orders." in told
    assert "▲ add_signature" in told
    assert '◆ refund_limit: Ask "Refund EUR 249.00 for order 4417?"' in told
    assert '□ fraud_score: Deny, recorded only "three refunds in thirty days"' in told
    assert "✓ eve: Approve" in told
    assert '■ no_promises: Regenerate "Do not promise a date."' in told
    assert any(line.endswith("◆ waited for a person  6 m 12 s, no process needed") for line in lines)
    assert any("■ all_answered  vetoed the stop (completed)" in line for line in lines)
    assert lines[-1].strip() == "● Completed  because the model finished"


def test_bars_stand_where_the_time_is_and_waiting_is_folded():
    lines = piped("show", "desk-8841").splitlines()
    models = [line[5:29] for line in lines if re.search(r"  model  [\d.]+ s,", line)]
    starts = [re.search(r"[█▒]", lane).start() for lane in models]  # type: ignore[union-attr]
    assert starts == sorted(starts)
    assert "▒" in models[2]  # the rejected reply
    wait = next(line[5:29] for line in lines if "waited for a person" in line)
    assert 2 <= wait.count("░") <= 4  # more than six of the six and a half minutes


def test_what_a_sub_agent_did_is_indented_below_its_call_on_the_same_scale():
    lines = piped("show", "lead-12").splitlines()
    at = next(number for number, line in enumerate(lines) if "How many ropes are left? [agent stock," in line)
    inside = [line for line in lines[at:] if line[31:33] == "  " and re.search(r"  (model|find_stock)  ", line)]
    assert len(inside) == 3
    call = lines[at][5:29]
    assert "$0.0037]" in lines[at]
    for line in inside:
        bar = line[5:29]
        assert call.index("▄") <= re.search(r"[█▄]", bar).start()  # type: ignore[union-attr]
        assert len(bar.rstrip()) <= len(call.rstrip())


def test_an_open_question_comes_with_the_command_that_answers_it():
    told = piped("show", "desk-8844")
    assert "◆ Suspended" in told
    assert "answer it: windlass approve desk-8844 desk-8844/1/1" in told
    assert "answer it: windlass approve desk-8844 desk-8844/1/2" in told


def test_steps_share_a_scale_in_pages_if_there_are_many():
    lines = piped("show", "desk-8832").splitlines()
    axes = [line for line in lines if line.startswith("step")]
    assert len(axes) == 3  # of 64 steps
    for number in range(1, 65):
        assert sum(line.startswith(f"{number:>3}  ") for line in lines) == 1


def test_it_fits_every_width(database, tmp_path):
    store = SQLiteStore(database)

    async def read() -> list[Any]:
        try:
            return [await read_turn(store, info.session) for info in await store.find()]
        finally:
            await store.close()

    for tree in asyncio.run(read()):
        for width in (30, 48, 50, 80, 100, 200):
            for full in (False, True):
                waterfall = Waterfall(tree, Paint(colour=True), width, full=full)
                lines = [re.sub(ESCAPES, "", line) for line in waterfall.lines()]
                assert max(cell_len(line) for line in lines) <= width, (tree["session"], width)


def test_on_a_terminal_it_is_coloured_and_fits(tmp_path):
    for command, columns in (("show", 80), ("why", 80), ("show", 40)):
        lines, raw = on_terminal(tmp_path, command, "desk-8841", columns=columns)
        assert "\x1b[31m" in raw
        sent = re.sub(ESCAPES, "", raw).split("\r\n")
        assert len(lines) == len("\n".join(sent).rstrip().split("\n"))  # the terminal had nothing to wrap
        assert max(cell_len(line) for line in sent) <= columns


def test_colour_is_only_for_terminals_and_not_if_it_is_unwanted(tmp_path, monkeypatch):
    for command in (["show", "desk-8841"], ["why", "desk-8841"], ["sessions", "list"]):
        assert "\x1b" not in piped(*command)
    assert "\x1b" not in on_terminal(tmp_path, "show", "desk-8841", NO_COLOR="1")[1]
    assert "\x1b" not in on_terminal(tmp_path, "why", "desk-8841", TERM="dumb")[1]


def test_every_mark_has_a_shape_a_plain_one_and_a_meaning():
    assert set(SHAPES) == set(PLAIN_SHAPES)
    assert set(COLOURS) <= set(SHAPES)
    assert all(len(shape) == 1 and shape.isascii() for shape in PLAIN_SHAPES.values())
    assert set(TONES.values()) | set(STATES) <= set(SHAPES)
    given = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*WINDLASS, "show", "desk-8841"], capture_output=True, check=True, env=given)
    assert b"# no_promises: Regenerate" in done.stdout
    assert done.stdout.isascii()


def test_the_page_and_the_terminal_use_the_same_words():
    script = (STATIC / "format.js").read_text(encoding="utf-8")
    states = dict(re.findall(r'(\w+): "([^"]+)"', re.search(r"STATES = \{(.*?)\}", script)[1]))  # type: ignore[index]
    assert states == STATES
    turn = (STATIC / "views" / "turn.js").read_text(encoding="utf-8")
    ends = dict(re.findall(r'(\w+): "([A-Z]\w+)"', re.search(r'\{ (done: "Completed".*?) \}', turn)[1]))  # type: ignore[index]
    assert ends == ENDS
    marks = (STATIC / "dom.js").read_text(encoding="utf-8")
    tones = re.search(r"const TONES = \{(.*?)\};", marks, re.DOTALL)
    assert tones is not None
    assert dict(re.findall(r'(\w+): "(\w+)"', tones[1])) == TONES
    phrases = (STATIC.parents[1] / "phrases.py").read_text(encoding="utf-8")
    verbs = (
        "injected, stays in the transcript", "injected, this turn only", "was discarded", "waited for a person",
        "waits for a person", "no process needed", "vetoed the stop (", "the log keeps all of them",
        "started, no result",
        "waits for an answer", "not called yet", "not made: the reply was rejected",
        "another one continued from the log",
        "resumed with other hooks or tools", "not mediated, no gate saw it", ", recorded only", ": let it pass",
    )  # fmt: skip
    for verb in verbs:
        assert verb in turn, verb
        assert verb in phrases, verb


def test_json_has_whole_texts_and_names_that_say_what_they_are():
    data = json.loads(piped("show", "desk-8841", "--json"))
    assert data["turn"]["state"] == "done"
    assert data["spent"]["model_calls"] == 5
    assert round(data["spent"]["cost"], 4) == 0.0108
    refund = next(row for row in data["turn"]["rows"] if row.get("name") == "refund")
    assert (refund["kind"], refund["status"]) == ("tool", "ok")
    assert {one["hook"]: one["verdict"] for one in refund["decisions"]} == {
        "refund_limit": "Ask",
        "fraud_score": "Deny",
    }
    assert refund["answered"][0]["by"] == "eve"
    tree = json.loads(piped("show", "lead-12", "--json"))
    (child,) = tree["agents"].values()
    assert child["parent"] == "lead-12"
    assert child["turn"]["rows"][0]["kind"] == "user"


def test_an_earlier_turn_can_be_shown_and_explained():
    last = json.loads(piped("show", "desk-8833b", "--json"))
    assert len(last["turns"]) > 1
    first = json.loads(piped("show", "desk-8833b", "--turn", "1", "--json"))
    assert (first["turn"]["number"], last["turn"]["number"]) == (1, last["turns"][-1])
    assert json.loads(piped("why", "desk-8833b", "--turn", "1", "--json"))["turn"] == 1
    assert "turn 1 of" in piped("show", "desk-8833b", "--turn", "1")
    for command in ("show", "why"):
        done = CliRunner().invoke(main, [command, "desk-8833b", "--turn", "99"])
        assert done.exit_code == 1
        assert "has no turn 99: it has turns 1 to" in done.stderr


def test_what_a_transcript_says_is_inert(tmp_path):
    for command in (["show", "hostile"], ["why", "hostile"], ["sessions", "list"]):
        text = piped(*command)
        assert "\\x1b[31mred" in text
        assert "\\u202egnp" in text
        assert not re.search(OBEYED, text)
    assert not re.search(OBEYED, re.sub(ESCAPES, "", on_terminal(tmp_path, "show", "hostile")[1]))


def test_times_of_work_keep_their_order_and_folded_ones_their_width():
    rows = [
        {"k": "model", "t0": 100.0, "t": 101.0}, {"k": "wait", "t0": 101.0, "t": 1000.0},
        {"k": "model", "t0": 1000.0, "t": 1001.0},
    ]  # fmt: skip
    scale = Scale(rows, 40)
    assert scale.folds == [(101.0, 1000.0)]
    places = [scale.place(time) for time in (100.0, 100.5, 101.0, 500.0, 1000.0, 1000.5, 1001.0)]
    assert places == sorted(places)
    assert (places[0], places[-1]) == (0.0, 1.0)
    assert places[4] - places[2] == pytest.approx(scale.fold)
    assert places[2] - places[0] == pytest.approx(places[6] - places[4])


# ---------------------------------------------------------------- the list


def test_the_list_shows_on_a_terminal_how_sessions_stand_and_what_they_cost(tmp_path):
    lines, _ = on_terminal(tmp_path, "sessions", "list")
    at = next(number for number, line in enumerate(lines) if "desk-8841" in line)
    assert re.match(r"● desk-8841\s+completed\s+\d{4}-\d\d-\d\d \d\d:\d\d\s+\$0\.0108\s+(9|10)\.\d s$", lines[at])
    assert lines[at + 1].startswith("  The tent of order 4417")
    assert "■ 3 refused" in lines[at + 1]
    assert "◆ 1 asked" in lines[at + 1]
    waiting = next(number for number, line in enumerate(lines) if line.startswith("◆ desk-8844"))
    assert "2 open questions" in lines[waiting + 1]
    child = next(number for number, line in enumerate(lines) if "lead-12//1/1" in line)
    assert lines[child].startswith("  ● ")
    assert "lead-12 " in lines[child - 2]
    assert max(len(line) for line in lines) <= 80


def test_the_list_is_one_line_for_each_session_in_a_pipe():
    lines = piped("sessions", "list").splitlines()
    assert any(line.endswith("My card is 4929 1203 7781 0042.") for line in lines)
    plain = [json.loads(line) for line in piped("sessions", "list", "--json").splitlines()]
    assert len(lines) == len(plain) > 10
    assert "cost" not in plain[0]
    more = {
        row["session"]: row for row in map(json.loads, piped("sessions", "list", "--json", "--details").splitlines())
    }
    assert more["desk-8841"]["state"] == "done"
    assert more["desk-8841"]["verdicts"]["deny"] == 3
    assert more["desk-8844"]["state"] == "waiting"


def test_why_prints_a_word_of_millions_of_characters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("WINDLASS_STORE", f"sqlite:///{tmp_path / 'words.db'}")

    async def record() -> None:
        agent = Agent(FunctionModel(lambda request: says("done")), store=f"sqlite:///{tmp_path / 'words.db'}")
        await agent.run("z" * 3_000_000, session="word")
        await agent.aclose()

    asyncio.run(record())
    assert piped("why", "word").count("z") == 3_000_000


@pytest.mark.parametrize("columns", [40, 60, 100])
def test_the_list_of_sessions_fits_the_terminal(tmp_path: Path, columns: int):
    lines, _ = on_terminal(tmp_path, "sessions", "list", columns=columns)
    assert all(cell_len(line) < columns for line in lines)
    text = " ".join("\n".join(lines).split())
    assert "desk-8841" in text
    assert "3 refused" in text
    assert "1 errors" not in text
