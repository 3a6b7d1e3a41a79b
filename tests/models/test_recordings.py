"""No recording is left out: whichever folder it is in, somebody replays it."""

from __future__ import annotations

from pathlib import Path

from .bedrock.test_bedrock_recordings import recorded as of_converse
from .openai.test_recordings import recorded as of_openai
from .recordings import recordings


def test_every_recording_is_replayed() -> None:
    files = {path.name for folder in ("openai_chat", "openai_responses", "other") for path in recordings(folder)}
    cases = [param.values[0] for param in (*of_openai(), *of_converse()) if param.values[0]]
    assert files == {Path(case.name).name for case in cases}
