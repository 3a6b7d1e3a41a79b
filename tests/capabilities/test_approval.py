"""Approval: who is asked, when and how; what answers for people; rules that people make while they answer."""

from __future__ import annotations

import asyncio
import json
import threading
import tomllib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Answered, Approve, Ask, Deny, Edit, HookFailed, Reject, Stage, ToolCalling, tool
from windlass.approvals import open_questions, progress
from windlass.capabilities import (
    Approval,
    AutoApprove,
    Permissions,
    RememberedRules,
    Webhook,
    answer_from,
    signature_of,
)
from windlass.capabilities.remembered_rules import add_rule, user_rules
from windlass.errors import ConfigError, StaleAnswer
from windlass.stores import MemoryStore, SQLiteStore
from windlass.testing import FakeClock, ScriptedModel, assert_same_everywhere, calls, check_capability, says

AnyAgent = Agent[Any, Any]


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user and a workspace of their own."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("WINDLASS_CONFIG", str(tmp_path / "config"))
    return tmp_path / "config"


def make(*script: Any, **options: Any) -> tuple[AnyAgent, list[int]]:
    paid: list[int] = []

    @tool
    def pay(euros: int, to: str = "ann") -> str:
        """Pay."""
        paid.append(euros)
        return f"paid {euros}"

    @tool(effect="pure", inline=True)
    def look(at: str) -> str:
        """Look."""
        return f"saw {at}"

    @tool(inline=True)
    def bash(command: str) -> str:
        """Run a command."""
        return f"ran {command}"

    model = ScriptedModel(*(script or (calls("pay", euros=5), says("done"))))
    return Agent(model, tools=[pay, look, bash], **options), paid


async def answers_of(agent: AnyAgent, session: str = "s") -> list[Answered]:
    return [record for record in await agent.store.read(session) if isinstance(record, Answered)]


# ---------------------------------------------------------------- who is asked, and when


async def test_by_default_every_call_is_asked_about_unless_its_tool_is_pure():
    script = calls([("look", {"at": "x"}), ("pay", {"euros": 5}), ("unknown", {})])
    agent, paid = make(script, says("done"), capabilities=[Approval()])
    waiting = (await agent.run("go", session="s")).waiting_for
    assert [(asked.question, asked.by) for asked in waiting][:1] == [("May pay run?", ("approval",))]
    assert "look" not in [asked.call.name for asked in waiting if asked.call]
    assert paid == []


@pytest.mark.parametrize(
    ("when", "asked"),
    [
        ("pay(euros=5)", True),
        (["look", "pay(euros=?)"], True),
        ("pay(euros=??)", False),
        (lambda event: event.call.arguments["euros"] > 4, True),
        (lambda event: event.call.arguments["euros"] > 5, False),
        ([], False),
    ],
)
async def test_when_is_a_rule_a_list_of_rules_or_a_predicate(when: Any, asked: bool):
    agent, _ = make(capabilities=[Approval(when)])
    assert bool((await agent.run("go")).waiting_for) is asked


async def test_rules_about_shell_commands_look_into_them():
    script = calls([("bash", {"command": "ls"}), ("bash", {"command": "ls && git -C /x push"})])
    agent, _ = make(script, says("done"), capabilities=[Approval("bash(git push *)")])
    [asked] = (await agent.run("go")).waiting_for
    assert asked.call is not None
    assert asked.call.arguments == {"command": "ls && git -C /x push"}


async def test_the_terms_of_the_question_are_those_that_were_given():
    clock = FakeClock(1000.0)
    terms = Approval(
        "pay", question=lambda call: f"Pay {call.arguments['euros']}?", allow=["approve", "reject"],
        approvers=["ann", "bob"], quorum=2, escalate=(60, ["boss"]), expires=600, details={"team": "ops"}, priority=3,
    )  # fmt: skip
    agent, paid = make(capabilities=[terms], clock=clock)
    [asked] = (await agent.run("go", session="s")).waiting_for
    assert (asked.question, asked.allow, asked.priority) == ("Pay 5?", ("approve", "reject"), 3)
    assert (asked.expires_at, asked.details) == (1600.0, {"team": "ops"})
    assert str(progress(asked, clock.now())) == "0 of 2, needs ann or bob"
    with pytest.raises(StaleAnswer):
        await agent.resume("s", answers={asked.id: Approve(by="boss")})
    clock.tick(60)
    await agent.resume("s", answers={asked.id: [Approve(by="boss"), Approve(by="ann")]})
    assert paid == [5]


