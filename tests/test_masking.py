"""Secrets that the application names are masked before anything is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windlass import Agent, ModelReplied, ToolReturned, tool
from windlass.errors import ConfigError
from windlass.masking import MASK
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import RecordingObserver, ScriptedModel, calls, says

SECRETS = ["sk-12345", 'quo"te\\d', "schlüssel"]


@tool
def leak(text: str) -> str:
    """Give away what it is told, as text and as JSON."""
    return text + json.dumps({"key": text})


@pytest.mark.parametrize("secret", SECRETS)
async def test_a_secret_is_in_no_record_no_message_no_fact_and_no_file(secret: str, tmp_path: Any):
    store = SQLiteStore(tmp_path / "s.db")
    observer = RecordingObserver()
    child = Agent(ScriptedModel(calls("leak", text=secret), says(f"it is {secret}")), tools=[leak], name="child")
    model = ScriptedModel(calls("leak", text=f"the key is {secret}!"), calls("child", task=secret), says(f"{secret}."))
    agent = Agent(model, tools=[leak, child.as_tool()], secrets=SECRETS, store=store).with_capability(observer)
    events = [event async for event in agent.stream(f"My key is {secret}", session="s")]
    logs = [record for name in await store.sessions() for record in await store.read(name)]
    assert len(await store.sessions()) == 2
    spelled = (secret, json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1])
    told = [fact for fact in observer.facts if isinstance(fact, ModelReplied | ToolReturned)]
    for text in (repr(logs), repr(told), repr([list(request.messages) for request in model.requests])):
        assert MASK in text
        assert not any(form in text for form in spelled)
    assert not any(form in repr([e for e in events if isinstance(e, ToolReturned)]) for form in spelled)
    await store.close()
    for file in tmp_path.iterdir():
        assert not any(form.encode() in file.read_bytes() for form in spelled)


async def test_a_session_with_masked_records_goes_on(tmp_path: Any):
    agent = Agent(
        ScriptedModel(says("hello sk-12345"), says("again")),
        secrets=["sk-12345"],
        store=f"sqlite:///{tmp_path}/s.db",
    )
    assert (await agent.run("hi", session="s")).text == f"hello {MASK}"
    assert (await agent.run("and?", session="s")).text == "again"
    await agent.store.verify("s")
    await agent.store.close()


def test_a_secret_that_would_be_everywhere_is_refused():
    with pytest.raises(ConfigError, match="at least 4 characters"):
        Agent(ScriptedModel(), secrets=["abc"])
