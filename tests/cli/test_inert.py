"""Whatever a log contains, no command prints a character that a terminal obeys or that a reader cannot see."""

from __future__ import annotations

import ast
import io
import json
import os
import shlex
import struct
import subprocess
import sys
import unicodedata
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner
from rich.console import Console

from windlass import cli
from windlass._text import inert, inert_json, one_line, uncut, visible, visible_id
from windlass.cli import LazyCommand, main
from windlass.cli.demo import tell_with
from windlass.testing import FunctionModel, calls, says

INVISIBLE = (
    "\u00ad\u034f\u061c\u115f\u17b4\u180e\u200b\u200e\u200f\u202a\u202e\u2060\u2066\u2069\u2800\u3164\ufeff\uffa0"
)
TAGS = "\U000e0001\U000e0041\U000e007f\U000e0100"
CONTROLS = "\x1b]0;owned\x07\x1b[2J\r\x08\t\x0b\x0c\x01\x1f\x7f\x80\x85\x9b31m\x9f\u2028\u2029"
EVIL = f"evil{CONTROLS}{INVISIBLE}{TAGS}\nspoofed  line"

AGENT = f"""
import logging
from windlass import Agent, Ask, ToolCalling, TurnStarted, TurnStarting, tool
from windlass.errors import BadRequest
from windlass.testing import FunctionModel, calls, says

EVIL = {EVIL!r}


@tool
async def pay(to: str) -> str:
    "Pay."
    return EVIL + to


def reply(request):
    last = request.messages[-1]
    if last.role == "tool" or "stop" in last.text:
        return says(EVIL)
    if "fail" in last.text:
        raise BadRequest(EVIL)
    if "delegate" in last.text:
        return calls("child", task=EVIL)
    if "unknown" in last.text:
        return calls(EVIL, to=EVIL)
    return calls("pay", to=EVIL)


class Named(FunctionModel):
    name = EVIL


def make(name, **options):
    agent = Agent(Named(reply), tools=[pay], name=name, store="sqlite:///evil.db", **options)
    agent.gate(ToolCalling, tool="pay", name=EVIL)(lambda event: Ask(EVIL, approvers=(EVIL, "ann"), expires=3600))
    agent.inject(TurnStarting, name=EVIL)(lambda event: EVIL)

    @agent.observe(TurnStarted, name=EVIL)
    def watch(fact):
        raise RuntimeError(EVIL)

    return agent


agent = make(EVIL)
boss = make(EVIL)
boss.tool(make("child").as_tool())


def scope(session):
    raise RuntimeError(EVIL)


if __name__ == "__main__":
    for session in ("ask", "resumed", "erased", "exported", "refused"):
        agent.run_sync(EVIL, session=session + EVIL)
    agent.run_sync("fail" + EVIL, session="failed" + EVIL)
    agent.run_sync("unknown" + EVIL, session="unknown" + EVIL)
    agent.run_sync("stop" + EVIL, session="done" + EVIL)
    boss.run_sync("delegate" + EVIL, session="top" + EVIL)
"""


