"""What type checkers know of hooks. Checked by mypy and pyright, never run: an ignored line must be an error."""

# pyright: reportUnnecessaryTypeIgnoreComment=true, reportUnusedFunction=false

from __future__ import annotations

from collections.abc import Sequence
from typing import assert_type

from windlass import (
    Agent,
    Allow,
    Answer,
    Ask,
    BatchItem,
    Continuing,
    Deny,
    DocumentPart,
    FilePart,
    Finish,
    Halt,
    Hooks,
    ImagePart,
    Injected,
    Message,
    ModelCall,
    ModelCalling,
    ModelReply,
    ModelReplying,
    ModelRequest,
    Regenerate,
    Result,
    RunOptions,
    Says,
    Slot,
    State,
    Step,
    StepEnding,
    StepLimit,
    Stopping,
    TextPart,
    ToolCall,
    ToolCalling,
    ToolResult,
    ToolReturned,
    ToolReturning,
    Turn,
    TurnStarting,
    Usage,
    Veto,
    Vote,
    tool,
)
from windlass.deltas import StreamEvent
from windlass.testing import ScriptedModel, says
from windlass.types import CallModel, CallTool

agent = Agent(ScriptedModel(says("hi")))


# ---------------------------------------------------------------- gates: the event is known, the answer is checked


@agent.gate(ToolCalling, tool="add", priority=50, band="guard")
def decide(event: ToolCalling) -> Deny | Ask | Answer | Allow | Halt | None:
    assert_type(event.call, ToolCall)
    return Deny("no")


@agent.gate(ToolCalling)
async def decide_later(event: ToolCalling, turn: Turn[None]) -> Deny | None:
    assert_type(turn.usage, Usage)
    return None


@agent.gate(Stopping)
def keep_going(event: Stopping) -> Veto | None:
    assert_type(event.stop_active, bool)
    return Veto("not yet")


@agent.gate(Continuing)
def vote(event: Continuing) -> Vote | None:
    assert_type(event.state, State)
    return Vote.FORBID


@agent.gate(ToolReturning)
def finish(event: ToolReturning) -> Finish | None:
    assert_type(event.result, ToolResult)
    return Finish("done")


@agent.gate(ToolCalling)  # type: ignore[arg-type]
def regenerates_a_call(event: ToolCalling) -> Regenerate:
    return Regenerate("again")


@agent.gate(Continuing)  # type: ignore[arg-type]
def halts_a_vote(event: Continuing) -> Halt:
    return Halt("now")


@agent.gate(ModelReplying)  # type: ignore[arg-type]
def takes_another_event(event: ToolCalling) -> None:
    return None


agent.gate(ToolCalling, colour="red")  # type: ignore[call-arg]


# ---------------------------------------------------------------- rewrites: a new value of the payload


@agent.rewrite(ModelCalling)
def be_brief(event: ModelCalling) -> ModelRequest:
    assert_type(event.request.messages[0], Message)
    return event.request.replace(system=event.request.system + " Be brief.")


@agent.rewrite(ModelReplying)
async def shorten(event: ModelReplying) -> ModelReply | None:
    return None


@agent.rewrite(TurnStarting)  # type: ignore[arg-type]
def rewrites_with_a_number(event: TurnStarting) -> int:
    return 1


# ---------------------------------------------------------------- the other verbs


@agent.inject(TurnStarting, group="retrieval")
async def remember(event: TurnStarting) -> str:
    return "The user likes round numbers."


@agent.inject(StepEnding)
def summarise(event: StepEnding) -> Injected:
    assert_type(event.step, Step)
    return Injected("a summary", durable=True)


@agent.observe(ToolReturned)
def count(fact: ToolReturned) -> None:
    assert_type(fact.result, ToolResult)


@agent.wrap(ModelCall)
async def twice(request: ModelRequest, call_next: CallModel) -> ModelReply:
    try:
        return await call_next(request)
    except TimeoutError:
        return await call_next(request)


@agent.wrap(ToolCall, tool="add")
async def around_a_tool(call: ToolCall, call_next: CallTool) -> ToolResult:
    return await call_next(call)


@agent.wrap(ModelCall)  # type: ignore[arg-type]
async def takes_a_call(call: ToolCall, call_next: CallTool) -> ToolResult:
    return await call_next(call)


@agent.hook(ToolCalling)
def bridge(event: ToolCalling) -> Says | None:
    return Says(decision=Deny("no"))


@agent.transform
class Upper:
    def feed(self, text: str) -> Sequence[str]:
        return [text.upper()]

    def flush(self) -> Sequence[str]:
        return ()


hooks = Hooks()
hooks.gate(ToolCalling)(decide)


# ---------------------------------------------------------------- tools, slots, scope and output


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


assert_type(add(1, 2), int)
add("1", 2)  # type: ignore[arg-type]


