"""Scenarios in which processes are killed while the tool pack works."""

from __future__ import annotations

from windlass import Agent
from windlass.capabilities import Permissions
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


def fix_a_test(world: World) -> Agent:
    """Run a test that fails, read the program, edit it, run the test again, answer. Each command is judged by rules."""
    program, test = world.folder / "add.sh", world.folder / "test.sh"
    if not test.exists():
        program.write_text("echo $(($1 - $2))\n")
        test.write_text('[ "$(bash add.sh 2 3)" = 5 ] && echo passed || echo failed\n')
    model = world.model(
        calls("shell", command="bash test.sh"),
        calls("read", path="add.sh"),
        calls("edit", path="add.sh", old="$1 - $2", new="$1 + $2"),
        calls("shell", command="rm -rf ../elsewhere"),
        says("Fixed."),
    )
    rules = Permissions(allow=["read", "edit", "shell(bash test.sh)"], unmatched="deny", folder=world.folder)
    return Agent(model, capabilities=[Workspace(world.folder), rules], store=world.store)
