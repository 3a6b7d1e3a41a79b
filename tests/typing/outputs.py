"""What type checkers know of outputs, scopes and tasks. Checked by mypy and pyright, never run."""

# pyright: reportUnnecessaryTypeIgnoreComment=true, reportUnusedFunction=false

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar, assert_type

from msgspec import Struct

from windlass import Agent, ModelReply, ModelReplying, Regenerate, Result, ToolCalling, Turn, tool
from windlass.testing import ScriptedModel, says

T = TypeVar("T")


class Invoice(Struct, tag=True):
    total: float


class Refund(Struct, tag=True):
    order: int


class Page(Struct, Generic[T]):
    items: list[T]


class User:
    name: str


model = ScriptedModel(says("{}"))


# ---------------------------------------------------------------- outputs that are not classes


async def outputs() -> None:
    union = Agent(model, output=Invoice | Refund)
    assert_type(union, Agent[Any, Invoice | Refund])
    assert_type(await union.run("go"), Result[Invoice | Refund])
    assert_type((await union.run("go")).output, Invoice | Refund)
    declared = Agent[None, Invoice | Refund](model, output=Invoice | Refund)
    assert_type((await declared.run("go")).output, Invoice | Refund)
    assert_type((await declared.stream("go").__aenter__()).result, Result[Invoice | Refund])

    literal = Agent(model, output=Literal["yes", "no"])
    answer: Literal["yes", "no"] = (await literal.run("go")).output
    assert answer
    maybe = Agent(model, output=Invoice | None)
    assert_type((await maybe.resume("s")).output, Invoice | None)

    page = Agent(model, output=Page[Invoice])
    assert_type((await page.run("go")).output, Page[Invoice])
    rows = Agent(model, output=dict[str, list[Invoice]])
    assert_type((await rows.run("go")).output, dict[str, list[Invoice]])
    schema = Agent(model, output={"type": "object"})
    assert_type((await schema.run("go")).output, Any)
    both = Agent(model, scope=User, output=Invoice | Refund)
    assert_type(both, Agent[User, Invoice | Refund])
    assert_type((await both.run("go", scope=User())).output, Invoice | Refund)


async def wrong_outputs() -> None:
    Agent[None, Invoice](model, output=Refund)  # type: ignore[arg-type]
    Agent[None, Invoice](model, output=Invoice | Refund)  # type: ignore[arg-type]
    Agent[None, Literal["yes"]](model, output=Literal["no"])  # type: ignore[call-overload]
    wrong: Refund = (await Agent(model, output=Invoice).run("go")).output  # type: ignore[assignment]
    assert_type(wrong.order, int)
    print((await Agent(model, output=Invoice | Refund).run("go")).output.total)  # type: ignore[union-attr]  # noqa: T201
    Agent(model, output=Invoice, colour="red")  # type: ignore[call-overload]
    Agent(model, max_steps="many")  # type: ignore[call-overload]


# ---------------------------------------------------------------- side calls and tasks

child = Agent(model, output=Invoice)
agent = Agent(model, scope=User)


@agent.gate(ModelReplying)
async def review(event: ModelReplying, turn: Turn[User]) -> Regenerate | None:
    assert_type(turn.scope, User)
    assert_type(await turn.ask("critic", "fine?"), ModelReply)
    assert_type(await turn.ask("critic", "fine?", output={"type": "object"}), ModelReply)
    assert_type(await turn.ask("critic", "fine?", output=Invoice), Invoice)
    assert_type(await turn.ask("critic", "fine?", output=Invoice | Refund), Invoice | Refund)
    vote: Literal["yes", "no"] = await turn.ask("critic", "fine?", output=Literal["yes", "no"])
    assert_type(await turn.delegate(child, "pay"), Result[Invoice])
    wrong: Refund = await turn.ask("critic", "fine?", output=Invoice)  # type: ignore[arg-type]
    assert_type(wrong.order, int)
    await turn.delegate(User(), "pay")  # type: ignore[call-overload]
    print(turn.scope.age)  # type: ignore[attr-defined]  # noqa: T201
    return Regenerate("again") if vote == "no" else None


@agent.gate(ModelReplying)  # type: ignore[arg-type]
async def answers_text(event: ModelReplying) -> str:
    return "no"


@agent.gate(ToolCalling, mode="loud")  # type: ignore[arg-type]
def wrong_option(event: ToolCalling) -> None:
    return None


@tool
async def pay(order: int, turn: Turn[User]) -> str:
    """Pay an order."""
    assert_type(turn.scope, User)
    return (await turn.delegate(child, f"pay {order}")).text
