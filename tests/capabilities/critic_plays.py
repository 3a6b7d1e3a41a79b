"""Scenarios in which processes are killed while critics judge answers, and while routes and models are chosen."""

from __future__ import annotations

from tests.capabilities.critics import APPROVE, REVISE, strict_critic

from windlass import Agent, ModelRequest, ToolError, tool
from windlass.capabilities import (
    Adapt,
    Adaptation,
    AdaptationRule,
    Bounds,
    Critic,
    Critique,
    Destination,
    Panel,
    Refine,
    Route,
    SelfCritique,
)
from windlass.testing import FakeClock, FunctionModel, Scripted, World, calls, says


def judged(world: World) -> Agent:
    """A critic that is an agent with a tool, and a panel: both send the first answer back."""

    @tool(effect="pure")
    async def count(text: str) -> int:
        """Count."""
        return len(text)

    def inspect(request: ModelRequest) -> Scripted:
        if request.messages[-1].role != "tool":
            return calls("count", text="answer")
        return APPROVE if "good" in request.messages[0].text.rpartition("<answer>")[2] else REVISE

    judge = world.watch(FunctionModel(inspect, name="crash:inspector"))
    inspector = Agent(judge, tools=[count], output=Critique, name="inspector")
    panel = Panel(world.watch(strict_critic("crash:a")), world.watch(strict_critic("crash:b")), consensus="unanimous")
    model = world.model((says("Hm."), says("A good answer.")), name="crash:creator")
    return Agent(model, capabilities=[Critic(inspector), panel], store=world.store)


def refined(world: World) -> Agent:
    """Three versions of an answer, then a veto of the end, then two more versions."""
    model = world.model(says("one"), says("two"), says("three is good"), name="crash:creator")
    refine = Refine(world.watch(strict_critic("crash:critic", wants="three")))
    checked = SelfCritique(world.watch(strict_critic("crash:checker", wants="four")))
    return Agent(model, capabilities=[refine, checked], store=world.store)


def rerouted(world: World, *, share: bool = False) -> Agent:
    """A small model chooses the route; then tools fail, and the agent switches to a backup."""

    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        raise ToolError("it is dark")

    chooser = world.watch(FunctionModel(lambda request: says('{"route": "search"}'), name="crash:chooser"))
    searcher = world.model(calls("look"), calls("look"), says("never"), name="crash:searcher")
    backup = world.model(says("never"), says("never"), says("from the backup"), name="crash:backup")
    rule = AdaptationRule(lambda known: known.failed_calls > 0, Adaptation(model="crash:backup"), "tools fail", least=2)
    capabilities = [
        Route({"search": Destination(searcher, "You search."), "talk": Destination(system="Talk.")}, choose=chooser),
        Adapt([rule], Bounds(models=[backup]), share=share),
    ]
    own = world.model(says("never"), name="crash:own")
    return Agent(own, tools=[look], capabilities=capabilities, store=world.store, clock=FakeClock())


def rerouted_together(world: World) -> Agent:
    """The same with knowledge that all sessions of the store share."""
    return rerouted(world, share=True)
