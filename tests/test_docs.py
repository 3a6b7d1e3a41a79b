"""The documentation says what the code says: the quoted loop, the tour, the generated pages, the links."""

import ast
import importlib
import importlib.util
import inspect
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from types import ModuleType

import click
import pytest

from windlass import capabilities, errors, testing
from windlass._hooks.hooks import _LEGAL as LEGAL_OPTIONS
from windlass._kernel.loop import drive
from windlass.cli import LazyCommand
from windlass.cli import main as command_line
from windlass.events import EVENTS, FACTS

PROJECT = Path(__file__).resolve().parent.parent
DOCS = PROJECT / "docs"
PAGES = sorted([*PROJECT.glob("*.md"), *DOCS.glob("**/*.md")])
LINK = re.compile(r"\[[^\]\n]+\]\((?!https?:)(?P<target>[^)\s#]+)(?:#[^)\s]*)?\)")


@pytest.fixture(scope="module")
def generate() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", DOCS / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_design_page_quotes_the_loop_whole():
    page = (DOCS / "design.md").read_text(encoding="utf-8")
    quoted = re.search(
        r"^```python\nfrom __future__ import annotations\n\n\n(async def drive.*?)^```$", page, re.M | re.S
    )
    assert quoted is not None
    assert quoted[1] == inspect.getsource(drive)


def test_the_design_page_has_one_paragraph_for_every_file_of_the_kernel_and_of_the_hooks():
    page = (DOCS / "design.md").read_text(encoding="utf-8")
    described = re.findall(r"^\*\*`(\w+\.py)`\*\* ", page, re.M)
    folders = [PROJECT / "src" / "windlass" / name for name in ("_kernel", "_hooks")]
    files = [path.name for folder in folders for path in folder.glob("*.py") if path.name != "__init__.py"]
    assert sorted(described) == sorted(files)


def test_the_guide_to_an_own_model_is_short_and_so_is_the_whole_adapter():
    page = (DOCS / "guides" / "own-model.md").read_text(encoding="utf-8")
    assert len(page.splitlines()) < 60
    adapter = (PROJECT / "examples" / "own_model.py").read_text(encoding="utf-8").partition("\n# ----")[0]
    told = int(re.search(r"it takes (\d+) lines of code", page)[1])  # type: ignore[index]
    code = [line for line in adapter.splitlines() if line and not line.lstrip().startswith(('"""', "import asyncio"))]
    assert len(code) == told < 60


def test_the_reference_has_a_section_for_every_command_of_the_command_line():
    page = (DOCS / "reference" / "cli.md").read_text(encoding="utf-8")
    for name, command in command_line.commands.items():
        loaded = command.load() if isinstance(command, LazyCommand) else command
        inner = loaded.commands if isinstance(loaded, click.Group) else {"": loaded}
        for inside in inner:
            assert f"# windlass {name} {inside}".rstrip() + "\n" in page


def test_the_generated_pages_are_up_to_date(generate):
    assert generate.stale() == [], "run `python docs/generate.py`"


def test_the_generator_can_be_run_as_a_check(generate):
    done = subprocess.run([sys.executable, DOCS / "generate.py", "--check"], capture_output=True, text=True)
    assert done.returncode == (1 if generate.stale() else 0), done.stderr


def test_a_page_that_is_out_of_date_is_named(generate, monkeypatch, capsys):
    monkeypatch.setitem(generate.PAGES, "reference/errors.md", lambda: "something else")
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == 1
    assert "docs/reference/errors.md is out of date" in capsys.readouterr().err


def test_every_event_and_every_fact_is_on_the_reference_page():
    page = (DOCS / "reference" / "events.md").read_text(encoding="utf-8")
    missing = [kind.__name__ for kind in (*EVENTS, *FACTS) if f"`{kind.__name__}`" not in page]
    assert missing == []


def test_every_public_error_is_on_the_reference_page_with_when_and_what_to_do(generate):
    page = (DOCS / "reference" / "errors.md").read_text(encoding="utf-8")
    rows = {cells[0]: cells for line in page.splitlines() if len(cells := line.strip("| ").split(" | ")) == 5}
    public = [(f"`{name}`", kind) for name, kind in vars(errors).items()]
    public += [(f"`windlass.testing.{name}`", kind) for name, kind in vars(testing).items()]
    raised = [label for label, kind in public if isinstance(kind, type) and issubclass(kind, errors.WindlassError)]
    assert [label for label in raised if label not in rows] == []
    assert [label for label in raised if not rows[label][2] or not rows[label][3]] == []


