"""`windlass demo`: the story is told, in order, and reads well in a pipe."""

import io
import subprocess
import sys

import pytest
from click.testing import CliRunner
from rich.console import Console

from windlass.cli import main
from windlass.cli.demo import NEXT, tell_with
from windlass.errors import AuthFailed
from windlass.testing import FunctionModel, calls

BEATS = [
    "user        Where is parcel 4711?",
    "inject      calendar: Today is Friday.",
    "step 1  calls       delete_customer",
    "deny        keep_invoices: Invoices are kept for ten years.",
    "step 2  calls       courier",
    "child     courier: Where is parcel 4711?",
    "child     calls find_order",
    "result      It stands in the rain in Oslo.",
    "step 3  calls       refund",
    "ask         large_sums: Refund 80 euros?",
    "waits       for an answer.",
    "answer      bob approves",
    "result      80 euros for order 4711 are on their way",
    "says        I promise that it will never happen again",
    "taken back",
    "reject      no_promises: Promise nothing.",
    "says        Your parcel is lost.",
    "••••-••••-••••-•••• in three days.",
    "veto        be_polite: Say good-bye, too.",
    "says        Good-bye",
    "ended       Completed",
    "user        And now look at all my other orders.",
    "stopped     TokenLimit: 1890 of 1500 tokens are spent",
    "What to try next",
]


BEATS_WITH_A_MODEL = [
    "user        Where is parcel 4711?",
    "inject      calendar: Today is Friday.",
    "step 1  calls       delete_customer",
    "deny        keep_invoices: Invoices are kept for ten years.",
    "step 2  calls       courier",
    "child     courier: Blah.",
    "child     calls find_order",
    "result      Blah.",
    "step 3  calls       refund",
    'rewrite     true_sum: {"order":4711,"euros":80}',
    "ask         large_sums: Refund 80 euros?",
    "waits       for an answer.",
    "answer      bob approves",
    "result      80 euros for order 4711 are on their way",
    "says        Blah.",
    "veto        be_polite: Say good-bye, too.",
    "says        Blah.",
    "ended       Completed",
    "7 requests to babbler:",
]


@pytest.fixture
def story() -> str:
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 0, result.exception
    return result.output


def assert_told(story: str, beats: list[str]) -> None:
    position = 0
    for beat in beats:
        position = story.find(beat, position)
        assert position >= 0, f"{beat!r} is missing, or too early, in\n{story}"


def test_the_demo_tells_its_story_in_order(story):
    assert_told(story, BEATS)


async def test_with_a_model_that_only_babbles_the_turn_lives_through_it_all():
    """As a tiny real one does: it calls what it must, and all it says is nonsense."""

    async def babble(request):
        choice = request.settings["tool_choice"]
        if choice == "none":
            return "Blah."
        (tool,) = (tool for tool in request.tools if tool.name == choice)
        kinds = tool.schema["properties"].items()
        return calls(choice, **{name: 7 if kind["type"] == "integer" else "Blah." for name, kind in kinds})

    told = io.StringIO()
    await tell_with(FunctionModel(babble, name="babbler"), Console(file=told, soft_wrap=True))
    assert_told(told.getvalue(), BEATS_WITH_A_MODEL)


async def test_a_model_that_fails_is_told_of():
    async def fail(request):
        raise AuthFailed("no key")

    told = io.StringIO()
    await tell_with(FunctionModel(fail), Console(file=told, soft_wrap=True))
    assert "failed      AuthFailed: no key" in told.getvalue()


def test_the_demo_can_be_told_twice(story):
    assert CliRunner().invoke(main, ["demo"]).output == story


def test_the_demo_ends_with_commands_that_exist(story):
    for command in NEXT:
        assert command in story
        done = CliRunner().invoke(main, [*command.split()[1:], "--help"])
        assert done.exit_code == 0, command


def test_the_demo_can_be_kept_and_looked_at(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = CliRunner().invoke(main, ["demo", "--keep", "demo.db"])
    assert told.exit_code == 0, told.output
    assert "windlass ui demo.db" in told.output
    shown = CliRunner().invoke(main, ["show", "shop", "--turn", "1", "--store", "sqlite:///demo.db"])
    assert "keep_invoices" in shown.output
    again = CliRunner().invoke(main, ["demo", "--keep", "demo.db"])
    assert again.exit_code == 2
    assert "demo.db exists already" in again.output


def test_in_a_pipe_the_demo_is_plain_text_of_at_most_80_columns():
    done = subprocess.run([sys.executable, "-W", "error", "-m", "windlass", "demo"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
