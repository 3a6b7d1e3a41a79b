"""`windlass demo`: the story is told, in order, and reads well in a pipe."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from windlass.cli import main
from windlass.cli.demo import READ_NEXT

BEATS = [
    "user     Tidy up the reports",
    "inject   calendar: Today is Friday",
    "step 1   model    calls list_files",
    'rewrite  tidy_path: {"folder":"reports"}',
    "allow    nobody objects",
    'result   ["reports/2019.csv","reports/2024.csv"]',
    "step 2   model    calls delete_file",
    "deny     keep_files: Reports are kept for ten years.",
    "result   Denied: Reports are kept for ten years.",
    "step 3   model    calls send_mail",
    "ask      ask_first: Send this mail to team?",
    "ask      ask_first: Send this mail to everyone?",
    "wait     2 questions are open.",
    "resume",
    "answer   ann approves",
    "answer   ann edits: to='customers'",
    "result   sent to team",
    "result   sent to customers",
    "step 4   model    All reports are still there",
    "end      Completed",
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
