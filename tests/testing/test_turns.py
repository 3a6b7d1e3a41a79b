"""`fake_turn`: a hook or a tool is tested alone, as a plain function."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import Struct

from windlass import Agent, Deny, Slot, StepLimit, ToolCall, ToolCalling, Turn, assistant, tool, user
from windlass.errors import ConfigError, HookError
from windlass.records import SideReplied
from windlass.testing import FakeClock, FakeTurn, ScriptedModel, fake_turn, says


class Desk(Struct):
    user: str


class Seen(Struct):
    calls: int = 0


SEEN = Slot("seen", Seen)


def calling(name: str, turn: Turn[Any], **arguments: Any) -> ToolCalling:
    return ToolCalling(ToolCall("test/1/1", name).replace(arguments=arguments), turn)


def only_admins(event: ToolCalling, turn: Turn[Desk]) -> Deny | None:
    seen = turn.get(SEEN)
    turn.set(SEEN, Seen(seen.calls + 1))
    return None if turn.scope.user == "root" else Deny(f"{turn.scope.user} may not")


def test_a_hook_reads_its_scope_and_its_slots():
    turn = fake_turn(scope=Desk("ann"), slots={SEEN: Seen(2)})
    assert only_admins(calling("rm", turn), turn) == Deny("ann may not")
    assert turn.get(SEEN) == Seen(3)
    turn = fake_turn(scope=Desk("root"), slots=[SEEN])
    assert only_admins(calling("rm", turn), turn) is None
    assert turn.get(SEEN) == Seen(1)


async def test_a_hook_asks_the_model_of_the_test_by_whatever_name():
    model = ScriptedModel(says("no"), says('{"calls": 7}'))
    turn = fake_turn(model=model)
    assert (await turn.ask("critic", "fine?")).text == "no"
    assert await turn.ask("openai:other", "how many?", output=Seen) == Seen(7)
    assert [request.messages[-1].text for request in model.requests] == ["fine?", "how many?"]
    assert [type(record) for record in turn.records] == [SideReplied, SideReplied]
    assert turn.usage.requests == 2


async def test_time_is_that_of_the_clock_of_the_test():
    clock = FakeClock(50.0, auto=True)
    turn = fake_turn(clock=clock)
    await turn.sleep(10)
    assert turn.now() == 60.0
    assert (await _waits()) == 5.0


async def _waits() -> float:
    turn = fake_turn()
    began = turn.now()
    await turn.sleep(5)
    return turn.now() - began


def test_what_a_hook_did_can_be_read():
    turn = fake_turn(message="hello", history=[user("before"), assistant("yes")])
    assert turn.user_message.text == "hello"
    assert [message.text for message in turn.context] == ["before", "yes", "hello"]
    turn.add("Mind the gap.")
    turn.note("budget.warning", {"left": 3})
    assert turn.cancelled is None
    turn.cancel("enough")
    assert [message.text for message in turn.added] == ["Mind the gap."]
    assert turn.notes == [("budget.warning", {"left": 3})]
    assert turn.cancelled == "enough"


def test_an_agent_brings_its_tools_and_limits():
    agent = Agent(ScriptedModel(), criteria=[StepLimit(3)])
    agent.slot(SEEN)
    turn: FakeTurn[Any] = fake_turn(agent=agent, slots={SEEN: Seen(1)})
    assert turn.left.steps == 3
    assert turn.get(SEEN) == Seen(1)
    with pytest.raises(ConfigError, match="the agent has its own model and clock"):
        fake_turn(agent=agent, clock=FakeClock())


async def test_a_tool_is_called_with_the_turn():
    @tool
    async def greet(name: str, turn: Turn[Desk]) -> str:
        """Greet."""
        return f"hello {name} from {turn.scope.user}"

    assert await greet("bob", turn=fake_turn(scope=Desk("ann"))) == "hello bob from ann"


def test_mistakes_are_named():
    turn = fake_turn()
    with pytest.raises(ConfigError, match="no slot 'seen' is declared"):
        turn.get(SEEN)
    with pytest.raises(HookError, match="'fake_turn' set slot 'seen'"):
        fake_turn(slots={SEEN: "three"})
