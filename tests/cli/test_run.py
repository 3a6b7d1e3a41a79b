"""`windlass run`: one turn, for people at a terminal and for programs in a pipe."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from windlass.cli import main

from .terminals import Terminal

AGENT = """
import os
from windlass import Agent, Halt, StepLimit, TurnStarting, tool
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
    "Wait for a very long time."
    import asyncio
    await asyncio.sleep(3600)


@tool
def die() -> str:
    "Kill this process."
    os.kill(os.getpid(), 9)


def reply(request):
    last = request.messages[-1]
    if last.role == "tool":
        return says(chunks=["It is ", "done.\\nThe second", " line."])
    for word in ("wait", "die"):
        if word in last.text and not os.path.exists("calm"):
            return calls(word)
    if "write" in last.text:
        return calls("write", path="note.txt", text="hello")
    if "fail" in last.text:
        raise RuntimeError("the model is broken")
    kinds = [f"{type(part).__name__}:{getattr(part, 'text', '') or part.media_type}" for part in last.parts]
    return says(f"{len(request.messages)} {' '.join(kinds)}")


agent = Agent(FunctionModel(reply), tools=[write, wait, die], capabilities=[RememberedRules()])
agent.with_capability(Permissions(allow=["wait", "die"], unmatched="ask"), band="guard")

stored = Agent(FunctionModel(reply), store="sqlite:///own.db")


@stored.gate(TurnStarting)
def no_swearing(event):
    return Halt("no swearing") if "damn" in event.message.text else None


def scope(session):
    return session