@pytest.mark.parametrize(
    ("docstring", "cases"),
    [
        ("Behaviour 7: a reply is paid for once.", ["7"]),
        ("Behaviour 83a: nothing is lost.", ["83a"]),
        ("Behaviours 1, 2b and 30: in order.", ["1", "2b", "30"]),
        ("Something else. Behaviour 7: no.", []),
    ],
)
def test_the_cases_of_a_test_are_read_from_its_docstring(generate, monkeypatch, tmp_path, docstring, cases):
    (tmp_path / "test_some.py").write_text(f'async def test_it():\n    """{docstring}"""\n', encoding="utf-8")
    monkeypatch.setattr(generate, "TESTS", tmp_path)
    assert list(generate.behaviours()) == [(case, "test_some.py::test_it") for case in cases]


def test_every_promise_has_a_sentence_and_a_test(generate):
    assert generate.unmatched_cases(generate.promises(), [case for case, _ in generate.behaviours()]) == []


def test_every_promise_is_on_the_page_beside_its_tests(generate):
    rows = {
        cells[0]: cells for line in generate.behaviours_page().splitlines() if (cells := line.strip("| ").split(" | "))
    }
    for heading, cases in generate.promises().items():
        for case, sentence in cases.items():
            assert rows[case][1] == sentence
            assert heading == generate.NOT_PROMISED or "::test_" in rows[case][2]


def test_a_case_without_a_sentence_or_without_a_test_fails_the_check(generate, monkeypatch, capsys):
    promised = {"Order": {"1": "Kept.", "2": "Never tested."}, generate.NOT_PROMISED: {"3": "Tested.", "4": "Not yet."}}
    tested = [("1", "a.py::test_1"), ("3", "a.py::test_3"), ("5", "a.py::test_5")]
    monkeypatch.setattr(generate, "promises", lambda: promised)
    monkeypatch.setattr(generate, "behaviours", lambda: tested)
    monkeypatch.setattr(generate, "PAGES", {})
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == 1
    assert capsys.readouterr().err.splitlines() == [
        "docs/behaviours.toml: case 5 has tests and no sentence",
        "docs/behaviours.toml: case 2 has a sentence and no tests",
        "docs/behaviours.toml: case 3 has tests and is listed as not promised",
    ]


# ---------------------------------------------------------------- the comparison with LangChain and deepagents


def test_every_claim_of_the_comparison_has_a_test_that_exists(generate):
    assert generate.comparison.faults() == []


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        (["`a`", "yes", "`b`"], "there is no test that shows it"),
        (["`a`", "other", "a hook"], "there is no test that shows it"),
        (["`a`", "yes", "`b`", "test_a.py::test_gone"], "there is no test test_a.py::test_gone"),
        (["`a`", "no", "why", "test_a.py::test_it"], "what is not there has a test"),
        (["`a`", "perhaps", "why", "test_a.py::test_it"], "the verdict 'perhaps' is not one of yes, other, no"),
        (["`a`", "no", ""], "there is no word on ours"),
    ],
)
def test_a_claim_of_the_comparison_that_nothing_shows_fails_the_check(generate, monkeypatch, capsys, row, fault):
    compared = ({"middleware": [{"name": "Some", "options": [row]}]},)
    assert generate.comparison.wrong_rows(compared, frozenset(["test_a.py::test_it"])) == [
        f"docs/comparison.toml: Some, `a`: {fault}"
    ]
    monkeypatch.setattr(generate.comparison, "faults", lambda: [fault])
    monkeypatch.setattr(generate, "PAGES", {})
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == 1
    assert fault in capsys.readouterr().err


def test_the_tests_of_the_comparison_are_all_named_by_it(generate):
    compared = generate.comparison
    named = {test for *_, tests in compared.rows(compared.packages()) for test in tests}
    here = {test for test in compared.known_tests(compared.TESTS) if test.startswith("capabilities/test_compared.py::")}
    assert here - named == set()


