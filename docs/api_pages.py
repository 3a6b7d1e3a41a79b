"""The reference of every public name: signature, docstring, and a table that explains each parameter and field.

Every class has a page. The page of its module, or of its topic, lists the classes and has all functions and values.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import inspect
import re
import sys
import textwrap
import tomllib
import typing
from collections.abc import Iterator
from enum import Enum
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

DOCS = Path(__file__).resolve().parent
SIGNATURES = DOCS.parent / "tests" / "test_api.py"
FOLDER = "reference/api"

TOPICS: dict[str, tuple[str, str]] = {
    "agent": (
        "Agents, sessions and results",
        "Agent Session Result Stream Batch BatchItem BatchProgress Watch StepReport CallReport Explanation Why",
    ),
    "registrar": ("Registering hooks", "Registrar Hooks Lifecycle LifecycleHook HookAction"),
    "turn": ("The turn object", "Turn Left ContextWindow Delegation"),
    "tools": ("Tools and slots", "tool Tool Slot under"),
    "pipeline": ("Pipelines", ""),
}
"""The pages of the names that only `windlass` has; the last one has all that no other lists."""


@cache
def public() -> ModuleType:
    """The test that knows what is public and how a signature is written."""
    spec = importlib.util.spec_from_file_location("windlass_signatures", SIGNATURES)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@cache
def explanations() -> dict[str, dict[str, str]]:
    """The meaning of parameters by place, from docs/parameters.toml."""
    return tomllib.loads((DOCS / "parameters.toml").read_text(encoding="utf-8"))


@cache
def tree_of(module: str) -> ast.Module:
    """The source of a module, parsed."""
    return ast.parse(inspect.getsource(importlib.import_module(module)))


@cache
def home_of() -> dict[int, str]:
    """The place of each public class and function, by its identity."""
    places: dict[int, str] = public().homes()
    return places


# ---------------------------------------------------------------- pages


@cache
def homes() -> dict[str, list[str]]:
    """The public names at home on each page, such as `windlass.Agent`, and nothing twice."""
    pages: dict[str, list[str]] = {topic: [] for topic in TOPICS}
    topic_of = {name: topic for topic, (_, names) in TOPICS.items() for name in names.split()}
    at_home = home_of()
    for module in map(importlib.import_module, public().PUBLIC):
        for name in public().names_of(module):
            place = f"{module.__name__}.{name}"
            if at_home.get(id(getattr(module, name)), place) != place:
                continue
            page = topic_of.get(name, "pipeline") if module.__name__ == "windlass" else page_of(module.__name__)
            pages.setdefault(page, []).append(place)
    order = {name: at for _, names in TOPICS.values() for at, name in enumerate(names.split())}
    return {page: sorted(places, key=lambda place: order.get(last(place), 99)) for page, places in pages.items()}


def page_of(module: str) -> str:
    """The name of the page of a module."""
    return module.removeprefix("windlass.").replace(".", "-")


def last(place: str) -> str:
    """The last name of a place."""
    return place.rpartition(".")[2]


@cache
def classes() -> dict[str, str]:
    """The public classes, such as `windlass.Agent`, with the path of the page of each in the folder."""
    found = [(page, place) for page, places in homes().items() for place in places]
    return {place: f"{page}/{last(place)}.md" for page, place in found if isinstance(value_at(place), type)}


def paths() -> list[str]:
    """The paths of all pages."""
    pages = ["README.md", *[f"{page}.md" for page in homes()], *classes().values()]
    return [f"{FOLDER}/{page}" for page in pages]


def text_of(path: str) -> str:
    """The page at a path."""
    inner = path.removeprefix(f"{FOLDER}/")
    if inner == "README.md":
        return index_text()
    if "/" in inner:
        return class_page(next(place for place, of_class in classes().items() if of_class == inner))
    page = Path(inner).stem
    return page_text(page, homes()[page])


def title_of(page: str, places: list[str]) -> tuple[str, str]:
    """The heading of a page and the sentence below it."""
    if page in TOPICS:
        return TOPICS[page][0], "These names are in `windlass`."
    module = places[0].rpartition(".")[0]
    sentence = " ".join((inspect.getdoc(importlib.import_module(module)) or "").split("\n\n")[0].split())
    return f"`{module}`", sentence


def class_page(place: str) -> str:
    """The page of one class."""
    page = next(page for page, places in homes().items() if place in places)
    title, _ = title_of(page, homes()[page])
    exported = [name for name, value in exports().items() if value is value_at(place)]
    named = f"windlass.{exported[0]}" if exported else place
    return f"""{note()}
