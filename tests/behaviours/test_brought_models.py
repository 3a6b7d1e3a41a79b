"""Models that capabilities bring: a fallback or a route is a few lines, and guards judge every request."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import (
    Agent,
    Ask,
    Halt,
    Hooks,
    ModelCall,
    ModelCalling,
    ModelError,
    ModelReplied,
    Pipeline,
    Stopped,
    Turn,
)
from windlass.errors import CompiledError, ConfigError
from windlass.testing import FunctionModel, ScriptedModel, assert_same_everywhere, calls, says

from .trees import CHILD, Tree, asked_for


class Fallback:
    """Asks another model if the first one fails."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def install(self, registrar: Any) -> None:
        other = registrar.model(self.model)

        @registrar.wrap(ModelCall, inherit=True)
        async def fall_back(request: Any, call_next: Any) -> Any:
            try:
                return await call_next(request)
            except ModelError:
                return await call_next(request.replace(model=other))


def backup(text: str = "from b") -> Any:
    return FunctionModel(lambda request: says(text), name="b")


def failing() -> Any:
    def fail(request: Any) -> Any:
        raise ModelError("down")

    return FunctionModel(fail, name="a")


async def test_a_capability_falls_back_to_the_model_that_it_brings():
    def factory() -> Agent:
        agent = Agent(failing()).with_capability(Fallback(backup()))
        agent.gate(ModelCalling, name="ask", model="a")(lambda event: Ask("may it leave?"))
        return agent

    lived = await assert_same_everywhere(factory)
    assert lived.state.text == "from b"
    assert lived.resumed == 1


async def test_a_rewrite_routes_to_a_model_that_a_capability_brings():
    class Route:
        def install(self, registrar: Any) -> None:
            name = registrar.model(backup())
            registrar.rewrite(ModelCalling)(lambda event: event.request.replace(model=name))

    def factory() -> Agent:
        return Agent(failing()).with_capability(Route())

    assert (await assert_same_everywhere(factory)).state.text == "from b"


async def test_guards_judge_the_request_to_a_model_that_a_capability_brings():
    agent = Agent(failing()).with_capability(Fallback(backup()))
    agent.gate(ModelCalling, model="b", band="guard")(lambda event: Halt("b is not allowed"))
    result = await agent.run("go")
    assert isinstance(result.outcome, Stopped)
    assert result.outcome.detail == "b is not allowed"


async def test_a_sub_agent_falls_back_to_the_model_of_an_inherited_capability():
    tree = Tree(child=failing())
    tree.parent.with_capability(Fallback(backup("the child used b")))
    await tree.run()
    (replied,) = await tree.find(ModelReplied, CHILD)
    assert replied.reply.text == "the child used b"


async def test_a_side_call_may_name_the_model():
    agent = Agent(ScriptedModel(says("done"), name="a")).with_capability(Fallback(backup("aside")))
    asked: list[str] = []

    @agent.gate(ModelCalling)
    async def consult(event: ModelCalling, turn: Turn[Any]) -> None:
        asked.append((await turn.ask("b", "what do you think?")).text)

    assert (await agent.run("go")).text == "done"
    assert asked == ["aside"]


async def test_a_collection_of_hooks_brings_a_model():
    hooks = Hooks()
    name = hooks.model(backup())
    hooks.rewrite(ModelCalling)(lambda event: event.request.replace(model=name))
    assert (await Agent(failing(), pipeline=Pipeline.minimal().with_hooks(hooks)).run("go")).text == "from b"


def test_the_same_model_may_be_brought_twice():
    shared = backup()
    agent = Agent(failing(), models=[shared]).with_capability(Fallback(shared)).with_capability(Fallback(shared))
    agent.compile()
    agent = Agent("ollama:llama3").with_capability(Fallback("ollama:llama3"))
    assert len(agent.explain().data["models"]) == 1


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (
            lambda: Agent(failing(), models=[backup()]).with_capability(Fallback(backup())),
            "two models named 'b': one of its models= and one from capability 'Fallback'",
        ),
        (
            lambda: Agent(failing()).with_capability(Fallback(failing())),
            "two models named 'a': its own model and one from capability 'Fallback'",
        ),
        (lambda: Agent(failing(), models=[backup(), backup()]), "one of its models= and one of its models="),
    ],
)
def test_two_models_of_one_name_are_refused(build, why):
    with pytest.raises(ConfigError, match=why):
        build().compile()


@pytest.mark.parametrize("model", [7, None, ScriptedModel])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(ConfigError, match="model"):
        Agent(failing()).with_capability(Fallback(model))


def test_a_model_cannot_be_brought_after_compiling():
    hooks = Hooks()
    agent = Agent(failing(), pipeline=Pipeline.minimal().with_hooks(hooks))
    agent.compile()
    with pytest.raises(CompiledError, match="model 'b'"):
        hooks.model(backup())


async def test_an_unknown_model_is_named_with_the_known_ones():
    agent = Agent(ScriptedModel(says("hi"), name="a")).with_capability(Fallback(backup()))
    agent.rewrite(ModelCalling)(lambda event: event.request.replace(model="c"))
    result = await agent.run("go")
    assert "asks for model 'c', which the agent does not have; known: a, b" in result.outcome.error.message
    assert "registrar.model" in result.outcome.error.message


def test_explain_lists_the_models_and_who_brought_them():
    explanation = Agent(failing()).with_capability(Fallback(backup())).explain()
    assert "b (streams, from Fallback)" in str(explanation)
    assert [model["capability"] for model in explanation.data["models"]] == [None, "Fallback"]


async def test_the_model_of_a_sub_agent_wins_over_an_inherited_one_of_the_same_name():
    child = FunctionModel(lambda request: calls("work") if len(request.messages) < 2 else says("own b"), name="b")
    tree = Tree(child=child, parent=asked_for())
    tree.parent.with_capability(Fallback(backup()))
    await tree.run()
    assert [replied.reply.text for replied in await tree.find(ModelReplied, CHILD)][-1] == "own b"
