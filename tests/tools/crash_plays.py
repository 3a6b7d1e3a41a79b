"""Scenarios in which processes are killed while the tool pack works."""

from __future__ import annotations

from windlass import Agent
from windlass.testing import World, calls, says
from windlass.tools import Workspace


def write_and_edit(world: World) -> Agent:
    """Write a file, and edit it in a way that would show if it were done twice."""
    file = world.folder / "a"
    assert not file.exists() or file.read_text() in ("one", "oneone"), file.read_text()
    model = world.model(
        calls("write", path="a", content="one"), calls("edit", path="a", old="one", new="oneone"), says("done")
    )
    return Agent(model, capabilities=[Workspace(world.folder)], store=world.store)
