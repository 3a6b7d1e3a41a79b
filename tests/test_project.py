"""The repository as a whole: nothing of one machine is in it, and all code shown to readers runs."""

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

import pytest

from .servers.vendor import Vendor

PROJECT = Path(__file__).resolve().parent.parent
EXAMPLES = sorted(PROJECT.glob("examples/*.py"))
PAGES = sorted({*PROJECT.glob("README.md"), *PROJECT.glob("docs/**/*.md")} - {PROJECT / "docs" / "start.md"})
"""The tutorial is not among them: its blocks are files and commands, which test_tutorial.py runs as a reader would."""

OF_ONE_MACHINE = re.compile(
    r"(?<![\w.])/(?:work|root)/"
    r"|/opt/(?:pypi|wheels)"
    r"|\b(?:pypi[.]org/simple|files[.]pythonhosted[.]org|registry[.]npmjs[.]org|registry[.]yarnpkg[.]com)\b"
    r"|^\s*(?:-i|-f|--(?:extra-)?index-url|--find-links|--trusted-host)[ =]",
    re.MULTILINE,
)


# --- nothing of one machine ---


def committed_files() -> Iterator[Path]:
    """Files that are, or would be, committed; all but hidden folders and caches where there is no git."""
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        names = subprocess.run(listing, cwd=PROJECT, capture_output=True, check=True).stdout.decode()
        yield from (PROJECT / name for name in names.split("\0") if name)
    except (OSError, subprocess.CalledProcessError):
        for folder, subfolders, files in os.walk(PROJECT):
            subfolders[:] = [name for name in subfolders if name == ".ci" or not name.startswith((".", "__"))]
            yield from (Path(folder, name) for name in files)


def traces_of_one_machine(text: str) -> list[str]:
    return [match.group().strip() for match in OF_ONE_MACHINE.finditer(text)]


def test_no_committed_file_names_a_path_or_a_registry_of_one_machine():
    found = {}
    for path in committed_files():
        try:
            text = path.read_text(encoding="utf-8")
        except (FileNotFoundError, IsADirectoryError, UnicodeDecodeError):
            continue  # deleted but not yet committed, a link to a folder, or binary
        if traces := traces_of_one_machine(text):
            found[str(path.relative_to(PROJECT))] = traces
    assert not found


@pytest.mark.parametrize(
    "text",
    [
        "open('/{}/main/x')".format("work"),
        "/{}/.cache".format("root"),
        "--index-{} https://x".format("url"),
        "-i https://x",
    ],
)
def test_a_trace_of_one_machine_is_seen(text):
    assert traces_of_one_machine(text)


@pytest.mark.parametrize("text", ["docs/work/plan.md", "uv pip compile --no-emit-index-url", "the root/leaf"])
def test_a_harmless_text_is_let_through(text):
    assert not traces_of_one_machine(text)


# --- `import windlass` is light ---


def test_importing_windlass_loads_only_msgspec_and_the_standard_library():
    script = (
        "import sys, msgspec; before = set(sys.modules); import windlass\n"
        "names = {name.partition('.')[0] for name in set(sys.modules) - before}\n"
        "print(*sorted(names - sys.stdlib_module_names - {'windlass', 'msgspec'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []


# --- the examples run ---


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_the_example_runs(example, tmp_path):
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr


# --- the code in the documentation runs ---


class Block(NamedTuple):
    """A fenced block: what follows the fence, its first line in the page, its code."""

    info: str
    line: int
    code: str


FENCED = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+)(?P<info>[^`\n]*)\n(?P<code>.*?)^ *(?P=fence)", re.M | re.S)


def blocks_of(markdown: str) -> list[Block]:
    found = []
    for match in FENCED.finditer(markdown):
        indent = len(match["indent"])
        code = "".join(line[indent:] if line.strip() else "\n" for line in match["code"].splitlines(keepends=True))
        found.append(Block(match["info"].strip(), markdown.count("\n", 0, match.start("code")) + 1, code))
    return found


def python_blocks_of(markdown: str) -> list[Block]:
    """The blocks to run; one that looks like Python but would not be run is an error."""
    blocks = [block for block in blocks_of(markdown) if re.match(r"\{?\W*(?:py|python)", block.info, re.IGNORECASE)]
    for block in blocks:
        if block.info != "python":
            raise ValueError(f"line {block.line - 1}: fenced as {block.info!r}; say 'python', or 'text' for no code")
    return blocks


def run_blocks(blocks: list[Block], module: ModuleType, filename: str) -> None:
    """Run the blocks in order in one module, as a notebook would: `await` is allowed at the top level."""
    with asyncio.Runner() as runner:
        for block in blocks:
            source = "\n" * (block.line - 1) + block.code  # a traceback then names the line of the page
            code = compile(source, filename, "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            result = eval(code, vars(module))
            if inspect.iscoroutine(result):
                runner.run(result)


@pytest.fixture
def page_module(monkeypatch, tmp_path) -> ModuleType:
    """The module in which a page runs, known to `sys.modules` as classes and type hints expect."""
    module = ModuleType("page")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    return module


@pytest.fixture
def openai(monkeypatch) -> Iterator[Vendor]:
    """What newcomers read first names a real model. Here a server on this machine answers in the vendor's place."""
    with Vendor(("refund", {"order": "A7", "amount": 80}), "You get 80 back.").serving() as vendor:
        monkeypatch.setenv("OPENAI_API_KEY", "none")
        monkeypatch.setenv("OPENAI_BASE_URL", vendor.url)
        yield vendor
        assert vendor.asked


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_the_code_on_the_page_runs(page, page_module, request):
    blocks = python_blocks_of(page.read_text(encoding="utf-8"))
    if any('"local:smollm2"' in block.code for block in blocks):
        request.getfixturevalue("weights")
    if page.name == "README.md" and any('"openai:gpt-5"' in block.code for block in blocks):
        request.getfixturevalue("openai")
    run_blocks(blocks, page_module, str(page))


def test_blocks_of_a_page_share_one_namespace_and_may_await(page_module):
    page = (
        "# A page\n\n```python\nimport asyncio\nx = 1\n```\n\n```text\nnot code\n```\n\n"
        "- in a list:\n\n  ```python\n  await asyncio.sleep(0)\n\n  x += 1\n  ```\n"
    )
    run_blocks(python_blocks_of(page), page_module, "page.md")
    assert vars(page_module)["x"] == 2


def test_a_failing_block_names_its_line_in_the_page(page_module):
    with pytest.raises(ZeroDivisionError) as caught:
        run_blocks(python_blocks_of("one\n\n```python\n\n1 / 0\n```\n"), page_module, "page.md")
    assert caught.traceback[-1].lineno == 5 - 1  # pytest counts from 0


@pytest.mark.parametrize("info", ["python no-run", "py", "Python", "python3", '{.python test="skip"}'])
def test_a_python_block_cannot_escape(info):
    with pytest.raises(ValueError, match="line 1: fenced as"):
        python_blocks_of(f"```{info}\n1 / 0\n```\n")
