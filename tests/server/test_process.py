"""`windlass serve` as a process: it is killed, it is stopped, and nothing is lost."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.server.conftest import TOKEN
from tests.server.server_events import Event, read

from windlass.cli import main

AGENT = """
import asyncio
from pathlib import Path
from windlass import Agent, tool
from windlass.testing import FunctionModel, calls, says

@tool(effect="idempotent")
async def wait() -> str:
    "Wait until there is a file `go`."
    while not Path("go").exists():
        await asyncio.sleep(0.02)
    return "went"

def reply(request):
    return says("done") if request.messages[-1].role == "tool" else calls("wait")

agent = Agent(FunctionModel(reply), tools=[wait], name="ann", store="sqlite:///log.db")
"""
BODY = {"message": "hi", "session": "s", "mode": "stream"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(AGENT)
    return tmp_path


def until_called(server) -> list[Event]:
    """Start a turn, and leave when its tool has been called."""
    seen = []
    with server.client() as client, client.stream("POST", "/agents/ann/turns", json=BODY) as response:
        for event in read(response.iter_lines()):
            seen += [event] if event.id else []
            if event.name == "ToolCalled":
                break
    return seen


def test_after_kill_9_another_process_resumes_and_a_client_reads_on_without_a_gap(folder, spawn):
    first = spawn(folder, "shop")
    seen = until_called(first)
    assert first.end(signal.SIGKILL) == -signal.SIGKILL
    (folder / "go").touch()
    with spawn(folder, "shop").client() as client:
        resumed = client.post("/agents/ann/sessions/s/resume")
        assert (resumed.status_code, resumed.json()["text"]) == (200, "done")
        again = client.get("/agents/ann/sessions/s/events", params={"since": seen[-1].id})
        seen += [event for event in read(again.text.splitlines()) if event.id]
        stored = client.get("/agents/ann/sessions/s/records").json()["records"]
    assert [event.name for event in seen] == [record["kind"] for record in stored]


def test_sigterm_ends_it_within_seconds_while_streams_are_open_and_the_turn_can_be_resumed(folder, spawn):
    first = spawn(folder, "shop")
    with first.client() as client, client.stream("POST", "/agents/ann/turns", json=BODY) as response:
        events = read(response.iter_lines())
        assert any(event.name == "ToolCalled" for event in events)
        first.end(signal.SIGTERM)
        (error,) = [event for event in events if event.name == "error"]
        assert (error.data["type"], error.data["session"]) == ("interrupted", "s")
    (folder / "go").touch()
    with spawn(folder, "shop").client() as client:
        assert client.get("/agents/ann/sessions/s").json()["turn"]["status"] == "unfinished"
        assert client.post("/agents/ann/sessions/s/resume").json()["text"] == "done"


def test_sigterm_lets_turns_end_that_end_in_time(folder, spawn):
    server = spawn(folder, "shop", "--drain", "60")
    with server.client() as client, client.stream("POST", "/agents/ann/turns", json=BODY) as response:
        events = read(response.iter_lines())
        assert any(event.name == "ToolCalled" for event in events)
        server.process.send_signal(signal.SIGTERM)
        (folder / "go").touch()
        (last,) = [event for event in events if event.name == "turn"]
        assert last.data["text"] == "done"
    server.process.wait(20)


def test_a_token_is_made_and_printed_once_unless_one_is_given(folder, spawn, monkeypatch):
    assert not any(line.startswith("token") for line in spawn(folder, "shop").lines)
    (folder / "token").write_text("another-token-of-the-user\n")
    (folder / "token").chmod(0o600)
    with spawn(folder, "shop", "--token-file", "token").client() as client:
        assert client.get("/agents").status_code == 401
        own = client.get("/agents", headers={"authorization": "Bearer another-token-of-the-user"})
        assert own.status_code == 200


@pytest.mark.parametrize(
    ("arguments", "words"),
    [(["--host", "0.0.0.0"], "give a token"), (["--host", "192.0.2.1"], "give a token"),
     (["--token-file", "absent"], "cannot be read"), (["--token-file", "open"], "can be read by other users"),
     (["--token-file", "short"], "at least 16"), (["--allow-origin", "*"], "not an origin")],
)  # fmt: skip
def test_what_is_not_safe_is_refused_before_it_listens(folder, monkeypatch, arguments, words):
    monkeypatch.chdir(folder)
    monkeypatch.delenv("WINDLASS_TOKEN", raising=False)
    Path("open").write_text(TOKEN)
    Path("open").chmod(0o644)
    Path("short").write_text("short")
    Path("short").chmod(0o600)
    result = CliRunner().invoke(main, ["serve", str(folder / "shop.py"), *arguments])
    assert result.exit_code in (1, 2)
    assert words in result.output


def test_every_address_needs_the_names_that_clients_use(folder, monkeypatch):
    monkeypatch.chdir(folder)
    monkeypatch.setenv("WINDLASS_TOKEN", TOKEN)
    result = CliRunner().invoke(main, ["serve", str(folder / "shop.py"), "--host", "::"])
    assert (result.exit_code, "--allow-host" in result.output) == (2, True)