# {last(place)}

`{named}` · [{title}](../{page}.md) · [All names](../README.md)

{class_text(place, value_at(place)).rstrip()}
"""


def page_text(page: str, places: list[str]) -> str:
    """The page of a module or topic: a section for each name."""
    title, sentence = title_of(page, places)
    sections = "".join([section(place) for place in places])
    return f"""{note()}
# {title}

{sentence} [All names](README.md).

{sections.rstrip()}
"""


def note() -> str:
    return "<!-- Generated by docs/generate.py. Change the code, then run `python docs/generate.py`. -->\n"


def index_text() -> str:
    """The list of all public names, with the page of each."""
    rows = []
    where = {place: page for page, places in homes().items() for place in places}
    exported = {home_of().get(id(value)): name for name, value in exports().items()}
    for place in sorted(where, key=lambda place: last(place).lower()):
        short = f"windlass.{exported[place]}" if place in exported else place
        target = classes().get(place) or f"{where[place]}.md#{anchor(last(place))}"
        rows.append(f"| [`{short}`]({target}) | {first_sentence(place)} |")
    links = [f"- [{title_of(page, places)[0]}]({page}.md)" for page, places in homes().items() if places]
    return f"""{note()}
# All public names

Every class, function and type with its parameters, generated from the code. Every class has a page of its own;
functions and types are on the page of their module. `{"`, `".join(COMMON)}` mean the same
everywhere:

{table(["parameter", "meaning"], [[f"`{name}`", explanations()["everywhere"][name]] for name in COMMON])}
## Pages

{chr(10).join(links)}

## Names