# ---------------------------------------------------------------- the reference of all names


def public_names() -> list[tuple[str, str, str]]:
    """The names of tests/api.txt at home: module, name in the module, and member or nothing."""
    lines = (PROJECT / "tests" / "api.txt").read_text(encoding="utf-8").splitlines()[1:]
    places = [re.sub(r"[(:= ].*", "", line.removeprefix("async ")) for line in lines if " -> windlass." not in line]
    found = [re.fullmatch(r"(windlass(?:\.[a-z_]+(?=\.))*)\.(\w+)(?:\.(\w+))?(?:\.\w+)?", place) for place in places]
    return [(match[1], match[2], match[3] or "") for match in found if match is not None]


def test_every_public_class_has_a_page_with_all_its_members(generate):
    """Small functions and values share the page of their module; it lists the classes, too."""
    api = generate.api_pages
    texts: dict[str, str] = {}
    for page, places in api.homes().items():
        text = (DOCS / api.FOLDER / f"{page}.md").read_text(encoding="utf-8")
        for place in places:
            name = place.rpartition(".")[2]
            section = text.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
            assert section, f"{page}.md does not list {name}"
            if isinstance(api.value_at(place), type):
                assert f"({page}/{name}.md)" in section
                section = (DOCS / api.FOLDER / page / f"{name}.md").read_text(encoding="utf-8")
                assert f"\n# {name}\n" in section
            texts[place] = section
    missing = [
        f"{module}.{name}.{member}"
        for module, name, member in public_names()
        if not (text := texts.get(f"{module}.{name}", "")) or (member and not re.search(rf"[.`]{member}\b", text))
    ]
    assert len(public_names()) > 1_000
    assert len(api.classes()) > 300
    assert missing == []


def test_the_index_links_to_the_page_of_every_class(generate):
    api = generate.api_pages
    text = (DOCS / api.FOLDER / "README.md").read_text(encoding="utf-8")
    assert [path for path in api.classes().values() if f"]({path})" not in text] == []


def test_a_page_of_a_class_that_is_gone_fails_the_check_and_is_deleted(generate, monkeypatch, tmp_path, capsys):
    folder = tmp_path / generate.api_pages.FOLDER
    folder.mkdir(parents=True)
    (folder / "Gone.md").touch()
    monkeypatch.setattr(generate, "DOCS", tmp_path)
    monkeypatch.setattr(generate, "PAGES", {})
    monkeypatch.setattr(sys, "argv", ["generate.py", "--check"])
    assert generate.main() == 1
    assert "docs/reference/api/Gone.md is out of date" in capsys.readouterr().err
    monkeypatch.setattr(sys, "argv", ["generate.py"])
    assert generate.main() == 0
    assert list(folder.iterdir()) == []


def test_every_parameter_and_option_of_the_public_api_is_explained(generate):
    assert list(generate.api_pages.unexplained()) == []


def test_a_parameter_without_an_explanation_is_named(generate, monkeypatch):
    monkeypatch.setattr(generate.api_pages, "explanations", lambda: {"everywhere": {}, "windlass.Gone": {"a": "b"}})
    missing = list(generate.api_pages.unexplained())
    assert "windlass.Agent.run: parameter `session` is not explained" in missing
    assert "docs/parameters.toml: there is no windlass.Gone" in missing


def test_the_options_of_every_verb_are_in_the_reference():
    text = (DOCS / "reference" / "api" / "registrar" / "Registrar.md").read_text(encoding="utf-8")
    for verb, legal in LEGAL_OPTIONS.items():
        section = text.partition(f"\n## Registrar.{verb}\n")[2].partition("\n## ")[0]
        assert set(re.findall(r"^\| `(\w+)` \| `[^|]*` \| \S", section, re.M)) >= legal, verb


# ---------------------------------------------------------------- imports

SHOWN = [page for page in PAGES if "decisions" not in page.parts]
"""The pages with examples for users; notes on decisions quote code of their time."""


def imports_of(source: str) -> list[tuple[str, str]]:
    """(module, name) for each name of Windlass that a source imports."""
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ImportFrom)]
    return [
        (str(node.module), one.name)
        for node in nodes
        for one in node.names
        if f"{node.module}.".startswith("windlass.")
    ]