"""
PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "bot.py").write_text(AGENT)
    return tmp_path


def run(*arguments: str, agent: str = "bot.py", input: str | bytes | None = None) -> Result:
    return windlass("run", "--agent", agent, *arguments, input=input)


def windlass(*arguments: str, input: str | bytes | None = None) -> Result:
    sys.modules.pop("bot", None)
    return CliRunner().invoke(main, arguments, input=input)


def lines(result: Result) -> list[dict[str, Any]]:
    return [json.loads(line) for line in result.stdout.splitlines()]


# ---------------------------------------------------------------- in a pipe


def test_only_the_answer_goes_to_stdout_and_the_session_to_stderr():
    result = run("hello", "--session", "s1")
    assert result.exit_code == 0
    assert result.stdout == "1 TextPart:hello\n"
    assert result.stderr.startswith("s1: completed · ")


def test_a_session_is_kept_in_the_data_folder_and_continued(home):
    run("hello", "--session", "s1")
    assert (home / "data" / "sessions.db").stat().st_mode & 0o777 == 0o600
    assert run("again", "--session", "s1").stdout.startswith("3 ")
    shown = windlass("show", "s1")
    assert "again" in shown.stdout


def test_every_run_without_a_session_begins_a_new_one():
    assert run("hello").stdout.startswith("1 ")
    assert run("hello").stdout.startswith("1 ")


def test_the_store_can_be_named_and_an_agent_may_have_its_own():
    run("hello", "--session", "s1", "--store", "sqlite:///named.db")
    assert Path("named.db").exists()
    result = run("hi", "--session", "s2", agent="bot.py:stored")
    assert result.exit_code == 0, result.output
    assert "s2" in windlass("sessions", "list", "--store", "sqlite:///own.db").stdout
    refused = run("hi", "--store", "sqlite:///named.db", agent="bot.py:stored")
    assert (refused.exit_code, "has its own store" in refused.stderr) == (2, True)


def test_the_prompt_can_come_from_the_standard_input():
    assert run(input="from a pipe\n").stdout == "1 TextPart:from a pipe\n"
    assert run("-", input="from a pipe\n").stdout == "1 TextPart:from a pipe\n"
    assert run("not read", input="from a pipe").stdout == "1 TextPart:not read\n"


def test_nothing_to_say_is_wrong_usage():
    result = run(input="")
    assert (result.exit_code, "say something" in result.stderr) == (2, True)


def test_no_model_and_no_agent_is_wrong_usage_with_an_example():
    result = windlass("run", "hello")
    assert (result.exit_code, "-m local:smollm2" in result.stderr) == (2, True)


def test_a_system_text_is_refused_with_an_agent():
    result = run("hello", "--system", "Be brief.")
    assert (result.exit_code, "--system goes with --model" in result.stderr) == (2, True)


def test_a_failed_turn_exits_with_1_and_says_why():
    result = run("fail", "--session", "s1")
    assert result.exit_code == 1
    assert "s1: failed: RuntimeError: the model is broken" in result.stderr


def test_a_turn_that_a_hook_stops_exits_with_4():
    result = run("damn", agent="bot.py:stored")
    assert result.exit_code == 4
    assert "stopped: halted: no swearing" in result.stderr


def test_a_question_prints_the_commands_that_answer_and_continue():
    result = run("please write", "--session", "s1")
    assert result.exit_code == 3
    assert result.stdout == ""
    answer, resume = [line.split(":", 1)[1].strip() for line in result.stderr.splitlines() if " it: " in line]
    for command in (answer, resume):
        done = windlass(*shlex.split(command)[1:], input="")
        assert done.exit_code == 0, done.output
    assert done.stdout == "It is done.\nThe second line.\n"
    assert Path("note.txt").read_text() == "hello"


def test_a_capability_is_added_by_name_with_options():
    result = run("hello", "--capability", "loop_guard name=mine")
    assert result.exit_code == 0, result.output
    wrong = run("hello", "--capability", "loop_guard nmae=mine")
    assert (wrong.exit_code, "nmae" in wrong.stderr) == (1, True)
    odd = run("hello", "--capability", "loop_guard mine")
    assert (odd.exit_code, "KEY=VALUE" in odd.stderr) == (2, True)


# ---------------------------------------------------------------- attachments


def test_files_are_attached_by_their_type():
    Path("a.txt").write_text("plain words")
    Path("b.png").write_bytes(PNG)
    Path("c.pdf").write_bytes(b"%PDF-1.7")
    Path("d.json").write_text("{}")
    result = run("look", "--file", "a.txt", "--file", "b.png", "--file", "c.pdf", "--file", "d.json")
    assert "TextPart:The file a.txt:\n\nplain words" in result.stdout
    assert "ImagePart:image/png DocumentPart:application/pdf TextPart:The file d.json:\n\n{}" in result.stdout


def test_the_standard_input_can_be_attached():
    assert "The file stdin:\n\npiped" in run("look", "--file", "-", input="piped").stdout


@pytest.mark.parametrize(
    ("name", "content", "words"), [("x.bin", b"\0\1\2", "neither text"), ("absent", None, "cannot be read")]
)
def test_a_file_that_cannot_be_attached_is_named(name, content, words):
    if content is not None:
        Path(name).write_bytes(content)
    result = run("look", "--file", name)
    assert (result.exit_code, words in result.stderr, name in result.stderr) == (2, True, True)


# ---------------------------------------------------------------- JSON lines


def test_json_lines_tell_the_whole_turn():
    asked = lines(run("please write", "--json", "--session", "s1"))
    assert [line["type"] for line in asked] == ["session", "reply", "call", "decision", "question", "end"]
    assert asked[0] == {"type": "session", "session": "s1"}
    assert asked[2] == {
        "type": "call", "id": "s1/1/1", "name": "write", "arguments": {"path": "note.txt", "text": "hello"},
    }  # fmt: skip
    assert (asked[3]["verdict"], asked[3]["by"]) == ("ask", ["permissions"])
    assert (asked[-1]["outcome"], asked[-1]["questions"][0]["id"]) == ("suspended", "s1/1/1")
    windlass("approve", "s1", "s1/1/1")
    done = lines(run("--json", "--session", "s1", input=""))
    assert [line["type"] for line in done if line["type"] != "text"] == [
        "session",
        "decision",
        "result",
        "reply",
        "end",
    ]
    assert "".join([line["text"] for line in done if line["type"] == "text"]) == "It is done.\nThe second line."
    assert (done[-1]["outcome"], done[-1]["text"]) == ("completed", "It is done.\nThe second line.")
    assert done[-1]["usage"]["requests"] == 2


def test_json_lines_say_what_failed():
    end = lines(run("fail", "--json"))[-1]
    assert end["error"] == {"type": "RuntimeError", "message": "the model is broken"}


# ---------------------------------------------------------------- on a terminal


def test_a_terminal_streams_whole_lines_and_the_status_goes_at_the_end(folder):
    with Terminal(folder, "run", "--agent", "bot.py", "please write", "--session", "s1") as terminal:
        terminal.shows("[y]es, [a]lways, [e]dit, [n]o, [r]espond, [l]ater:").press("y\r")
        assert terminal.ends() == 0
    assert terminal.screen.splitlines() == [
        '→ write path="note.txt" text="hello"',
        "permissions asks: Allow this call of write? ask: no rule matches",
        '  write {"path":"note.txt","text":"hello"}',
        "[y]es, [a]lways, [e]dit, [n]o, [r]espond, [l]ater: y",
        "  ← write: wrote note.txt",
        "It is done.",
        "The second line.",
        "s1: completed · 28 tokens",
    ]


def test_always_becomes_a_rule_that_holds_for_the_next_run(folder, home):
    with Terminal(folder, "run", "--agent", "bot.py", "please write") as terminal:
        terminal.shows("[a]lways").press("a\r").shows("rule to allow").press("\r")
        assert terminal.ends() == 0
    assert f"write(path={folder}/note.txt)" in (home / "config" / "rules.toml").read_text()
    with Terminal(folder, "run", "--agent", "bot.py", "please write") as terminal:
        assert terminal.ends() == 0
    assert (folder / "note.txt").read_text() == "hellohello"


def test_arguments_can_be_edited_and_mistakes_are_asked_about_again(folder):
    with Terminal(folder, "run", "--agent", "bot.py", "please write") as terminal:
        terminal.shows("[e]dit").press("what\r").shows("what is not an answer.")
        terminal.press("e [1]\r").shows("must be a JSON object")
        terminal.press('e {"path": "other.txt", "text": "edited"}\r')
        assert terminal.ends() == 0
    assert (folder / "other.txt").read_text() == "edited"


def test_no_gives_the_model_a_reason_and_later_leaves_the_question_open(folder):
    with Terminal(folder, "run", "--agent", "bot.py", "please write", "--session", "s1") as terminal:
        terminal.shows("[n]o").press("l\r")
        assert terminal.ends() == 3
        assert "continue it: windlass run --agent bot.py --session s1" in terminal.screen
    with Terminal(folder, "run", "--agent", "bot.py", "--session", "s1") as terminal:
        terminal.shows("[n]o").press("n\r").shows("reason").press("not now\r")
        assert terminal.ends() == 0
    assert "← write: Denied: not now" in terminal.screen
    assert not (folder / "note.txt").exists()


def test_ctrl_c_cancels_the_turn_and_says_how_to_continue(folder):
    with Terminal(folder, "run", "--agent", "bot.py", "please wait", "--session", "s1") as terminal:
        terminal.shows("→ wait").shows("runs wait").press("\x03")
        assert terminal.ends() == 130
    assert "s1: cancelled" in terminal.screen
    assert "continue it: windlass run --agent bot.py --session s1" in terminal.screen
    assert "Traceback" not in terminal.screen


def test_a_killed_run_is_resumed_by_its_session(folder):
    command = [sys.executable, "-m", "windlass", "run", "--agent", "bot.py", "--session", "s1"]
    killed = subprocess.run([*command, "please die"], cwd=folder, capture_output=True, stdin=subprocess.DEVNULL)
    assert killed.returncode == -9
    resumed = subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert (resumed.returncode, resumed.stdout) == (0, "It is done.\nThe second line.\n"), resumed.stderr


def test_what_a_model_says_is_inert_on_a_terminal(folder):
    (folder / "evil.py").write_text(
        "from windlass import Agent\nfrom windlass.testing import ScriptedModel, says\n"
        "agent = Agent(ScriptedModel(says(chunks=['a\\x1b]0;owned\\x07', '\\x1b[2J\\u202eb'])))\n"
    )
    with Terminal(folder, "run", "--agent", "evil.py", "hi") as terminal:
        assert terminal.ends() == 0
    assert "a\\x1b]0;owned\\x07\\x1b[2J\\u202eb" in terminal.screen
    assert b"\x1b]0;owned" not in terminal.raw


def test_long_lines_are_wrapped_between_words(folder):
    (folder / "long.py").write_text(
        "from windlass import Agent\nfrom windlass.testing import ScriptedModel, says\n"
        "agent = Agent(ScriptedModel(says(chunks=['word%d ' % n for n in range(60)])))\n"
    )
    with Terminal(folder, "run", "--agent", "long.py", "hi", columns=50) as terminal:
        assert terminal.ends() == 0
    *text, _ = terminal.screen.splitlines()
    assert " ".join(text).split() == [f"word{n}" for n in range(60)]
    assert all(len(line) < 50 for line in text)


def test_long_calls_and_results_are_broken_between_words(folder):
    with Terminal(folder, "run", "--agent", "bot.py", "please write", columns=30) as terminal:
        terminal.shows("[y]es").press("n this is a long reason that does not fit\r")
        assert terminal.ends() == 0
    lines = terminal.screen.splitlines()
    assert lines[:2] == ['→ write path="note.txt"', '    text="hello"']
    at = lines.index("  ← write: Denied: this is a")
    assert lines[at + 1] == "      long reason that does"


def test_help_does_not_load_the_terminal_libraries():
    code = "import sys, windlass.cli; windlass.cli.main(['--help'], standalone_mode=False)\n"
    code += "assert not {'rich', 'prompt_toolkit'} & set(sys.modules), 'slow'"
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=dict(os.environ))
