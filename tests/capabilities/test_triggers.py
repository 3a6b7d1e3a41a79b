"""When a compaction is due."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from windlass.capabilities import AtFraction, AtMessages, AtTokens, ClearResults, Offload, Summarize, Trim
from windlass.errors import ConfigError

from .chats import Chat

CASES: list[tuple[Any, dict[tuple[int, int, int | None], bool]]] = [
    (AtTokens(100), {(99, 500, None): False, (100, 0, None): True, (101, 0, 10): True}),
    (AtMessages(5), {(10**6, 4, 10): False, (0, 5, None): True}),
    (AtFraction(0.5), {(49, 9, 100): False, (50, 9, 100): True, (10**9, 9, None): False}),
    (AtTokens(100) | AtMessages(5), {(99, 4, None): False, (100, 4, None): True, (99, 5, None): True}),
    (AtTokens(100) & AtMessages(5), {(100, 4, None): False, (99, 5, None): False, (100, 5, None): True}),
    (
        AtTokens(100) | (AtMessages(5) & AtFraction(0.5)),
        {(100, 0, None): True, (60, 5, 100): True, (60, 5, None): False, (60, 4, 100): False},
    ),
]


@pytest.mark.parametrize(("trigger", "cases"), CASES, ids=lambda case: repr(case) if not isinstance(case, dict) else "")
def test_triggers_fire_as_declared(trigger, cases):
    """Behaviour 67: triggers fire exactly as they are declared, alone and combined."""
    assert {given: trigger.reached(*given) for given in cases} == cases


@given(st.integers(1, 50), st.integers(1, 50), st.integers(0, 60), st.integers(0, 60))
def test_or_and_and_are_what_they_say(tokens, messages, has, count):
    """Behaviour 67: either of two, or both."""
    one, other = AtTokens(tokens), AtMessages(messages)
    assert (one | other).reached(has, count, None) == (has >= tokens or count >= messages)
    assert (one & other).reached(has, count, None) == (has >= tokens and count >= messages)


async def test_a_list_is_any_of_it_and_an_empty_one_never_fires():
    """Behaviour 67: a list fires if any of it does; an empty list never fires."""
    for triggers, expected in (([], 0), ([AtTokens(10**9), AtMessages(4)], 1)):
        chat = Chat()
        agent = chat.agent(Trim(triggers, 1))
        for turn in range(4):
            await agent.run(f"{turn}", session="s")
        state = await agent.state("s")
        assert bool(state.compactions) == bool(expected)


def test_how_a_trigger_is_shown():
    assert (
        repr(AtTokens(100_000) | (AtMessages(50) & AtFraction(0.5)))
        == "AtTokens(100000) | (AtMessages(50) & AtFraction(0.5))"
    )


async def test_a_fraction_of_a_window_that_nobody_knows_never_fires_and_explain_says_so():
    agent = Chat().agent(Trim(AtFraction(0.01), 1))
    for turn in range(3):
        await agent.run(f"{turn}", session="s")
    assert not (await agent.state("s")).compactions
    [told] = agent.explain().data["compactors"]
    assert told["notes"] == ["AtFraction is never due: the context window is unknown; set Agent(window=…)"]
    assert "AtFraction is never due" in " ".join(str(agent.explain()).split())
    known = Chat().agent(Trim(AtFraction(0.01), 1), window=100_000)
    assert known.explain().data["compactors"][0]["notes"] == []


async def test_a_fraction_of_a_known_window_fires():
    agent = Chat().agent(Trim(AtFraction(0.5), 1), window=400, injection_reserve=0)
    for turn in range(5):
        await agent.run(f"{turn}", session="s")
    assert (await agent.state("s")).compactions


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: AtTokens(0), "AtTokens(0)"),
        (lambda: AtTokens(True), "AtTokens(True)"),
        (lambda: AtMessages(1.5), "AtMessages(1.5)"),
        (lambda: AtFraction(0), "AtFraction(0)"),
        (lambda: AtFraction(1.5), "AtFraction(1.5)"),
        (lambda: AtTokens(1) | "much", "'much'"),
        (lambda: Trim(trigger="always"), "trigger must be a Trigger or a list"),
        (lambda: Trim(trigger=7), "Trim(trigger=7)"),
        (lambda: Trim(AtMessages(5), 5), "keep=AtMessages(5)"),
        (lambda: Trim(AtTokens(50), AtTokens(60)), "keep=AtTokens(60)"),
        (lambda: Trim(keep=AtFraction(0.5)), "keep=AtFraction(0.5)"),
        (lambda: Trim(keep=0), "keep=0"),
        (lambda: Trim(target=1), "target=1"),
        (lambda: Trim(note=""), "note=''"),
        (lambda: Summarize(7), "model=7"),
        (lambda: Summarize(instructions=None), "instructions=None"),
        (lambda: Summarize(name=""), "name=''"),
        (lambda: ClearResults(keep=-1), "keep=-1"),
        (lambda: ClearResults(exclude="look"), "exclude='look'"),
        (lambda: ClearResults(gain=0), "gain=0"),
        (lambda: ClearResults(placeholder=" "), "placeholder=' '"),
        (lambda: Offload(0), "over=0"),
        (lambda: Offload(100, preview=51), "preview=51"),
    ],
)
def test_a_mistake_is_named_where_it_is_made(make, named):
    with pytest.raises(ConfigError) as caught:
        make()
    assert named in str(caught.value)