async def test_an_expired_question_takes_its_default():
    for default, expected in (("approve", [5]), ("reject", [])):
        clock = FakeClock()
        terms: Any = Approval("pay", expires=10, default=default)
        agent, paid = make(capabilities=[terms], clock=clock)
        await agent.run("go", session="s")
        clock.tick(11)
        await agent.resume("s")
        assert paid == expected


async def test_stages_are_asked_one_after_the_other():
    agent, paid = make(capabilities=[Approval("pay", stages=[Stage(("ann",)), Stage(("boss",))])])
    [asked] = (await agent.run("go", session="s")).waiting_for
    [asked] = (await agent.resume("s", answers={asked.id: Approve(by="ann")})).waiting_for
    assert progress(asked).needed == ("boss",)
    await agent.resume("s", answers={asked.id: Approve(by="boss")})
    assert paid == [5]


@pytest.mark.parametrize(
    "options",
    [
        {"quorum": 0},
        {"quorum": 2},
        {"quorum": 2, "approvers": ["ann"]},
        {"approvers": "ann"},
        {"allow": []},
        {"allow": ["maybe"]},
        {"expires": -1},
        {"default": "approve", "allow": ["reject"]},
        {"when": 3},
        {"when": "pay("},
        {"by": [3]},
        {"details": {"a": object()}},
    ],
)
def test_terms_that_cannot_hold_are_refused_at_once(options: Any):
    with pytest.raises(ConfigError):
        Approval(**options)


async def test_an_edit_that_a_rule_denies_does_not_run():
    agent, paid = make(capabilities=[Approval("pay")])
    agent.with_capability(Permissions(deny=["pay(euros=9*)"], unmatched="allow"), band="guard")
    [asked] = (await agent.run("go", session="s")).waiting_for
    result = await agent.resume("s", answers={asked.id: Edit({"euros": 99, "to": "ann"})})
    assert result.messages[2].parts[0].status == "denied"  # type: ignore[union-attr]
    assert paid == []


async def test_an_edit_cannot_change_the_tool_and_an_answer_counts_once():
    agent, paid = make(capabilities=[Approval("pay")])
    [asked] = (await agent.run("go", session="s")).waiting_for
    with pytest.raises(StaleAnswer):
        await agent.resume("s", answers={asked.id: Edit({"command": "rm -rf /"})})
    await agent.resume("s", answers={asked.id: Edit({"euros": 1, "to": "bob"})})
    with pytest.raises(StaleAnswer):
        await agent.resolve("s", asked.id, Approve())
    assert paid == [1]


async def test_sub_agents_are_asked_about_as_well():
    child, paid = make(name="child")
    parent: AnyAgent = Agent(ScriptedModel(calls("child", task="go"), says("done")), tools=[child.as_tool()])
    parent.with_capability(Approval("pay", approvers=["ann"]))
    [asked] = (await parent.run("go", session="s")).waiting_for
    assert asked.call is not None
    assert (asked.call.name, paid) == ("pay", [])
    await parent.resume("s", answers={asked.id: Approve(by="ann")})
    assert paid == [5]


async def test_explain_warns_of_a_rule_that_matches_no_tool():
    agent, _ = make(capabilities=[Approval("payy")])
    [warning] = agent.explain().data["warnings"]
    assert "capability 'approval': ask payy: " in warning
    assert make(capabilities=[Approval("pay"), Approval(name="all")])[0].explain().data["warnings"] == []


async def test_explain_has_the_terms_in_a_line():
    terms = Approval("pay", approvers=["ann", "bob"], quorum=2, expires=60, remember=True)
    agent, _ = make(capabilities=[terms, AutoApprove("pay(euros=?)", uses=3, by="intern")])
    text = " ".join(str(agent.explain()).split())
    assert "asks 2 of ann, bob; after 60 s: reject; remembers rules in" in text
    assert "approves pay(euros=?), at most 3 times" in text


