"""The memory store: an append-only log per session, an inbox, cursors, and a bound on what it keeps."""

from __future__ import annotations

import pytest

from windlass.errors import ConfigError, SessionConflict
from windlass.protocols import Store
from windlass.records import MessageAdded, SessionEnded, SessionOpened
from windlass.stores import MemoryStore, open_store

OPENED, ADDED, ENDED = SessionOpened(), MessageAdded(), SessionEnded()


@pytest.fixture
def store() -> Store:
    return MemoryStore()


async def test_what_is_appended_is_read_in_its_order(store):
    await store.append("s", [OPENED, ADDED], 0)
    await store.append("s", [ADDED, ENDED], 2)
    assert list(await store.read("s")) == [OPENED, ADDED, ADDED, ENDED]


@pytest.mark.parametrize("start", range(6))
async def test_reading_starts_where_it_is_told(store, start):
    log = [OPENED, ADDED, ADDED, ENDED]
    await store.append("s", log, 0)
    assert list(await store.read("s", start)) == log[start:]


async def test_a_session_that_nobody_wrote_has_an_empty_log(store):
    assert list(await store.read("s")) == []
    assert list(await store.sessions()) == []


@pytest.mark.parametrize("expected", [0, 1, 3, -1])
async def test_an_append_at_another_length_is_refused_and_writes_nothing(store, expected):
    await store.append("s", [OPENED, ADDED], 0)
    with pytest.raises(SessionConflict, match="'s' has 2 records, not") as refused:
        await store.append("s", [ENDED], expected)
    assert refused.value.session == "s"
    assert list(await store.read("s")) == [OPENED, ADDED]


async def test_a_refused_append_does_not_make_a_session(store):
    with pytest.raises(SessionConflict):
        await store.append("s", [OPENED], 1)
    assert list(await store.sessions()) == []


async def test_two_writers_cannot_both_advance_a_session(store):
    await store.append("s", [OPENED], 0)
    await store.append("s", [ADDED], 1)
    with pytest.raises(SessionConflict):
        await store.append("s", [ENDED], 1)


async def test_appending_nothing_changes_nothing(store):
    assert await store.append("s", [], 0) is False
    assert list(await store.sessions()) == []
    await store.append("s", [OPENED], 0)
    assert await store.append("s", [], 1) is False
    with pytest.raises(SessionConflict):
        await store.append("s", [], 0)


async def test_sessions_are_apart(store):
    await store.append("a", [OPENED], 0)
    await store.append("b", [OPENED, ADDED], 0)
    assert sorted(await store.sessions()) == ["a", "b"]
    assert len(await store.read("a")) == 1
    assert len(await store.read("b")) == 2


async def test_what_was_read_or_written_can_be_changed_without_changing_the_log(store):
    batch = [OPENED]
    await store.append("s", batch, 0)
    batch.append(ADDED)
    read = await store.read("s")
    if isinstance(read, list):
        read.clear()
    assert list(await store.read("s")) == [OPENED]


# ---------------------------------------------------------------- inbox


async def test_an_inbox_takes_a_key_once_and_gives_its_entries_in_order(store):
    assert await store.put("s", "k2", "steer", "two") is True
    assert await store.put("s", "k1", "cancel", "one") is True
    assert await store.put("s", "k2", "steer", "again") is False
    assert list(await store.inbox("s", ())) == [("k2", "steer", "two"), ("k1", "cancel", "one")]


async def test_what_was_taken_is_not_given_again(store):
    await store.put("s", "k1", "steer", "one")
    await store.put("s", "k2", "steer", "two")
    assert [key for key, _, _ in await store.inbox("s", ("k1",))] == ["k2"]
    assert list(await store.inbox("s", ("k1", "k2"))) == []
    assert await store.put("s", "k1", "steer", "one") is False


async def test_inboxes_are_apart_and_may_be_empty(store):
    await store.put("a", "k", "steer", "for a")
    assert await store.put("b", "k", "steer", "for b") is True
    assert list(await store.inbox("c", ())) == []
    assert list(await store.inbox("b", ())) == [("k", "steer", "for b")]


