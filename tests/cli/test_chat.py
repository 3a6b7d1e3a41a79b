"""`windlass chat` on a real pseudo-terminal: the screen is read as a person reads it."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from windlass.cli import main
from windlass.cli.view import wrapped

from .terminals import Terminal

AGENT = """
import asyncio
import os
from windlass import Agent, tool
from windlass.capabilities import Permissions, RememberedRules
from windlass.testing import FunctionModel, calls, says


@tool
def write(path: str, text: str) -> str:
    "Write a file."
    with open(path, "a") as file:
        file.write(text)
    return f"wrote {path}"


@tool
async def wait() -> str:
    "Wait until there is a file named go."
    while not os.path.exists("go"):
        await asyncio.sleep(0.05)
    return "waited"


def reply(request):
    texts = [message.text for message in request.messages if message.role == "user"]
    last = request.messages[-1]
    if "steered" in texts[-1]:
        return says("I was steered.")
    if last.role == "tool":
        if "then write" in texts[-1] and sum(message.role == "tool" for message in request.messages) == 1:
            return calls("write", path="note.txt", text="hello")
        return says(chunks=["It is ", "done.\\nThe second", " line."])
    for word in ("wait", "write"):
        if word in last.text:
            return calls(word, **({"path": "note.txt", "text": "hello"} if word == "write" else {}))
    if "slow" in last.text:
        return says(chunks=["growing ", "line ", "of text"], chunk_delay=0.7)
    if "evil" in last.text:
        return says(chunks=["a\\x1b]0;owned\\x07", "\\x1b[2J\\u202eb"])
    if "fail" in last.text:
        raise RuntimeError("the model is broken")
    return says(f"You said {texts}.")


agent = Agent(FunctionModel(reply), tools=[write, wait], capabilities=[RememberedRules()])
agent.with_capability(Permissions(allow=["wait"], unmatched="ask"), band="guard")
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bot.py").write_text(AGENT)
    return tmp_path


def chat(folder: Path, *arguments: str, **options: Any) -> Terminal:
    terminal = Terminal(folder, "chat", "--agent", "bot.py", *arguments, **options)
    return terminal.until(lambda: "you>" in terminal.screen or "[y]es" in terminal.screen, "a prompt")


def test_a_conversation_keeps_what_was_said_and_can_be_continued(folder):
    with chat(folder, "--session", "s1") as terminal:
        terminal.press("one\r").shows("You said ['one'].").shows("s1: completed")
        terminal.press("two\r").shows("You said ['one', 'two'].").shows("completed", count=2)
        terminal.press("\x04")
        assert terminal.ends() == 0
    assert [line for line in terminal.screen.splitlines() if "completed" not in line] == [
        "session s1 · /help lists commands, Ctrl-D leaves",
        "function · tools: write, wait",
        "you> one",
        "You said ['one'].",
        "you> two",
        "You said ['one', 'two'].",
        "continue: windlass chat --agent bot.py --session s1",
    ]
    with chat(folder, "--continue") as terminal:
        terminal.shows("2 turns so far").press("three\r").shows("You said ['one', 'two', 'three'].")
        terminal.press("/exit\r")
        assert terminal.ends() == 0


def test_escape_enter_begins_a_new_line_and_the_history_comes_back(folder, home):
    with chat(folder) as terminal:
        terminal.press("one\x1b\rtwo\r").shows("You said ['one\\ntwo'].").shows("completed")
        terminal.press("/exit\r")
        assert terminal.ends() == 0
    history = home / "data" / "history"
    assert history.stat().st_mode & 0o777 == 0o600
    with chat(folder) as terminal:
        terminal.press("\x1b[A\x1b[A").shows("one").press("\r").shows("You said ['one\\ntwo'].")


def test_a_growing_line_is_never_glued_to_the_prompt(folder):
    with chat(folder) as terminal:
        terminal.press("be slow\r")
        frames: set[str] = set()

        def done() -> bool:
            frames.add(terminal.screen)
            return "completed" in terminal.screen

        terminal.until(done, "the end").press("/exit\r")
        terminal.ends()
    assert any(re.search(r"^growing( line)?\n", frame, re.M) for frame in frames)
    glued = [frame for frame in frames if re.search(r"\S.*you>|you> *growing", frame)]
    assert glued == []
    assert terminal.screen.count("growing line of text") == 1