async def test_it_is_the_same_however_the_agent_runs():
    def factory() -> AnyAgent:
        return make(capabilities=[Approval("pay")])[0]

    await assert_same_everywhere(factory)


@pytest.mark.parametrize(
    "make_it",
    [
        lambda: Approval("rm"),
        lambda: Approval(lambda event: False, by=[AutoApprove("pay", uses=2)], remember=True),
        lambda: AutoApprove("pay", uses=3),
        lambda: RememberedRules(),
    ],
)
async def test_it_keeps_the_rules_for_capabilities(make_it: Callable[[], Any]):
    await check_capability(make_it)


async def test_it_keeps_the_rules_for_capabilities_where_it_asks():
    await check_capability(lambda: Approval("echo"), changes_answer=True)


# ---------------------------------------------------------------- delegations


async def test_a_delegation_approves_what_its_rules_allow_and_leaves_the_rest():
    script = calls([("pay", {"euros": 5}), ("pay", {"euros": 50}), ("pay", {"euros": 5, "to": "mallory"})])
    auto = AutoApprove("pay(euros=?, to=ann)", by="limit")
    agent, paid = make(script, says("done"), capabilities=[Approval(by=[auto])])
    waiting = (await agent.run("go", session="s")).waiting_for
    assert paid == [5]
    assert [asked.call.arguments["euros"] for asked in waiting if asked.call] == [50, 5]
    assert [answered.by for answered in await answers_of(agent)] == ["limit"]


async def test_a_delegation_may_be_a_predicate_over_the_question_and_the_turn():
    auto = AutoApprove(lambda asked, turn: turn.scope["user"] == "root")
    for user, expected in (("root", [5]), ("ann", [])):
        agent, paid = make(capabilities=[Approval(by=[auto])])
        await agent.run("go", scope={"user": user})
        assert paid == expected


async def test_a_delegation_ends():
    clock = FakeClock(1_000_000.0)
    for until in (1_000_010.0, datetime.fromtimestamp(1_000_010, UTC)):
        clock = FakeClock(1_000_000.0)
        script = [calls("pay", euros=1), says("done"), calls("pay", euros=2), says("done")]
        agent, paid = make(*script, clock=clock, capabilities=[Approval(by=[AutoApprove("pay", until=until)])])
        await agent.run("go", session="s")
        clock.tick(10)
        assert (await agent.run("again", session="t")).waiting_for
        assert paid == [1]


async def test_the_uses_of_a_delegation_are_counted_over_sessions_and_processes(tmp_path: Path):
    paid: list[int] = []
    for number in range(5):  # a new store and a new agent each time, as in a new process
        store = SQLiteStore(tmp_path / "s.db")
        agent, mine = make(store=store, capabilities=[Approval(by=[AutoApprove("pay", uses=3, by="trial")])])
        await agent.run("go", session=f"s{number}")
        paid += mine
        await store.close()
    assert paid == [5, 5, 5]


async def test_many_questions_at_once_cannot_exceed_the_uses():
    store = MemoryStore()
    made = [make(store=store, capabilities=[Approval(by=[AutoApprove("pay", uses=4)])]) for _ in range(10)]
    await asyncio.gather(*[agent.run("go", session=f"s{n}") for n, (agent, _) in enumerate(made)])
    assert sum(len(paid) for _, paid in made) == 4


