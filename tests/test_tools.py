"""Tools: what is derived from a function, what a model is told, and how calls reach the function."""

from __future__ import annotations

import asyncio
import enum
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Optional, TypedDict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Meta, Struct

from windlass.errors import ToolDefinitionError, ToolError
from windlass.messages import ToolCall, ToolSpec
from windlass.slots import Slot
from windlass.tools import ArgumentsError, Tool, ToolAnnotations, tool, toolset

if TYPE_CHECKING:
    from nowhere import Elsewhere  # type: ignore[import-not-found]


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass
class Point:
    x: int
    y: int = 0


class Pair(NamedTuple):
    left: int
    right: str


class Options(TypedDict):
    deep: bool


class Node(Struct):
    """A node of a tree."""

    value: int
    children: list[Node] = []


class Plan(Struct):
    items: list[str] = []


class Notes(Struct):
    text: str = ""


@tool(effect="pure", inline=True)
def add(a: int, b: int = 2) -> int:
    """Add two numbers."""
    return a + b


def run(one: Tool[..., Any], json: str, **supplied: Any) -> Any:
    return one.invoke(one.prepare(json), supplied or None)


def properties(one: Tool[..., Any]) -> dict[str, Any]:
    found: dict[str, Any] = one.spec.schema["properties"]
    return found


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(ToolDefinitionError) as caught:
        make()
    return str(caught.value)


def misread(one: Tool[..., Any], json: str) -> str:
    with pytest.raises(ArgumentsError) as caught:
        one.prepare(json)
    assert caught.value.tool == one.name
    return str(caught.value)


# ── the decorator ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_tool_is_described_by_its_signature_and_docstring() -> None:
    assert add.spec == ToolSpec(
        "add",
        "Add two numbers.",
        {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer", "default": 2}},
            "required": ["a"],
            "additionalProperties": False,
        },
    )


def test_calling_a_tool_calls_its_function() -> None:
    assert add(1) == 3
    assert add(1, b=5) == 6


def test_a_bare_decorator_makes_an_unsafe_tool_that_runs_in_a_thread() -> None:
    @tool
    def send(text: str) -> None: ...

    assert (send.effect, send.retry, send.inline, send.sequential, send.timeout) == (
        "unsafe",
        "never",
        False,
        False,
        None,
    )
    assert send.annotations == ToolAnnotations(read_only=False)
    assert not send.is_async


def test_every_option_arrives_at_the_tool() -> None:
    @tool(
        effect="idempotent",
        inline=True,
        name="put-it",
        description="Puts it.",
        retry="safe",
        sequential=True,
        read_only=False,
        destructive=True,
        open_world=False,
    )
    def put(text: str) -> None:
        """Not this text."""

    assert (put.name, put.description) == ("put-it", "Puts it.")
    assert put.spec.name == "put-it"
    assert put.spec.description == "Puts it."
    assert (put.effect, put.retry, put.inline, put.sequential) == ("idempotent", "safe", True, True)
    assert put.annotations == ToolAnnotations(read_only=False, destructive=True, open_world=False)


def test_a_pure_tool_is_read_only_unless_it_says_otherwise() -> None:
    assert add.annotations.read_only
    assert not tool(effect="pure", read_only=False)(lambda_named("f")).annotations.read_only