async def test_an_append_says_whether_the_inbox_has_something(store):
    assert await store.append("s", [OPENED], 0) is False
    await store.put("s", "k", "steer", "hello")
    assert await store.append("s", [ADDED], 1) is True
    assert await store.append("other", [OPENED], 0) is False


async def test_an_entry_of_the_inbox_makes_no_session(store):
    await store.put("s", "k", "steer", "hello")
    assert list(await store.sessions()) == []


# ---------------------------------------------------------------- cursors and pipelines


async def test_every_reader_of_every_session_has_its_own_cursor(store):
    assert await store.cursor("s", "audit") == 0
    await store.advance("s", "audit", 3)
    await store.advance("s", "other", 1)
    await store.advance("t", "audit", 7)
    assert [await store.cursor("s", "audit"), await store.cursor("s", "other")] == [3, 1]
    assert await store.cursor("t", "audit") == 7
    await store.advance("s", "audit", 4)
    assert await store.cursor("s", "audit") == 4


async def test_a_pipeline_is_kept_once_under_its_hash(store):
    assert await store.pipeline("d") is None
    await store.put_pipeline("d", b"one")
    await store.put_pipeline("d", b"one")
    assert await store.pipeline("d") == b"one"


# ---------------------------------------------------------------- the bound


async def test_of_the_sessions_that_ended_only_the_latest_are_kept():
    store = MemoryStore(keep_ended=2)
    await store.append("open", [OPENED], 0)
    for name in ("a", "b", "c"):
        await store.put(name, "k", "steer", "hello")
        await store.advance(name, "audit", 1)
        await store.append(name, [OPENED, ENDED], 0)
    assert sorted(await store.sessions()) == ["b", "c", "open"]
    assert list(await store.read("a")) == []
    assert list(await store.inbox("a", ())) == []
    assert await store.cursor("a", "audit") == 0
    await store.append("a", [OPENED], 0)
    assert len(await store.read("a")) == 1


async def test_of_many_sessions_that_ended_a_quarter_is_forgotten_at_a_time():
    store = MemoryStore(keep_ended=8)
    names = [f"ended{number}" for number in range(30)]
    kept = []
    for name in names:
        await store.append(name, [OPENED, ENDED], 0)
        kept.append(list(await store.sessions()))
    assert all(mine == names[: at + 1][-len(mine) :] for at, mine in enumerate(kept))
    assert {len(mine) for mine in kept[8:]} == {6, 7, 8}


async def test_a_session_that_is_open_is_never_forgotten():
    store = MemoryStore(keep_ended=1)
    await store.append("s", [OPENED], 0)
    for number in range(10):
        await store.append(f"ended{number}", [OPENED, ENDED], 0)
    assert len(await store.read("s")) == 1
    assert len(await store.sessions()) == 2


async def test_a_session_that_was_opened_again_is_never_forgotten():
    store = MemoryStore(keep_ended=1)
    await store.append("s", [OPENED, ENDED], 0)
    await store.append("s", [OPENED], 2)
    for number in range(3):
        await store.append(f"ended{number}", [OPENED, ENDED], 0)
    assert len(await store.read("s")) == 3


async def test_the_latest_end_of_a_session_counts():
    store = MemoryStore(keep_ended=2)
    await store.append("s", [OPENED, ENDED], 0)
    await store.append("t", [OPENED, ENDED], 0)
    await store.append("s", [OPENED, ENDED], 2)
    await store.append("u", [OPENED, ENDED], 0)
    assert sorted(await store.sessions()) == ["s", "u"]


# ---------------------------------------------------------------- its address


async def test_a_store_is_found_by_its_address(store):
    assert isinstance(open_store(None), MemoryStore)
    assert isinstance(open_store("memory:"), MemoryStore)
    assert open_store(store) is store
    assert store.durable is False
    await store.close()


def test_an_unknown_address_is_refused_by_its_name():
    with pytest.raises(ConfigError, match="'redis://x'"):
        open_store("redis://x")
