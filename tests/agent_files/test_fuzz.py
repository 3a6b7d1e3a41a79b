"""Whatever an agent file contains, it makes an agent or an error whose lines are lines of the file.

`make campaign` tries 12,000 files.
"""

from __future__ import annotations

import json
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from windlass import Agent
from windlass.agent_files import AgentFileError, Problem, load_agent_file
from windlass.agent_files.installed import capability_names
from windlass.agent_files.positions import line_numbers
from windlass.agent_files.schema import HOOK, LIMITS, agent_shape, subagent_shape

from .conftest import MODULE

CASES = 2_000 if os.environ.get("WINDLASS_CAMPAIGN") else 120
FUZZ = settings(max_examples=CASES, deadline=None, suppress_health_check=list(HealthCheck))

VALID = """\
model = { use = "parts:model" }
tools = [
  "parts:add",
]
system = '''
Add.'''
[limits]
max_steps = 3
[capabilities.retry]
attempts = 2
[[hooks]]
verb = "gate"
event = "ToolCalling"
run = "parts:refuse"
[subagents.x]
model = { use = "parts:model" }
"""

LETTERS = st.text(st.sampled_from("abcxyz_- .:\"'\\#[]{}=\n\tü€😀"), max_size=8)
WORDS = st.sampled_from(
    ["parts:add", "parts:model", "parts:refuse", "openai:gpt-5", "memory:", "gate", "ToolCalling", "guard", "AtTokens"]
)
KEYS = st.one_of(
    st.sampled_from(
        [*agent_shape().keys, *subagent_shape().keys, *LIMITS, *HOOK.keys, *capability_names(), "use", "load", "band"]
    ),
    LETTERS,
)
SCALARS = st.one_of(
    WORDS,
    LETTERS,
    st.booleans(),
    st.integers(-(10**20), 10**20),
    st.floats(),
    st.datetimes(),
    st.just({"use": "parts:model"}),
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=12
)


@pytest.fixture(scope="module", autouse=True)
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One folder for all cases, with the module that they name."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "parts.py").write_text(MODULE)
    before, modules, home = [*sys.path], dict(sys.modules), Path.cwd()
    os.chdir(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WINDLASS_HOME", str(folder / "home"))
        patch.setenv("OPENAI_API_KEY", "none")
        yield folder
    os.chdir(home)
    sys.path[:] = before
    for name in set(sys.modules) - set(modules):
        if name == "parts":
            del sys.modules[name]


def check(content: bytes) -> None:
    file = Path("fuzz.toml")
    file.write_bytes(content)
    problems: Sequence[Problem] = ()
    try:
        assert isinstance(load_agent_file(file), Agent)
        return
    except AgentFileError as error:
        problems = error.problems
    lines = content.count(b"\n") + 1
    assert problems
    assert all(1 <= problem.line <= lines for problem in problems), (content, problems)


def dump(value: Any) -> str:
    """A value in TOML, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join([f"{text(key)} = {dump(item)}" for key, item in value.items()]) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    if isinstance(value, str):
        return text(value)
    if isinstance(value, bool):
        return str(value).lower()
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def text(value: str) -> str:
    return json.dumps(value, ensure_ascii=False)


@FUZZ
@given(st.dictionaries(KEYS, VALUES, max_size=6))
def test_any_table_makes_an_agent_or_problems_with_lines(data: dict[str, Any]):
    check("\n".join([f"{text(key)} = {dump(value)}" for key, value in data.items()]).encode())


@FUZZ
@given(st.dictionaries(st.sampled_from([*agent_shape().keys]), VALUES, max_size=4))
def test_any_values_beside_a_valid_model_do(data: dict[str, Any]):
    given = {"model": {"use": "parts:model"}, **data}
    check("\n".join([f"{key} = {dump(value)}" for key, value in given.items()]).encode())


@FUZZ
@given(st.dictionaries(st.sampled_from(capability_names()), st.dictionaries(KEYS, VALUES, max_size=3), max_size=3))
def test_any_options_of_capabilities_do(data: dict[str, Any]):
    check(f'model = {{ use = "parts:model" }}\ncapabilities = {dump(data)}\n'.encode())


@FUZZ
@given(st.lists(st.tuples(st.integers(0, len(VALID)), st.integers(0, 6), LETTERS), max_size=3))
def test_any_change_of_a_valid_file_does(changes: list[tuple[int, int, str]]):
    content = VALID
    for at, length, new in changes:
        content = content[:at] + new + content[at + length :]
    check(content.encode())


@FUZZ
@given(st.binary(max_size=200))
def test_any_bytes_do(content: bytes):
    check(content)


@FUZZ
@given(st.dictionaries(KEYS, VALUES, max_size=6), st.lists(st.dictionaries(KEYS, VALUES, max_size=2), max_size=3))
def test_every_key_has_the_line_on_which_it_is_written(data: dict[str, Any], tables: list[dict[str, Any]]):
    lines: list[str] = []
    expected: dict[tuple[str | int, ...], int] = {}

    def write(table: dict[str, Any], path: tuple[str | int, ...]) -> None:
        for key, value in table.items():
            lines.append(f"{text(key)} = {dump(value)}  # a comment")
            expected[*path, key] = len(lines)

    write(data, ())
    for at, table in enumerate(tables):
        lines.extend(["", '[["a table".x]]'])
        expected["a table", "x", at] = len(lines)
        write(table, ("a table", "x", at))
    content = "\n".join(lines)
    tomllib.loads(content)
    found = line_numbers(content)
    assert {path: found.get(path) for path in expected} == expected
