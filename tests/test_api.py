"""The public API is what tests/api.txt says. Whoever changes it does so on purpose: `make api`, then read the diff."""

from __future__ import annotations

import ast
import difflib
import enum
import importlib
import inspect
import re
import subprocess
import sys
import typing
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import msgspec

PUBLIC = (
    "windlass",
    "windlass.agent_files",
    "windlass.approvals",
    "windlass.capabilities",
    "windlass.compat.agent_hooks",
    "windlass.compat.claude_code",
    "windlass.compat.conversations",
    "windlass.compat.langchain",
    "windlass.context.compaction",
    "windlass.context.prefixes",
    "windlass.criteria",
    "windlass.decisions",
    "windlass.deltas",
    "windlass.engines.pool",
    "windlass.engines.temporal",
    "windlass.errors",
    "windlass.evals",
    "windlass.evals.checks",
    "windlass.events",
    "windlass.matching",
    "windlass.mcp",
    "windlass.messages",
    "windlass.models",
    "windlass.outcomes",
    "windlass.policies",
    "windlass.protocols",
    "windlass.records",
    "windlass.replay",
    "windlass.server",
    "windlass.states",
    "windlass.stores",
    "windlass.testing",
    "windlass.testing.strategies",
    "windlass.tools",
    "windlass.transfer",
    "windlass.types",
)
"""The modules that users import from; docs/stability.md lists the same."""

PROJECT = Path(__file__).resolve().parent.parent
SNAPSHOT = PROJECT / "tests" / "api.txt"
HEAD = "# The public API, one line per name. Written by `make api`; see docs/stability.md.\n"


# ---------------------------------------------------------------- what is public


def names_of(module: ModuleType) -> list[str]:
    """What a module offers: its `__all__`, or else all that it defines without an underscore."""
    if hasattr(module, "__all__"):
        return sorted(module.__all__)
    return sorted(name for name in assigned(module) if not name.startswith("_") and name not in TYPE_VARIABLES)


TYPE_VARIABLES = {"D", "E", "P", "T", "FactT", "OutputT", "ScopeT"}


def assigned(module: ModuleType) -> dict[str, ast.stmt]:
    """The names that a module's own statements bind, imports aside."""
    found: dict[str, ast.stmt] = {}
    for node in ast.parse(inspect.getsource(module)).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            found[node.name] = node
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found[node.target.id] = node
        elif isinstance(node, ast.Assign):
            found |= {target.id: node for target in node.targets if isinstance(target, ast.Name)}
    return found


def homes() -> dict[int, str]:
    """Where each class and function is described: the public module that defines it, or else `windlass`."""
    found: dict[int, str] = {}
    for module in map(importlib.import_module, PUBLIC):
        for name in names_of(module):
            value = getattr(module, name)
            if isinstance(value, type | FunctionType) and (
                value.__module__ == module.__name__ or id(value) not in found
            ):
                found[id(value)] = f"{module.__name__}.{name}"
    return found


# ---------------------------------------------------------------- how it is shown


def snapshot() -> str:
    """The whole API as text."""
    at_home = homes()
    lines: set[str] = set()
    for module in map(importlib.import_module, PUBLIC):
        for name in names_of(module):
            lines.update(lines_of(module, name, at_home))
    return HEAD + "".join(f"{line}\n" for line in sorted(lines, key=lambda line: line.removeprefix("async ")))


def lines_of(module: ModuleType, name: str, at_home: dict[int, str]) -> Iterator[str]:
    """One name of a module: where it is at home, or what it is."""
    value, place = getattr(module, name), f"{module.__name__}.{name}"
    home = at_home.get(id(value), place)
    if home != place:
        yield f"{place} -> {home}"
    elif isinstance(value, type):
        yield from class_lines(place, value)
    elif isinstance(value, FunctionType):
        yield from function_lines(place, value)
    else:
        yield f"{place}{constant(module, name)}"


