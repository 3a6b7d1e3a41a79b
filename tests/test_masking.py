"""Secrets that the application names are masked before anything is written."""

from __future__ import annotations

import json
from typing import Any

import pytest

from windlass import (
    Agent,
    Answered,
    Approve,
    Ask,
    Cancelled,
    Completed,
    Edit,
    ModelReplied,
    Reject,
    Respond,
    ToolCalling,
    ToolReturned,
    tool,
)
from windlass.approvals import resolve
from windlass.errors import ConfigError
from windlass.masking import MASK
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import FakeClock, RecordingObserver, ScriptedModel, calls, says

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


@pytest.mark.parametrize(
    "written", [r"sk\/schl\u00FCssel", r"\u0073k/schlüssel", r"sk/schl\u00fcssel", "sk/schlüssel"], ids=ascii
)
async def test_a_secret_is_found_however_the_model_spells_it_in_its_json(written: str):
    told: list[str] = []

    @tool
    def tell(text: str) -> str:
        """Tell somebody."""
        told.append(text)
        return "told"

    model = ScriptedModel(calls([("tell", f'{{"text": "{written}"}}')]), says("done"))
    agent = Agent(model, tools=[tell], secrets=["sk/schlüssel"])
    await agent.run("go", session="s")
    assert told == ["sk/schlüssel"]  # this process holds what the model wrote
    log = repr(await agent.store.read("s"))
    assert MASK in log
    assert not any(form in log for form in (written, "sk/schlüssel", "sk/schl"))


@pytest.mark.parametrize("secret", ["0123456789", "1234", "user", "tool_call", "Completed"])
async def test_a_secret_that_looks_like_a_number_or_a_word_of_ours_breaks_no_record(secret: str, tmp_path: Any):
    model = ScriptedModel(calls("leak", text=f"({secret})"), says(f"it is {secret}"))
    agent = Agent(
        model,
        tools=[leak],
        secrets=[secret],
        store=f"sqlite:///{tmp_path}/s.db",
        clock=FakeClock(start=1234.1234),
    )
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    (asked,) = (await agent.run(f"hi {secret}", session=f"s{secret}")).waiting_for
    result = await agent.resume(f"s{secret}", answers={asked.id: Approve()})
    assert (result.text, result.outcome) == (f"it is {MASK}", Completed())
    texts = [getattr(part, "text", "") or getattr(part, "json", "") for m in result.messages for part in m.parts]
    assert not any(secret in text for text in texts)
    await agent.store.close()


async def test_what_comes_through_the_inbox_is_masked_before_it_is_put_there(tmp_path: Any):
    store = SQLiteStore(tmp_path / "s.db")
    agent = Agent(ScriptedModel(calls("leak", text="x"), says("done")), tools=[leak], secrets=["sk-12345"], store=store)
    agent.gate(ToolCalling)(lambda event: Ask("May it?"))
    (asked,) = (await agent.run("hi", session="s")).waiting_for
    await agent.resolve("s", asked.id, Respond("the key is sk-12345"))
    await agent.steer("s", "use sk-12345")
    await agent.cancel("s", "sk-12345 is known")
    entries = await store.inbox("s", ())
    assert [kind for _, kind, _ in entries] == ["answer", "steer", "cancel"]
    assert repr(entries).count(MASK) == 3
    assert "sk-12345" not in repr(entries)
    assert (await agent.resume("s")).outcome == Cancelled(f"{MASK} is known")
    await store.close()


@pytest.mark.parametrize("answer", [Respond("it is sk-12345"), Reject("not sk-12345"), Edit({"text": "sk-12345"})])
async def test_an_answer_from_somebody_who_does_not_know_the_secrets_is_masked_when_it_is_taken(
    tmp_path: Any, answer: Any
):
    """Whoever answers through the store alone cannot mask; the owner does, and the inbox forgets what it said."""
    file = tmp_path / "s.db"
    store = SQLiteStore(file)
    script = ScriptedModel(calls("child", task="t"), says("done"))
    child = Agent(ScriptedModel(calls("leak", text="x"), says("ok")), tools=[leak], name="child")
    child.gate(ToolCalling)(lambda event: Ask("May it?"))
    agent = Agent(script, tools=[child.as_tool()], secrets=["sk-12345"], store=store)
    (asked,) = (await agent.run("hi", session="s")).waiting_for
    await resolve(store, "s", asked.id, answer)
    events = [event async for event in agent.stream(session="s")]
    assert "sk-12345" not in repr(events)
    for session in ("s", "s//1/1"):
        log = await store.read(session)
        assert "sk-12345" not in repr(log)
        assert MASK in repr([record for record in log if isinstance(record, Answered)])
        assert list(await store.inbox(session, ())) == []
    await store.close()
    assert b"sk-12345" not in file.read_bytes()


def test_a_secret_that_would_be_everywhere_is_refused():
    with pytest.raises(ConfigError, match="at least 4 characters"):
        Agent(ScriptedModel(), secrets=["abc"])
