"""Redact and `registrar.conceal` clean what passes no hook: errors, and what people write in their answers."""

from __future__ import annotations

from typing import Any

import pytest

from windlass import (
    Agent,
    Approve,
    Ask,
    Edit,
    ErrorHandled,
    ErrorPolicy,
    Failed,
    ModelCalling,
    Reject,
    Respond,
    ToolCalling,
    TurnFailed,
    TurnStarting,
    tool,
)
from windlass.approvals import open_questions, resolve
from windlass.capabilities import MemoryVault, Redact, Retry
from windlass.errors import HookError, RegistrationError, ServerError
from windlass.stores import SQLiteStore
from windlass.testing import FakeClock, ScriptedModel, calls, check_capability, says

MAIL = "ann@example.org"


def sending(**options: Any) -> tuple[Agent[Any, Any], list[str]]:
    sent: list[str] = []

    @tool(effect="pure", inline=True)
    def send(to: str) -> str:
        """Send."""
        sent.append(to)
        return "sent"

    script = [calls("send", to="nobody"), says("done")]
    capabilities = options.pop("capabilities", [Redact("email")])
    agent = Agent(ScriptedModel(*script), tools=[send], capabilities=capabilities, **options)
    agent.gate(ToolCalling)(lambda event: Ask("ok?"))
    return agent, sent


async def everything(agent: Agent[Any, Any], session: str = "s") -> str:
    """All that the store has of a session."""
    records = await agent.store.read(session)
    inbox = await agent.store.inbox(session, frozenset())
    return f"{records!r} {inbox!r} {[request.messages for request in agent.model.requests]!r}"


# ---------------------------------------------------------------- errors


@pytest.mark.parametrize("band", [None, "guard"])
async def test_the_error_of_a_model_is_cleaned_everywhere(band):
    errors = [ServerError(f"{MAIL} has no quota", status=503)] * 3
    agent = Agent(ScriptedModel(*errors), clock=FakeClock(auto=True), capabilities=[Retry(jitter=False)])
    agent.with_capability(Redact("email"), band=band)
    seen: list[Any] = []
    agent.observe(ErrorHandled)(seen.append)
    agent.observe(TurnFailed)(seen.append)
    async with agent.stream("go", session="s") as stream:
        streamed = [event async for event in stream]
        result = stream.result
    assert isinstance(result.outcome, Failed)
    assert result.outcome.error.message == "[email] has no quota"
    assert result.outcome.error.status == 503
    with pytest.raises(ServerError, match=r"^\[email\] has no quota$") as raised:
        result.raise_for_error()
    assert raised.value.__cause__ is None or MAIL not in str(raised.value.__cause__)
    assert seen
    assert MAIL not in repr(seen) + repr(streamed) + await everything(agent)


async def test_a_cause_is_cleaned_too():
    async def fail(request: Any) -> Any:
        try:
            raise ValueError(MAIL)
        except ValueError as error:
            raise ServerError("down") from error

    class Own:
        name = "own"
        reply = staticmethod(fail)

    agent = Agent(Own(), capabilities=[Redact("email")], errors=ErrorPolicy(retries=0))  # type: ignore[arg-type]
    result = await agent.run("go")
    with pytest.raises(ServerError) as raised:
        result.raise_for_error()
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


async def test_the_error_of_a_hook_is_cleaned_and_an_error_without_finds_stays_the_same_object():
    agent = Agent(ScriptedModel(says("hi")), capabilities=[Redact("email")])

    @agent.gate(ModelCalling)
    def broken(event: ModelCalling) -> None:
        raise ValueError(f"no rule for {MAIL}")

    await agent.run("go", session="s")
    assert "no rule for [email]" in await everything(agent)
    assert MAIL not in await everything(agent)
    plain = ServerError("down")
    agent = Agent(ScriptedModel(plain), capabilities=[Redact("email")], errors=ErrorPolicy(retries=0))
    with pytest.raises(ServerError) as raised:
        (await agent.run("go")).raise_for_error()
    assert raised.value is plain


async def test_a_recorded_attempt_has_the_cleaned_error(tmp_path):
    store = SQLiteStore(tmp_path / "agent.db")
    agent = Agent(
        ScriptedModel(ServerError(f"{MAIL} failed"), says("hi")),
        capabilities=[Retry(jitter=False), Redact("email")],
        store=store,
        clock=FakeClock(auto=True),
    )
    assert (await agent.run("go", session="s")).text == "hi"
    attempted = [record for record in await store.read("s") if type(record).__name__ == "ModelAttempted"]
    assert [record.error.message for record in attempted] == ["[email] failed"]
    await agent.aclose()


async def test_places_can_be_left_out():
    agent = Agent(
        ScriptedModel(ServerError(MAIL)), capabilities=[Redact("email", where=["input"])], errors=ErrorPolicy(retries=0)
    )
    assert (await agent.run("go")).outcome.error.message == MAIL
    agent, sent = sending(capabilities=[Redact("email", where=["errors"])])
    asked = (await agent.run("go", session="s")).waiting_for[0]
    await agent.resume("s", answers={asked.id: Edit({"to": MAIL})})
    assert sent == [MAIL]


# ---------------------------------------------------------------- answers


