"""Logging, Events, Metrics and Notify: they look on, say what happened, and no turn notices them."""

from __future__ import annotations

import hashlib
import hmac
import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from windlass import Agent, Approve, Ask, Deny, ModelReplying, Regenerate, ToolCalling, ToolReturned, TurnEnded, tool
from windlass.capabilities import Events, Logging, Metrics, Notify
from windlass.errors import AuthFailed, ConfigError
from windlass.events import FACTS
from windlass.messages import ModelReply, Usage, assistant
from windlass.records import HookFailed, TurnStarted
from windlass.stores import SQLiteStore
from windlass.testing import FakeClock, FunctionModel, ScriptedModel, calls, check_capability, says


@tool(effect="pure", inline=True)
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool(effect="pure", inline=True)
def fail() -> int:
    """Fail."""
    raise ValueError("broken")


def adding(*more: Any, **options: Any) -> Agent[Any, Any]:
    model = ScriptedModel(calls("add", a=1, b=2), *more, says("It is 3."))
    return Agent(model, tools=[add, fail], clock=FakeClock(auto=True), **options)


ALL = [
    lambda: Logging(level="DEBUG", content=True),
    lambda: Logging(),
    lambda: Events("debug"),
    lambda: Metrics(),
    lambda: Notify(lambda notification: None, on=("suspended", "completed", "stopped", "failed", "cancelled")),
    lambda: Notify(lambda notification: None, on=("completed",), content=True),
]


@pytest.mark.parametrize("make", ALL)
async def test_each_is_a_good_capability(make):
    await check_capability(make)


# ---------------------------------------------------------------- Logging


async def lines(caplog: pytest.LogCaptureFixture, agent: Agent[Any, Any], text: str = "go") -> list[str]:
    with caplog.at_level(logging.DEBUG, logger="windlass.agent"):
        await agent.run(text, session="s")
        await agent.aclose()
    return [f"{record.levelname} {record.getMessage()}" for record in caplog.records if record.name == "windlass.agent"]


async def test_a_quiet_turn_has_two_lines(caplog):
    written = await lines(caplog, adding().with_capability(Logging()))
    assert written == ["INFO turn_started session=s turn=1", "INFO turn_ended session=s outcome=completed"]


async def test_refusals_errors_and_failures_are_warnings(caplog):
    agent = adding(calls("fail")).with_capability(Logging())
    agent.gate(ToolCalling, tool="add", name="no")(lambda event: Deny("never"))
    agent.gate(ModelReplying, name="buggy", mode="shadow")(lambda event: 1 / 0)
    written = await lines(caplog, agent)
    assert "WARNING tool_decided session=s tool=add call=s/1/1 verdict=deny by=no" in written
    assert "WARNING tool_returned session=s tool=add call=s/1/1 status=denied characters=13" in written
    assert any(line.startswith("WARNING tool_returned session=s tool=fail call=s/2/1 status=error") for line in written)
    assert any(line.startswith("WARNING hook_failed session=s hook=buggy event=ModelReplying") for line in written)
    assert "never" not in str(written)


async def test_debug_writes_what_happens_in_each_step(caplog):
    written = await lines(caplog, adding().with_capability(Logging(level="DEBUG")))
    events = [line.split()[1] for line in written]
    assert events == [
        "session_opened", "turn_started", "model_called", "model_replied", "tool_decided", "tool_called",
        "tool_returned",
        "model_called", "model_replied", "turn_ended",
    ]  # fmt: skip


async def test_a_failed_turn_is_an_error(caplog):
    written = await lines(caplog, Agent(ScriptedModel(AuthFailed("bad key"))).with_capability(Logging()))
    assert written[-1].startswith("ERROR turn_ended session=s outcome=failed")
    assert "error=AuthFailed" in written[-1]


async def test_content_is_quoted_cut_and_without_secrets(caplog):
    agent = Agent(ScriptedModel(says("x" * 50)), secrets=["hunter2"])
    agent.with_capability(Logging(level="DEBUG", content=True, limit=20))
    written = await lines(caplog, agent, 'it is hunter2\nFAKE "line"')
    assert not any("hunter2" in line or "\n" in line for line in written)
    assert any("(50 characters)" in line for line in written)
    fields = [record.windlass for record in caplog.records if hasattr(record, "windlass")]
    assert fields[1]["event"] == "turn_started"
    assert fields[1]["session"] == "s"
    assert fields[1]["text"].startswith("it is •••\nFAKE")


async def test_a_sub_agent_has_its_own_session_in_the_lines(caplog):
    child = Agent(ScriptedModel(says("mine")), name="child")
    agent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()])
    written = await lines(caplog, agent.with_capability(Logging()))
    assert any(line.startswith("INFO delegated session=s agent=child child=s//1/1") for line in written)
    assert "INFO turn_started session=s//1/1 turn=1" in written


def test_an_unknown_level_is_refused():
    with pytest.raises(ConfigError, match="level='LOUD' is not a level"):
        Logging(level="LOUD")