class Invoice:
    total: float


class User:
    name: str


typed = Agent[User, Invoice](ScriptedModel(says("{}")), output=Invoice)
untyped = Agent(ScriptedModel(says("hi")))
plan = Slot("plan", list)


async def use() -> None:
    assert_type(await typed.run("pay", scope=User()), Result[Invoice])
    assert_type((await typed.run("pay", scope=User())).output, Invoice)
    assert_type((await untyped.run("hi")).text, str)
    assert_type(await untyped.run("hi", scope={"user": "ann"}), Result[str])
    await typed.run("pay", scope="ann")  # type: ignore[arg-type]
    assert_type(await untyped.run(["look", ImagePart(b"png"), TextPart("closely")]), Result[str])
    untyped.stream(("look", DocumentPart.from_file("paper.pdf")))
    await untyped.steer("s", ["look", FilePart("file-1", "openai")])
    await untyped.steer("s", ["look", 5])  # type: ignore[list-item]
    await untyped.steer("s", 5)  # type: ignore[arg-type]


async def scoped() -> None:
    declared = Agent(ScriptedModel(says("hi")), scope=User)
    assert_type(declared, Agent[User, str])
    both = Agent(ScriptedModel(says("{}")), scope=User, output=Invoice)
    assert_type(both, Agent[User, Invoice])
    unscoped = Agent[None, str](ScriptedModel(says("hi")))
    assert_type(await unscoped.run("hi"), Result[str])
    assert_type(await declared.run("hi", scope=User()), Result[str])
    assert_type(await both.resume("s", scope=User()), Result[Invoice])
    async for event in declared.stream("hi", scope=User()):
        assert_type(event, StreamEvent)
    async for state in declared.iterate(session="s", scope=User()):
        assert_type(state, State)
    async with both.session("s") as session:
        assert_type(await session.run("hi", scope=User()), Result[Invoice])
        await session.run("hi")  # type: ignore[call-arg]
        await session.resume()  # type: ignore[call-arg]
    async for item in both.map(["hi"], scope=User()):
        assert_type(item, BatchItem[Invoice])
        assert_type(item.output, Invoice)
    declared.map(["hi"])  # type: ignore[call-arg]
    unscoped.map([5])  # type: ignore[list-item]
    await declared.run("hi")  # type: ignore[call-arg]
    await declared.run("hi", scope=None)  # type: ignore[arg-type]
    await declared.resume("s")  # type: ignore[call-arg]
    declared.stream("hi")  # type: ignore[call-arg]
    declared.iterate("hi")  # type: ignore[call-arg]
    declared.run_sync("hi")  # type: ignore[call-arg]
    declared.resume_sync("s")  # type: ignore[call-arg]
    await unscoped.run("hi", scope=User())  # type: ignore[call-overload]
    Agent[User, str](ScriptedModel(says("hi")), scope=str)  # type: ignore[arg-type]


async def options_of_a_turn(options: RunOptions) -> None:
    declared = Agent(ScriptedModel(says("hi")), scope=User)
    assert_type(await untyped.run("hi", model="small", settings={"seed": 1}, criteria=[StepLimit(3)]), Result[str])
    assert_type(await typed.run("pay", scope=User(), model=ScriptedModel(says("{}")), tools=[add]), Result[Invoice])
    assert_type(await untyped.resume("s", tools=[add]), Result[str])
    assert_type(untyped.run_sync("hi", **options), Result[str])
    assert_type(typed.variant(model="small"), Agent[User, Invoice])
    assert_type(await typed.variant(**options).run("pay", scope=User()), Result[Invoice])
    async with untyped.session("s") as session:
        assert_type(await session.run("hi", model=None), Result[str])
    await untyped.run("hi", model=5)  # type: ignore[call-overload]
    await untyped.run("hi", settings=[1])  # type: ignore[call-overload]
    await untyped.run("hi", criteria=StepLimit(3))  # type: ignore[call-overload]
    await untyped.run("hi", tools=add)  # type: ignore[call-overload]
    await untyped.run("hi", tools=["add"])  # type: ignore[list-item]
    await untyped.run("hi", system="Be brief.")  # type: ignore[call-overload]
    await untyped.resume("s", model=5)  # type: ignore[call-overload]
    untyped.stream("hi", modell="small")  # type: ignore[call-overload]
    untyped.iterate("hi", tools=[3])  # type: ignore[list-item]
    untyped.variant(output=Invoice)  # type: ignore[call-arg]
    untyped.variant(settings=3)  # type: ignore[arg-type]
    await declared.run("hi", model="small")  # type: ignore[call-arg]
    await declared.resume("s", tools=[add])  # type: ignore[call-arg]


@typed.gate(ToolCalling)
def knows_the_scope(event: ToolCalling, turn: Turn[User]) -> None:
    assert_type(turn.scope, User)