@pytest.mark.parametrize("door", ["resume", "stream", "resolve", "approver"])
@pytest.mark.parametrize(
    "answer", [Edit({"to": MAIL}), Reject(f"ask {MAIL}"), Respond(f"{MAIL} says no")], ids=["edit", "reject", "respond"]
)
async def test_what_a_person_writes_is_cleaned_before_it_is_stored_or_used(answer, door):
    agent, sent = sending()
    if door == "approver":
        agent.approver(lambda asked: answer)
        await agent.run("go", session="s")
    else:
        asked = (await agent.run("go", session="s")).waiting_for[0]
        if door == "resolve":
            await agent.resolve("s", asked.id, answer)
            await agent.resume("s")
        elif door == "resume":
            await agent.resume("s", answers={asked.id: answer})
        else:
            async with agent.stream(session="s", answers={asked.id: answer}) as stream:
                async for event in stream:
                    assert MAIL not in repr(event)
    assert "[email]" in await everything(agent)
    assert MAIL not in await everything(agent)
    assert sent == (["[email]"] if isinstance(answer, Edit) else [])


async def test_an_answer_that_came_without_the_agent_is_cleaned_when_it_is_read():
    agent, sent = sending()
    asked = (await agent.run("go", session="s")).waiting_for[0]
    await resolve(agent.store, "s", asked.id, Reject(f"ask {MAIL}"))
    assert (await agent.resume("s")).text == "done"
    assert MAIL not in repr(await agent.store.read("s"))
    assert sent == []


async def test_an_edit_goes_into_the_vault_and_the_tool_gets_the_real_text():
    vault = MemoryVault()
    agent, sent = sending(capabilities=[Redact("email", vault=vault, reveal_to="send")])
    asked = (await agent.run("go", session="s")).waiting_for[0]
    await agent.resume("s", answers={asked.id: Edit({"to": MAIL})})
    assert sent == [MAIL]
    assert MAIL not in await everything(agent)


async def test_a_blocked_kind_in_an_edit_is_denied():
    agent, sent = sending(capabilities=[Redact("email", action="block")])
    asked = (await agent.run("go", session="s")).waiting_for[0]
    await agent.resume("s", answers={asked.id: Edit({"to": MAIL})})
    assert sent == []
    assert "has content that is not allowed: email" in await everything(agent)


async def test_an_edit_under_a_quorum_is_approved_as_it_was_cleaned():
    agent, sent = sending()
    agent.gate(ToolCalling, name="two")(lambda event: Ask("ok?", approvers=("ann", "bob"), quorum=2))
    asked = (await agent.run("go", session="s")).waiting_for[0]
    await agent.resolve("s", asked.id, Edit({"to": MAIL}, by="ann"))
    shown = next(asked for _, asked in await open_questions(agent.store, "s"))
    assert shown.call is not None
    assert shown.call.arguments == {"to": "[email]"}
    await agent.resume("s", answers={asked.id: Approve(by="bob", digest=shown.digest)})
    assert sent == ["[email]"]
    assert MAIL not in await everything(agent)


async def test_the_answer_to_a_sub_agents_question_is_cleaned_by_the_guard_above():
    child, sent = sending(name="child", capabilities=[])
    model = ScriptedModel(calls("child", task="go"), says("done"))
    agent = Agent(model, tools=[child.as_tool()]).with_capability(Redact("email"), band="guard")
    asked = (await agent.run("go", session="s")).waiting_for[0]
    await agent.resume("s", answers={asked.id: Edit({"to": MAIL})})
    assert sent == ["[email]"]
    for session in await agent.store.sessions():
        assert MAIL not in repr(await agent.store.read(session))


# ---------------------------------------------------------------- conceal


class Concealing:
    """Conceals a word, or fails."""

    def __init__(self, fn: Any = lambda text: text.replace("word", "[w]"), **options: Any) -> None:
        self.fn, self.options = fn, options

    def install(self, registrar: Any) -> None:
        registrar.conceal(self.fn, name="words", **self.options)


def fail(text: str) -> str:
    raise ValueError("no idea")


async def test_a_conceal_that_fails_withholds_errors_and_refuses_answers():
    agent = Agent(ScriptedModel(ServerError("word")), capabilities=[Concealing(fail)], errors=ErrorPolicy(retries=0))
    result = await agent.run("go", session="s")
    assert result.outcome.error.message == "withheld: 'words' could not clean the text of this error"
    assert "message='word'" not in repr(await agent.store.read("s"))
    agent, sent = sending(capabilities=[Concealing(fail)])
    asked = (await agent.run("go", session="s")).waiting_for[0]
    with pytest.raises(HookError, match="words"):
        await agent.resume("s", answers={asked.id: Edit({"to": "word"})})
    with pytest.raises(HookError, match="words"):
        await agent.resolve("s", asked.id, Reject("word"))
    assert sent == []
    assert [one.id for one in [asked for _, asked in await open_questions(agent.store, "s")]] == [asked.id]


def test_explain_lists_it():
    agent = Agent(ScriptedModel(says("hi")), capabilities=[Concealing(errors=False)])
    told = " ".join(str(agent.explain()).split())
    assert "conceal words" in told
    assert "of answers" in told


@pytest.mark.parametrize("wrong", [7, lambda: "", lambda text, more: text])
def test_what_is_not_a_function_of_a_text_is_refused(wrong):
    with pytest.raises(RegistrationError, match="words"):
        Agent(ScriptedModel(says("hi")), capabilities=[Concealing(wrong)])


async def test_a_function_that_is_async_is_refused():
    async def conceal(text: str) -> str:
        return text

    with pytest.raises(RegistrationError, match="plain function"):
        Agent(ScriptedModel(says("hi")), capabilities=[Concealing(conceal)])


async def test_it_is_a_good_capability():
    await check_capability(Concealing)


async def test_a_stop_that_quotes_a_text_is_cleaned():
    agent = Agent(ScriptedModel(says("hi")), capabilities=[Redact("email")])

    @agent.gate(TurnStarting)
    def broken(event: TurnStarting) -> None:
        raise ValueError(MAIL)

    result = await agent.run("go", session="s")
    assert MAIL not in repr(result.outcome)
    assert MAIL not in await everything(agent)