def dangerous(text: str) -> list[str]:
    """The characters of a text that a terminal obeys or that show nothing, but for line breaks."""
    kinds = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
    return [c for c in text if c != "\n" and (unicodedata.category(c) in kinds or c in INVISIBLE + TAGS)]


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store full of hostile text, made by another process."""
    folder = tmp_path_factory.mktemp("evil")
    (folder / "evil.py").write_text(AGENT, encoding="utf-8")
    (folder / "broken.py").write_text(f"raise RuntimeError({EVIL!r})", encoding="utf-8")
    subprocess.run([sys.executable, "evil.py"], cwd=folder, check=True, capture_output=True)
    return folder


@pytest.fixture
def folder(stored: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of that folder, in which commands run."""
    for file in stored.iterdir():
        if file.is_file():
            (tmp_path / file.name).write_bytes(file.read_bytes())
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("windlass.mcp.serving", "temporalio.client"):  # what they load wants the real list of modules
        import_module(name)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    monkeypatch.setenv("WINDLASS_STORE", "sqlite:///evil.db")
    (tmp_path / "heads.json").write_text(Head("ask", 1) + "\n" + Head("gone", 3) + "\n" + Head("erased", 1))
    rules = {"allow": [f"{EVIL}(x)", "send"], "ask": [EVIL], "deny": ["(" + EVIL]}
    (tmp_path / "policy.toml").write_text("\n".join(f"{name} = {json.dumps(value)}" for name, value in rules.items()))
    (tmp_path / "good.toml").write_text(f"deny = {json.dumps([f'send(to={EVIL})'.replace('/', '')])}")
    hostile = (
        f"model = {toml_text(EVIL)}\n[mcp.x]\ncommand = [{toml_text(EVIL)}]\nurl = {toml_text('http://' + EVIL)}\n"
    )
    (tmp_path / "evil-agent.toml").write_text(hostile)
    (tmp_path / f"bad{EVIL.replace('/', '')}").write_text(EVIL)
    expect = {"contains": EVIL, "called": EVIL, "decided": EVIL, "matches": ".*"}
    live = {"name": EVIL, "input": EVIL, "tags": [EVIL], "expect": expect}
    (tmp_path / "live.jsonl").write_text(json.dumps(live))
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    (tmp_path / "project" / ".claude").mkdir(parents=True)
    for file in ("hooks.json", "project/.claude/settings.json"):
        (tmp_path / file).write_text(json.dumps({"hooks": HOOKS}))
    (tmp_path / "recorded.jsonl").write_text(json.dumps({"session": "ask*", "expect": expect}))
    (tmp_path / "wrong.jsonl").write_text(json.dumps({"input": EVIL, "expect": {EVIL: EVIL}}))
    return tmp_path


def hook(command: str, **more: str) -> dict[str, object]:
    return {**more, "hooks": [{"type": "command", "command": command, EVIL: EVIL}]}


SHOUTED = json.dumps({"systemMessage": EVIL, "decision": EVIL}, ensure_ascii=False)
HOOKS = {
    EVIL: [],
    "PreToolUse": [
        hook("cat"),
        hook(f"cat >/dev/null; echo {shlex.quote(EVIL)} >&2; exit 2", matcher=EVIL),
        hook(f"cat >/dev/null; echo {shlex.quote(EVIL)} >&2; exit 2"),
        hook(f"cat >/dev/null; echo {shlex.quote(SHOUTED)}"),
    ],
}


def toml_text(value: str) -> str:
    return '"' + "".join([f"\\U{ord(one):08x}" for one in value]) + '"'


def Head(session: str, records: int) -> str:
    return json.dumps({"session": session + EVIL, "records": records, "head": "00" * 16})


BAD_FILE = f"bad{EVIL.replace('/', '')}"