def lambda_named(name: str) -> Callable[[], None]:
    def function() -> None: ...

    function.__name__ = name
    return function


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"effect": "maybe"}, 'option \'effect\' is \'maybe\'; it must be "idempotent" | "pure" | "unsafe"'),
        ({"effect": ["pure"]}, "option 'effect' is ['pure']"),
        ({"retry": "always"}, "option 'retry' is 'always'; it must be \"never\" | \"safe\""),
        ({"timeout": 0}, "option 'timeout' is 0; it must be number | null above 0"),
        ({"timeout": True}, "option 'timeout' is True"),
        ({"timeout": float("nan")}, "option 'timeout' is nan"),
        ({"inline": "yes"}, "option 'inline' is 'yes'; it must be boolean"),
        ({"sequential": 1}, "option 'sequential' is 1"),
        ({"description": b"x"}, "option 'description' is b'x'"),
        ({"efect": "pure"}, "there is no option 'efect'; the options are effect, inline, name"),
        ({"inline": True, "timeout": 1.0}, "timeout cannot interrupt an inline function"),
        ({"effect": "pure", "destructive": True}, "cannot be read_only and destructive"),
    ],
)
def test_a_bad_option_is_refused_with_the_name_of_the_tool(options: dict[str, Any], told: str) -> None:
    message = refused(lambda: tool(**options)(lambda_named("broken")))
    assert message.startswith("tool 'broken': ")
    assert told in message


@pytest.mark.parametrize("name", ["", "with space", "ünï", "x" * 65, "a.b"])
def test_a_name_that_models_do_not_take_is_refused(name: str) -> None:
    message = refused(lambda: tool(name=name)(lambda_named("f")))
    assert repr(name) in message
    assert "`name=`" in message


def test_a_lambda_needs_a_name() -> None:
    assert "'<lambda>'" in refused(lambda: tool(lambda: None))
    assert tool(name="nothing")(lambda: None).name == "nothing"


def test_inline_and_timeout_are_fine_on_an_async_function() -> None:
    @tool(inline=True, timeout=2)
    async def wait() -> None: ...

    assert wait.is_async
    assert wait.timeout == 2


def test_a_generator_is_refused() -> None:
    def numbers() -> Any:
        yield 1

    async def later() -> Any:
        yield 1

    assert "tool 'numbers'" in refused(lambda: tool(numbers))
    assert "tool 'later'" in refused(lambda: tool(later))


def test_what_is_no_function_is_refused() -> None:
    assert "must be a function or method, not 3 (int)" in refused(lambda: toolset([3]))  # type: ignore[list-item]
    assert "Point" in refused(lambda: tool(Point))
    assert "partial" in refused(lambda: tool(functools.partial(max, 1)))
    assert "'add' is already a tool" in refused(lambda: tool(add))


def test_a_function_behind_other_decorators_is_a_tool() -> None:
    @tool(effect="pure")
    @functools.cache
    def double(a: int) -> int:
        """Double it."""
        return 2 * a

    assert double.description == "Double it."
    assert run(double, '{"a": 4}') == 8


def test_the_source_says_where_the_function_is_defined() -> None:
    file, _, line = add.source.rpartition(":")
    assert file == __file__
    assert int(line) == add.fn.__code__.co_firstlineno
    assert add.source in repr(add)


# ── methods ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Counter:
    def __init__(self, start: int) -> None:
        self.value = start

    @tool
    def count(self, by: int = 1) -> int:
        """Count on."""
        self.value += by
        return self.value

    @tool
    async def later(self, by: int) -> int:
        return self.value + by

    @staticmethod
    @tool
    def twice(a: int) -> int:
        return 2 * a

    shared = add


def test_a_method_is_a_tool_bound_to_its_instance() -> None:
    one, other = Counter(10), Counter(20)
    assert run(one.count, '{"by": 5}') == 15
    assert run(other.count, "{}") == 21
    assert one.count(by=2) == 17
    assert list(properties(one.count)) == ["by"]


async def test_an_async_method_gives_an_awaitable() -> None:
    assert Counter.later.is_async
    assert await run(Counter(1).later, '{"by": 2}') == 3


def test_a_static_method_and_a_tool_kept_in_a_class_need_no_instance() -> None:
    counter: Any = Counter(0)
    assert run(Counter.twice, '{"a": 2}') == run(counter.twice, '{"a": 2}') == 4
    assert counter.shared is add


def test_a_method_without_an_instance_is_refused_in_a_toolset() -> None:
    assert "pass `instance.count`" in refused(lambda: toolset([Counter.count]))