async def test_a_delegation_cannot_answer_for_people_whom_the_question_names():
    agent, paid = make(capabilities=[Approval("pay", approvers=["boss"], by=[AutoApprove("pay")])])
    assert (await agent.run("go", session="s")).waiting_for
    assert paid == []
    assert not [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    agent, paid = make(capabilities=[Approval("pay", approvers=["boss", "auto"], by=[AutoApprove("pay")])])
    await agent.run("go")
    assert paid == [5]


async def test_a_delegation_counts_as_one_of_several_approvals():
    terms = Approval("pay", approvers=["ann", "auto"], quorum=2, by=[AutoApprove("pay")])
    agent, paid = make(capabilities=[terms])
    [asked] = (await agent.run("go", session="s")).waiting_for
    assert (str(progress(asked)), paid) == ("1 of 2 (auto), needs ann", [])
    await agent.resume("s", answers={asked.id: Approve(by="ann")})
    assert paid == [5]


async def test_a_delegation_can_be_limited_to_the_questions_of_some_gates():
    agent, paid = make(capabilities=[AutoApprove("pay", gates=["approval"])])
    agent.gate(ToolCalling, name="drift")(lambda event: Ask("The price has changed. Pay?"))
    assert (await agent.run("go")).waiting_for
    assert paid == []


async def test_a_delegation_cannot_approve_what_a_gate_denies():
    agent, paid = make(capabilities=[Approval(by=[AutoApprove("*")])])
    agent.gate(ToolCalling, name="never")(lambda event: Deny("never"))
    await agent.run("go")
    assert paid == []


@pytest.mark.parametrize(
    "options",
    [{"uses": 0}, {"uses": True}, {"until": datetime(2026, 1, 1)}, {"by": ""}, {"when": "pay("}],
)
def test_a_delegation_that_cannot_hold_is_refused(options: Any):
    with pytest.raises(ConfigError):
        AutoApprove(**{"when": "pay", **options})


# ---------------------------------------------------------------- make this a rule


async def test_an_approval_with_a_rule_is_written_to_the_users_file_and_counts_from_then_on(config: Path):
    script = [calls("bash", command="git status"), calls("bash", command="git log"), says("done")]
    capabilities = [Permissions(allow=["look"]), Approval([], remember=True)]
    agent, _ = make(*script, capabilities=capabilities)
    [asked] = (await agent.run("go", session="s")).waiting_for
    result = await agent.resume("s", answers={asked.id: Approve(by="ann", remember="bash(git *)")})
    assert result.text == "done"  # the second question was answered by the rule
    assert [answered.by for answered in await answers_of(agent)] == ["ann", "rule bash(git *)"]
    [entry] = tomllib.loads((config / "rules.toml").read_text())["rules"]
    assert (entry["allow"], entry["by"]) == ("bash(git *)", "ann")
    assert (config / "rules.toml").stat().st_mode & 0o777 == 0o600
    assert list(Path.cwd().iterdir()) == []

    agent, _ = make(calls("bash", command="git diff; rm x"), says("done"), capabilities=capabilities)
    assert (await agent.run("go")).waiting_for


async def test_a_rule_is_not_remembered_unless_that_was_asked_for(config: Path):
    agent, _ = make(capabilities=[Approval("pay")])
    [asked] = (await agent.run("go", session="s")).waiting_for
    await agent.resume("s", answers={asked.id: Approve(remember="pay")})
    assert [*config.parent.glob("config/*")] == []


async def test_a_remembered_rule_answers_neither_for_named_people_nor_for_other_gates(config: Path):
    add_rule(config / "rules.toml", "pay")
    agent, paid = make(capabilities=[Approval("pay", approvers=["boss"], remember=True)])
    assert (await agent.run("go")).waiting_for
    agent, paid = make(capabilities=[Approval([], remember=True)])
    agent.gate(ToolCalling, name="drift")(lambda event: Ask("The price has changed. Pay?"))
    assert (await agent.run("go")).waiting_for
    agent, paid = make(capabilities=[Approval("pay", remember=True), Permissions(deny=["pay"], unmatched="allow")])
    await agent.run("go")
    assert paid == []


async def test_a_rule_that_denies_in_the_users_file_counts_there(config: Path):
    add_rule(config / "rules.toml", "pay")
    with (config / "rules.toml").open("a") as file:
        file.write('[[rules]]\ndeny = "pay(to=ann)"\n')
    agent, paid = make(capabilities=[Approval("pay", remember=True)])
    assert (await agent.run("go")).waiting_for
    assert paid == []


async def test_a_broken_rule_file_leaves_the_question_open(config: Path):
    add_rule(config / "rules.toml", "pay")
    (config / "rules.toml").write_text("allow = [")
    agent, paid = make(capabilities=[Approval("pay", remember=True)])
    assert (await agent.run("go", session="s")).waiting_for
    assert paid == []
    [failed] = [record for record in await agent.store.read("s") if isinstance(record, HookFailed)]
    assert "rules.toml" in failed.error.message


@pytest.mark.parametrize("rule", ["bash(git *)", 'a("x\\y"\n\x7f\u202e)', "b(é*)", "c(''')", 'd(""")'])
def test_a_rule_is_added_once_and_the_rest_of_the_file_stays(tmp_path: Path, rule: str):
    path = tmp_path / "deep" / "rules.toml"
    path.parent.mkdir()
    path.write_text('# mine\nallow = ["read"]  # do not touch')
    assert add_rule(path, rule, by='Ann "the boss"', at=0.0)
    assert not add_rule(path, rule)
    assert path.read_text().startswith('# mine\nallow = ["read"]  # do not touch\n')
    assert tomllib.loads(path.read_text())["rules"] == [
        {"allow": rule, "by": 'Ann "the boss"', "at": "1970-01-01T00:00:00+00:00"}
    ]


def test_the_users_file_is_where_the_platform_keeps_settings(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("WINDLASS_CONFIG")
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setattr("sys.platform", "linux")
    assert user_rules() == Path("/home/ann/.config/windlass/rules.toml")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/home/ann/settings")
    assert user_rules() == Path("/home/ann/settings/windlass/rules.toml")
    monkeypatch.setattr("sys.platform", "darwin")
    assert user_rules() == Path("/home/ann/Library/Application Support/windlass/rules.toml")


def test_a_file_in_the_workspace_is_refused(tmp_path: Path):
    for path in ("rules.toml", Path("deep") / "rules.toml", tmp_path / "work" / "rules.toml"):
        with pytest.raises(ConfigError, match="it is in the workspace"):
            Approval(remember=path)
    (tmp_path / "link").symlink_to(tmp_path / "work")
    with pytest.raises(ConfigError, match="it is in the workspace"):
        Approval(remember=tmp_path / "link" / "rules.toml")
    Approval(remember=tmp_path / "rules.toml")


# ---------------------------------------------------------------- a webhook


class Service:
    """A web service on the loopback interface that notes what it gets and answers what it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[dict[str, str], dict[str, Any], bytes]] = []
        self.answers: list[tuple[int, bytes, dict[str, str]]] = []
        self.released = threading.Event()
        self.released.set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                service.requests.append((dict(self.headers), json.loads(body), body))
                service.released.wait(30)
                status, answer, headers = service.answers.pop(0) if service.answers else (204, b"", {})
                self.send_response(status)
                for name, value in {"Content-Length": str(len(answer)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/ask"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    def close(self) -> None:
        self.released.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service()
    yield made
    made.close()


async def test_a_webhook_gets_the_question_and_a_person_answers_later(service: Service):
    hook = Webhook(service.url, headers={"Authorization": "Bearer x"})
    agent, paid = make(capabilities=[Approval("pay", approvers=["ann"], details={"a": 1}, by=[hook])])
    [asked] = (await agent.run("go", session="s")).waiting_for
    await agent.aclose()
    [(headers, question, _)] = service.requests
    assert headers["Authorization"] == "Bearer x"
    assert headers["Idempotency-Key"] == question["key"]
    assert (question["session"], question["id"], question["digest"]) == ("s", asked.id, asked.digest)
    assert (question["tool"], question["arguments"]) == ("pay", {"euros": 5, "to": "ann"})
    assert (question["approvers"], question["details"], question["allow"]) == (["ann"], {"a": 1}, list(asked.allow))
    answer = answer_from(b'{"answer": "approve", "by": "ann"}', question["digest"])
    assert answer == Approve(by="ann", digest=asked.digest)
    await agent.resolve("s", question["id"], answer)
    await agent.resume("s")
    assert paid == [5]


async def test_a_webhook_may_answer_at_once_and_the_answer_waits_for_the_next_resume(service: Service):
    service.answers.append((200, b'{"answer": "edit", "arguments": {"euros": 1, "to": "bob"}, "by": "bot"}', {}))
    agent, paid = make(capabilities=[Approval("pay", by=[Webhook(service.url)])])
    await agent.run("go", session="s")
    await agent.aclose()
    assert await open_questions(agent.store) == []
    assert (await agent.resume("s")).text == "done"
    assert paid == [1]


async def test_no_turn_waits_for_a_webhook(service: Service):
    service.released.clear()
    agent, paid = make(capabilities=[Approval("pay", by=[Webhook(service.url)])], observer_patience=0.0)
    [asked] = (await agent.run("go", session="s")).waiting_for  # the service has not answered
    result = await agent.resume("s", answers={asked.id: Reject("no")})
    assert (result.text, paid) == ("done", [])
    service.answers.append((200, b'{"answer": "approve"}', {}))
    service.released.set()
    await agent.aclose()  # its answer comes too late
    assert paid == []


async def test_a_webhook_that_fails_is_tried_again(service: Service):
    service.answers += [(500, b"", {}), (302, b"", {"Location": service.url}), (200, b'{"answer": "approve"}', {})]
    agent, paid = make(capabilities=[Approval("pay", by=[Webhook(service.url)])], clock=FakeClock(auto=True))
    await agent.run("go", session="s")
    await agent.aclose()
    assert len(service.requests) == 3
    assert len({headers["Idempotency-Key"] for headers, _, _ in service.requests}) == 1
    await agent.resume("s")
    assert paid == [5]


async def test_a_webhook_that_is_down_leaves_the_question_open(service: Service):
    service.close()
    hook = Webhook(service.url, tries=2)
    agent, paid = make(capabilities=[Approval("pay", by=[hook])], clock=FakeClock(auto=True))
    assert (await agent.run("go", session="s")).waiting_for
    await agent.aclose()
    assert paid == []


@pytest.mark.parametrize("signed", [True, False])
async def test_with_a_secret_question_and_answer_are_signed(service: Service, signed: bool):
    answer = b'{"answer": "approve", "by": "mallory"}'
    signature = signature_of(answer, "s3cret" if signed else "other")
    service.answers.append((200, answer, {"X-Windlass-Signature": signature}))
    agent, paid = make(capabilities=[Approval("pay", by=[Webhook(service.url, secret="s3cret")])])
    await agent.run("go", session="s")
    await agent.aclose()
    [(headers, _, body)] = service.requests
    assert headers["X-Windlass-Signature"] == signature_of(body, "s3cret")
    await agent.resume("s")
    assert paid == ([5] if signed else [])


@pytest.mark.parametrize(
    "answer",
    [
        b'{"answer": "yes"}', b'{"answer": "edit"}', b'{"answer": 3}', b'{"answer": "approve", "x": 1}', b"approve",
        b'{"answer": "approve", "by": "mallory"}', b'{"answer": "respond", "text": "x", "by": "ann"}', b"\xff{",
        b'{"answer": "approve", "by": "ann", "digest": "of another call"}', b'{"answer": "approve", "remember": "("}',
    ],
)  # fmt: skip
async def test_an_answer_that_is_wrong_or_not_allowed_leaves_the_question_open(service: Service, answer: bytes):
    service.answers.append((200, answer, {}))
    terms = Approval("pay", approvers=["ann"], allow=["approve", "reject", "edit"], by=[Webhook(service.url)])
    agent, paid = make(capabilities=[terms])
    await agent.run("go", session="s")
    await agent.aclose()
    assert len(await open_questions(agent.store)) == 1
    assert paid == []


async def test_secrets_do_not_leave_in_a_question(service: Service):
    script = calls("pay", euros=5, to="tok-123456789")
    hook = Webhook(service.url)
    agent, _ = make(script, says("done"), capabilities=[Approval("pay", by=[hook])], secrets=["tok-123456789"])
    await agent.run("go", session="s")
    await agent.aclose()
    assert all(b"tok-123456789" not in body for _, _, body in service.requests)


async def test_a_webhook_keeps_the_rules_for_capabilities(service: Service):
    await check_capability(lambda: Webhook(service.url))


def test_only_web_addresses_are_webhooks():
    for url in ("file:///etc/passwd", "ftp://x", "example.org"):
        with pytest.raises(ConfigError, match="must be an http"):
            Webhook(url)
