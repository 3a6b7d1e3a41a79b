"""Ctrl-C ends the commands that serve, and that is no error."""

from __future__ import annotations

import re
from pathlib import Path

import httpx2
import pytest

from .terminals import Terminal


@pytest.mark.parametrize("command", [["serve"], ["serve-mcp", "--http"]], ids=" ".join)
def test_ctrl_c_ends_a_server_without_a_word(tmp_path: Path, command: list[str]) -> None:
    (tmp_path / "bot.py").write_text(
        "from windlass import Agent\nfrom windlass.testing import ScriptedModel\nagent = Agent(ScriptedModel())\n"
    )
    with Terminal(tmp_path, *command, "bot.py", "--port", "0") as terminal:
        terminal.shows("listening on http")
        terminal.until(lambda: re.search(r"http://[0-9.:]+(/mcp)?\n", terminal.screen + "\n") is not None)
        address = re.search(r"http://[0-9.:]+", terminal.screen)
        assert address is not None
        assert httpx2.post(address[0], json={}, trust_env=False).status_code in (401, 404)
        terminal.press("\x03")
        assert terminal.ends() == 130
    assert "Aborted" not in terminal.screen
    assert "Traceback" not in terminal.screen