def test_a_plain_bound_method_is_made_a_tool() -> None:
    class Greeter:
        def greet(self, name: str) -> str:
            return f"Hello {name}"

    assert run(toolset([Greeter().greet])["greet"], '{"name": "Ann"}') == "Hello Ann"


# ── schemas ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_types_that_are_referred_to_stand_in_defs() -> None:
    @tool
    def draw(at: Point, tree: Node, colour: Colour = Colour.RED) -> None: ...

    schema = draw.spec.schema
    assert properties(draw)["at"] == {"$ref": "#/$defs/Point"}
    assert properties(draw)["colour"] == {"$ref": "#/$defs/Colour", "default": "red"}
    assert set(schema["$defs"]) == {"Point", "Node", "Colour"}
    assert schema["$defs"]["Node"]["properties"]["children"]["items"] == {"$ref": "#/$defs/Node"}
    assert draw.prepare('{"at": {"x": 1}, "tree": {"value": 1, "children": [{"value": 2}]}}') == (
        Point(1),
        Node(1, [Node(2)]),
        Colour.RED,
    )


def test_constraints_hold_in_the_schema_and_when_decoding() -> None:
    @tool
    def wait(seconds: Annotated[int, Meta(ge=1, le=60, description="How long.")]) -> None: ...

    assert properties(wait)["seconds"] == {"type": "integer", "minimum": 1, "maximum": 60, "description": "How long."}
    assert "'seconds'" in misread(wait, '{"seconds": 61}')


def test_a_default_of_any_kind_is_shown_and_used() -> None:
    plan = Plan(["a"])

    @tool
    def go(
        at: Point = Point(1),  # noqa: B008
        tags: list[str] = ["x"],  # noqa: B006
        plan: Plan = plan,
        when: date = date(2024, 1, 2),
        mark: Any = object(),  # noqa: B008
    ) -> tuple[Any, ...]:
        return at, tags, plan, when, mark

    assert [p.get("default", "none") for p in properties(go).values()] == [
        {"x": 1, "y": 0},
        ["x"],
        {"items": ["a"]},
        "2024-01-02",
        "none",
    ]
    assert run(go, "{}") == go()
    assert go.spec.schema["required"] == []


def test_a_keyword_only_parameter_may_be_required_after_an_optional_one() -> None:
    @tool
    def move(x: int, y: int = 0, *, speed: int, name: str = "n") -> tuple[Any, ...]:
        return x, y, speed, name

    assert move.spec.schema["required"] == ["x", "speed"]
    assert run(move, '{"speed": 3, "x": 1}') == (1, 0, 3, "n")


def test_positional_only_parameters_are_filled_by_name() -> None:
    @tool
    def sub(a: int, b: int, /) -> int:
        return a - b

    assert run(sub, '{"b": 1, "a": 5}') == 4


GOOGLE = """Look for a text.

    All files are searched.

    Args:
        text: What to look for,
            in any case.
        where (dict[str, (int)], optional): The places: all of them.

    Returns:
        The lines.
    """
SPHINX = """Look for a text.

    All files are searched.

    :param str text: What to look for,
        in any case.
    :param where: The places: all of them.
    :returns: The lines.
    """
NUMPY = """
    Look for a text.

    All files are searched.

    Parameters
    ----------
    text : str
        What to look for,
        in any case.
    where
        The places: all of them.

    Returns
    -------
    text
        The lines.
    """


@pytest.mark.parametrize("doc", [GOOGLE, SPHINX, NUMPY], ids=["google", "sphinx", "numpy"])
def test_docstrings_of_three_styles_say_the_same(doc: str) -> None:
    def look(text: str, where: str = "") -> None: ...

    look.__doc__ = doc
    made = tool(look)
    assert made.description == "Look for a text.\n\nAll files are searched."
    assert properties(made)["text"]["description"] == "What to look for, in any case."
    assert properties(made)["where"]["description"] == "The places: all of them."


def test_one_numpy_entry_may_describe_several_parameters() -> None:
    @tool
    def area(width: int, height: int) -> None:
        """Measure.

        Parameters
        ----------
        width, height : int
            In metres.
        """

    assert {p["description"] for p in properties(area).values()} == {"In metres."}


