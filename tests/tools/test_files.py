"""The file tools: what they read, write, edit and find."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass import Agent, ImagePart, TurnStarted
from windlass.capabilities import Permissions
from windlass.errors import ToolError
from windlass.testing import (
    FunctionModel,
    ScriptedModel,
    assert_same_everywhere,
    calls,
    check_capability,
    crash_points,
    says,
)
from windlass.tools import Workspace, file_tools, grepping
from windlass.tools.edits import Edit, apply_edits

from .plays import play, results, use

PNG = b"\x89PNG\r\n\x1a\n" + b"\0" * 20


async def test_it_passes_the_checks_for_capabilities(root):
    await check_capability(lambda: Workspace(root))


async def test_it_is_the_same_everywhere(root):
    (root / "a.txt").write_text("one")
    script = (calls("read", path="a.txt"), calls("write", path="b.txt", content="x"), says("done"))
    await assert_same_everywhere(lambda: Agent(ScriptedModel(*script), capabilities=[Workspace(root)]))


async def test_effect_classes_and_annotations_are_set(root):
    seen = []

    async def look(request):
        seen.extend(request.tools)
        return says("done")

    agent = Agent(FunctionModel(look), capabilities=[Workspace(root)])
    kinds = {}

    @agent.observe(TurnStarted)
    def note(fact, turn):
        kinds.update(turn.tools)

    await agent.run("go")
    assert {spec.name for spec in seen} == set(kinds)
    shown = {name: (one.effect, one.annotations.read_only, one.annotations.destructive) for name, one in kinds.items()}
    assert shown == {
        "read": ("pure", True, None),
        "glob": ("pure", True, None),
        "grep": ("pure", True, None),
        "write": ("idempotent", False, True),
        "edit": ("unsafe", False, True),
        "multi_edit": ("unsafe", False, True),
        "shell": ("unsafe", False, True),
    }


async def test_without_write_there_are_only_tools_that_read(root):
    found = await use(Workspace(root, write=False, shell=False), "write", path="a", content="x")
    assert found.status == "error"
    assert not (root / "a").exists()


# ---------------------------------------------------------------- read


async def test_lines_are_numbered_and_read_by_ranges(root):
    (root / "a").write_text("".join(f"line {number}\n" for number in range(1, 11)))
    whole, part = await play(Workspace(root), ("read", {"path": "a"}), ("read", {"path": "a", "offset": 3, "limit": 2}))
    assert whole.text.splitlines()[9] == "10\tline 10"
    assert part.text == "3\tline 3\n4\tline 4\n[lines 3 to 4 of 10; go on with offset=5]"


async def test_big_files_are_read_in_pieces_and_long_lines_are_cut(root):
    (root / "a").write_text("x" * 5000 + "\n" + "y" * 100 + "\n")
    (root / "b").write_text("z" * 1000 + "\n" * 1)
    (root / "many").write_text(("m" * 999 + "\n") * 100)
    long, many = await play(Workspace(root), ("read", {"path": "a"}), ("read", {"path": "many"}))
    assert "[3000 more characters]" in long.text
    assert len(many.text) < file_tools.MAX_TEXT + 200
    assert "go on with offset=" in many.text


async def test_binary_files_are_named_as_such_and_images_are_shown(root):
    (root / "a.bin").write_bytes(b"ab\0cd")
    (root / "a.txt").write_bytes(PNG)
    binary, image = await play(Workspace(root), ("read", {"path": "a.bin"}), ("read", {"path": "a.txt"}))
    assert "binary file of 5 bytes" in binary.text
    assert image.content == (ImagePart(data=PNG, media_type="image/png"),)


@pytest.mark.parametrize(
    ("path", "offset", "words"),
    [("none", 1, "there is no 'none'"), ("a", 5, "has 1 lines"), ("a", 0, "1 or more"), ("a/b", 1, "Not a directory")],
)
async def test_what_cannot_be_read_is_an_error_the_model_reads(root, path, offset, words):
    (root / "a").write_text("x")
    found = await use(Workspace(root), "read", path=path, offset=offset)
    assert found.status == "error"
    assert words in found.text


# ---------------------------------------------------------------- write and edit


async def test_a_written_file_keeps_its_mode_and_folders_are_made(root):
    (root / "run").write_text("old")
    (root / "run").chmod(0o750)
    await play(
        Workspace(root),
        ("write", {"path": "run", "content": "new"}),
        ("write", {"path": "deep/er/a", "content": "x"}),
    )
    assert (root / "run").read_text() == "new"
    assert stat.S_IMODE((root / "run").stat().st_mode) == 0o750
    assert (root / "deep" / "er" / "a").read_text() == "x"
    assert sorted(os.listdir(root)) == ["deep", "run"]


async def test_a_failed_write_leaves_the_old_file(root, monkeypatch):
    (root / "a").write_text("old")

    def full(*given, **options):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    found = await use(Workspace(root), "write", path="a", content="new")
    assert "No space left" in found.text
    assert (root / "a").read_text() == "old"
    assert os.listdir(root) == ["a"]


async def test_an_edit_replaces_exact_text_once(root):
    (root / "a").write_text("one\ntwo\nthree\n")
    done, twice = await play(
        Workspace(root),
        ("edit", {"path": "a", "old": "two", "new": "2"}),
        ("edit", {"path": "a", "old": "e", "new": "E"}),
    )
    assert done.status == "ok"
    assert "3 times, in lines 1, 3, 3" in twice.text
    assert (root / "a").read_text() == "one\n2\nthree\n"


async def test_several_edits_are_made_all_or_none(root):
    (root / "a").write_text("one\ntwo\n")
    good = [{"old": "one", "new": "1"}, {"old": "1\n", "new": "first\n"}]
    bad = [{"old": "first", "new": "x"}, {"old": "nowhere", "new": "y"}]
    _, failed = await play(
        Workspace(root), ("multi_edit", {"path": "a", "edits": good}), ("multi_edit", {"path": "a", "edits": bad})
    )
    assert "edit 2 of 2" in failed.text
    assert "nothing was changed" in failed.text
    assert (root / "a").read_text() == "first\ntwo\n"


def test_an_edit_that_does_not_fit_names_the_nearest_lines():
    text = "def add(a, b):\n    return a - b\n"
    with pytest.raises(ToolError, match=r"nearest lines are:\n2\t    return a - b"):
        apply_edits(text, [Edit("    return a + c", "x")])
    with pytest.raises(ToolError, match=r"line 2 differs only in white space"):
        apply_edits(text, [Edit("\treturn a - b", "x")])


@pytest.mark.parametrize(
    ("old", "new", "words"), [("", "x", "old is empty"), ("a", "a", "are the same"), ("zzz", "x", "read the file")]
)
def test_other_edits_are_refused(old, new, words):
    with pytest.raises(ToolError, match=words):
        apply_edits("a\n", [Edit(old, new)])


def test_line_ends_of_windows_are_kept():
    assert apply_edits("a\r\nb\r\n", [Edit("a\nb", "c\nd")]) == ("c\r\nd\r\n", 1)


async def test_a_file_in_another_encoding_is_not_edited(root):
    (root / "a").write_bytes(b"caf\xe9 one")
    found = await use(Workspace(root), "edit", path="a", old="one", new="two")
    assert "UTF-8" in found.text
    assert (root / "a").read_bytes() == b"caf\xe9 one"


# ---------------------------------------------------------------- glob and grep


def make_tree(root):
    for path, text in {
        "a.py": "import os\nprint('Hello')\n",
        "src/b.py": "hello = 1\n# nothing\nhello += 1\n",
        "src/deep/c.txt": "say hello\r\nbye\r\n",
        "node_modules/x.py": "hello",
        ".git/config": "hello",
        ".hidden/h.py": "hello",
        "Zeta/z.py": "hello",
    }.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(text.encode())
    (root / "binary").write_bytes(b"hello\0hello")
    (root / "utf16.txt").write_bytes("hello wide\n".encode("utf-16"))
    (root / "link.py").symlink_to("a.py")


@pytest.mark.parametrize(
    ("pattern", "path", "paths"),
    [
        ("*.py", ".", [".hidden/h.py", "Zeta/z.py", "a.py", "src/b.py"]),
        ("./*.py", ".", [".hidden/h.py", "Zeta/z.py", "a.py", "src/b.py"]),
        ("src/*", ".", ["src/b.py"]),
        ("src/**", ".", ["src/b.py", "src/deep/c.txt"]),
        ("**/deep/*.{txt,md}", ".", ["src/deep/c.txt"]),
        ("*.py", "src", ["src/b.py"]),
        ("[ab].py", ".", ["a.py", "src/b.py"]),
        ("*.py", "node_modules", ["node_modules/x.py"]),
        ("nothing", ".", ["no files found"]),
    ],
)
async def test_files_are_listed_by_pattern(root, pattern, path, paths):
    make_tree(root)
    assert (await use(Workspace(root), "glob", pattern=pattern, path=path)).text.splitlines() == paths


async def test_a_pattern_that_would_backtrack_takes_no_time(root):
    (root / ("a" * 250)).write_text("")
    assert (await use(Workspace(root), "glob", pattern="*a" * 60 + "b")).text == "no files found"


@pytest.fixture(params=["ripgrep", "python"])
def engine(request, monkeypatch):
    """Both ways to search."""
    if request.param == "ripgrep":
        assert grepping.find_ripgrep() is not None
    else:
        monkeypatch.setattr(file_tools, "find_ripgrep", lambda: None)
    return request.param


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (
            {"pattern": "hello"},
            [".hidden/h.py:1:hello", "Zeta/z.py:1:hello", "src/b.py:1:hello = 1", "src/b.py:3:hello += 1",
             "src/deep/c.txt:1:say hello", "utf16.txt:1:hello wide"],
        ),
        ({"pattern": "hello$", "include": "*.txt"}, ["src/deep/c.txt:1:say hello"]),
        ({"pattern": "HELLO", "ignore_case": True, "path": "a.py"}, ["a.py:2:print('Hello')"]),
        ({"pattern": r"\bhello\s\+", "context": 1}, ["src/b.py-2-# nothing", "src/b.py:3:hello += 1"]),
        ({"pattern": "(?<=say )hello"}, ["src/deep/c.txt:1:say hello"]),
        ({"pattern": "-e"}, ["no matches"]),
        ({"pattern": "hello", "path": "node_modules"}, ["node_modules/x.py:1:hello"]),
        ({"pattern": "hello", "limit": 1}, [".hidden/h.py:1:hello",
         "[there are more than 1 matching lines; narrow the search]"]),
    ],
)  # fmt: skip
async def test_both_engines_find_the_same(root, engine, arguments, lines):
    make_tree(root)
    assert (await use(Workspace(root), "grep", **arguments)).text.splitlines() == lines


@pytest.mark.parametrize("pattern", ["(", "[", "*", "[[:alpha:]]", "a{99999999999}"])
async def test_an_invalid_expression_is_an_error_the_model_reads(root, engine, pattern):
    make_tree(root)
    found = await use(Workspace(root), "grep", pattern=pattern)
    assert found.status == "error"
    assert "not a valid regular expression" in found.text


async def test_a_search_that_never_ends_is_ended(root, monkeypatch):
    monkeypatch.setattr(grepping, "SECONDS", 0.5)
    monkeypatch.setattr(file_tools, "find_ripgrep", lambda: None)
    (root / "a").write_text("a" * 60 + "\n")
    assert "took longer" in (await use(Workspace(root), "grep", pattern="(a+)+$x")).text


TOKENS = ["a", "b", ".", "a*", "(?:ab)+", "[ab]", "^", "$", r"\w", r"\b", "|", "x?", "ü", r"\.", "(a)", "a{1,2}", "é"]


@given(st.lists(st.sampled_from(TOKENS), min_size=1, max_size=5), st.lists(st.text("ab.üé x", max_size=8), max_size=6))
def test_both_engines_find_the_same_in_any_text(tmp_path_factory, tokens, lines):
    pattern = "".join(tokens)
    try:
        grepping.check_pattern(pattern)
    except ToolError:
        return
    folder = tmp_path_factory.mktemp("grep")
    (folder / "a").write_text("\n".join(lines))
    opened = os.open(folder, os.O_RDONLY)
    try:
        found = [
            list(grepping.search(opened, pattern, ignore_case=False, ripgrep=engine))
            for engine in (grepping.find_ripgrep(), None)
        ]
    finally:
        os.close(opened)
    assert found[0] == found[1], (pattern, lines)


# ---------------------------------------------------------------- with the rest


async def test_rules_of_permissions_hold_for_the_tools(root):
    (root / "a.txt").write_text("one")
    rules = Permissions(allow=["read", "write(path=src/)"], unmatched="deny", folder=root)
    script = (
        calls("read", path="a.txt"),
        calls("write", path="src/b", content="x"),
        calls("write", path="src/../c", content="x"),
        says("done"),
    )
    agent = Agent(ScriptedModel(*script), capabilities=[Workspace(root), rules])
    assert [part.status for part in results(await agent.run("go"))] == ["ok", "ok", "denied"]
    assert not (root / "c").exists()


def test_a_turn_that_writes_and_edits_goes_on_after_a_crash():
    report = crash_points(f"{Path(__file__).with_name('crash_plays.py')}:write_and_edit", workers=2)
    assert len(report.points) > 10, report
