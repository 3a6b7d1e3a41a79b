"""AuditTrail: every effect and decision is exported, and a changed, missing or foreign line is found."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass import Agent, Approve, Ask, Deny, ToolCalling, ToolReturned, TurnEnded, tool
from windlass.capabilities import AuditTrail, check_trail
from windlass.errors import ConfigError, RegistrationError, StoreError
from windlass.records import Record
from windlass.stores import SQLiteStore
from windlass.testing import ScriptedModel, calls, check_capability, says


@tool
def pay(amount: int) -> str:
    """Pay."""
    return f"paid {amount}"


async def pay_twice(path: Path, trail: Any) -> SQLiteStore:
    """A session with a call that a person approves and one that a gate denies."""
    store = SQLiteStore(path / "agent.db")
    model = ScriptedModel(calls([("pay", {"amount": 5}), ("pay", {"amount": 500})]), says("Paid."))
    agent = Agent(model, tools=[pay], store=store, capabilities=[trail])

    @agent.gate(ToolCalling, name="limit")
    def limit(event: ToolCalling) -> Any:
        return Deny("too much") if event.call.arguments["amount"] > 100 else Ask("ok?")

    waiting = await agent.run("Pay.", session="s")
    await agent.resume("s", answers={waiting.outcome.waiting_for[0].id: Approve(by="ann")})  # type: ignore[union-attr]
    await agent.aclose()
    return store


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_it_is_a_good_capability():
    await check_capability(lambda: AuditTrail(lambda line: None))


async def test_every_effect_and_decision_is_a_line_that_the_log_proves(tmp_path):
    file = tmp_path / "trail.jsonl"
    store = await pay_twice(tmp_path, AuditTrail(file))
    lines = lines_of(file)
    kinds = [line["kind"] for line in lines]
    for kind in (
        "TurnStarted",
        "ModelReplied",
        "ToolDecided",
        "Asked",
        "Answered",
        "ToolCalled",
        "ToolReturned",
        "TurnEnded",
    ):
        assert kind in kinds
    assert [line["seq"] for line in lines] == sorted({line["seq"] for line in lines})
    assert {line["session"] for line in lines} == {"s"}
    assert await check_trail(file, store) == len(lines)
    assert os.stat(file).st_mode & 0o777 == 0o600
    await store.close()


async def test_without_content_nothing_is_quoted_and_the_trail_still_proves(tmp_path):
    file = tmp_path / "trail.jsonl"
    store = await pay_twice(tmp_path, AuditTrail(file, content=False))
    text = file.read_text()
    assert "paid 5" not in text
    assert "too much" not in text
    assert "ok?" not in text
    denied = [line for line in lines_of(file) if line["kind"] == "ToolDecided" and "Deny" in str(line["verdict"])]
    assert denied[0]["name"] == "pay"
    assert await check_trail(file, store) == len(lines_of(file))
    await store.close()


async def test_each_change_of_a_line_is_found(tmp_path):
    file = tmp_path / "trail.jsonl"
    store = await pay_twice(tmp_path, AuditTrail(file))
    whole = file.read_text().splitlines(keepends=True)
    for number in range(len(whole) - 1):
        file.write_text("".join(whole[:number] + whole[number + 1 :]))
        with pytest.raises(StoreError, match="missing from the trail"):
            await check_trail(file, store)
    for number, text in enumerate(whole):
        for changed in (
            text.replace('"amount', '"amounts').replace("paid 5", "paid 6"),
            text.replace('"at":', '"at":1'),
            text.replace('"link":"', '"link":"0'),
            text.replace('"seq":', '"seq":1'),
        ):
            if changed != text:
                file.write_text("".join([*whole[:number], changed, *whole[number + 1 :]]))
                with pytest.raises(StoreError):
                    await check_trail(file, store)
    await store.close()


async def test_lines_twice_and_lines_cut_off_are_no_damage(tmp_path):
    file = tmp_path / "trail.jsonl"
    store = await pay_twice(tmp_path, AuditTrail(file))
    whole = file.read_text().splitlines(keepends=True)
    file.write_text("".join([whole[0], whole[1][:30] + "\n", *whole, whole[0][:-2]]))
    assert await check_trail(file, store) == len(whole)
    agent = Agent(ScriptedModel(says("x")), store=store, capabilities=[AuditTrail(file)])
    await agent.run("Again.", session="t")
    await agent.aclose()
    assert file.read_text().splitlines()[len(whole) + 2] == whole[0][:-2]
    assert await check_trail(file, store) > len(whole)
    await store.close()


@pytest.mark.parametrize("forged", ['{"session":"s","kind":"ToolDecided"}', "[1]", "garbage", '{"kind":"x"'])
async def test_a_line_that_was_added_is_found(tmp_path, forged):
    file = tmp_path / "trail.jsonl"
    store = await pay_twice(tmp_path, AuditTrail(file))
    whole = file.read_text().splitlines(keepends=True)
    file.write_text("".join([whole[0], forged + "\n", *whole[1:]]))
    with pytest.raises(StoreError, match=r"line 2 of trail\.jsonl is not a line of an audit trail"):
        await check_trail(file, store)
    await store.close()


async def test_a_whole_trail_has_the_end_of_every_session(tmp_path):
    file = tmp_path / "trail.jsonl"
    store = await pay_twice(tmp_path, AuditTrail(file))
    whole = file.read_text().splitlines(keepends=True)
    assert await check_trail(file, store, whole=True) == len(whole)
    for left in (whole[:-1], []):
        file.write_text("".join(left))
        with pytest.raises(StoreError, match="missing from the trail"):
            await check_trail(file, store, whole=True)
    await store.close()


async def test_sub_agents_are_in_the_trail(tmp_path):
    file = tmp_path / "trail.jsonl"
    child = Agent(ScriptedModel(calls("pay", amount=1), says("done")), tools=[pay], name="child")
    agent = Agent(ScriptedModel(calls("child", task="pay"), says("done")), tools=[child.as_tool()])
    await agent.with_capability(AuditTrail(file)).run("Pay.", session="s")
    await agent.aclose()
    assert [line["name"] for line in lines_of(file) if line["kind"] == "ToolCalled" and "//" in line["session"]] == [
        "pay"
    ]


async def test_kinds_can_be_chosen():
    lines: list[Any] = []
    agent = Agent(ScriptedModel(calls("pay", amount=1), says("x")), tools=[pay])
    await agent.with_capability(AuditTrail(lines.append, records=[ToolReturned, TurnEnded])).run("Pay.")
    await agent.aclose()
    assert [line["kind"] for line in lines] == ["ToolReturned", "TurnEnded"]


PROGRAM = """
import asyncio, os, signal, sys
from windlass import Agent
from windlass.capabilities import AuditTrail
from windlass.testing import ScriptedModel, calls, says
path = sys.argv[1]
written = 0
def target(line):
    global written
    written += 1
    with open(path + "/lines", "a") as file:
        file.write(f"{line['session']} {line['seq']}\\n")
    if len(sys.argv) > 2 and written == 2:
        os.kill(os.getpid(), signal.SIGKILL)