def test_the_annotation_describes_a_parameter_before_the_docstring_does() -> None:
    @tool
    def look(text: Annotated[str, "From the annotation."], at: Annotated[Point, "Where."], other: int) -> None:
        """Look.

        Args:
            text: From the docstring.
            other: From the docstring.
        """

    described = {name: p["description"] for name, p in properties(look).items()}
    assert described == {"text": "From the annotation.", "at": "Where.", "other": "From the docstring."}


def test_a_docstring_without_parameters_is_the_description() -> None:
    @tool
    def f() -> None:
        """Do it.

        Returns:
            Nothing.
        """

    assert f.description == "Do it.\n\nReturns:\n    Nothing."


def test_local_types_and_strings_are_resolved() -> None:
    class Local(Struct):
        n: int

    @tool
    def use(one: Local, many: list[Local], text: str) -> Any:
        return one, many, text

    assert run(use, '{"one": {"n": 1}, "many": [{"n": 2}], "text": "t"}') == (Local(1), [Local(2)], "t")


def test_a_type_of_the_closure_is_resolved_without_a_decorator() -> None:
    class Local(Struct):
        n: int

    def use(one: Local) -> Local:
        return Local(one.n + 1)

    assert run(toolset([use])["use"], '{"one": {"n": 1}}') == Local(2)


def test_names_around_a_call_of_tool_do_not_change_a_function_from_elsewhere() -> None:
    int = str
    assert int("1") == "1"
    assert properties(tool(add.fn))["a"] == {"type": "integer"}


def test_a_tool_may_call_itself_and_super() -> None:
    class Parent:
        def base(self) -> int:
            return 1

    class Child(Parent):
        @tool
        def total(self, n: int) -> int:
            return super().base() + n

    @tool
    def down(n: int) -> int:
        return 0 if n == 0 else down(n - 1)

    assert run(Child().total, '{"n": 1}') == 2
    assert run(down, '{"n": 3}') == 0


# ── definitions that cannot be described ──────────────────────────────────────────────────────────────────────────


def unannotated(a, b: int) -> None: ...  # type: ignore[no-untyped-def]
def variadic(*names: str) -> None: ...
def keywords(**names: str) -> None: ...
def custom(a: int, where: list[Counter]) -> None: ...
def function(call: Callable[[], int]) -> None: ...
def ambiguous(shape: Point | Options) -> None: ...
def unknown(it: Elsewhere) -> None: ...
def nonsense(it: "3 +") -> None: ...  # type: ignore[valid-type]  # noqa: F722


@pytest.mark.parametrize(
    ("fn", "parameter", "hint"),
    [
        (unannotated, "'a'", "give it a type, as in `a: str`"),
        (variadic, "'*names'", "name each parameter"),
        (keywords, "'**names'", "name each parameter"),
        (custom, "'where'", "use a type that JSON can carry"),
        (function, "'call'", "use a type that JSON can carry"),
        (ambiguous, "'shape'", "use a type that JSON can carry"),
        (unknown, "'it'", "outside `if TYPE_CHECKING:`"),
        (nonsense, "'it'", "cannot be resolved"),
    ],
)
def test_a_parameter_that_cannot_be_described_is_refused(fn: Callable[..., Any], parameter: str, hint: str) -> None:
    message = refused(lambda: tool(fn))
    assert message.startswith(f"tool '{fn.__name__}': parameter {parameter} ")
    assert hint in message


def test_the_tool_is_a_fact_of_the_error() -> None:
    with pytest.raises(ToolDefinitionError) as caught:
        tool(unannotated)
    assert caught.value.tool == "unannotated"


