"""What is read of logs and stored agents: figures of hooks, coverage, changes, and who wrote a text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass import Agent, Deny, ModelReplying, SessionOpened, ToolCalling
from windlass.inspector.blame import Sources
from windlass.inspector.figures import summarise
from windlass.inspector.governance import Governance
from windlass.inspector.pipelines import changes, points, read_pipeline, sees
from windlass.inspector.sources import open_source
from windlass.server.json import to_json
from windlass.stores import MemoryStore, SQLiteStore
from windlass.testing import ScriptedModel, calls, says
from windlass.testing.strategies import records
from windlass.transfer import export_session

from . import shop
from .test_security import ask


async def test_a_file_that_somebody_sent_shows_its_pipeline(
    database: Path, tmp_path: Path, started: Callable[..., Any]
):
    file, store = tmp_path / "sent.jsonl", SQLiteStore(database)
    file.write_text("\n".join(await export_session(store, "clerk-3")), encoding="utf-8")
    await store.close()
    process = started(file)
    status, _, data = ask(process, "/api/pipeline?session=clerk-3")
    found = json.loads(data)
    assert status == 200
    assert found["detailed"]
    assert found["changes"][0]["changes"][0]["name"] == "only_staff (gate on ToolCalling)"


@given(st.lists(records(), max_size=12))
def test_any_log_can_be_summed_up(log: Any):
    summary = summarise("s", log)
    for turn in (None, 1):
        figures = summary.of(turn)
        to_json([figures.cost(), [one.view() for one in figures.hooks.values()], figures.streams, summary.effects])
    sources = Sources(log)
    to_json(sources.of("x", "system"))


@pytest.mark.parametrize(
    ("matcher", "tool", "expected"),
    [
        (None, "pay", "always"), ("pay", "pay", "always"), ("pay", "payment", "no"), ("pay*", "payment", "always"),
        ("pay(to=*)", "pay", "maybe"), ("pay(to=*)", "look", "no"), ("look or pay", "pay", "always"),
        ("/^p/", "pay", "always"), ("/^p/", "look", "no"), ("is_risky()", "pay", "maybe"), ("/(/", "pay", "maybe"),
        ("/(a+)+$/", "a" * 60 + "!", "maybe"), ("/a*a*a*a*a*b/", "a" * 300, "maybe"),
        ("/^(read|list)_/", "list_x", "always"),
    ],
)  # fmt: skip
def test_a_stored_matcher_says_which_tools_a_gate_sees(matcher: str | None, tool: str, expected: str):
    assert sees(matcher, tool) == expected


async def test_changes_name_the_fields_of_a_hook_that_differ():
    store = MemoryStore()

    async def described(**options: Any) -> Any:
        agent = Agent(ScriptedModel(says("x")), tools=[shop.refund, shop.send_mail], store=store)
        agent.gate(ToolCalling, name="limit", **options)(lambda event: Deny("no"))
        agent.gate(ModelReplying, name="judge", live=True)(lambda event: None)
        session = f"s{len(await store.find())}"
        await agent.run("go", session=session)
        (digest,) = [record.pipeline for record in await store.read(session) if isinstance(record, SessionOpened)]
        return read_pipeline(await store.pipeline(digest))

    old, new = await described(tool="refund"), await described(mode="shadow")
    [change] = changes(old, new)
    assert change["name"] == "limit (gate on ToolCalling)"
    assert {(one["name"], one["before"], one["after"]) for one in change["fields"]} == {
        ("tool", "refund", None),
        ("shadow", None, "true"),
    }
    at = {point["point"]: point["hooks"] for point in points(new)}
    assert at["ToolCalling"][0]["verb"] == "shadow gate"
    assert not changes(old, old)


async def test_the_description_of_an_older_version_claims_nothing_about_matchers():
    old = {"hooks": [{"kind": "gate", "event": "ToolCalling", "name": "limit", "band": "normal", "priority": 0}]}
    new = {"hooks": [{**old["hooks"][0], "tool": "pay"}], "transforms": [], "compactors": [], "unmatched": "allow"}
    assert not changes(old, new)
    hooks = [one for point in points(old) for one in point["hooks"]]
    assert hooks[0]["fails"] == ""


async def test_figures_follow_a_log_that_grows():
    source = await open_source(MemoryStore())
    governance = Governance(source)
    agent = Agent(ScriptedModel(calls("refund", order="1", amount=5), says("a"), says("b")), tools=[shop.refund],
                  store=source.store, measure_hooks=True)  # fmt: skip
    agent.gate(ToolCalling, name="limit")(lambda event: None)
    await agent.run("go", session="s")
    first = await governance.summary("s")
    assert first.of(None).hooks["ToolCalling", "limit"].asked == 1
    await agent.run("go", session="s")
    assert len((await governance.summary("s")).turns) == 2
    found, missing = await governance.all()
    assert missing == 0
    assert found[0][1].records == len(await source.store.read("s"))