# How each command is run. A test checks that no command and no option is missing.
RUNS: dict[str, list[list[str]]] = {
    "approve": [
        [],
        ["ask" + EVIL],
        ["nobody" + EVIL],
        ["ask" + EVIL, EVIL],
        ["ask" + EVIL, f"ask{EVIL}/1/1", "--by", EVIL],
        ["ask" + EVIL, f"ask{EVIL}/1/1", "--by", "ann", "--digest", EVIL],
        ["ask" + EVIL, f"ask{EVIL}/1/1", "--by", "ann", "--remember", EVIL],
        ["ask" + EVIL, f"ask{EVIL}/1/1", "--by", "eve"],
        ["resumed" + EVIL, f"resumed{EVIL}/1/1", "--edit", json.dumps({"to": EVIL}), "--by", "ann", "--agent", "evil"],
        ["refused" + EVIL, f"refused{EVIL}/1/1", "--reject", EVIL, "--by", "ann", "--agent", "evil"],
        ["exported" + EVIL, f"exported{EVIL}/1/1", "--respond", EVIL, "--by", "ann"],
        ["exported" + EVIL, f"exported{EVIL}/1/1", "--respond", EVIL, "--by", "ann"],
        ["ask" + EVIL, f"ask{EVIL}/1/1", "--edit", EVIL],
        ["--agent", "broken"],
        ["--json"],
        ["--store", EVIL],
        ["--store", f"sqlite:///{EVIL}"],
    ],
    "completion": [["bash"], [EVIL]],
    "diff": [
        ["ask" + EVIL, "done" + EVIL],
        ["ask" + EVIL, "top" + EVIL, "--full"],
        ["ask" + EVIL, "failed" + EVIL, "--json"],
        ["ask" + EVIL, "nobody" + EVIL],
        ["ask" + EVIL, "ask" + EVIL, "--other-store", EVIL],
    ],
    "doctor": [[], ["--json"], ["--model", EVIL]],
    "chat": [
        ["--agent", "evil" + EVIL, "--session", EVIL],
        ["--agent", "evil", "--scope", EVIL, "--capability", EVIL, "--continue"],
        ["--model", EVIL, "--system", EVIL, "--session", EVIL, "--continue"],
        ["--model", EVIL, "--tools", EVIL, "--yolo"],
        ["--model", EVIL, "--claude-hooks", EVIL],
        ["--model", EVIL, "--tools", "write", "--yolo"],
        ["--model", EVIL, "--inspect", "--break", EVIL],
    ],
    "demo": [[], ["--model", EVIL], ["--keep", f"absent{EVIL}/demo.db"]],
    "serve-mcp": [
        [],
        ["evil", "--no-answers"],
        ["evil", "--scope", EVIL],
        ["broken", "--http", "--port", "0"],
        ["evil", "--http", "--port", EVIL],
    ],
    "eval": [
        ["live.jsonl", "--agent", "evil", "--save", "run.json", "--junit", "run.xml"],
        ["live.jsonl", "--agent", "evil", "--repeat", "2", "--timeout", "9"],
        ["live.jsonl", "--agent", "evil", "--compare", "run.json", "--tag", EVIL, "--case", EVIL, "--concurrency", "1"],
        ["live.jsonl", "--agent", "evil", "--json", "--min-rate", "0.1", "--scope", f"evil:{EVIL}"],
        ["live.jsonl", "--agent", "evil", "--json", "--judge", EVIL],
        ["recorded.jsonl"],
        ["recorded.jsonl", "--compare", BAD_FILE],
        ["live.jsonl", "--agent", "broken"],
        ["live.jsonl"],
        ["wrong.jsonl", "--agent", "evil"],
        [f"absent{EVIL}.yaml"],
    ],
    "explain": [["evil"], ["evil", "--json"], ["evil:boss"], ["broken"], [EVIL], [f"evil:{EVIL}"]],
    "help": [[], ["show"], ["sessions", "list"], ["exit-codes"], [EVIL], ["sessions", EVIL]],
    "hooks check": [
        ["--rules", "policy.toml"],
        ["--rules", "policy.toml", "--json"],
        ["--rules", "good.toml", "--agent", "evil"],
        ["--rules", "good.toml", "--agent", "broken"],
        ["--rules", BAD_FILE],
        ["--rules", f"absent{EVIL}.toml"],
    ],
    "hooks test": [
        ["--rules", rules, "--call", call, *options]
        for rules in ("policy.toml", "good.toml", f"absent{EVIL}.toml")
        for call in (EVIL, f"send {json.dumps({'to': EVIL})}", f"{EVIL} {{}}", f"send {EVIL}")
        for options in ([], ["--json"], ["--expect", "deny"])
    ]
    + [
        ["PreToolUse", "--tool", EVIL, "--input", json.dumps({"command": EVIL}), "--settings", "hooks.json"],
        ["PreToolUse", "--settings", "hooks.json", "--json", "--strict"],
        ["PreToolUse", "--project", "project", "--plugin", "project"],
        [EVIL],
        ["PreToolUse", "--input", EVIL],
    ],
    "hooks doctor": [
        ["--settings", "hooks.json"],
        ["--settings", "hooks.json", "--json"],
        ["--project", "project", "--plugin", "project"],
        ["--settings", BAD_FILE],
    ],
    "hooks trust": [
        ["--project", "project"],
        ["--project", "project", "--yes"],
        ["--project", "project", "--remove"],
        ["--project", f"absent{EVIL}"],
    ],
    "init": [
        ["made.toml", "--yes", "--name", EVIL, "--model", "openai:x", "--may", "read", "--store", "user"],
        ["made.toml", "--model", EVIL, "--yes"],
        ["other.toml", "--model", EVIL, "--yes"],
        [f"no{EVIL}/x.toml", "--yes"],
    ],
    "keys list": [[], ["--json"]],
    "keys remove": [[EVIL], ["openai"]],
    "keys set": [[EVIL], ["openai"], ["openai", "--file"]],
    "local install": [[EVIL]],
    "local list": [[], ["--json"]],
    "replay": [
        ["--agent", "evil"],
        ["--agent", "evil:boss", "--full"],
        ["--rules", "good.toml", "--replaces", EVIL, "--json"],
        ["--rules", "policy.toml", "--markdown", "--since", "1d"],
        ["ask" + EVIL, "--agent", "evil", "--scope", f"evil:{EVIL}"],
        ["nobody" + EVIL, "--agent", "evil"],
        ["--agent", "evil", "--since", EVIL],
        ["--rules", BAD_FILE],
    ],
    "resume": [
        ["evil", "ask" + EVIL],
        ["evil", "ask" + EVIL, "--json"],
        ["evil", "done" + EVIL],
        ["evil", "nobody" + EVIL, "--takeover"],
        ["evil", "ask" + EVIL, "--scope", "evil"],
        ["evil", "ask" + EVIL, "--scope", f"evil:{EVIL}"],
        ["broken", "ask" + EVIL],
    ],
    "run": [
        [EVIL, "--agent", "evil", "--session", "ran" + EVIL],
        ["stop" + EVIL, "--agent", "evil", "--session", "ran" + EVIL],
        ["stop", "--agent", "evil", "--inspect", "--break", EVIL],
        ["stop", "--agent", "evil", "--temporal", EVIL, "--task-queue", EVIL, "--namespace", EVIL],
        ["fail" + EVIL, "--agent", "evil", "--json"],
        [EVIL, "--agent", "evil", "--json", "--file", BAD_FILE],
        ["delegate" + EVIL, "--agent", "evil:boss", "--json"],
        ["unknown" + EVIL, "--agent", "evil"],
        [EVIL, "--agent", "evil", "--claude-hooks", "strict"],
        [EVIL, "--model", EVIL, "--tools", EVIL, "--yolo"],
        [EVIL, "--model", EVIL, "--tools", "write", "--yolo"],
        ["--agent", "evil", "--session", "nobody" + EVIL],
        ["stop", "--agent", "evil", "--scope", f"evil:{EVIL}"],
        ["stop", "--agent", "evil", "--scope", "evil"],
        ["stop", "--agent", "evil", "--store", EVIL],
        ["stop", "--agent", "evil", "--capability", EVIL],
        ["stop", "--agent", "evil", "--capability", f"retry {EVIL}=1"],
        ["stop", "--agent", "broken"],
        ["stop", "--agent", "evil", "--file", f"absent{EVIL}"],
        ["stop", "--model", EVIL, "--system", EVIL],
    ],
    "serve": [
        ["broken"],
        [EVIL],
        ["evil", "--host", EVIL, "--port", "0"],
        ["evil", "--inspect", "--break", EVIL],
        ["evil", "--token-file", f"absent{EVIL}", "--drain", "1", "--max-body", "9", "--scope", "evil"],
        ["evil", "--allow-host", EVIL, "--allow-origin", EVIL],
        ["evil", "evil"],
    ],
    "sessions erase": [["erased" + EVIL, "--yes"], ["nobody" + EVIL, "--yes"]],
    "sessions export": [
        ["nobody" + EVIL],
        ["ask" + EVIL, "-o", f"no/{EVIL}"],
        ["ask" + EVIL, "--output", "out"],
        *[["ask" + EVIL, "--format", name] for name in ("openai", "anthropic", "langchain", "otel", "eval", "case")],
        ["ask" + EVIL, "--format", EVIL],
        ["nobody" + EVIL, "--format", "otel"],
    ],
    "sessions head": [[], ["--json"], ["ask" + EVIL], ["nobody" + EVIL]],
    "sessions import": [
        ["out"],
        ["out", "--as", "copy" + EVIL],
        [BAD_FILE],
        [f"absent{EVIL}"],
        ["out", "--format", "openai"],
        ["out", "--format", "langchain", "--as", "chat" + EVIL],
        [BAD_FILE, "--format", "anthropic", "--as", "chat" + EVIL],
    ],
    "sessions list": [
        [],
        ["--json"],
        ["--json", "--details"],
        ["--full"],
        ["--limit", "2"],
        ["--search", "ask" + EVIL],
        ["--status", "erased"],
        ["--status", EVIL],
    ],
    "sessions prune": [[], ["--days", "-1"], ["--days", EVIL]],
    "sessions verify": [
        [], ["--json"], ["ask" + EVIL], ["nobody" + EVIL], ["--against", "heads.json"], ["--against", BAD_FILE],
    ],
    "show": [
        *[[name + EVIL, *options] for name in ("ask", "failed", "unknown", "done", "top", f"top{EVIL}//1/1")
          for options in ([], ["--full"], ["--json"], ["--records"], ["--records", "--full"], ["--records", "--json"])],
        ["ask" + EVIL, "--context", "1"],
        ["ask" + EVIL, "--context", "1", "--json"],
        ["ask" + EVIL, "--context", "9"],
        ["ask" + EVIL, "--context", "1", "--archive", BAD_FILE],
        ["ask" + EVIL, "--turn", "1"],
        ["ask" + EVIL, "--turn", "9"],
        ["nobody" + EVIL],
    ],
    "simulate": [
        ["evil", "--seeds", "2", "--logs"],
        ["evil:make", "--seed", "1", "--json"],
        ["broken"],
        [f"evil:{EVIL}", "--seeds", EVIL],
    ],
    "submit": [
        ["evil", "stop" + EVIL, "--session", "queued" + EVIL, "--key", EVIL, "--priority", "9", "--json"],
        ["evil", EVIL, "--session", f"//{EVIL}"],
        ["evil", EVIL, "--temporal", EVIL, "--task-queue", EVIL, "--namespace", EVIL],
        ["broken", EVIL, "--wait"],
    ],
    "trust": [
        ["evil-agent.toml", "--yes"],
        ["evil-agent.toml"],
        ["evil-agent.toml", "--remove"],
        ["policy.toml", "--yes"],
        [BAD_FILE],
        [f"absent{EVIL}.toml", "--yes"],
        ["--list"],
        ["--list", "--json"],
        [],
    ],
    "ui": [
        [f"absent{EVIL}", "--control"],
        [f"sqlite:///absent{EVIL}.db", "--port", "0"],
        [BAD_FILE],
        ["--port", EVIL, "--open"],
        ["--agent", "broken"],
        ["--scope", EVIL],
        ["--evals", f"absent{EVIL}", "--port", EVIL],
    ],
    "why": [
        *[[name + EVIL, *options] for name in ("ask", "failed", "unknown", "done", "top", f"top{EVIL}//1/1")
          for options in ([], ["--full"], ["--json"], ["--turn", "1"])],
        ["ask" + EVIL, "--turn", "9"],
        ["nobody" + EVIL],
    ],
    "worker": [
        ["evil", "--until-idle", "--concurrency", "1", "--poll", "0.01", "--drain", "1"],
        ["evil", "--temporal", EVIL, "--task-queue", EVIL, "--namespace", EVIL, "--heartbeat", "1"],
        ["evil", "--until-idle", "--scope", f"evil:{EVIL}"],
        ["broken"],
    ],
}  # fmt: skip