# ---------------------------------------------------------------- Events


async def test_listeners_join_and_leave():
    events, seen, all_of_them = Events(), [], []
    agent = Agent(ScriptedModel(*[calls("add", a=1, b=2), says("3")] * 2), tools=[add], capabilities=[events])
    leave = events.on(ToolReturned, lambda fact, session_id: seen.append((session_id, fact.name)))
    stop = events.wiretap(all_of_them.append)
    await agent.run("go", session="a")
    leave()
    stop()
    await agent.run("go", session="b")
    await agent.aclose()
    assert seen == [("a", "add")]
    assert [type(fact).__name__ for fact in all_of_them] == [
        "SessionOpened", "TurnStarted", "StepStarted", "ModelCalled", "ModelReplied", "ToolDecided", "ToolCalled",
        "ToolReturned",
        "StepEnded", "StepStarted", "ModelCalled", "ModelReplied", "StepEnded", "TurnEnded",
    ]  # fmt: skip


async def test_a_listener_that_fails_does_not_keep_others_from_hearing(caplog):
    events, seen = Events("minimal"), []

    def broken(fact):
        raise RuntimeError("no")

    events.on(TurnEnded, broken)
    events.on(TurnEnded, seen.append)
    agent = Agent(ScriptedModel(says("3")), capabilities=[events])
    await agent.run("go", session="a")
    await agent.aclose()
    assert len(seen) == 1
    assert "failed on TurnEnded" in caplog.text
    assert not any(isinstance(record, HookFailed) for record in await agent.store.read("a"))


def test_presets_grow_and_take_more():
    minimal, standard, debug = Events("minimal").facts, Events().facts, Events("debug").facts
    assert set(minimal) < set(standard) < set(debug) == set(FACTS)
    assert set(Events("minimal", ToolReturned).facts) == {*minimal, ToolReturned}


async def _later(fact):
    """An async listener."""


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Events("loud"), "preset must be 'minimal'"),  # type: ignore[arg-type]
        (lambda: Events("minimal", int), "facts must be"),  # type: ignore[arg-type]
        (lambda: Events("minimal").on(ToolReturned, print), "ToolReturned is not emitted"),
        (lambda: Events().on(ToolReturned, _later), "is async"),
        (lambda: Events().wiretap(5), "5 is not a function"),  # type: ignore[arg-type]
    ],
)
def test_bad_use_of_events_is_refused(make, why):
    with pytest.raises(ConfigError, match=why):
        make()


# ---------------------------------------------------------------- Metrics


def values(metrics: Metrics) -> dict[tuple[str, frozenset[str]], float]:
    found = {}
    for family in text_string_to_metric_families(metrics.text()):
        for sample in family.samples:
            if sample.name.endswith(("_total", "_count", "_sum")):
                found[sample.name, frozenset(sample.labels.values())] = sample.value
    return found


async def test_metrics_count_what_happened():
    clock, metrics = FakeClock(auto=True), Metrics()

    async def reply(request):
        await clock.sleep(2)
        if len(request.messages) > 1:
            return ModelReply(assistant("3"), Usage(10, 5, cost=0.25), model="m")
        return calls([("add", {"a": 1, "b": 2}), ("fail", {})])

    agent = Agent(FunctionModel(reply, name="m"), tools=[add, fail], clock=clock, capabilities=[metrics])
    agent.gate(ToolCalling, tool="fail")(lambda event: Deny("no"))
    await agent.run("go", session="s")
    await agent.aclose()
    found = values(metrics)
    assert found["windlass_turns_total", frozenset({"completed", ""})] == 1
    assert found["windlass_steps_total", frozenset()] == 2
    assert found["windlass_tokens_total", frozenset({"m", "output"})] == 5
    assert found["windlass_cost_usd_total", frozenset({"m"})] == 0.25
    assert found["windlass_tool_calls_total", frozenset({"add", "ok"})] == 1
    assert found["windlass_tool_calls_total", frozenset({"fail", "denied"})] == 1
    assert found["windlass_verdicts_total", frozenset({"fail", "deny"})] == 1
    assert found["windlass_model_seconds_sum", frozenset({"m"})] == pytest.approx(2)
    assert found["windlass_tool_seconds_count", frozenset({"add"})] == 1
    assert found["windlass_turn_seconds_sum", frozenset()] == pytest.approx(4)


async def test_metrics_count_errors_rejections_questions_and_failing_hooks():
    metrics = Metrics(prefix="bot")
    agent = Agent(ScriptedModel(says("a"), calls("add", a=1, b=2)), tools=[add], capabilities=[metrics])
    agent.gate(ModelReplying, name="picky")(lambda event: Regenerate("again") if event.round == 1 else None)
    agent.gate(ToolCalling)(lambda event: Ask("ok?"))
    agent.observe(TurnStarted, name="buggy")(lambda fact: 1 / 0)
    await agent.run("go", session="s")
    await Agent(ScriptedModel(AuthFailed("x")), capabilities=[metrics]).run("go")
    await agent.aclose()
    found = values(metrics)
    assert found["bot_replies_rejected_total", frozenset()] == 1
    assert found["bot_questions_total", frozenset({"ToolCalling"})] == 1
    assert found["bot_hook_failures_total", frozenset({"buggy"})] == 1
    assert found["bot_turns_total", frozenset({"failed", ""})] == 1