| name | meaning |
| --- | --- |
{chr(10).join(rows)}
"""


COMMON = ("session", "scope", "turn", "answers", "takeover")


def exports() -> dict[str, Any]:
    module = importlib.import_module("windlass")
    return {name: getattr(module, name) for name in module.__all__}


def value_at(place: str) -> Any:
    module, _, name = place.rpartition(".")
    return getattr(importlib.import_module(module), name)


def first_sentence(place: str) -> str:
    text = " ".join(prose(place, value_at(place)).split("\n\n")[0].split())
    return cell(re.split(r"(?<=\.) (?=[A-Z`])", text)[0].rstrip("."))


def anchor(heading: str) -> str:
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


# ---------------------------------------------------------------- sections


def section(place: str) -> str:
    """A function or a value, or where a class is explained."""
    value = value_at(place)
    head = f"## {last(place)}\n\n"
    if isinstance(value, type):
        return f"{head}{first_sentence(place)}. See [`{last(place)}`]({classes()[place]}).\n\n"
    if isinstance(value, FunctionType):
        return head + function_text(place, value)
    module = importlib.import_module(place.rpartition(".")[0])
    return f"{head}{fenced(last(place) + public().constant(module, last(place)))}{paragraph(prose(place, value))}"


def class_text(place: str, kind: type) -> str:
    """How a class is made, what it is, its parameters, attributes and methods."""
    given = kind.__name__ in public().MADE_BY_US or getattr(kind, "_is_protocol", False)
    shape = "" if given or issubclass(kind, Enum) else public().parameters(kind)
    bases = [base for base in kind.__bases__ if base.__module__.startswith("windlass") and base.__name__[0] != "_"]
    parts = [
        fenced(f"class {kind.__name__}{shape}") if not shape else fenced(kind.__name__ + shape),
        paragraph(f"A kind of {', '.join([link(base) for base in bases])}.") if bases else "",
        paragraph(prose(place, kind)),
        members_table(place, kind) if issubclass(kind, Enum) else "",
        parameters_table(place, kind) if shape else "",
        attributes_table(place, kind),
    ]
    methods = {inner: method for inner, method in callables(place, kind) if inner != place}
    of_store: list[str] = []
    for port in STORES:
        if named := [last(inner) for inner in methods if is_of_store(kind, last(inner), port)]:
            names = ", ".join(f"`{name}`" for name in named)
            parts.append(paragraph(f"It has the methods of [`{port}`](../protocols/{port}.md): {names}."))
        of_store += named
    for inner, method in methods.items():
        if last(inner) not in of_store:
            parts.append(f"## {kind.__name__}.{last(inner)}\n\n{function_text(inner, method)}")
    return "".join(parts)


STORES = ("Store", "WorkStore")
"""The protocols that describe stores."""


def is_of_store(kind: type, name: str, port: str) -> bool:
    """Whether it is a method of a store that this protocol describes, and that says nothing of its own."""
    protocol = getattr(importlib.import_module("windlass.protocols"), port)
    return kind.__module__.startswith("windlass.stores") and name in vars(protocol) and not vars(kind)[name].__doc__


def link(kind: type) -> str:
    """The name of a class on the page of another one, as a link if it is public."""
    place = home_of().get(id(kind), "")
    return f"[`{kind.__name__}`](../{classes()[place]})" if place in classes() else f"`{kind.__name__}`"


def members_table(place: str, kind: Any) -> str:
    rows = [[f"`{member.name}`", f"`{member.value!r}`"] for member in kind]
    return table(["member", "value"], rows) + "\n"


def attributes_table(place: str, kind: type) -> str:
    """The attributes and properties, which are not parameters."""
    rows = []
    for name, member in public().members(kind).items():
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if isinstance(function, FunctionType) or (
            isinstance(kind, type) and issubclass(kind, Enum) and name in kind.__members__
        ):
            continue
        (line,) = list(public().member_lines("", member))[:1]
        kind_of = re.sub(r"^: ", "", line) if line.startswith(": ") else ""
        text = inspect.getdoc(member) if isinstance(member, property) else ""
        if isinstance(member, property) and not text:
            text = inherited_text(kind, name)
        meaning = " ".join((text or "").split()) or meaning_of(f"{place}", name, kind) or ""
        rows.append([f"`{name}`", code(kind_of), cell(meaning)])
    return table(["attribute", "type", "meaning"], rows) + "\n" if rows else ""


def function_text(place: str, fn: FunctionType) -> str:
    """The shapes of a function, its docstring, its parameters and options."""
    kept = inspect.unwrap(fn)
    how = "async " if inspect.iscoroutinefunction(kept) else ""
    name = last(place)
    shapes = [f"{how}{name}{without_self(shape)}" for shape in typing.get_overloads(fn) or [fn]]
    text = prose(place, fn)
    return "".join([fenced(*shapes), paragraph(text), parameters_table(place, fn), options_table(place, fn)])


def without_self(shape: Any) -> str:
    text = public().parameters(shape)
    return re.sub(r"^\((?:self|cls)(?:: [^,)]*(?:\[[^\]]*\])?)?(?:, |(?=\)))", "(", text).replace("(/, ", "(")


def parameters_table(place: str, made: Any) -> str:
    """Each parameter with its type, its default and its meaning."""
    rows = []
    base = home_of_parameters(made)
    for given in parameters_of(made):
        if (given.kind is given.VAR_KEYWORD and options_of(made)) or given.name in base:
            continue
        default = "" if given.default is given.empty else code(str(public().shown(given).default))
        kind = "" if given.annotation is given.empty else code(public().annotation(given.annotation))
        meaning = meaning_of(place, given.name, made) or ""
        rows.append([f"`{stars(given)}{given.name}`", kind, default, cell(meaning)])
    return table(["parameter", "type", "default", "meaning"], rows) + "\n" if rows else ""


def home_of_parameters(made: Any) -> set[str]:
    """The parameters that a public base class explains: the fields of a fact, the details of a model's error."""
    if not isinstance(made, type):
        return set()
    for base in made.__mro__[1:]:
        if id(base) in home_of() and base.__name__ in ("Fact", "Record", "ModelError", "HookError", "SessionError"):
            return {given.name for given in parameters_of(base)} - {"message"}
    return set()


def stars(given: inspect.Parameter) -> str:
    return {given.VAR_POSITIONAL: "*", given.VAR_KEYWORD: "**"}.get(given.kind, "")