def leaves(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    """All commands of a group and of the groups in it, by their names."""
    for name, command in group.commands.items():
        found = command.load() if isinstance(command, LazyCommand) else command
        if isinstance(found, click.Group):
            yield from leaves(found, (*path, name))
        else:
            yield " ".join((*path, name)), found


def test_every_command_is_run_with_every_option():
    commands = dict(leaves(main))
    assert set(RUNS) == set(commands)
    for name, command in commands.items():
        used = {word for run in RUNS[name] for word in run} | {"--help", "--store"}
        options = [option for option in command.params if isinstance(option, click.Option)]
        assert [option.opts for option in options if used.isdisjoint(option.opts)] == [], name


def test_no_command_prints_a_character_that_a_terminal_obeys(folder):
    met: set[int] = set()
    for name in sorted(RUNS, key=lambda name: name != "sessions export"):  # its file is imported later
        for arguments in RUNS[name]:
            sys.modules.pop("evil", None)
            result = CliRunner().invoke(main, [*name.split(), *arguments])
            assert result.exception is None or isinstance(result.exception, SystemExit), (name, arguments)
            met.add(result.exit_code)
            columns = "\t" if name == "sessions head" else ""
            stdout = result.stdout.replace(columns, "") if columns else result.stdout
            assert dangerous(stdout) == [], (name, arguments, result.stdout)
            assert dangerous(result.stderr) == [], (name, arguments, result.stderr)
            assert "\nspoofed  line" not in stdout or name in ("resume", "run"), (name, arguments, result.stdout)
    assert met == {0, 1, 2, 3}


@pytest.mark.parametrize("arguments", [[f"--{EVIL}"], [EVIL], ["show", f"--{EVIL}"]], ids=["option", "command", "show"])
def test_mistakes_on_the_command_line_are_inert_too(arguments):
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2
    assert dangerous(result.output) == []


def test_only_one_module_of_the_command_line_prints():
    folder = Path(cli.__file__).parent
    for file in folder.glob("*.py"):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        names = {ast.unparse(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
        printing = {name for name in names if name in ("print", "click.echo", "click.secho", "click.echo_via_pager")}
        assert not printing or file.name == "output.py", file


async def test_the_demo_prints_a_models_words_inertly():
    def reply(request: Any) -> Any:
        forced = request.settings.get("tool_choice")
        return calls(forced, task=EVIL, order=1, number=1, euros=80, name=EVIL) if forced != "none" else says(EVIL)

    told = io.StringIO()
    await tell_with(FunctionModel(reply), Console(file=told, highlight=False, soft_wrap=True))
    assert "\\x1b" in told.getvalue()
    assert dangerous(told.getvalue()) == []


def test_the_traceback_of_an_error_is_inert(folder):
    Path("bug.py").write_text(
        "from windlass.cli import main, show\n"
        "def broken(*args, **options): raise RuntimeError('\\x1b[2J\\u202e')\n"
        "show.with_store = broken\n"
        "import sys\n"
        "main([*sys.argv[1:], 'show', 's'])\n"
    )
    for options, code in ([], 70), (["--debug"], 1):
        done = subprocess.run([sys.executable, "bug.py", *options], capture_output=True, text=True)
        assert done.returncode == code
        assert ("Traceback" in done.stderr) == bool(options)
        assert "RuntimeError: \\x1b[2J\\u202e" in done.stderr
        assert dangerous(done.stderr) == []


# ---------------------------------------------------------------- JSON stays the same


@pytest.mark.parametrize("command", [["sessions", "list", "--json"], ["sessions", "head", "--json"]])
def test_json_output_parses_to_what_the_log_has(folder, command):
    result = CliRunner().invoke(main, command)
    names = {json.loads(line)["session"] for line in result.stdout.splitlines()}
    assert "ask" + EVIL in names


def test_records_as_json_parse_to_what_the_log_has(folder):
    result = CliRunner().invoke(main, ["show", "ask" + EVIL, "--records", "--json"])
    (asked,) = [found for line in result.stdout.split("\n") if line and (found := json.loads(line))["kind"] == "Asked"]
    assert asked["question"] == EVIL


def test_an_id_is_written_so_that_it_can_be_read_back():
    assert visible_id("ann/1") == "ann/1"
    for odd in ("", "two words", 'a"b', "it's", "a\\b", EVIL, "a\tb", "\ud800"):
        assert visible_id(odd).startswith('"')
        assert json.loads(visible_id(odd)) == odd
        assert dangerous(visible_id(odd)) == []


def test_what_is_not_unusual_stays_as_it_is():
    text = "Grüße, 東京 ⚠️ ☎︎ ½ λ 👍🏽 “quoted” – done."
    assert visible(text) == inert(text) == inert_json(text) == text
    assert visible("a\ufe0f") == "a\\ufe0f"
    assert inert("a\tb\nc") == "a\\tb\nc"
    assert visible("a  b\n") == "a  b\\n"


def test_cut_text_says_how_much_is_cut():
    cut = one_line("x" * 100, 20)
    assert (cut, len(cut)) == ("x" * 13 + "…(+87)", 19)
    assert one_line("x" * 20, 20) == "x" * 20
    with uncut():
        assert one_line("x" * 100, 20) == "x" * 100


# ---------------------------------------------------------------- on a terminal


def at_a_terminal(folder: Path, *arguments: str, rows: int = 24, columns: int = 80, **environment: str) -> str:
    """What a command prints if a terminal is its input and its output."""
    fcntl, pty, termios = (pytest.importorskip(name) for name in ("fcntl", "pty", "termios"))
    parent, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    given = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "windlass", *arguments],
        cwd=folder, env={**given, "TERM": "xterm", **environment}, stdin=child, stdout=child, stderr=subprocess.PIPE,
    )  # fmt: skip
    os.close(child)
    printed = b""
    try:
        while chunk := os.read(parent, 65536):
            printed += chunk
    except OSError:  # the other end is closed
        pass
    _, errors = process.communicate()
    os.close(parent)
    assert process.returncode == 0, errors.decode()
    return printed.decode().replace("\r\n", "\n")


def test_an_export_is_exact_in_a_pipe_and_inert_on_a_terminal(folder):
    command = ["sessions", "export", "ask" + EVIL]
    piped = subprocess.run([sys.executable, "-m", "windlass", *command], capture_output=True, check=True).stdout
    CliRunner().invoke(main, [*command, "-o", "exact"])
    assert piped == Path("exact").read_bytes()
    assert dangerous(piped.decode())
    shown = at_a_terminal(folder, *command)
    assert dangerous(shown) == []
    assert [json.loads(line) for line in shown.split("\n") if line] == [
        json.loads(line) for line in piped.decode().split("\n") if line
    ]


def test_what_does_not_fit_a_terminal_goes_through_a_pager(folder):
    show = ["why", "ask" + EVIL]
    assert at_a_terminal(folder, *show, rows=5, PAGER="sed s/^/PAGED:/").startswith("PAGED:Turn 1")
    assert "PAGED:" not in at_a_terminal(folder, *show, rows=500, PAGER="sed s/^/PAGED:/")
    assert "PAGED:" in at_a_terminal(folder, "approve", rows=5, PAGER="sed s/^/PAGED:/")
    given = {**os.environ, "PAGER": "sed s/^/PAGED:/", "LINES": "5"}
    piped = subprocess.run(
        [sys.executable, "-m", "windlass", *show], capture_output=True, text=True, check=True, env=given
    )
    assert "PAGED:" not in piped.stdout


def test_a_long_call_is_wrapped_so_that_no_line_of_it_passes_for_another(folder):
    shown = at_a_terminal(folder, "approve", rows=500)
    assert dangerous(shown) == []
    assert all(len(line) <= 80 for line in shown.splitlines())
    assert any(line.startswith(" " * 8) for line in shown.splitlines())
    piped = CliRunner().invoke(main, ["approve"]).stdout
    joined = "".join(
        line.removeprefix(" " * 8) if line.startswith(" " * 8) else f"\n{line}" for line in shown.split("\n")
    )
    assert [line for line in joined.split("\n") if line] == [line for line in piped.split("\n") if line]