def test_an_approval_is_asked_inline_and_can_become_a_rule(folder, home):
    with chat(folder) as terminal:
        terminal.press("please write\r").shows("[y]es, [a]lways, [e]dit, [n]o, [r]espond, [l]ater:")
        terminal.shows('write {"path":"note.txt","text":"hello"}')
        terminal.press("a\r").shows("rule to allow").press("\r").shows("The second line.")
        terminal.press("write again\r").shows("The second line.", count=2)
        assert terminal.screen.count("[y]es") == 1
    assert (folder / "note.txt").read_text() == "hellohello"
    assert "note.txt" in (home / "config" / "rules.toml").read_text()


def test_arguments_are_edited_in_place(folder):
    with chat(folder) as terminal:
        terminal.press("please write\r").shows("[e]dit").press("e\r").shows("arguments as JSON")
        terminal.press("\x7f" * 7 + 'edited"}\r').shows("The second line.")
    assert (folder / "note.txt").read_text() == "edited"


def test_no_has_a_reason_and_ctrl_c_leaves_the_question_open(folder):
    with chat(folder) as terminal:
        terminal.press("please write\r").shows("[n]o").press("\x03").shows("the questions stay open")
        terminal.press("/resume\r").shows("[n]o").press("no we keep it\r").shows("← write: Denied: we keep it")
    assert not (folder / "note.txt").exists()


def test_what_was_being_typed_is_not_sent_as_an_answer(folder):
    with chat(folder) as terminal:
        terminal.press("wait, then write\r").shows("runs wait").press("yes this is a new message")
        terminal.shows("you> yes this is a new message")
        (folder / "go").touch()
        terminal.shows("[y]es, [a]lways").press("\r")  # sends what stands on the line of the answer: nothing
        terminal.press("n\r").shows("reason, for the model").press("\r").shows("The second line.")
        terminal.shows("you> yes this is a new message").press("\r").shows("You said")
    assert not (folder / "note.txt").exists()


def test_ctrl_c_cancels_the_turn_and_not_the_program(folder):
    with chat(folder, "--session", "s1") as terminal:
        terminal.press("please wait\r").shows("runs wait").press("\x03").shows("s1: cancelled")
        terminal.press("hello\r").shows("You said ['please wait', 'hello'].")
        terminal.press("\x04")
        assert terminal.ends() == 0
    assert "Traceback" not in terminal.screen


def test_text_steers_the_running_turn_and_queue_waits_for_its_end(folder):
    with chat(folder) as terminal:
        terminal.press("please wait\r").shows("runs wait")
        terminal.press("/queue and then this\r").shows("1 queued")
        terminal.press("you are steered\r").shows("you> you are steered")
        (folder / "go").touch()
        terminal.shows("I was steered.").shows("You said ['please wait', 'you are steered', 'and then this'].")


def test_a_failed_turn_does_not_end_the_chat(folder):
    with chat(folder) as terminal:
        terminal.press("fail\r").shows("failed: RuntimeError: the model is broken")
        terminal.press("hello\r").shows("You said")


def test_commands(folder):
    with chat(folder, "--session", "s1", rows=50, columns=100) as terminal:
        terminal.press("one\r").shows("completed").press("two\r").shows("completed", count=2)
        terminal.press("/nonsense\r").shows("there is no command /nonsense")
        terminal.press("/help\r").shows("/rewind")
        terminal.press("/cost\r").shows("this session: 2 requests")
        terminal.press("/why\r").shows("Turn 2")
        terminal.press("/model nope\r").shows("has no model 'nope'")
        terminal.press("/compact\r").shows("nothing to compact with")
        terminal.press("/fork s2\r").shows("session s2").press("three\r").shows("['one', 'two', 'three']")
        terminal.press("/rewind 2\r").shows("1 turn so far").press("four\r").shows("['one', 'four']")
        terminal.press("/sessions\r").shows("  s1  ").shows("  s2  ")
        terminal.press("/open s1\r").shows("session s1", count=2).press("five\r").shows("['one', 'two', 'five']")
        terminal.press("/open absent\r").shows("'absent'")
        terminal.press("/new s3\r").shows("session s3").press("six\r").shows("['six']")
        terminal.press("/explain\r").shows("permissions")


def test_mistakes_in_commands_are_said_and_nothing_happens(folder):
    with chat(folder, "--session", "s1") as terminal:
        for count, command in enumerate(("cost", "why", "fork", "rewind", "compact", "resume"), 1):
            terminal.press(f"/{command}\r").shows("nothing has been said in this session yet", count=count)
        terminal.press("/\r").shows("/rewind")
        terminal.press("one\r").shows("completed")
        for count, number in enumerate(("x", "0", "2", "-1", "²"), 1):
            terminal.press(f"/rewind {number}\r").shows("takes a number of turns, from 1 to 1", count=count)
        terminal.press("/resume\r").shows("there is nothing to resume")
        terminal.press("/open\r").shows("/open needs the id").press("/queue\r").shows("/queue needs a text")
        terminal.press("/fork a//b\r").shows("contains '//'").press("/model\r").shows("model: function")
        terminal.press("/exit\r")
        assert terminal.ends() == 0
    assert "Traceback" not in terminal.screen