# ── pydantic ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pydantic_models_are_described_and_validated_at_any_depth() -> None:
    pydantic = pytest.importorskip("pydantic")
    line = pydantic.create_model("Line", amount=(Annotated[int, pydantic.Field(gt=0)], ...))
    order = pydantic.create_model("Order", day=(date, ...), lines=(list[line], ...))  # type: ignore[valid-type]

    def buy(order, more=None):  # type: ignore[no-untyped-def]
        return order, more

    buy.__annotations__ = {"order": order, "more": Optional[list[order]]}  # type: ignore[valid-type]  # noqa: UP045
    made = tool(buy)

    assert properties(made)["order"]["properties"]["lines"]["items"] == {"$ref": "#/$defs/Order_Line"}
    assert "amount" in made.spec.schema["$defs"]["Order_Line"]["properties"]
    given = '{"day": "2024-01-02", "lines": [{"amount": 1}]}'
    expected = order(day=date(2024, 1, 2), lines=[line(amount=1)])
    assert run(made, f'{{"order": {given}, "more": [{given}]}}') == (expected, [expected])

    message = misread(made, '{"order": {"day": "2024-01-02", "lines": [{"amount": 0}]}}')
    assert "'order'" in message
    assert "lines.0.amount: Input should be greater than 0" in message


def test_two_pydantic_models_of_one_name_keep_their_own_definitions() -> None:
    pydantic = pytest.importorskip("pydantic")

    def model(kind: type) -> Any:
        inner = pydantic.create_model("Inner", value=(kind, ...))
        return pydantic.create_model("Outer", inner=(inner, ...))

    def both(a, b):  # type: ignore[no-untyped-def]
        return a, b

    both.__annotations__ = {"a": model(int), "b": model(str)}
    made = tool(both)
    kinds = {name: d["properties"]["value"]["type"] for name, d in made.spec.schema["$defs"].items()}
    assert kinds == {"Outer_Inner": "integer", "Outer__Inner": "string"}


def test_a_pydantic_default_is_shown() -> None:
    pydantic = pytest.importorskip("pydantic")
    size = pydantic.create_model("Size", width=(int, 3))

    def show(size=size()):  # type: ignore[no-untyped-def]  # noqa: B008
        return size

    show.__annotations__ = {"size": size}
    assert properties(tool(show))["size"]["default"] == {"width": 3}
    assert run(tool(show), "{}") == size()


def test_constraints_that_would_be_ignored_are_refused() -> None:
    pydantic = pytest.importorskip("pydantic")

    def bounded(n: int) -> None: ...

    bounded.__annotations__ = {"n": Annotated[int, pydantic.Field(gt=0)]}
    assert "tool 'bounded': parameter 'n' carries" in refused(lambda: tool(bounded))

    def defaulted(n: int = pydantic.Field(3)) -> None: ...

    assert "tool 'defaulted': parameter 'n' has a pydantic field" in refused(lambda: tool(defaulted))

    bounded.__annotations__ = {"n": Annotated[int, pydantic.Field(description="A number.")]}
    assert properties(tool(bounded))["n"]["description"] == "A number."


# ── supplied parameters ───────────────────────────────────────────────────────────────────────────────────────────


def test_turn_and_idempotency_key_are_supplied_and_never_shown() -> None:
    @tool(effect="idempotent")
    def pay(turn: Elsewhere, amount: int, *, idempotency_key, note: str = "") -> Any:  # type: ignore[no-untyped-def]
        return turn, amount, idempotency_key, note

    assert list(properties(pay)) == ["amount", "note"]
    assert pay.supplied == (("turn", "turn"), ("idempotency_key", "key"))
    assert run(pay, '{"amount": 3}', turn="T", idempotency_key="K") == ("T", 3, "K", "")


def test_a_model_cannot_fill_in_what_is_supplied() -> None:
    @tool
    def ask(question: str, turn: Any = None) -> Any:
        return turn

    message = misread(ask, '{"question": "?", "turn": "mine"}')
    assert "unknown parameter 'turn'" in message
    assert run(ask, '{"question": "?"}') is None