def not_promised(source: str, public: ModuleType) -> list[str]:
    """The names that a source imports and that are not public."""
    found = []
    for module, name in imports_of(source):
        offered = public.names_of(importlib.import_module(module)) if module in public.PUBLIC else []
        if name not in offered and f"{module}.{name}" not in public.PUBLIC:
            found.append(f"{module}.{name}")
    return found


@pytest.fixture(scope="module")
def public(generate: ModuleType) -> ModuleType:
    """The test that knows what is public."""
    known: ModuleType = generate.api_pages.public()
    return known


def test_the_docs_and_examples_import_public_names_only(public):
    sources = {
        str(path.relative_to(PROJECT)): path.read_text(encoding="utf-8") for path in PROJECT.glob("examples/**/*.py")
    }
    for page in SHOWN:
        blocks = re.findall(r"^```python\n(.*?)^```$", page.read_text(encoding="utf-8"), re.M | re.S)
        sources |= {f"{page.name} {number}": block for number, block in enumerate(blocks, 1)}
    assert {name: found for name, source in sources.items() if (found := not_promised(source, public))} == {}


def test_an_import_of_a_name_that_is_not_public_is_noticed(public):
    source = "from windlass import Agent\nfrom windlass.sessions import Home\nfrom windlass.messages import plain\n"
    assert not_promised(source, public) == ["windlass.sessions.Home", "windlass.messages.plain"]


# ---------------------------------------------------------------- the cookbook

USE_CASES = [f"{group}.{case}" for group, cases in enumerate((5, 4, 5, 5, 5, 4), 1) for case in range(1, cases + 1)]
HOOKED = re.compile(r"\.(?:observe|inject|rewrite|gate|wrap|transform)\(")
LOOPS = (ast.For, ast.AsyncFor, ast.While, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


NO_CAPABILITY = {"2.2", "2.3", "4.3", "6.4"}
"""The use cases that no capability fits."""


def sections_of_the_cookbook() -> dict[str, str]:
    """The text of each use case."""
    page = (DOCS / "guides" / "cookbook.md").read_text(encoding="utf-8")
    sections = re.split(r"^### (\d\.\d) ", page, flags=re.M)[1:]
    return dict(zip(sections[::2], [text.partition("\n## ")[0] for text in sections[1::2]], strict=True))


def blocks_of(text: str) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)


def lacks_of(text: str, *, no_capability: bool) -> list[str]:
    """What a use case lacks: code by hand with a hook, and the same with a capability, or why there is none."""
    by_hand, mark, ready_made = text.partition("\n**Ready-made:** ")
    first, after = blocks_of(by_hand), blocks_of(ready_made)
    linked = set(re.findall(r"\[`(\w+)`\]\(\.\./capabilities/", ready_made))
    rules = {
        "a part that is ready-made": not mark,
        "a block by hand": not first,
        "a hook in every block by hand": not all(HOOKED.search(code) for code in first),
        "a reason why no capability fits": no_capability and not re.match(r"none\. [A-Z].*\.", ready_made, re.S),
        "no code of a capability that does not fit": no_capability and bool(after),
        "a block with a capability": not no_capability and not after,
        "a link to the page of the capability": not no_capability and not any(name in str(after) for name in linked),
    }
    return [what for what, lacking in rules.items() if lacking]


def faults_of(code: str) -> list[str]:
    """What a recipe must not have: many lines, private names, a global clock, a loop in a loop; or no assertion."""
    nodes = list(ast.walk(ast.parse(code)))
    names = {str(getattr(node, field, "")) for node in nodes for field in ("id", "attr", "name", "module", "arg")}
    inner = [
        part
        for loop in nodes
        if isinstance(loop, LOOPS)
        for part in ast.walk(loop)
        if part is not loop and isinstance(part, LOOPS)
    ]
    rules = {
        "more than 12 lines": len([line for line in code.splitlines() if line.strip()]) > 12,
        "a private name": any(re.match(r"_[a-z]", name) for name in names),
        "a global clock": "time" in names or bool(re.search(r"asyncio\.(sleep|timeout|wait_for)|datetime", code)),
        "a loop in a loop": bool(inner),
        "no assertion": not any(isinstance(node, ast.Assert) for node in nodes),
    }
    return [fault for fault, found in rules.items() if found]