def parameters_of(made: Any) -> list[inspect.Parameter]:
    """The parameters that a caller passes, over all overloads."""
    if hasattr(made, "__struct_fields__"):
        return list(public().fields(made))
    found: dict[str, inspect.Parameter] = {}
    shapes = typing.get_overloads(made) if isinstance(made, FunctionType) else []
    for shape in shapes or [made]:
        try:
            taken = inspect.signature(shape).parameters.values()
        except ValueError:  # an exception without an __init__ of its own
            return []
        found |= {given.name: given for given in taken if given.name not in ("self", "cls", *found)}
    return list(found.values())


def options_of(fn: Any) -> Any:
    """The TypedDict that declares the options which a function takes by keyword, if it has one."""
    if not isinstance(fn, FunctionType):
        return None
    for given in inspect.signature(fn).parameters.values():
        match = re.match(r"Unpack\[(\w+)\]", str(given.annotation))
        if given.kind is given.VAR_KEYWORD and match:
            return fn.__globals__[match[1]]
    return None


def options_table(place: str, fn: FunctionType) -> str:
    """Each option that a function takes by keyword."""
    options = options_of(fn)
    rows = [
        [f"`{name}`", code(getattr(of, "__forward_arg__", str(of))), cell(meaning_of_option(place, name, fn) or "")]
        for name, of in sorted(options.__annotations__.items() if options else ())
    ]
    return table(["option", "type", "meaning"], rows) + "\n" if rows else ""


def meaning_of_option(place: str, name: str, fn: FunctionType) -> str | None:
    """What the TypedDict says about an option, or the docstring, or docs/parameters.toml."""
    options = options_of(fn)
    return field_texts(options.__module__, options.__name__).get(name) or meaning_of(place, name, fn)


# ---------------------------------------------------------------- what is said about a name


def prose(place: str, thing: Any) -> str:
    """The docstring, without the list of parameters, which goes into the table."""
    if not isinstance(thing, type | FunctionType):
        return constant_text(place)
    return re.sub(r"(?:^- `\w+`: .*\n?(?:^  .*\n?)*)+", "", own_text(place, thing), flags=re.M).strip()


def own_text(place: str, thing: Any) -> str:
    """The docstring of a class or function, or the one that it inherits."""
    text = inspect.getdoc(thing) or ""
    if not text and isinstance(thing, FunctionType):
        owner = value_at(place.rpartition(".")[0])
        text = inherited_text(owner, thing.__name__)
    made = f"{getattr(thing, '__name__', '')}("
    return "" if text.startswith(made) else text


def inherited_text(kind: type, name: str) -> str:
    """What a base class or the protocol of stores says about a member."""
    protocols = importlib.import_module("windlass.protocols")
    ports = [getattr(protocols, port) for port in STORES] if kind.__module__.startswith("windlass.stores") else []
    for owner in (*kind.__mro__[1:], *ports):
        if name in vars(owner) and (text := inspect.getdoc(vars(owner)[name])):
            return text
    return ""


def constant_text(place: str) -> str:
    """The string below an assignment."""
    module, _, name = place.rpartition(".")
    return field_texts(module, "").get(name, "")


@cache
def field_texts(module: str, name: str) -> dict[str, str]:
    """The strings below the fields of a class and of its bases in the module; without a name, of the module itself."""
    tree = tree_of(module)
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    body: list[ast.stmt] = tree.body if not name else classes[name].body if name in classes else []
    texts: dict[str, str] = {}
    for base in classes[name].bases if name in classes else []:
        texts |= field_texts(module, base.id) if isinstance(base, ast.Name) and base.id in classes else {}
    for node, following in pairwise(body):
        target = node.target if isinstance(node, ast.AnnAssign) else None
        target = node.targets[0] if isinstance(node, ast.Assign) else target
        if (
            isinstance(target, ast.Name)
            and isinstance(following, ast.Expr)
            and isinstance(following.value, ast.Constant)
        ):
            texts[target.id] = " ".join(str(following.value.value).split())
    return texts