def constant(module: ModuleType, name: str) -> str:
    """An alias with what it stands for, any other value with its type."""
    node = assigned(module).get(name)
    source = inspect.getsource(module)
    if isinstance(node, ast.AnnAssign):
        annotation = ast.unparse(node.annotation)
        if annotation != "TypeAlias":
            return f": {annotation}"
    elif not isinstance(node, ast.Assign) or not hasattr(getattr(module, name), "__origin__"):
        return f": {type(getattr(module, name)).__name__}"
    assert node.value is not None
    text = re.sub(r"#.*", "", ast.get_source_segment(source, node.value) or "")
    return " = " + re.sub(r"(?<=\[) |,? (?=\])", "", " ".join(text.split()))


def class_lines(place: str, kind: type) -> Iterator[str]:
    """A class: how it is made and what it is, then its own members."""
    bases = ", ".join(base.__name__ for base in kind.__bases__ if base not in UNTOLD)
    of = f" ({bases})" if bases else ""
    if issubclass(kind, enum.Enum):
        yield f"{place}{of}"
        yield from [f"{place}.{member.name} = {member.value!r}" for member in kind]
    elif getattr(kind, "_is_protocol", False) or kind.__name__ in MADE_BY_US:
        yield f"{place}{of}"
    else:
        yield f"{place}{parameters(kind)}{of}"
    for name, member in members(kind).items():
        yield from member_lines(f"{place}.{name}", member)


GIVEN = {
    "Calls", "CallState", "Explanation", "OpenStep", "Result", "Session", "State", "Step", "Stream", "Tool", "Turn",
    "TurnState", "Watch", "Why",
}  # fmt: skip
"""What users are given and never make: how it is made is not promised, only what it has."""

MADE_BY_US = {*GIVEN, "FakeTurn", "Registrar", "Storage", "World"}
"""The same, for classes of which only their own members are shown."""

UNTOLD = {object, msgspec.Struct, typing.Generic, typing.Protocol}


def members(kind: type) -> dict[str, Any]:
    """The members that a class defines; fields that its signature shows are not repeated."""
    given = kind.__name__ in GIVEN
    owners = [owner for owner in kind.__mro__ if owner.__module__.startswith("windlass")] if given else [kind]
    own = {name: member for owner in reversed(owners) for name, member in vars(owner).items()}
    if inspect.isfunction(init := own.get("__init__")):
        own |= dict.fromkeys(re.findall(r"^ +self\.([a-z]\w*)(?:: .+?)? = ", inspect.getsource(init), re.M))
    told = [member.name for member in kind] if issubclass(kind, enum.Enum) else getattr(kind, "__struct_fields__", ())
    own |= {field.name: field for field in fields(kind)} if given and told else {}
    return {name: own[name] for name in own if name[0] != "_" and (given or name not in told)}


def member_lines(place: str, member: Any) -> Iterator[str]:
    if isinstance(member, staticmethod | classmethod):
        member = member.__func__
    if isinstance(member, property):
        yield f"{place}: {annotation(inspect.signature(member.fget).return_annotation)}"  # type: ignore[arg-type]
    elif isinstance(member, inspect.Parameter):
        yield f"{place}: {member.annotation}"
    elif isinstance(member, FunctionType):
        yield from function_lines(place, member)
    elif isinstance(member, type) and member.__qualname__.endswith("." + member.__name__):
        yield from class_lines(place, member)
    elif isinstance(member, str | tuple | type | enum.Enum):
        yield f"{place} = {default(member)}"
    else:
        yield place


def function_lines(place: str, fn: FunctionType) -> Iterator[str]:
    """A function, each of its overloads, and the options it takes by keyword."""
    kept = inspect.unwrap(fn)
    how = "async " if inspect.iscoroutinefunction(kept) or inspect.isasyncgenfunction(kept) else ""
    for shape in typing.get_overloads(fn) or [fn]:
        yield f"{how}{place}{parameters(shape)}"
    for given in inspect.signature(fn).parameters.values():
        if given.kind is given.VAR_KEYWORD and (match := re.match(r"Unpack\[(\w+)\]", str(given.annotation))):
            options = fn.__globals__[match[1]].__annotations__
            taken = ", ".join(f"{name}: {getattr(of, '__forward_arg__', of)}" for name, of in sorted(options.items()))
            yield f"{place} options: {taken}"