def test_a_slot_is_supplied_once_its_type_is_known() -> None:
    @tool
    def note(plan: Plan, text: str, notes: Annotated[Notes, "mine"], turn: Any) -> Any:
        return plan, text, notes, turn

    made = note.bound([Slot("plan", Plan), Slot("notes", Notes)])
    assert list(properties(note)) == ["plan", "text", "notes"]
    assert list(properties(made)) == ["text"]
    assert "$defs" not in made.spec.schema
    assert made.supplied == (("turn", "turn"), ("plan", "slot:plan"), ("notes", "slot:notes"))
    plan, notes = Plan(), Notes()
    assert run(made, '{"text": "t"}', plan=plan, notes=notes, turn=1) == (plan, "t", notes, 1)
    assert "unknown parameter 'plan'" in misread(made, '{"text": "t", "plan": {}}')


def test_a_tool_without_slots_stays_the_same_object() -> None:
    assert add.bound([Slot("plan", Plan)]) is add


def test_a_bound_method_takes_slots_too() -> None:
    class Planner:
        @tool
        def extend(self, item: str, plan: Plan) -> tuple[Any, ...]:
            return self, item, plan

    planner = Planner()
    made = planner.extend.bound([Slot("plan", Plan)])
    assert run(made, '{"item": "i"}', plan=Plan()) == (planner, "i", Plan())


def test_a_supplied_parameter_cannot_be_positional_only() -> None:
    def ask(turn: Any, /) -> None: ...

    @tool
    def note(plan: Plan, text: str, /) -> None: ...

    assert "tool 'ask': parameter 'turn' is supplied by name" in refused(lambda: tool(ask))
    assert "tool 'note': parameter 'plan' is supplied by name" in refused(lambda: note.bound([Slot("plan", Plan)]))


# ── decoding ──────────────────────────────────────────────────────────────────────────────────────────────────────


@tool
def everything(count: int, names: list[str], colour: Colour, mode: Literal["a", "b"] = "a") -> None: ...


@tool
def nothing() -> str:
    return "done"


def test_decoded_arguments_have_a_field_per_parameter() -> None:
    arguments: Any = add.decode('{"a": 1}')
    assert (arguments.a, arguments.b) == (1, 2)
    assert add.prepare('{"b": 1, "a": 7}') == (7, 1)


@pytest.mark.parametrize("json", ["{}", "", "  ", "null"])
def test_a_tool_without_parameters_takes_nothing_in_any_form(json: str) -> None:
    assert run(nothing, json) == "done"


def test_no_text_counts_as_no_arguments() -> None:
    @tool
    def greet(name: str = "you") -> str:
        return name

    assert run(greet, "") == "you"
    assert "missing parameter 'a'" in misread(add, "")


def test_a_repeated_key_means_the_same_to_hooks_and_to_the_tool() -> None:
    json = '{"a": 1, "b": 1, "a": 9}'
    assert add.prepare(json)[0] == ToolCall("1", "add", json).arguments["a"] == 9


async def test_an_async_tool_gives_an_awaitable() -> None:
    @tool
    async def slow(a: int) -> int:
        await asyncio.sleep(0)
        return a

    assert await run(slow, '{"a": 1}') == 1