def meaning_of(place: str, name: str, thing: Any) -> str | None:
    """What a parameter or field means: said for it, in the text above, or the same everywhere; None if nowhere."""
    for text in texts_about(place, thing):
        if listed := re.search(rf"^- `{re.escape(name)}`: (.*(?:\n  .*)*)", text, re.M):
            return " ".join(listed[1].split())
    kind = thing if isinstance(thing, type) else type(None)
    for owner in kind.__mro__:
        if owner.__module__.startswith("windlass") and (
            text := field_texts(owner.__module__, owner.__name__).get(name)
        ):
            return text
    scope = place
    while scope:
        if text := explanations().get(scope, {}).get(name):
            return text
        scope = scope.rpartition(".")[0]
    if any(re.search(rf"`[^`\n]*\b{re.escape(name)}\b[^`\n]*`", text) for text in texts_about(place, thing)):
        return "see above"
    return explanations()["everywhere"].get(name)


def texts_about(place: str, thing: Any) -> list[str]:
    """The docstrings that may explain a parameter: its own, and for a method or a base that of the class."""
    texts = [own_text(place, thing)] if isinstance(thing, type | FunctionType) else []
    if isinstance(thing, type):
        bases = [base for base in thing.__mro__[1:] if base.__module__.startswith("windlass")]
        texts += [inspect.getdoc(base) or "" for base in bases]
        if isinstance(init := vars(thing).get("__init__"), FunctionType):
            texts.append(inspect.getdoc(init) or "")
    return texts


# ---------------------------------------------------------------- what is missing


def unexplained() -> Iterator[str]:
    """The parameters, fields and names that nothing explains, and explanations of what is gone."""
    used: set[str] = set()
    for places in homes().values():
        for place in places:
            value = value_at(place)
            if not prose(place, value) and isinstance(value, type | FunctionType):
                yield f"{place} has no docstring"
            for inner, made in callables(place, value):
                used |= {inner.rsplit(".", count)[0] for count in range(inner.count(".") + 1)}
                if inner != place and not own_text(inner, made):
                    yield f"{inner} has no docstring"
                for given in parameters_of(made):
                    option = given.kind is given.VAR_KEYWORD and options_of(made)
                    if not option and meaning_of(inner, given.name, made) is None:
                        yield f"{inner}: parameter `{given.name}` is not explained"
                options = options_of(made)
                for name in options.__annotations__ if options else ():
                    if meaning_of_option(inner, name, made) is None:
                        yield f"{inner}: option `{name}` is not explained"
    for place in explanations():
        if place != "everywhere" and place not in used:
            yield f"docs/parameters.toml: there is no {place}"


def callables(place: str, value: Any) -> Iterator[tuple[str, Any]]:
    """A function, or a class and its methods."""
    if isinstance(value, FunctionType):
        yield place, value
    if not isinstance(value, type):
        return
    made = value.__name__ in public().MADE_BY_US or getattr(value, "_is_protocol", False) or issubclass(value, Enum)
    if not made:
        yield place, value
    for name, member in public().members(value).items():
        function = member.__func__ if isinstance(member, staticmethod | classmethod) else member
        if isinstance(function, FunctionType):
            yield f"{place}.{name}", function


# ---------------------------------------------------------------- Markdown


def fenced(*lines: str) -> str:
    return "```text\n" + "".join(f"{wrapped(line)}\n" for line in lines) + "```\n\n"


def wrapped(line: str) -> str:
    """A signature on one line, or one line for each parameter."""
    if len(line) <= 100 or "(" not in line:
        return line
    head, _, rest = line.partition("(")
    depth, start, inside, at = 1, 0, [], 0
    for at, letter in enumerate(rest):
        depth += {"(": 1, "[": 1, "{": 1, ")": -1, "]": -1, "}": -1}.get(letter, 0)
        if (letter == "," and depth == 1) or depth == 0:
            inside.append(rest[start:at].strip())
            start = at + 1
        if depth == 0:
            break
    return f"{head}(\n" + "".join(f"    {one},\n" for one in inside if one) + f"){rest[at + 1 :]}"


def paragraph(text: str) -> str:
    return f"{textwrap.dedent(text).strip()}\n\n" if text.strip() else ""


def table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def code(text: str) -> str:
    return f"`{cell(text)}`" if text else ""


def cell(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", " ".join(text.split()))


if __name__ == "__main__":
    sys.stdout.writelines(f"{line}\n" for line in unexplained())
