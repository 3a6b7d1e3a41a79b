"""The file tools never leave the workspace, and never write what decides about agents."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from windlass import trust
from windlass.errors import ConfigError, ToolError
from windlass.tools import Workspace
from windlass.tools.file_tools import FileTools
from windlass.tools.protection import Protection
from windlass.tools.rooted import Root

from .plays import play, use


def everything_outside(root: Path) -> dict[str, str]:
    return {str(path): path.read_text() for path in (root.parent / "outside").rglob("*") if path.is_file()}


OUT = [
    "../outside/secret",
    "a/../../outside/secret",
    "/proc/self/root/{outside}/secret",
    "/proc/self/cwd/x",
    "{outside}/secret",
    "//{outside}/secret",
    "{root}/../outside/secret",
    "link/secret",
    "a/up/outside/secret",
    "chain/secret",
    "file",
    "/etc/passwd",
    "~/x",
    "~",
    "..",
    "{root}x/y",
]


@pytest.mark.parametrize("path", OUT)
@pytest.mark.parametrize("name", ["read", "write", "edit", "multi_edit", "glob", "grep"])
async def test_no_path_leads_out(root, name, path):
    outside = root.parent / "outside"
    (root / "a").mkdir()
    (root / "link").symlink_to(outside)
    (root / "a" / "up").symlink_to("../..")
    (root / "chain").symlink_to("a/../link")
    (root / "file").symlink_to(outside / "secret")
    before = everything_outside(root)
    path = path.format(outside=outside, root=root)
    arguments = {
        "read": {"path": path},
        "write": {"path": path, "content": "x"},
        "edit": {"path": path, "old": "top", "new": "x"},
        "multi_edit": {"path": path, "edits": [{"old": "top", "new": "x"}]},
        "glob": {"path": path, "pattern": "*"},
        "grep": {"path": path, "pattern": "secret"},
    }[name]
    found = await use(Workspace(root), name, **arguments)
    assert found.status == "error", found.text
    assert "outside the workspace" in found.text or "home folder" in found.text
    assert "top secret" not in found.text
    assert everything_outside(root) == before


async def test_links_within_the_workspace_are_followed_and_kept(root):
    (root / "real").mkdir()
    (root / "real" / "a.txt").write_text("one")
    (root / "folder").symlink_to("real")
    (root / "absolute").symlink_to(root / "real" / "a.txt")
    workspace = Workspace(root)
    shown, _, absolute = await play(
        workspace,
        ("read", {"path": "folder/a.txt"}),
        ("write", {"path": "folder/a.txt", "content": "two"}),
        ("read", {"path": "absolute"}),
    )
    assert shown.text == "1\tone"
    assert absolute.text == "1\ttwo"
    assert (root / "folder").is_symlink()
    assert (root / "absolute").is_symlink()


async def test_absolute_paths_in_the_workspace_are_understood(root):
    (root / "a.txt").write_text("one")
    assert (await use(Workspace(root), "read", path=str(root / "a.txt"))).text == "1\tone"


async def test_a_loop_of_links_is_an_error(root):
    (root / "a").symlink_to("b")
    (root / "b").symlink_to("a")
    assert "too many links" in (await use(Workspace(root), "read", path="a/x")).text


@pytest.mark.parametrize("path", ["new\nline.txt", "-e", "a b", "ünïcödé", "u\u0308nicode", "quote'\"", "back\\slash"])
async def test_odd_names_are_just_names(root, path):
    workspace = Workspace(root)
    written, shown, listed, found = await play(
        workspace,
        ("write", {"path": path, "content": "hello"}),
        ("read", {"path": path}),
        ("glob", {"pattern": "*"}),
        ("grep", {"pattern": "hello"}),
    )
    assert written.status == "ok"
    assert (root / path).read_text() == "hello"
    assert shown.text == "1\thello"
    assert len(listed.text.splitlines()) == len(found.text.splitlines()) == 1


async def test_a_fifo_or_a_folder_is_not_read(root):
    os.mkfifo(root / "fifo")
    for path in ("fifo", "."):
        assert "not a regular file" in (await use(Workspace(root), "read", path=path)).text
    assert "not a regular file" in (await use(Workspace(root), "write", path="fifo", content="x")).text


SWAP = """
import ctypes, os, sys
exchange, names = ctypes.CDLL(None).renameat2, [os.fsencode(name) for name in sys.argv[1:]]
while exchange(-100, names[0], -100, names[1], 2) == 0:  # both names exist all the time
    pass