@pytest.mark.parametrize(
    ("json", "told", "parameters"),
    [
        (
            '{"count": "one", "names": [], "colour": "red"}',
            ["'count'", "$.count", "`int`", "`str`", '"one"'],
            ("count",),
        ),
        ('{"count": 1, "names": ["x", 2], "colour": "red"}', ["'names'", "$.names[1]", "`str`", '["x",2]'], ("names",)),
        ('{"count": 1, "names": [], "colour": "green"}', ["'colour'", "green", '"blue" | "red"'], ("colour",)),
        ('{"count": 1, "names": [], "colour": "red", "mode": "c"}', ["'mode'", "$.mode", '"a" | "b"'], ("mode",)),
        ('{"count": 1}', ["missing parameters 'names', 'colour'"], ("names", "colour")),
        (
            '{"cuont": 1, "names": [], "colour": "red"}',
            ["missing parameter 'count'; unknown parameter 'cuont'"],
            ("count", "cuont"),
        ),
        ("[1, 2]", ["must be a JSON object", "[1,2]"], ()),
        ("null", ["must be a JSON object", "null"], ()),
        ('"text"', ["must be a JSON object", '"text"'], ()),
    ],
)
def test_arguments_that_do_not_fit_are_explained(json: str, told: list[str], parameters: tuple[str, ...]) -> None:
    with pytest.raises(ToolError) as caught:
        everything.prepare(json)
    message = str(caught.value)
    assert message.startswith("tool 'everything' was not run: ")
    for text in [*told, "It takes count (integer), names (array of string), colour (", 'mode ("a" | "b", optional)']:
        assert text in message
    assert isinstance(caught.value, ArgumentsError)
    assert caught.value.parameters == parameters
    with pytest.raises(ArgumentsError):
        everything.decode(json)


def test_a_wrong_key_of_a_mapping_is_placed() -> None:
    @tool
    def count(votes: dict[int, int]) -> None: ...

    assert "'votes' (at $.votes)" in misread(count, '{"votes": {"x": 1}}')


def test_text_that_is_no_json_is_shown_where_it_breaks() -> None:
    message = misread(add, '{"a": 1, b: 2}')
    assert "not valid JSON" in message
    assert "byte 9" in message
    assert '{"a": 1, b: 2}' in message


def test_json_that_ends_too_early_is_shown_from_its_end() -> None:
    message = misread(everything, '{"count": 1, "names": ["' + "x" * 500)
    assert "truncated" in message
    assert "xxx'" in message


def test_a_broken_value_does_not_hide_broken_json() -> None:
    assert "not valid JSON" in misread(add, '{"a": "one", ')


def test_text_that_is_no_unicode_is_explained() -> None:
    message = misread(add, '{"a": "\ud800"}')
    assert "invalid Unicode at character 7" in message
    message.encode()


def test_json_nested_too_deeply_is_explained() -> None:
    @tool
    def keep(it: Any) -> None: ...

    message = misread(keep, '{"it": ' + "[" * 100_000)
    assert "nested too deeply" in message
    assert len(message) < 500


@pytest.mark.parametrize(
    "json",
    [
        "x" * 10_000_000,
        '{"a": "' + "x" * 10_000_000 + '"}',
        '{"' + "x" * 10_000_000 + '": 1}',
        '"' + "x" * 10_000_000 + '"',
        "{" + ",".join(f'"k{n}": 1' for n in range(10_000)) + "}",
    ],
    ids=["garbage", "value", "name", "text", "many names"],
)
def test_a_huge_argument_is_never_repeated_whole(json: str) -> None:
    assert len(misread(add, json)) < 500


def test_a_huge_value_of_a_closed_set_is_never_repeated_whole() -> None:
    json = '{"count": 1, "names": [], "colour": "' + "x" * 1_000_000 + '"}'
    assert len(misread(everything, json)) < 1000


def test_a_tool_without_parameters_says_so() -> None:
    message = misread(nothing, '{"a": 1}')
    assert "unknown parameter 'a'" in message
    assert "It takes no parameters." in message


def test_a_type_that_refuses_a_value_is_heard() -> None:
    class Even(Struct):
        n: int

        def __post_init__(self) -> None:
            if self.n % 2:
                raise ValueError("must be even")

    @tool
    def use(it: Even) -> None: ...

    message = misread(use, '{"it": {"n": 3}}')
    assert "'it'" in message
    assert "must be even" in message


def reference(name: str) -> dict[str, Any]:
    return {"$ref": f"#/$defs/{name}"}