def parameters(made: Any) -> str:
    """A signature in the words of the source, the same in every version of Python."""
    if hasattr(made, "__struct_fields__"):
        return str(inspect.Signature(fields(made)))
    try:
        signature = inspect.signature(made)
    except ValueError:  # an exception without an __init__ of its own
        return "(*args)"
    returned = signature.return_annotation
    arrow = "" if isinstance(made, type) or returned is signature.empty else f" -> {annotation(returned)}"
    return str(inspect.Signature([shown(given) for given in signature.parameters.values()])) + arrow


def fields(struct: Any) -> list[inspect.Parameter]:
    """The fields of a struct as the parameters it is made with."""
    written: dict[str, Any] = {}
    for owner in reversed(struct.__mro__):
        written |= vars(owner).get("__annotations__", {})
    names, defaults = struct.__struct_fields__, struct.__struct_defaults__
    missing = [inspect.Parameter.empty] * (len(names) - len(defaults))
    made = []
    for name, value in zip(names, [*missing, *defaults], strict=True):
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        if name not in struct.__match_args__:
            kind = inspect.Parameter.KEYWORD_ONLY
        value = inspect.Parameter.empty if value is msgspec.NODEFAULT else value
        made.append(shown(inspect.Parameter(name, kind, default=value, annotation=written[name])))
    return made


def shown(given: inspect.Parameter) -> inspect.Parameter:
    if given.annotation is not given.empty:
        given = given.replace(annotation=_Words(annotation(given.annotation)))
    return given if given.default is given.empty else given.replace(default=_Words(default(given.default)))


class _Words:
    """Something that is shown just so."""

    def __init__(self, words: str) -> None:
        self.words = words

    def __repr__(self) -> str:
        return self.words


def annotation(told: Any) -> str:
    return told if isinstance(told, str) else getattr(told, "__name__", str(told))


def default(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type):
        return value.__name__
    if isinstance(value, tuple) and value:
        return f"({', '.join(map(default, value))})"
    if (factory := getattr(value, "factory", None)) is not None:
        return f"{factory.__name__}()"
    text = repr(value)
    return "…" if value is ... or " at 0x" in text or len(text) > 60 else text


# ---------------------------------------------------------------- the tests


def test_the_public_api_is_what_the_snapshot_says():
    kept = SNAPSHOT.read_text(encoding="utf-8")
    changed = difflib.unified_diff(
        kept.splitlines(), snapshot().splitlines(), "tests/api.txt", "the code", "", "", 0, ""
    )
    assert not (text := "\n".join(changed)), (
        "the public API has changed. If that is meant: `make api`, read docs/stability.md, say it in CHANGELOG.md\n"
        + text
    )


def test_every_public_name_exists_and_is_listed_once():
    for module in map(importlib.import_module, PUBLIC):
        listed = getattr(module, "__all__", [])
        assert len(listed) == len(set(listed)), module.__name__
        assert [name for name in listed if not hasattr(module, name)] == [], module.__name__


def test_the_page_on_stability_lists_the_public_modules():
    page = (PROJECT / "docs" / "stability.md").read_text(encoding="utf-8")
    assert tuple(re.findall(r"^\| `(windlass[\w.]*)` \|", page, re.M)) == PUBLIC


def test_the_wheel_says_that_it_is_typed(tmp_path):
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path)]
    done = subprocess.run(build, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [wheel] = tmp_path.glob("*.whl")
    packed = zipfile.ZipFile(wheel).namelist()
    assert "windlass/py.typed" in packed
    assert {name.partition("/")[0].partition("-")[0] for name in packed} == {"windlass"}


if __name__ == "__main__":
    SNAPSHOT.write_text(snapshot(), encoding="utf-8")
    sys.exit()