def test_a_chat_in_which_nothing_was_said_leaves_nothing_to_continue(folder):
    with chat(folder) as terminal:
        terminal.press("\x04")
        assert terminal.ends() == 0
    assert "continue:" not in terminal.screen


def test_commands_work_while_a_question_is_open(folder):
    with chat(folder) as terminal:
        terminal.press("please write\r").shows("[y]es").press("/explain\r").shows("permissions · guard band")
        terminal.press("/fork\r").shows("/fork waits until the question is answered")
        terminal.press("no\r").shows("reason, for the model").press("/tmp is full\r").shows("Denied: /tmp is full")
        terminal.press("please write\r").shows("[y]es", count=2).press("/exit\r")
        assert terminal.ends() == 0
    assert not (folder / "note.txt").exists()


def test_lines_are_broken_between_words_on_a_narrow_terminal(folder):
    with chat(folder, columns=30, rows=20) as terminal:
        terminal.press("a message that is longer than the terminal is wide\r").shows("completed")
        terminal.press("/help\r").shows("Esc Enter")
        screen = terminal.screen
    assert "you> a message that is longer\n  than the terminal is wide\n" in screen
    assert "You said ['a message that is\nlonger than the terminal is\nwide'].\n" in screen
    assert "  /compact    [INSTRUCTIONS]:\n    shorten what the model\n    sees of the conversation\n" in screen


@given(st.text(st.sampled_from(" ab日\u0301-"), max_size=120), st.integers(0, 60), st.integers(0, 90))
def test_any_line_is_broken_into_lines_that_fit_and_nothing_is_lost(line: str, width: int, hanging: int):
    broken = wrapped(line, width, " " * hanging)
    assert "".join(broken).replace(" ", "") == line.replace(" ", "")
    assert all(cell_len(one) <= max(width - 1, 20) for one in broken)


def test_what_is_pasted_is_inert_too(folder):
    with chat(folder) as terminal:
        terminal.press("\x1b[200~nice\x1b]0;owned\x07\u202etext\x1b[201~\r").shows(
            "you> nice\\x1b]0;owned\\x07\\u202etext"
        )
        assert b"\x1b]0;owned" not in terminal.raw


def test_a_terminal_that_cannot_move_its_cursor_is_refused(folder):
    with Terminal(folder, "chat", "--agent", "bot.py", TERM="dumb") as terminal:
        assert terminal.ends() == 2
    assert "chat needs a terminal that can move its cursor, but TERM=dumb; use windlass run" in terminal.screen


@pytest.mark.parametrize("kind", ["xterm", "vt100", "screen-256color"])
def test_other_terminals_show_no_colour_where_they_should_not(folder, kind):
    with chat(folder, TERM=kind, NO_COLOR="1") as terminal:
        terminal.press("one\r").shows("You said ['one'].").press("/nonsense\r").shows("there is no command")
        terminal.press("/exit\r")
        assert terminal.ends() == 0
    assert not re.search(rb"\x1b\[[0-9;]*3[0-7]m", terminal.raw)


def test_a_killed_chat_goes_on_where_it_was(folder):
    with chat(folder, "--session", "s1") as terminal:
        terminal.press("please write\r").shows("[y]es")
        os.kill(terminal.child.pid, signal.SIGKILL)
        assert terminal.ends() == -9
    with chat(folder, "--session", "s1") as terminal:
        terminal.shows("the last turn is not over").shows("[y]es").press("y\r").shows("The second line.")
        terminal.press("/exit\r")
        assert terminal.ends() == 0
    assert (folder / "note.txt").read_text() == "hello"
    shown = subprocess.run(
        [sys.executable, "-m", "windlass", "show", "s1"], cwd=folder, capture_output=True, text=True, check=True
    )
    assert "note.txt" in shown.stdout


def test_what_a_model_says_is_inert(folder):
    with chat(folder) as terminal:
        terminal.press("be evil\r").shows("a\\x1b]0;owned\\x07\\x1b[2J\\u202eb")
        assert b"\x1b]0;owned" not in terminal.raw


def test_chat_needs_a_terminal_and_one_session():
    result = CliRunner().invoke(main, ["chat", "-m", "local:smollm2"])
    assert (result.exit_code, "use windlass run" in result.stderr) == (2, True)
    result = CliRunner().invoke(main, ["chat", "--session", "s1", "--continue"])
    assert (result.exit_code, "one of" in result.stderr) == (2, True)
