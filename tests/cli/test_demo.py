"""`windlass demo`: the story is told, in order, and reads well in a pipe."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from windlass.cli import main
from windlass.cli.demo import READ_NEXT

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
    "What to read next",
]


@pytest.fixture
def story() -> str:
    result = CliRunner().invoke(main, ["demo"])
    assert result.exit_code == 0, result.exception
    return result.output


def test_the_demo_tells_its_story_in_order(story):
    position = 0
    for beat in BEATS:
        position = story.find(beat, position)
        assert position >= 0, f"{beat!r} is missing, or too early, in\n{story}"


def test_the_demo_can_be_told_twice(story):
    assert CliRunner().invoke(main, ["demo"]).output == story


def test_the_demo_names_only_pages_that_exist(story, pytestconfig):
    for page in READ_NEXT:
        assert page in story
        assert (pytestconfig.rootpath / page).exists()


def test_in_a_pipe_the_demo_is_plain_text_of_at_most_80_columns():
    done = subprocess.run([sys.executable, "-W", "error", "-m", "windlass", "demo"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= 80
