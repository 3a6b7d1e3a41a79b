"""Retrieve, Memory, Skills and ToolSelect in one agent."""

from __future__ import annotations

import pytest

from windlass import Agent, tool
from windlass.capabilities import FileIndex, Memory, Retrieve, Skills, ToolSelect
from windlass.testing import ScriptedModel, assert_prefix_stable, assert_same_everywhere, calls, says


@tool(effect="pure", inline=True)
def brew(what: str) -> str:
    """Brew a drink."""
    return f"{what} brewed"


@tool(effect="pure", inline=True)
def send(to: str) -> str:
    """Send a parcel."""
    return f"sent to {to}"


@pytest.fixture
def make(tmp_path):
    skill = tmp_path / "skills" / "tea"
    skill.mkdir(parents=True)
    (skill / "SKILL.md").write_text("---\nname: tea\ndescription: Tea.\nallowed-tools: brew\n---\nUse hot water.")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "tea.md").write_text("Green tea is brewed for two minutes.")

    def build():
        script = [
            calls("use_skill", name="tea"),
            calls([("brew", {"what": "tea"}), ("send", {"to": "ann"}), ("remember", {"text": "Ann likes tea."})]),
            says("Brewed."),
            says("Tea again?"),
        ]
        capabilities = [
            Retrieve(FileIndex(tmp_path / "docs")),
            Memory(tools=True, learn=lambda event: "Tea was brewed."),
            Skills(tmp_path / "skills", always=["remember", "forget"]),
            ToolSelect(most=1),
        ]
        return Agent(ScriptedModel(*script), tools=[brew, send], capabilities=capabilities)

    return build


async def test_they_work_side_by_side_and_the_prefix_stays(make):
    agent = make()
    first = await agent.run("Brew green tea.", session="s")
    statuses = [part.status for message in first.messages for part in message.parts if message.role == "tool"]
    assert statuses == ["ok", "ok", "denied", "ok"]
    origins = [part.origin for part in agent.model.requests[0].messages[0].parts]
    assert origins == [None, "retrieve.docs", "tool_select.pick"]
    await agent.run("Send a parcel.", session="s")
    shown = {part.origin: part.text for part in agent.model.requests[-1].messages[-1].parts}
    assert "Ann likes tea." in shown["memory.recall"]
    assert "Tea was brewed." in shown["memory.recall"]
    assert "send" in shown["tool_select.pick"]
    await assert_prefix_stable(agent, "s", allow=["turn"])


async def test_together_they_are_the_same_everywhere(make):
    await assert_same_everywhere(make, "Brew green tea.")