def array(items: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": items}


INTEGER, STRING = {"type": "integer"}, {"type": "string"}
TEXTS = st.text(st.characters(codec="utf-8"))
KINDS: dict[str, tuple[Any, dict[str, Any], st.SearchStrategy[Any]]] = {
    "int": (int, INTEGER, st.integers()),
    "float": (float, {"type": "number"}, st.floats(allow_nan=False, allow_infinity=False)),
    "bool": (bool, {"type": "boolean"}, st.booleans()),
    "str": (str, STRING, TEXTS),
    "bytes": (bytes, {**STRING, "contentEncoding": "base64"}, st.binary()),
    "datetime": (
        Annotated[datetime, Meta(tz=True)],
        {**STRING, "format": "date-time"},
        st.datetimes(timezones=st.just(UTC)),
    ),
    "enum": (Colour, reference("Colour"), st.sampled_from(Colour)),
    "literal": (Literal["a", "b"], {"enum": ["a", "b"]}, st.sampled_from(["a", "b"])),
    "optional": (int | None, {"anyOf": [INTEGER, {"type": "null"}]}, st.none() | st.integers()),
    "list": (list[int], array(INTEGER), st.lists(st.integers())),
    "sequence": (Sequence[str], array(STRING), st.lists(TEXTS)),
    "dict": (
        dict[str, int],
        {"type": "object", "additionalProperties": INTEGER},
        st.dictionaries(TEXTS, st.integers()),
    ),
    "tuple": (tuple[int, ...], array(INTEGER), st.lists(st.integers()).map(tuple)),
    "set": (set[int], array(INTEGER), st.sets(st.integers())),
    "dataclass": (Point, reference("Point"), st.builds(Point, st.integers(), st.integers())),
    "typed dict": (Options, reference("Options"), st.fixed_dictionaries({"deep": st.booleans()})),
    "named tuple": (Pair, reference("Pair"), st.builds(Pair, st.integers(), TEXTS)),
    "struct": (Node, reference("Node"), st.builds(Node, st.integers())),
}


@st.composite
def signatures(draw: st.DrawFn) -> tuple[Tool[..., Any], list[str], list[Any]]:
    """A tool with random parameters, their kinds, and a value for each of them."""
    kinds = draw(st.lists(st.sampled_from(sorted(KINDS)), max_size=6))
    names = [f"p{position}" for position in range(len(kinds))]
    declared = list(names)
    if (positional := draw(st.integers(0, len(kinds)))) < len(kinds):
        declared.insert(positional, "*")
    scope: dict[str, Any] = {}
    exec(f"def echo({', '.join(declared)}): return [{', '.join(names)}]", scope)
    scope["echo"].__annotations__ = {name: KINDS[kind][0] for name, kind in zip(names, kinds, strict=True)}
    return tool(scope["echo"]), kinds, [draw(KINDS[kind][2]) for kind in kinds]


@given(signatures(), st.randoms())
def test_arguments_of_every_type_are_described_and_arrive_as_they_were_sent(
    drawn: tuple[Tool[..., Any], list[str], list[Any]], random: Any
) -> None:
    echo, kinds, values = drawn
    for described, kind in zip(properties(echo).values(), kinds, strict=True):
        assert described == {**described, **KINDS[kind][1]}
    assert echo.spec.schema["required"] == list(properties(echo))
    sent = list(zip(properties(echo), values, strict=True))
    random.shuffle(sent)
    assert run(echo, msgspec.json.encode(dict(sent)).decode()) == values


@given(st.text())
def test_whatever_text_comes_is_explained(text: str) -> None:
    assert len(misread(everything, text)) < 1000


# ── toolsets ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_toolset_makes_tools_of_plain_functions_and_keeps_the_order() -> None:
    def plain(a: int) -> int:
        return a

    tools = toolset([plain, add])
    assert list(tools) == ["plain", "add"]
    assert tools["add"] is add
    assert tools["plain"].effect == "unsafe"


def test_two_tools_of_one_name_are_refused_with_both_places() -> None:
    @tool(name="add")
    def other() -> None: ...

    assert f"tool 'add' is defined twice: {add.source} and {other.source}" in refused(lambda: toolset([add, other]))


def test_the_same_tool_listed_twice_is_one_tool() -> None:
    assert toolset([add, add]) == {"add": add}
