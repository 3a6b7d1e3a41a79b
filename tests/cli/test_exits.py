"""How commands end: exit codes, errors without tracebacks, broken pipes, closed output, Ctrl-C, and completion."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from windlass import Agent
from windlass.cli import main
from windlass.cli.codes import BROKEN_PIPE, BUG, INTERRUPTED, MEANINGS
from windlass.stores import SQLiteStore
from windlass.testing import FunctionModel, says

from .terminals import Terminal

WINDLASS = [sys.executable, "-m", "windlass"]
REFERENCE = Path(__file__).parents[2] / "docs" / "reference" / "cli.md"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a store of three sessions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WINDLASS_STORE", raising=False)
    for name in ("desk-1", "desk-2", "night shift"):
        record(name, "Hello " * 50, "Good day.")
    return tmp_path


def record(session: str, message: str, answer: str) -> None:
    async def work() -> None:
        store = SQLiteStore("windlass.db")
        await Agent(FunctionModel(lambda request: says(answer)), store=store).run(message, session=session)
        await store.close()

    asyncio.run(work())


def run(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*WINDLASS, *arguments], capture_output=True, text=True, timeout=60, **options)


def refused(arguments: Sequence[str], code: int, *words: str) -> None:
    """The command ends with this code, says these words, and shows no traceback."""
    result = CliRunner().invoke(main, [*arguments])
    assert result.exit_code == code, (arguments, result.output)
    assert "Traceback" not in result.output
    assert result.stdout == ""
    for word in words:
        assert word in result.stderr, (arguments, result.stderr)


def test_the_codes_are_documented_and_different():
    codes = [code for code, _, _ in MEANINGS]
    assert codes == sorted(set(codes))
    page = REFERENCE.read_text(encoding="utf-8")
    for code, name, meaning in MEANINGS:
        assert f"| {code} | {name} | {meaning} |" in page


# ---------------------------------------------------------------- what is not there, or is damaged

READING = [
    ["show", "s"], ["show", "s", "--json"], ["show", "s", "--records"], ["show", "s", "--context", "1"], ["why", "s"],
    ["sessions", "list"], ["sessions", "list", "--json"], ["sessions", "verify"], ["sessions", "head"],
    ["sessions", "export", "s"], ["sessions", "erase", "s", "--yes"], ["sessions", "prune"], ["approve"],
    ["approve", "s", "q"], ["replay", "--rules", "policy.toml"], ["diff", "s", "t"], ["ui"],
]  # fmt: skip


@pytest.mark.parametrize("command", READING, ids=" ".join)
def test_a_command_that_reads_needs_a_store_and_makes_none(tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.toml").write_text('deny = ["rm"]')
    monkeypatch.setenv("WINDLASS_STORE", "sqlite:///none.db")
    refused(command, 2 if command[0] in ("diff", "replay") else 1, "there is no store at")
    assert [file.name for file in tmp_path.iterdir()] == ["policy.toml"]


def test_an_unknown_session_is_named_with_those_that_are_near(folder):
    for command in (["show"], ["why"], ["sessions", "verify"], ["sessions", "export"], ["show", "--context", "1"]):
        refused([*command, "desk1"], 1, "there is no session 'desk1'", "did you mean desk-1 or desk-2?")
    refused(["show", "NIGHT"], 1, 'did you mean "night shift"?')
    refused(["diff", "desk-1", "desk-9"], 2, "did you mean desk-")


def damage(kind: str) -> None:
    Path("windlass.db").rename("other.db")
    if kind == "text":
        Path("windlass.db").write_text("Dear diary, " * 500)
    elif kind == "foreign":
        with sqlite3.connect("windlass.db") as database:
            database.execute("CREATE TABLE sessions (name TEXT)")
        database.close()
    elif kind == "newer":
        shutil.copy("other.db", "windlass.db")
        with sqlite3.connect("windlass.db") as database:
            database.execute("PRAGMA user_version = 9999")
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE name = 'meta'").fetchall():
                database.execute(f"UPDATE {table} SET value = '9999' WHERE key LIKE '%version%'")
        database.close()
    elif kind == "cut":
        Path("windlass.db").write_bytes(Path("other.db").read_bytes()[:5000])
    elif kind == "folder":
        Path("windlass.db").mkdir()


@pytest.mark.parametrize("kind", ["text", "foreign", "newer", "cut", "folder"])
def test_what_is_not_a_store_is_an_error_that_names_it(folder, kind):
    damage(kind)
    for command in (["show", "desk-1"], ["why", "desk-1"], ["sessions", "list"], ["sessions", "verify"], ["approve"]):
        refused(command, 1, "windlass.db")


def test_a_locked_store_is_read_or_an_error(folder):
    database = sqlite3.connect("windlass.db", isolation_level=None)
    database.execute("BEGIN EXCLUSIVE")
    try:
        result = CliRunner().invoke(main, ["show", "desk-1"])
        assert result.exit_code in (0, 1)
        assert "Traceback" not in result.output
        assert result.exit_code == 0 or "locked" in result.stderr
    finally:
        database.execute("ROLLBACK")
        database.close()


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["show"], "Missing argument"),
        (["show", "desk-1", "--turn", "0"], "0 is not in the range"),
        (["show", "desk-1", "--turn", "one"], "'one' is not a valid integer"),
        (["show", "desk-1", "--records", "--turn", "1"], "--turn goes with neither"),
        (["show", "desk-1", "--archive", "windlass.db"], "--archive needs --context"),
        (["sessions", "list", "--limit", "-1"], "-1 is not in the range"),
        (["why", "desk-1", "extra"], "unexpected extra argument"),
        (["completion", "tcsh"], "'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        (["approve", "desk-1", "q", "--json"], "--json lists questions"),
        (["approve", "desk-1", "q", "--edit", "{", "--agent", "absent"], "absent"),
        (["trust", "--json"], "--json goes with --list"),
        (["shwo"], "Did you mean"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_wrong_usage_ends_with_2(folder, arguments, word):
    refused(arguments, 2, word)


# ---------------------------------------------------------------- output that cannot be written


def test_a_reader_that_ends_is_no_error(folder):
    record("much", "Write much.", "x" * 2_000_000)
    for command in ("show much --json", "sessions export much", "show much", "show much --records"):
        script = f"set -o pipefail; {sys.executable} -m windlass {command} | head -c 10 >/dev/null"
        done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (BROKEN_PIPE, ""), command


def test_closed_output_is_no_traceback(folder):
    for redirect in (">&-", "2>&-", ">&- 2>&-"):
        for command in ("sessions list", "show desk-1", "show nobody", "doctor"):
            script = f"{sys.executable} -m windlass {command} {redirect}"
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
            assert done.returncode == (1 if "nobody" in command else 0), (script, done.stderr)
            assert "Traceback" not in done.stderr
            assert "Exception ignored" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_an_error(folder):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*WINDLASS, "sessions", "list"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert done.returncode == 1
    assert os.strerror(errno.ENOSPC) in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_output_of_any_encoding(folder, encoding):
    record("größe", "Größe?", "Größe → 😀")
    for command in (["show", "größe"], ["why", "größe"], ["sessions", "list"], ["show", "größe", "--json"]):
        done = subprocess.run(
            [*WINDLASS, *command], capture_output=True, env={**os.environ, "PYTHONIOENCODING": encoding}, timeout=60
        )
        assert done.returncode == 0, done.stderr
        assert b"Gr" in done.stdout


# ---------------------------------------------------------------- stopping, and bugs


def test_ctrl_c_ends_with_130(folder):
    with Terminal(folder, "sessions", "erase", "desk-1") as terminal:
        terminal.shows("Permanently erase").press("\x03")
        assert terminal.ends() == INTERRUPTED
    assert "Traceback" not in terminal.screen
    script = (
        "import time; from windlass.cli import main, why\n"
        "def wait(*given): print('ready', flush=True); time.sleep(60)\n"
        "why.with_store = wait; main(['why', 's'])"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == INTERRUPTED
    assert "Traceback" not in errors


def test_a_bug_has_a_code_of_its_own_and_debug_shows_where_it_is(folder):
    script = "import sys; from windlass.cli import main, why; why.with_store = None; main(sys.argv[1:])"
    plain = subprocess.run([sys.executable, "-c", script, "why", "s"], capture_output=True, text=True)
    assert plain.returncode == BUG
    assert "Traceback" not in plain.stderr
    assert "unexpected TypeError: 'NoneType' object is not callable" in plain.stderr
    assert "windlass --debug" in plain.stderr
    for options, environment in (["--debug"], {}), ([], {"WINDLASS_DEBUG": "1"}):
        shown = subprocess.run(
            [sys.executable, "-c", script, *options, "why", "s"], capture_output=True, text=True,
            env={**os.environ, **environment},
        )  # fmt: skip
        assert shown.returncode == 1
        assert "Traceback" in shown.stderr
        assert "why.py" in shown.stderr


# ---------------------------------------------------------------- completion


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script(shell):
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert "_WINDLASS_COMPLETE" in result.stdout
    program = shutil.which(shell)
    if program is not None:
        checked = subprocess.run([program, "-n"], input=result.stdout, text=True, capture_output=True)
        assert checked.returncode == 0, checked.stderr


def completed(folder: Path, line: str) -> list[str]:
    """What bash offers for the last word of a line."""
    words = line.split(" ")
    script = (
        'eval "$(windlass completion bash)"\n'
        f"COMP_WORDS=({' '.join(repr(word) for word in words)})\nCOMP_CWORD={len(words) - 1}\n"
        '_windlass_completion windlass "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD-1]}"\n'
        'printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, env=environment, cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")
    return [word for word in done.stdout.splitlines() if word]


def test_bash_completes_commands_options_and_sessions(folder):
    assert set(completed(folder, "windlass s")) == {"serve", "serve-mcp", "sessions", "show", "simulate", "submit"}
    assert completed(folder, "windlass show de") == ["desk-2", "desk-1"]
    assert completed(folder, "windlass sessions verify nig") == ["night shift"]
    assert completed(folder, "windlass replay --rules p.toml desk-1 nig") == ["night shift"]
    assert completed(folder, "windlass show --js") == ["--json"]
    assert completed(folder, "windlass completion f") == ["fish"]
    Path("windlass.db").write_text("no store")
    assert completed(folder, "windlass show de") == []


def test_completion_makes_no_store(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WINDLASS_STORE", "sqlite:///none.db")
    assert completed(tmp_path, "windlass show x") == []
    assert not Path("none.db").exists()


def test_every_command_that_prints_data_prints_json(folder):
    for command in (
        ["show", "desk-1"], ["show", "desk-1", "--records"], ["show", "desk-1", "--context", "1"], ["why", "desk-1"],
        ["sessions", "list"], ["sessions", "verify"], ["sessions", "head"], ["diff", "desk-1", "desk-2"], ["approve"],
        ["keys", "list"], ["local", "list"], ["trust", "--list"], ["doctor"],
    ):  # fmt: skip
        result = CliRunner().invoke(main, [*command, "--json"])
        assert result.exit_code == 0, (command, result.output)
        try:
            json.loads(result.stdout)
        except ValueError:
            assert all(isinstance(json.loads(line), dict) for line in result.stdout.splitlines()), command


def test_a_closed_or_binary_input_is_no_traceback(folder):
    for command in (
        "run -m local:smollm2",
        "submit --session s counter",
        "keys set openai --file",
        "sessions erase desk-1",
    ):
        for source in ("<&-", "< binary"):
            Path("binary").write_bytes(b"\xff\xfe\x00\x80")
            script = f"{sys.executable} -m windlass {command} {source}"
            done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60)
            assert done.returncode in (1, 2), (script, done.stderr)
            assert "Traceback" not in done.stderr
            assert "unexpected" not in done.stderr, (script, done.stderr)
