"""`windlass show SESSION --context STEP`: what filled the window, by origin."""

import asyncio
import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from windlass import Agent, Answer, Injected, ModelCalling, StepStarting, TurnStarting, Usage, tool
from windlass.capabilities import RequestArchive
from windlass.cli import main
from windlass.testing import ScriptedModel, calls, says


@tool(effect="pure", inline=True)
def search(query: str) -> str:
    """Search the library."""
    return f"{query}: " + "a passage of a book " * 100


class Windowed(ScriptedModel):
    context_window = 8000


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """A folder with a store of two sessions, and the file of an archive."""
    monkeypatch.chdir(tmp_path)

    async def fill() -> None:
        archive = RequestArchive("archive.db")
        model = Windowed(
            calls("search", query="whales", _usage=Usage(700, 20)),
            calls("search", query="ships", _usage=Usage(1400, 20, cached=640)),
            says("done"),
            says("bye"),
        )
        agent = Agent(
            model, tools=[search], system="You are a librarian. " * 20, store="sqlite:///logs.db", observer_patience=30
        ).with_capability(archive)
        agent.inject(TurnStarting, name="remember")(lambda event: "The user likes Melville. " * 10)
        agent.inject(StepStarting, name="clock")(lambda event: Injected("It is late.", record=False))
        agent.gate(ModelCalling)(lambda event: Answer("no") if event.turn.user_message.text == "never" else None)
        await agent.run("Find Moby Dick.", session="s1")
        await agent.run("never", session="s1")
        await agent.run("Thanks.", session="s1")
        await agent.run("never", session="quiet")
        archive.close()
        await agent.store.close()

    asyncio.run(fill())
    return tmp_path


def show(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["show", "--store", "sqlite:///logs.db", *arguments])


def test_a_chart_shows_what_filled_the_window(folder):
    done = show("s1", "--context", "2")
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0] == "What scripted saw at step 2 (turn 1) of session s1"
    rows = {line[2:18].strip(): line for line in lines[2 : lines.index("", 2)]}
    assert {"result of search", "system", "remember", "tool search", "user", "assistant"} <= set(rows)
    assert rows["result of search"].count("█") > rows["remember"].count("█")
    assert "total" in done.output
    assert "1,400 tokens (counted by the vendor), 17.5% of a window of 8,000" in done.output
    assert "640 tokens, according to the vendor" in done.output
    assert "not exact: parts that 'clock' injected are kept out of the log" in done.output
    assert "\x1b" not in done.output


def test_the_same_as_json(folder):
    data = json.loads(show("s1", "--context", "2", "--json").output)
    assert (data["tokens"], data["window"], data["cached"], data["counted_by"]) == (1400, 8000, 640, "vendor")
    assert data["origins"][0]["origin"] == "result of search"
    assert abs(sum(row["tokens"] for row in data["origins"]) - 1400) < 8
    assert 0 < data["stable"] < 1400
    assert data["broken"] is None


def test_who_broke_the_prefix_is_told(folder):
    done = show("s1", "--context", "5")
    assert "broken  by remember (turn): what it injected for turn 1 is gone from message 0" in done.output


def test_an_audit_has_the_request_as_it_left(folder):
    done = show("s1", "--context", "2", "--archive", "archive.db")
    assert done.exit_code == 0, done.output
    assert "clock" in done.output
    assert "not exact" not in done.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nobody", "--context", "1"], "there is no session 'nobody'"),
        (["quiet", "--context", "1"], "session 'quiet' has no model calls"),
        (["s1", "--context", "9"], "there is no step 9 in session 's1'; models were called at steps 1 to 5"),
        (["s1", "--context", "0"], "there is no step 0 in session 's1'"),
        (["s1", "--context", "4"], "no model was called at step 4 of session 's1'"),
        (["s1", "--archive", "archive.db"], "name the step with --context"),
        (["s1", "--context", "1", "--archive", "nothing.db"], "does not exist"),
        (["s1", "--context", "1", "--archive", "logs.db"], "logs.db is not a request archive"),
    ],
)
def test_what_cannot_be_shown_is_said(folder, arguments, said):
    done = show(*arguments)
    assert done.exit_code != 0
    assert said in done.output
    assert "Traceback" not in done.output


def test_a_step_that_an_audit_does_not_have_is_said(folder):
    archive = RequestArchive("archive.db")
    archive.erase("s1")
    archive.close()
    done = show("s1", "--context", "1", "--archive", "archive.db")
    assert done.exit_code == 1
    assert "archive.db has no requests of session 's1'" in done.output
