"""Runs the same turn in every possible way, to check that hooks, transcript and outcome do not depend on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct

from windlass.agent import Agent
from windlass.approvals import progress
from windlass.decisions import AnyResolution, Approve, Edit, Reject, Respond
from windlass.logs import tree_of
from windlass.messages import Message, as_message
from windlass.records import Asked, Record, Suspended, decode, encode
from windlass.states import State, fold

from .models import ScriptedModel, calls, says
from .traces import HookTrace, assert_same

AnyAgent: TypeAlias = Agent[Any, Any]
Factory: TypeAlias = Callable[[], AnyAgent]
Answers: TypeAlias = AnyResolution | Callable[[Asked], AnyResolution] | None

SESSION = "session"
PATIENCE = 20
"""How often a turn is resumed before it is left suspended."""


class Lived(Struct, frozen=True):
    """A turn that was run in one way: its session, its log, and how often it was resumed."""

    session: str
    log: Sequence[Record]
    resumed: int = 0

    @property
    def trace(self) -> HookTrace:
        """The trace of the hooks."""
        return HookTrace(self.log)

    @property
    def state(self) -> State:
        """The state that the log folds to."""
        return fold(self.session, self.log)

    @property
    def story(self) -> dict[str, str]:
        """The outcome, text, messages, questions and slots, without details that may differ between ways of running."""
        state = self.state
        outcome = state.outcome
        if isinstance(outcome, Suspended):
            outcome = outcome.replace(active=0.0, at=0.0, waiting_for=())
        story = {
            "outcome": outcome,
            "text": state.text,
            "messages": list(state.messages),
            "waiting for": [(asked.id, asked.question) for asked in state.waiting],
            "slots": dict(state.slots),
        }
        return {name: repr(value).replace(self.session, SESSION) for name, value in story.items()}


def agreeable(asked: Asked) -> AnyResolution:
    """Approve a question if it allows that, else answer as positively as possible, as one of its approvers."""
    needed = progress(asked, asked.at).needed
    by = needed[0] if needed else None
    if "approve" in asked.allow:
        return Approve(by)
    if "edit" in asked.allow and asked.call is not None:
        return Edit(asked.call.arguments, by)
    return Respond("answered", by) if "respond" in asked.allow else Reject("rejected", by)


async def run_everywhere(
    factory: Factory, message: str | Message = "go", *, answers: Answers = agreeable, scope: Any = None
) -> dict[str, Lived]:
    """Run one turn in every possible way: with `run`, `run_sync`, `iterate` and `stream`, with another agent that
    resumes it after every suspension (`resume`), and as a sub-agent.

    The factory makes the same agent each time, with its own model and store. `answers` is one answer for all questions,
    a function of a question, or None to leave the turn suspended. A turn that still asks after `PATIENCE` answers is
    left suspended, too. A turn that is never suspended has no `resume`; ways that agents do not have are left out.
    Every turn gets the same `scope`.
    """
    first = as_message(message)
    known = {name: enter for name, enter in _WAYS.items() if hasattr(Agent, name)}
    lived = {name: await live(enter, factory(), first, answers, scope=scope) for name, enter in known.items()}
    if lived["run"].resumed:
        lived["resume"] = await live(by_run, factory(), first, answers, successor=factory, scope=scope)
    if hasattr(Agent, "as_tool"):
        lived["as_tool"] = await _delegate(factory(), first, answers, scope)
    return lived


async def traces(
    factory: Factory, message: str | Message = "go", *, answers: Answers = agreeable, scope: Any = None
) -> dict[str, HookTrace]:
    """The traces of the hooks in one turn, by way of running it; see `run_everywhere`."""
    lived = await run_everywhere(factory, message, answers=answers, scope=scope)
    return {name: way.trace for name, way in lived.items()}


async def assert_same_everywhere(
    factory: Factory, message: str | Message = "go", *, answers: Answers = agreeable, scope: Any = None
) -> Lived:
    """Fail unless hooks, transcript, outcome and slots are the same in every way of running; see `run_everywhere`."""
    lived = await run_everywhere(factory, message, answers=answers, scope=scope)
    for name, other in lived.items():
        assert_alike(lived["run"], other, names=("run", name))
    return lived["run"]


def assert_alike(one: Lived, other: Lived, *, names: tuple[str, str]) -> None:
    """Fail unless hooks, transcript, outcome and slots of two turns are the same."""
    assert_same(one.trace, other.trace, names=names)
    theirs = other.story
    for what, mine in one.story.items():
        assert theirs[what] == mine, f"{what} with {names[1]} is {theirs[what]}, but with {names[0]} it is {mine}"


# ---------------------------------------------------------------- the ways

AnswersById: TypeAlias = Mapping[str, AnyResolution] | None
Enter: TypeAlias = Callable[[AnyAgent, str, Message | None, AnswersById, Any], Awaitable[None]]


async def by_run(agent: AnyAgent, session: str, message: Message | None, answers: AnswersById, scope: Any) -> None:
    if message is None:
        await agent.resume(session, answers=answers, scope=scope)
    else:
        await agent.run(message, session=session, scope=scope)


async def _run_sync(agent: AnyAgent, session: str, message: Message | None, answers: AnswersById, scope: Any) -> None:
    if message is None:
        agent.resume_sync(session, answers=answers, scope=scope)
    else:
        agent.run_sync(message, session=session, scope=scope)


async def _iterate(agent: AnyAgent, session: str, message: Message | None, answers: AnswersById, scope: Any) -> None:
    async for _ in agent.iterate(message, session=session, answers=answers, scope=scope):
        pass


async def _stream(agent: Any, session: str, message: Message | None, answers: AnswersById, scope: Any) -> None:
    async with agent.stream(message, session=session, answers=answers, scope=scope) as stream:
        async for _ in stream:
            pass


_WAYS: dict[str, Enter] = {
    "run": by_run,
    "run_sync": _run_sync,
    "iterate": _iterate,
    "stream": _stream,
}


async def live(
    enter: Enter,
    agent: AnyAgent,
    message: Message,
    answers: Answers = agreeable,
    *,
    session: str = SESSION,
    successor: Factory | None = None,
    scope: Any = None,
) -> Lived:
    """Run a turn to its end. With a `successor`, another agent resumes it after every suspension."""
    if session in await agent.store.sessions():
        raise ValueError("the factory made an agent with a used store; each agent needs a new model and a new store")
    await enter(agent, session, message, None, scope)
    return await live_on(enter, agent, answers, session=session, successor=successor, scope=scope)


async def live_on(
    enter: Enter,
    agent: AnyAgent,
    answers: Answers = agreeable,
    *,
    session: str = SESSION,
    successor: Factory | None = None,
    scope: Any = None,
) -> Lived:
    """Answer the questions of a turn until it ends."""
    log = await agent.store.read(session)
    resumed = 0
    while answers is not None and resumed < PATIENCE and (waiting := fold(session, log).waiting):
        agent = agent if successor is None else await hand_over(agent, successor(), session)
        await enter(agent, session, None, {asked.id: answer_to(asked, answers) for asked in waiting}, scope)
        log = await agent.store.read(session)
        resumed += 1
    return Lived(session, log, resumed)


def answer_to(asked: Asked, answers: AnyResolution | Callable[[Asked], AnyResolution]) -> AnyResolution:
    """The answer to a question."""
    return answers if isinstance(answers, AnyResolution) else answers(asked)


async def hand_over(agent: AnyAgent, successor: AnyAgent, session: str) -> AnyAgent:
    """Give another agent the same logs, encoded and decoded as by a disk, and the model with the rest of its script."""
    for name in tree_of(session, await agent.store.find()):
        log = [decode(encode(record)) for record in await agent.store.read(name)]
        await successor.store.append(name, log, 0)
    successor.model = agent.model
    return successor


async def _delegate(child: Any, message: Message, answers: Answers, scope: Any) -> Lived:
    """Run the same turn as a sub-agent, which goes by the clock of its parent: that is the same here."""
    made = child.as_tool()
    task = next(iter(made.spec.schema["properties"]))
    model, clock = ScriptedModel(calls([(made.name, {task: message.text})]), says("done")), child._compile().clock
    parent = Agent(model, tools=[made], clock=clock, name="parent")
    await live(by_run, parent, message, answers, scope=scope)
    for store in (parent.store, child.store):
        for session in await store.sessions():
            if session != SESSION:
                return Lived(session, await store.read(session))
    raise AssertionError("the sub-agent left no session")
