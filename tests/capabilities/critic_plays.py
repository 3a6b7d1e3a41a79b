"""Scenarios in which processes are killed while critics judge answers."""

from __future__ import annotations

from tests.capabilities.critics import APPROVE, REVISE, strict_critic

from windlass import Agent, ModelRequest, tool
from windlass.capabilities import Critic, Critique, Panel, Refine, SelfCritique
from windlass.testing import FunctionModel, Scripted, World, calls, says


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