def test_the_cookbook_has_every_use_case_once_and_three_ways_to_use_a_critic():
    found = sections_of_the_cookbook()
    assert list(found) == USE_CASES
    assert [len(blocks_of(part)) for part in found["4.5"].split("**Ready-made:**")] == [3, 3]


@pytest.mark.parametrize("case", USE_CASES)
def test_each_use_case_is_done_by_hand_and_with_a_capability(case):
    assert lacks_of(sections_of_the_cookbook()[case], no_capability=case in NO_CAPABILITY) == []


HAND, READY = (
    "```python\n@agent.gate(X)\n```\n",
    "**Ready-made:** [`Trim`](../capabilities/trim.md)\n```python\nTrim()\n```\n",
)


@pytest.mark.parametrize(
    ("text", "no_capability", "lack"),
    [
        (f"{HAND}\n{READY}", False, None),
        (f"{HAND}\n**Ready-made:** none. Nothing fits.\n", True, None),
        (f"\n{READY}", False, "a block by hand"),
        (f"```python\nagent.run()\n```\n\n{READY}", False, "a hook in every block by hand"),
        (f"{HAND}\n**Ready-made:** none. Nothing fits.\n", False, "a block with a capability"),
        (f"{HAND}\n{READY.replace('[`Trim`]', '[`Route`]')}", False, "a link to the page of the capability"),
        (f"{HAND}\n{READY}", True, "a reason why no capability fits"),
    ],
)
def test_a_use_case_that_lacks_a_part_is_noticed(text, no_capability, lack):
    lacks = lacks_of(text, no_capability=no_capability)
    assert lacks == [] if lack is None else lack in lacks


@pytest.mark.parametrize("case", USE_CASES)
def test_a_recipe_is_short_and_uses_only_what_users_have(case):
    assert {code: faults for code in blocks_of(sections_of_the_cookbook()[case]) if (faults := faults_of(code))} == {}


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("assert True\n" * 13, "more than 12 lines"),
        ("assert agent._store", "a private name"),
        ("from windlass import _kernel\nassert True", "a private name"),
        ("import time\nassert time.time()", "a global clock"),
        ("assert await asyncio.sleep(1)", "a global clock"),
        ("for a in b:\n    assert [c for c in a]", "a loop in a loop"),
        ("agent.run_sync('go')", "no assertion"),
    ],
)
def test_a_recipe_that_breaks_a_rule_is_noticed(code, fault):
    assert faults_of(code) == [fault]


SHAPES = ["Router", "Map-reduce", "Supervisor", "Planner and executor", "Debate"]


def test_each_graph_shape_is_one_example_of_at_most_25_lines():
    page = (DOCS / "guides" / "graph-shapes.md").read_text(encoding="utf-8")
    sections = re.split(r"^## (.*)$", page, flags=re.M)[1:]
    assert sections[::2] == SHAPES
    for text in sections[1::2]:
        (code,) = re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S)
        assert len([line for line in code.splitlines() if line.strip()]) <= 25
        assert "assert " in code


# ---------------------------------------------------------------- the pages of capabilities

ELSEWHERE = {"AutoApprove": "approval", "RememberedRules": "", "RequestArchive": "", "Webhook": "approval"}
"""Capabilities without a page of their own, and the page that describes them."""


def pages_of_capabilities() -> list[tuple[str, str]]:
    """(capability, name of its page) for each that an agent can have."""
    kinds = {name: getattr(capabilities, name) for name in capabilities.__all__}
    named = [name for name, kind in kinds.items() if isinstance(kind, type) and hasattr(kind, "install")]
    pages = {name: re.sub(r"(?<!^)(?=[A-Z])", "-", name).lower() for name in named} | ELSEWHERE
    return [(name, page) for name, page in pages.items() if page]


def unexplained_options(kind: type, page: str) -> list[str]:
    """The options of a capability that its page does not name."""
    options = [name for name in inspect.signature(kind).parameters if name != "name"]
    return [option for option in options if not re.search(rf"`[^`\n]*\b{option}\b[^`\n]*`", page)]


