"""Random scripts and random hooks: legal, readable, and doing the same each time."""

from __future__ import annotations

import asyncio
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from windlass import Agent, ErrorPolicy, ModelReply, ModelRequest, StepLimit, tool
from windlass.events import EVENTS
from windlass.messages import Messages
from windlass.testing import FakeClock, HookSet, PlannedHook, ScriptedModel, assert_same_everywhere, calls
from windlass.testing.strategies import (
    answers_to,
    arguments_for,
    hook_sets,
    messages,
    parts,
    records,
    replies,
    scripted,
    scripts,
)

REQUEST = ModelRequest("", Messages())


@tool(effect="pure", inline=True)
def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


@tool
async def paint(colour: str, shades: list[int] | None = None, bright: bool = False) -> str:
    """Paint."""
    return colour


TOOLS = [add, paint]


# ---------------------------------------------------------------- replies and scripts


@given(parts(), messages(), records())
def test_values_are_shown_as_they_are_made(part, message, record):
    assert all(repr(value) for value in (part, message, record))


@given(st.data())
def test_arguments_fit_the_tool(data):
    async def holds() -> None:
        given = data.draw(arguments_for(paint))
        agent = Agent(ScriptedModel(calls([("paint", given)]), "done"), tools=TOOLS)
        result = await agent.run("go")
        assert result.messages[2].parts[0].status == "ok"  # type: ignore[union-attr]

    asyncio.run(holds())


@given(scripted(TOOLS))
def test_a_scripted_reply_is_the_same_however_it_is_asked_for(said):
    async def holds() -> None:
        whole = await ScriptedModel(said).reply(REQUEST)
        *_, last = [piece async for piece in ScriptedModel(said).stream(REQUEST)]
        assert last == whole

    asyncio.run(holds())


@given(replies(TOOLS))
def test_a_reply_calls_only_tools_that_are_there(reply):
    assert isinstance(reply, ModelReply)
    assert {call.name for call in reply.tool_calls} <= {"add", "paint"}


@given(scripts(TOOLS, max_size=3))
def test_a_script_ends_with_a_text(script):
    assert 1 <= len(script) <= 3
    assert script[-1].reply.text
    assert not script[-1].reply.tool_calls


@given(scripts(TOOLS, failing=False, wrong=False))
def test_a_script_without_failures_is_run_to_its_end_or_stops_before(script):
    result = Agent(ScriptedModel(*script), tools=TOOLS).run_sync("go")
    assert result.error is None


# ---------------------------------------------------------------- hooks


@given(st.sampled_from(EVENTS), st.data())
def test_answers_are_legal_where_they_are_given(event, data):
    answer = data.draw(answers_to(event))
    ranks = [rank if isinstance(rank, type) else type(rank) for rank in event.ranks]
    assert answer is None or type(answer) in ranks


@settings(max_examples=200)
@given(hook_sets(tools=TOOLS, max_size=8))
def test_hooks_can_be_installed_on_any_agent(hooks):
    agent = Agent(ScriptedModel(), tools=TOOLS)
    hooks.install(agent)
    program = agent._compile()
    transforms = [hook for hook in hooks.hooks if hook.verb == "transform"]
    assert len(program.hooks.all) == len(hooks.hooks) - len(transforms)


@given(hook_sets(tools=TOOLS, bands=["early", "normal"]))
def test_hooks_outside_the_guard_band_are_a_capability(hooks):
    Agent(ScriptedModel()).with_capability(hooks).compile()


def test_planned_hooks_are_shown_as_they_are_made():
    hook = PlannedHook("gate1", "gate", "ToolCalling", when="first", options={"band": "early"})
    assert eval(repr(HookSet((hook,))), {"HookSet": HookSet, "PlannedHook": PlannedHook}) == HookSet((hook,))


@settings(max_examples=150)
@given(hook_sets(tools=TOOLS), scripts(TOOLS))
def test_random_turns_are_the_same_in_every_way_of_running(hooks, script):
    def agent() -> Agent:
        made = Agent(
            ScriptedModel(*script),
            tools=TOOLS,
            errors=ErrorPolicy.retrying(1, delay=0),
            criteria=[StepLimit(6)],
            clock=FakeClock(auto=True),
        )
        hooks.install(made)
        return made

    asyncio.run(assert_same_everywhere(agent))


# ---------------------------------------------------------------- without hypothesis


def test_without_hypothesis_the_kit_works_and_the_strategies_say_what_to_install():
    script = (
        "import sys; sys.modules['hypothesis'] = None; sys.modules['pytest'] = None\n"
        "import windlass.testing\n"
        "try:\n    import windlass.testing.strategies\n"
        "except ImportError as error:\n    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "windlass[testing]" in done.stdout