async def test_names_that_a_model_makes_up_do_not_flood_the_labels():
    metrics = Metrics()
    made_up = [(f"tool{number}", {}) for number in range(300)]
    agent = Agent(ScriptedModel(calls(made_up), says("done")), capabilities=[metrics])
    await agent.run("go", session="s")
    await agent.aclose()
    labels = [key for key in values(metrics) if key[0] == "windlass_tool_calls_total"]
    assert len(labels) == 201
    assert values(metrics)["windlass_tool_calls_total", frozenset({"other", "error"})] == 100


def test_metrics_join_a_registry_of_yours():
    registry = CollectorRegistry()
    Metrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(registry)
    Metrics(registry, prefix="other")


# ---------------------------------------------------------------- Notify


class _Receiver(BaseHTTPRequestHandler):
    answers: list[int]
    got: list[tuple[dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.got.append((dict(self.headers), body))
        self.send_response(self.answers.pop(0) if self.answers else 204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        """Stay quiet."""


@pytest.fixture
def receiver() -> Iterator[type[_Receiver]]:
    handler = type("Receiver", (_Receiver,), {"answers": [], "got": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        handler.url = f"http://127.0.0.1:{server.server_port}/hook"  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield handler
        server.shutdown()
        thread.join()


async def test_a_webhook_is_told_of_a_suspension_with_a_signature(receiver: Any):
    agent = adding().with_capability(Notify(receiver.url, secret="s3cret", headers={"X-Team": "blue"}))
    agent.gate(ToolCalling)(lambda event: Ask("May I?", approvers=["ann"]))
    await agent.run("go", session="s")
    await agent.aclose()
    [(headers, body)] = receiver.got
    told = json.loads(body)
    assert told["occasion"] == "suspended"
    assert told["session"] == "s"
    assert told["questions"] == [
        {"id": "s/1/1", "event": "ToolCalling", "tool": "add", "approvers": ["ann"], "expires_at": None}
    ]
    signature = hmac.new(b"s3cret", body, hashlib.sha256).hexdigest()
    assert headers["X-Windlass-Signature"] == f"sha256={signature}"
    assert headers["X-Team"] == "blue"
    assert headers["Idempotency-Key"] == told["id"]


async def test_a_webhook_that_fails_is_tried_again(receiver: Any):
    receiver.answers += [500, 503]
    agent = adding().with_capability(Notify(receiver.url, on="completed", content=True))  # type: ignore[arg-type]
    result = await agent.run("go", session="s")
    assert result.text == "It is 3."
    await agent.aclose()
    bodies = [body for _, body in receiver.got]
    assert len(bodies) == 3
    assert len(set(bodies)) == 1
    assert json.loads(bodies[0])["text"] == "It is 3."


async def test_a_target_that_never_works_is_given_up_and_recorded():
    tried: list[Any] = []

    def target(notification):
        tried.append(notification)
        raise OSError("down")

    agent = adding().with_capability(Notify(target, on=["completed"], tries=3))
    assert (await agent.run("go", session="s")).text == "It is 3."
    await agent.catch_up()
    await agent.aclose()
    assert len(tried) == 3


async def test_another_process_notifies_what_this_one_did_not(tmp_path):
    path = tmp_path / "agent.db"
    first = Agent(ScriptedModel(AuthFailed("bad key")), store=SQLiteStore(path), observer_patience=0.0)
    await first.run("go", session="s")
    await first.aclose()
    told: list[Any] = []
    async with Agent(ScriptedModel(says("x")), store=SQLiteStore(path), capabilities=[Notify(told.append)]) as second:
        await second.catch_up()
    assert [(one["occasion"], one["error"]) for one in told] == [("failed", "AuthFailed")]


async def test_only_the_chosen_occasions_are_told():
    told: list[Any] = []
    agent = adding().with_capability(Notify(told.append, on=["suspended", "completed"]))
    agent.gate(ToolCalling)(lambda event: Ask("May I?"))
    result = await agent.run("go", session="s")
    await agent.resume("s", answers={result.outcome.waiting_for[0].id: Approve()})  # type: ignore[union-attr]
    await agent.aclose()
    assert [one["occasion"] for one in told] == ["suspended", "completed"]
    assert len({one["id"] for one in told}) == 2


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Notify("ftp://x"), "must be an http"),
        (lambda: Notify(print, on=["finished"]), "on must be"),  # type: ignore[list-item]
    ],
)
def test_bad_use_of_notify_is_refused(make, why):
    with pytest.raises(ConfigError, match=why):
        make()