@pytest.mark.parametrize(("capability", "page"), pages_of_capabilities())
def test_the_page_of_a_capability_has_an_example_and_explains_every_option(capability, page):
    text = (DOCS / "capabilities" / f"{page}.md").read_text(encoding="utf-8")
    assert unexplained_options(getattr(capabilities, capability), text) == []
    if capability in ELSEWHERE:
        return
    assert text.startswith(f"# {capability}\n\n")
    before, example = text.split("```python\n", 2)[:2]
    assert f"`{capability}`" in before
    assert "\n| argument" not in before, "the example comes before the options"
    assert len([line for line in example.partition("```")[0].splitlines() if line.strip()]) <= 20


def test_an_option_that_is_not_on_the_page_is_noticed():
    assert unexplained_options(capabilities.Trim, "`trigger`, `keep` and `Trim(note=…)`") == ["target"]


# ---------------------------------------------------------------- hooks use the clock of the turn

CLOCKS = {
    "time": {"time", "time_ns", "sleep", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    "asyncio": {"sleep", "timeout", "timeout_at", "wait_for"},
    "datetime": {"now", "utcnow", "today"},
}
"""What tells the time or pauses without `turn`, by module or class."""

NO_HOOKS = {
    "capabilities/file_index.py: (top)": "a time to compare with those of files",
    "capabilities/request_archive.py: purge": "the application calls it, or passes the time of a fact",
    "capabilities/shell_parser.py: _read": "the time that a process of the parser may take",
    "capabilities/steering.py: __aenter__": "a scope without a time limit, which a message ends",
    "guides/stores.md: (top)": "the application prunes a store",
    "start.md: refund": "a tool that is slow, so that it can be killed",
}
"""The functions that may, since no hook goes by their time."""


def uses_of_clocks(source: str) -> set[str]:
    """The innermost functions of a source that tell the time or pause without `turn`; "(top)" is outside of all."""
    found: set[str] = set()

    def visit(node: ast.AST, function: str) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            function = node.name
        owner = getattr(node, "value", None) if isinstance(node, ast.Attribute) else None
        name = getattr(owner, "id", "") or getattr(owner, "attr", "")
        if isinstance(node, ast.Attribute) and node.attr in CLOCKS.get(name, ()):
            found.add(function)
        if isinstance(node, ast.ImportFrom) and CLOCKS.get(node.module or "", set()) & {one.name for one in node.names}:
            found.add(function)
        for child in ast.iter_child_nodes(node):
            visit(child, function)

    visit(ast.parse(source), "(top)")
    return found


def test_no_hook_in_the_docs_the_examples_and_the_capabilities_has_a_clock_of_its_own():
    """No function there has one, but for those that are no hooks."""
    folders = {PROJECT: "examples/**/*.py", PROJECT / "src" / "windlass": "capabilities/**/*.py"}
    files = [(path.relative_to(folder), path) for folder, glob in folders.items() for path in folder.glob(glob)]
    sources = [(str(name), path.read_text(encoding="utf-8")) for name, path in files]
    for page in SHOWN:
        name = str(page.relative_to(DOCS if page.is_relative_to(DOCS) else PROJECT))
        blocks = re.findall(r"^ *```python\n(.*?)^ *```$", page.read_text(encoding="utf-8"), re.M | re.S)
        sources += [(name, textwrap.dedent(block)) for block in blocks]
    assert len(sources) > 300
    assert {f"{name}: {use}" for name, source in sources for use in uses_of_clocks(source)} == set(NO_HOOKS)


@pytest.mark.parametrize(
    "pause",
    [
        "asyncio.sleep(1)",
        "time.time()",
        "loop(time.monotonic)",
        "datetime.datetime.now(UTC)",
        "datetime.now()",
        "asyncio.timeout(3)",
    ],
)
def test_a_function_with_a_clock_of_its_own_is_noticed(pause):
    source = f"class Own:\n    def install(self, registrar):\n        async def hook(event):\n            {pause}\n"
    assert uses_of_clocks(source) == {"hook"}
    assert uses_of_clocks(source.replace(pause, "turn.sleep(turn.now())")) == set()
    assert uses_of_clocks("from time import monotonic\n") == {"(top)"}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(PROJECT)))
def test_the_links_of_the_page_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    broken = [match["target"] for match in LINK.finditer(text) if not (page.parent / match["target"]).exists()]
    assert broken == []