"""


def test_links_that_are_swapped_between_check_and_use_lead_nowhere(root):
    outside = root.parent / "outside"
    inside = root / "inside"
    inside.mkdir()
    (inside / "secret").write_text("harmless secret")
    files = FileTools(Root(root), Protection(Root(root)))
    swap, spare = root / "swap", root / "spare"
    swap.symlink_to(outside)
    os.rename(inside, spare)
    swapping = subprocess.Popen([sys.executable, "-I", "-S", "-c", SWAP, swap, spare])  # a thread would swap too seldom
    seen = set()
    try:
        for number in range(3000):
            for attempt in (
                lambda: files.read("swap/secret"),
                lambda number=number: files.write(f"swap/made{number % 10}", "x"),
                lambda: files.edit("swap/secret", "top", "bottom"),
                lambda: files.glob("secret", "swap"),
                lambda number=number: number % 500 or files.grep("top", "swap"),
            ):
                try:
                    seen.add(str(attempt()))
                except ToolError as error:
                    seen.add(type(error).__name__)
    finally:
        swapping.kill()
        swapping.wait()
    assert everything_outside(root) == {str(outside / "secret"): "top secret"}
    assert not any("top secret" in text for text in seen)
    assert "Outside" in seen  # the link was met,
    assert "1\tharmless secret" in seen  # and the folder, too


PROTECTED = [
    "windlass.toml",
    "sub/windlass.toml",
    "WINDLASS.TOML",
    "windlass.toml.",
    "win\u200bdlass.toml",
    "ｗindlass.toml",
    "a.agent.toml",
    ".mcp.json",
    "windlass.db",
    "sub/windlass.db-wal",
    ".git/hooks/pre-commit",
    ".GIT/config",
    ".g\u200cit/config",
    "sub/.git/config",
    ".claude/settings.json",
    "hooks/pre-commit",
    "policies/rules.toml",
    "trusted.py",
]


@pytest.mark.parametrize("path", PROTECTED)
async def test_files_that_decide_about_agents_are_not_written(root, path):
    (root / ".git" / "hooks").mkdir(parents=True)
    (root / "hooks").symlink_to(".git/hooks")
    (root / "policies").mkdir()
    (root / "trusted.py").write_text("")
    trust.trust(root / "trusted.py")
    before = sorted(root.rglob("*"))
    found = await use(Workspace(root, protect=["policies"]), "write", path=path, content="x")
    assert found.status == "error"
    assert "cannot be written" in found.text
    assert sorted(root.rglob("*")) == before
    assert (root / "trusted.py").read_text() == ""


async def test_the_users_own_folders_are_neither_read_nor_written(root, home):
    (home / "config").mkdir(parents=True)
    (home / "config" / "keys").write_text("sk-123")
    workspace = Workspace(home.parent)
    for name, arguments in (("read", {}), ("write", {"content": "x"}), ("edit", {"old": "sk", "new": "x"})):
        found = await use(workspace, name, path="home/config/keys", **arguments)
        assert found.status == "error"
        assert "sk-123" not in found.text
    assert (home / "config" / "keys").read_text() == "sk-123"
    assert "sk-123" not in (await use(workspace, "grep", pattern="sk-")).text


@pytest.mark.parametrize("options", [{"root": "/"}, {"root": "/no/such"}, {"root": 1}, {"write": 1}, {"protect": "x"}])
def test_invalid_options_are_refused(options):
    with pytest.raises(ConfigError, match="Workspace"):
        Workspace(**options)


def test_the_root_cannot_be_in_the_users_own_folder(home):
    (home / "config").mkdir(parents=True)
    with pytest.raises(ConfigError, match="own folder"):
        Workspace(home / "config")