async def main():
    model = ScriptedModel(says("a"), says("b"))
    agent = Agent(model, store=f"sqlite:///{path}/agent.db", capabilities=[AuditTrail(target)])
    if len(sys.argv) > 2:
        await agent.run("one", session="s")
        await agent.run("two", session="s")
    await agent.catch_up()
    await agent.aclose()
asyncio.run(main())
"""


async def records_in(path: Path) -> Any:
    store = SQLiteStore(path)
    try:
        return await store.read("s")
    finally:
        await store.close()


def test_a_killed_process_leaves_no_gap(tmp_path):
    first = subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path), "die"], check=False)
    assert first.returncode == -signal.SIGKILL
    subprocess.run([sys.executable, "-c", PROGRAM, str(tmp_path)], check=True)
    exported = {tuple(line.split()) for line in (tmp_path / "lines").read_text().splitlines()}
    kinds, records = AuditTrail(print).records, asyncio.run(records_in(tmp_path / "agent.db"))
    wanted = {("s", str(seq)) for seq, record in enumerate(records, 1) if type(record) in kinds}
    assert exported == wanted
    assert len(wanted) > 2


def test_bad_options_are_refused():
    with pytest.raises(ConfigError, match="records must be a list of subclasses of Record"):
        AuditTrail(print, records=[int])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match="name must be a text"):
        AuditTrail(print, name="")


def test_every_record_can_only_be_observed_durably():
    with pytest.raises(RegistrationError, match="add durable=True"):
        Agent(ScriptedModel(says("x"))).observe(Record)(lambda fact: None)
