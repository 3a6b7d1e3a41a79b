"""Questions that need more than one person: quorum, stages, escalation, terms of several gates, edits."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import (
    Agent,
    Answered,
    Approve,
    Ask,
    Asked,
    Deny,
    Edit,
    HookFailed,
    ModelCalling,
    ModelReplying,
    Reject,
    Respond,
    Resumed,
    Resuming,
    Stage,
    Suspended,
    ToolCalling,
    Turn,
    TurnEnding,
    TurnStarting,
    tool,
)
from windlass.approvals import open_questions, progress
from windlass.errors import StaleAnswer
from windlass.records import decode
from windlass.testing import FakeClock, ScriptedModel, assert_same_everywhere, calls, says

BOTH = Ask("Pay?", approvers=("ann", "bob"), quorum=2)
ANN, BOB = Approve(by="ann"), Approve(by="bob")


class Bank:
    """An agent that pays, and what it paid."""

    def __init__(self, *asks: Any, script: Any = (), **options: Any) -> None:
        self.paid: list[int] = []
        self.hooks: list[str] = []

        @tool
        def pay(euros: int) -> str:
            """Pay."""
            self.paid.append(euros)
            return f"paid {euros}"

        self.clock = FakeClock()
        script = script or (calls("pay", euros=5), says("done"))
        self.agent: Agent[Any, Any] = Agent(ScriptedModel(*script), tools=[pay], clock=self.clock, **options)
        for number, ask in enumerate(asks):
            self.gate(f"gate{number}", ask)

    def gate(self, name: str, ask: Any) -> None:
        def decide(event: Any) -> Any:
            self.hooks.append(name)
            return ask(event) if callable(ask) else ask

        self.agent.gate(ToolCalling, name=name, tool="pay")(decide)

    async def ask(self) -> Asked:
        [asked] = (await self.agent.run("go", session="s")).waiting_for
        return asked

    async def answer(self, *answers: Any) -> Any:
        return await self.agent.resume("s", answers={"s/1/1": list(answers)})

    async def approvals(self) -> tuple[Asked, ...]:
        async with self.agent.session("s") as session:
            return await session.approvals()

    async def log(self, *kinds: type) -> list[Any]:
        return [record for record in await self.agent.store.read("s") if isinstance(record, kinds)]

    async def refused(self, *answers: Any) -> str:
        before = await self.agent.store.read("s")
        with pytest.raises(StaleAnswer) as caught:
            await self.answer(*answers)
        assert await self.agent.store.read("s") == before
        assert self.paid == []
        return str(caught.value)


# ---------------------------------------------------------------- the values


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"quorum": 2}, "needs approvers"),
        ({"quorum": 0, "approvers": ("ann",)}, "1 or more"),
        ({"quorum": True, "approvers": ("ann",)}, "1 or more"),
        ({"quorum": 3, "approvers": ("ann", "bob")}, "can never be met"),
        ({"quorum": 2, "approvers": ("ann", "ann")}, "can never be met"),
        ({"approvers": "ann"}, "tuple of names"),
        ({"approvers": ()}, "could never be answered"),
        ({"approvers": (1,)}, "names of people"),
        ({"escalate": (60, ("boss",))}, "needs approvers"),
        ({"approvers": ("ann",), "escalate": 60}, r"\(seconds, names\)"),
        ({"approvers": ("ann",), "escalate": (-1, ("boss",))}, "seconds, 0 or more"),
        ({"approvers": ("ann",), "escalate": (60, "boss")}, "tuple of names"),
        ({"approvers": ("ann",), "escalate": (60, ())}, "could never be answered"),
        ({"stages": []}, "one or more Stage"),
        ({"stages": [("ann",)]}, "one or more Stage"),
        ({"stages": [Stage(("ann",))], "approvers": ("bob",)}, "instead of the Ask"),
        ({"stages": [Stage(("ann",))], "quorum": 2, "approvers": ("ann", "bob")}, "instead of the Ask"),
        ({"details": ["x"]}, "dict of JSON values"),
        ({"details": {"x": object()}}, "dict of JSON values"),
        ({"details": {1: "x"}}, "dict of JSON values"),
        ({"priority": "high"}, "must be an int"),
    ],
)
def test_an_ask_that_could_not_be_answered_cannot_be_made(options: dict[str, Any], problem: str):
    with pytest.raises(ValueError, match=problem):
        Ask("Sure?", **options)


@pytest.mark.parametrize("options", [{"quorum": 2}, {"approvers": None}, {"approvers": ()}])
def test_a_stage_names_enough_people(options: dict[str, Any]):
    with pytest.raises((ValueError, TypeError)):
        Stage(**{"approvers": ("ann",), **options})


@pytest.mark.parametrize("rule", ["", "bash(", "bash()", "rm x", 5])
def test_only_a_rule_can_be_remembered(rule: Any):
    with pytest.raises(ValueError, match="must be a rule"):
        Approve(remember=rule)


# ---------------------------------------------------------------- a quorum


async def test_a_quorum_waits_for_its_second_person():
    bank = Bank(BOTH)
    asked = await bank.ask()
    assert str(progress(asked, 0)) == "0 of 2, needs ann or bob"
    first = await bank.answer(ANN)
    assert isinstance(first.outcome, Suspended)
    [asked] = first.waiting_for
    assert str(progress(asked, 0)) == "1 of 2 (ann), needs bob"
    assert first.outcome.waiting_for == (asked,)
    assert bank.paid == []
    second = await bank.answer(BOB)
    assert (second.text, bank.paid) == ("done", [5])
    answers = await bank.log(Answered)
    assert [(answered.by, answered.partial) for answered in answers] == [("ann", True), ("bob", False)]


async def test_a_partial_answer_runs_no_hook_and_is_no_resume():
    bank = Bank(BOTH)
    entered: list[str] = []

    @bank.agent.gate(Resuming)
    def resuming(event: Any) -> None:
        entered.append("resuming")

    bank.agent.wrap(Turn)(_noting(entered))
    await bank.ask()
    asked_before = list(bank.hooks)
    await bank.answer(ANN)
    assert (entered, bank.hooks) == (["turn"], asked_before)
    assert await bank.log(Resumed) == []
    await bank.answer(BOB)
    assert entered == ["turn", "turn", "resuming"]
    assert len(await bank.log(Resumed)) == 1


def _noting(entered: list[str]) -> Any:
    async def wrap(turn: Any, call_next: Any) -> Any:
        entered.append("turn")
        return await call_next(turn)

    return wrap


async def test_several_answers_are_given_at_once():
    bank = Bank(BOTH)
    await bank.ask()
    assert (await bank.answer(ANN, BOB)).text == "done"
    assert bank.paid == [5]


async def test_nobody_answers_twice():
    bank = Bank(BOTH)
    await bank.ask()
    assert "'eve' may not answer it; approvers: ann, bob" in await bank.refused(Approve(by="eve"))
    assert "ann has answered it already" in await bank.refused(ANN, ANN)
    await bank.answer(ANN)
    assert "ann has answered it already" in await bank.refused(Reject("no", by="ann"))
    assert "it has been answered already" in await bank.refused(BOB, ANN)


@pytest.mark.parametrize("answer", [Reject("No.", by="bob"), Respond("Paid by hand.", by="bob")])
async def test_one_person_is_enough_to_keep_it_from_running(answer: Any):
    bank = Bank(BOTH)
    await bank.ask()
    await bank.answer(ANN)
    result = await bank.answer(answer)
    assert result.text == "done"
    assert bank.paid == []


async def test_a_stream_takes_partial_answers_and_tells_of_them():
    bank = Bank(BOTH)
    await bank.ask()
    async with bank.agent.stream(session="s", answers={"s/1/1": ANN}) as stream:
        facts = [type(event) async for event in stream]
    assert Answered in facts
    assert Suspended in facts
    assert Resumed not in facts
    async with bank.agent.stream(session="s", answers={"s/1/1": BOB}) as stream:
        async for _ in stream:
            pass
    assert (stream.result.text, bank.paid) == ("done", [5])


# ---------------------------------------------------------------- an edit


async def test_an_edit_makes_earlier_approvals_lapse_and_counts_for_its_editor():
    bank = Bank(BOTH)
    first = await bank.ask()
    await bank.answer(ANN)
    [asked] = (await bank.answer(Edit({"euros": 3}, by="bob"))).waiting_for
    assert asked.call is not None
    assert asked.call.arguments == {"euros": 3}
    assert asked.digest != first.digest
    assert str(progress(asked, 0)) == "1 of 2 (bob), needs ann"
    assert "bob has answered" in await bank.refused(BOB)
    assert "was edited since" in await bank.refused(Approve(by="ann", digest=first.digest))
    result = await bank.answer(Approve(by="ann", digest=asked.digest))
    assert (result.text, bank.paid) == ("done", [3])


async def test_an_edit_and_its_approval_are_given_at_once():
    bank = Bank(BOTH)
    await bank.ask()
    await bank.answer(Edit({"euros": 3}, by="ann"), BOB)
    assert bank.paid == [3]


async def test_an_edit_of_an_edit_needs_the_first_editor_again():
    bank = Bank(BOTH)
    await bank.ask()
    await bank.answer(Edit({"euros": 3}, by="ann"))
    await bank.answer(Edit({"euros": 4}, by="bob"))
    await bank.answer(ANN)
    assert bank.paid == [4]


async def test_an_edited_call_can_be_rejected():
    bank = Bank(BOTH)
    await bank.ask()
    await bank.answer(Edit({"euros": 3}, by="ann"))
    assert (await bank.answer(Reject("No.", by="bob"))).text == "done"
    assert bank.paid == []


async def test_an_invalid_edit_is_refused_and_the_question_stays_open():
    bank = Bank(BOTH)
    await bank.ask()
    assert "do not fit" in await bank.refused(ANN, Edit({"euros": "many"}, by="bob"))
    await bank.answer(ANN, BOB)
    assert bank.paid == [5]


async def test_an_edit_in_the_inbox_is_not_approved_unseen():
    bank = Bank(BOTH)
    await bank.ask()
    await bank.agent.resolve("s", "s/1/1", Edit({"euros": 3}, by="ann"))
    assert "'ann' has edited the call" in await bank.refused(BOB)
    [asked] = await bank.approvals()
    await bank.answer(Approve(by="bob", digest=asked.digest))
    assert bank.paid == [3]


# ---------------------------------------------------------------- the terms of several gates


async def test_each_gate_keeps_its_terms_and_all_must_be_met():
    bank = Bank(Ask("Ann?", approvers=("ann",)), Ask("Bob?", approvers=("bob",)))
    asked = await bank.ask()
    assert asked.question == "Ann?\nBob?"
    [asked] = (await bank.answer(ANN)).waiting_for
    assert [str(need) for need in progress(asked, 0).needs] == ["1 of 1 (ann)", "0 of 1, needs bob"]
    await bank.answer(BOB)
    assert bank.paid == [5]


async def test_an_answer_counts_for_all_terms_that_name_its_giver():
    bank = Bank(Ask("A?", approvers=("ann", "eve")), Ask("B?", approvers=("ann", "bob")), Ask("Anyone?"))
    await bank.ask()
    await bank.answer(ANN)
    assert bank.paid == [5]


async def test_equal_terms_are_one():
    bank = Bank(Ask("A?", approvers=("ann",)), Ask("B?", approvers=("ann",)))
    assert (await bank.ask()).terms == ()


async def test_terms_expire_one_by_one():
    """The default of one gate holds for its terms only."""
    bank = Bank(Ask("A?", approvers=("ann",), expires=10, default="approve"), Ask("B?", approvers=("bob",), expires=20))
    await bank.ask()
    await bank.clock.advance(11)
    assert (await bank.answer(BOB)).text == "done"
    assert bank.paid == [5]


async def test_terms_that_reject_by_default_reject_the_question():
    bank = Bank(Ask("A?", approvers=("ann",), expires=10), Ask("B?", approvers=("bob",)))
    await bank.ask()
    await bank.answer(BOB)
    await bank.clock.advance(11)
    assert "expired" in await bank.refused(ANN)
    await bank.agent.resume("s")
    assert bank.paid == []
    assert [answered.expired for answered in await bank.log(Answered)] == [False, True]


async def test_terms_that_approve_by_default_settle_what_others_approved():
    bank = Bank(Ask("A?", approvers=("ann",), expires=10, default="approve"), Ask("B?", approvers=("bob",)))
    await bank.ask()
    await bank.answer(BOB)
    await bank.clock.advance(11)
    await bank.agent.resume("s")
    assert bank.paid == [5]


async def test_details_and_priorities_are_merged():
    bank = Bank(
        Ask("A?", details={"sum": 5, "why": "rent"}, priority=1), Ask("B?", details={"sum": 5, "why": "x"}, priority=3)
    )
    asked = await bank.ask()
    assert asked.details == {"sum": 5, "gate0: why": "rent", "gate1: why": "x"}
    assert asked.priority == 3


# ---------------------------------------------------------------- stages and escalation


async def test_stages_are_asked_one_after_the_other():
    bank = Bank(Ask("Pay?", stages=[Stage(("ann", "bob"), quorum=2), Stage(("boss",))]))
    await bank.ask()
    boss = Approve(by="boss")
    assert "stage 1 of 2: 0 of 2, needs ann or bob" in await bank.refused(boss)
    await bank.answer(ANN)
    [asked] = (await bank.answer(BOB)).waiting_for
    assert str(progress(asked, 0)) == "stage 2 of 2: 0 of 1, needs boss"
    await bank.answer(boss)
    assert bank.paid == [5]


async def test_after_a_while_others_may_answer_and_nobody_need_be_awake():
    bank = Bank(Ask("Pay?", approvers=("ann",), escalate=(60, ("boss",))))
    await bank.ask()
    assert "approvers: ann" in await bank.refused(Approve(by="boss"))
    await bank.clock.advance(60)
    [asked] = await bank.approvals()
    assert progress(asked, bank.clock.now()).needed == ("ann", "boss")
    await bank.answer(Approve(by="boss"))
    assert bank.paid == [5]


async def test_a_later_stage_escalates_from_its_own_beginning():
    bank = Bank(Ask("Pay?", stages=[Stage(("ann",)), Stage(("bob",), escalate=(60, ("boss",)))]))
    await bank.ask()
    await bank.clock.advance(100)
    await bank.answer(ANN)
    assert "stage 2 of 2" in await bank.refused(ANN)
    await bank.refused(Approve(by="boss"))
    await bank.clock.advance(60)
    await bank.answer(Approve(by="boss"))
    assert bank.paid == [5]


async def test_an_approval_that_counts_once_time_has_passed_settles_the_question():
    bank = Bank(Ask("A?", approvers=("ann",), escalate=(60, ("boss",))), Ask("B?", approvers=("boss",)))
    await bank.ask()
    await bank.answer(Approve(by="boss"))
    await bank.clock.advance(60)
    assert await bank.approvals() == ()
    await bank.agent.resume("s")
    assert bank.paid == [5]
    assert [(one.by, one.partial, one.expired) for one in await bank.log(Answered)] == [
        ("boss", True, False),
        ("boss", False, False),
    ]


# ---------------------------------------------------------------- what is asked about


async def test_a_question_carries_what_it_is_about_without_secrets():
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("tell hunter22")), secrets=["hunter22"])
    for event in (TurnStarting, ModelCalling, ModelReplying, TurnEnding):
        agent.gate(event)(lambda event: Ask("Sure?", details={"password": "hunter22"}))
    result = await agent.run("it is hunter22", session="s")
    seen = {}
    while result.waiting_for:
        [asked] = result.waiting_for
        seen[asked.event] = asked
        assert asked.details == {"password": "•••"}
        result = await agent.resume("s", answers={asked.id: Approve()})
    assert seen["TurnStarting"].text == "it is •••"
    assert [message.text for message in seen["ModelCalling"].request.messages] == ["it is •••"]
    assert seen["ModelReplying"].reply.text == "tell •••"
    assert seen["TurnEnding"].text == "tell •••"
    assert "hunter22" not in repr(await agent.store.read("s"))


async def test_a_stream_does_not_tell_the_words_that_a_person_has_to_review():
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("a rough word")))
    agent.gate(ModelReplying)(lambda event: Ask("Sure?"))
    async with agent.stream("go", session="s") as stream:
        events = [event async for event in stream]
    assert "rough" not in repr(events)
    assert stream.result.waiting_for[0].reply.text == "a rough word"


# ---------------------------------------------------------------- approvers in the process


async def test_an_approver_gets_the_turn_and_several_make_a_quorum():
    bank = Bank(BOTH, approvers=[])
    seen: list[Any] = []

    @bank.agent.approver
    def of_ann(asked: Asked, turn: Any) -> Any:
        seen.append((turn.user_message.text, turn.scope))
        return ANN

    @bank.agent.approver
    def of_bob(asked: Asked) -> Any:
        seen.append(progress(asked, 0).approved)
        return BOB

    result = await bank.agent.run("go", session="s", scope="work")
    assert (result.text, bank.paid) == ("done", [5])
    assert seen == [("go", "work"), ("ann",)]


async def test_an_approver_that_raises_leaves_the_rest_to_others():
    bank = Bank(BOTH)
    bank.agent.approver(lambda asked: ANN)

    @bank.agent.approver
    def broken(asked: Asked, turn: Any) -> Any:
        raise OSError("no network")

    result = await bank.agent.run("go", session="s")
    [asked] = result.waiting_for
    assert progress(asked, 0).needed == ("bob",)
    [failed] = await bank.log(HookFailed)
    assert (failed.hook, failed.effect) == ("broken", "left open")
    await bank.answer(BOB)
    assert bank.paid == [5]


# ---------------------------------------------------------------- resume


async def test_a_gate_that_names_other_people_on_resume_needs_their_answers():
    asks = [BOTH]
    bank = Bank(lambda event: asks[-1])
    await bank.ask()
    await bank.answer(ANN)
    asks.append(Ask("Pay?", approvers=("eve", "joe"), quorum=2))
    [asked] = (await bank.answer(BOB)).waiting_for
    assert progress(asked, 0).needed == ("eve", "joe")
    await bank.answer(Approve(by="eve"), Approve(by="joe"))
    assert bank.paid == [5]


async def test_a_refusal_on_resume_beats_a_quorum():
    answers: list[Any] = [BOTH]
    bank = Bank(lambda event: answers[-1])
    await bank.ask()
    await bank.answer(ANN)
    answers.append(Deny("not any more"))
    await bank.answer(BOB)
    assert bank.paid == []


async def test_partial_answers_are_kept_beside_a_question_about_going_on():
    bank = Bank(BOTH, Ask("Bob?", approvers=("bob",)))
    bank.agent.gate(Resuming)(lambda event: Ask("Go on?", approvers=("boss", "vice"), quorum=2))
    await bank.ask()
    [about] = (await bank.answer(ANN, BOB)).waiting_for
    assert about.event == "Resuming"
    await bank.agent.resume("s", answers={about.id: Approve(by="boss")})
    assert bank.paid == []
    await bank.agent.resume("s", answers={about.id: Approve(by="vice")})
    assert bank.paid == [5]


async def test_a_rule_to_remember_travels_with_the_answer():
    bank = Bank(BOTH)
    await bank.ask()
    await bank.answer(Approve(by="ann", remember="pay(euros=5)"), BOB)
    assert [answered.answer for answered in await bank.log(Answered)] == [Approve("ann", "pay(euros=5)"), BOB]


async def test_questions_are_listed_by_priority():
    bank = Bank(
        lambda event: Ask("Sure?", priority=event.call.arguments["euros"]),
        script=(calls([("pay", {"euros": n}) for n in (1, 3, 2)]), says("done")),
    )
    await bank.agent.run("go", session="s")
    listed = [asked.priority for _, asked in await open_questions(bank.agent.store)]
    assert listed == [3, 2, 1]


# ---------------------------------------------------------------- every way, every version


async def test_a_quorum_is_the_same_in_every_way_of_running():
    lived = await assert_same_everywhere(lambda: Bank(BOTH, Ask("Third?", approvers=("cid",))).agent)
    assert lived.resumed == 3
    assert [answered.by for answered in lived.log if isinstance(answered, Answered)] == ["ann", "bob", "cid"]


async def test_a_question_of_an_older_version_is_answered_by_one_person():
    old = decode(
        b'{"kind":"Asked","id":"s/1/1","event":"ToolCalling","question":"Pay?","allow":["approve","reject"],'
        b'"digest":"d","by":["gate"],"approvers":["ann","bob"],"expires_at":60.0,"at":1.0}'
    )
    assert isinstance(old, Asked)
    assert str(progress(old, 2.0)) == "0 of 1, needs ann or bob"
    assert progress(old, 61.0).status == "rejected"
    given = decode(b'{"kind":"Answered","id":"s/1/1","answer":{"answer":"Approve","by":"ann"},"digest":"d","by":"ann"}')
    assert isinstance(given, Answered)
    assert not given.partial
