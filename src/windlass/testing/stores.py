"""Checks for stores, which third parties can run on their own: `await check_store(make)`."""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct

from windlass.decisions import Approve
from windlass.errors import ConfigError, SessionBusy, SessionConflict, StoreError
from windlass.logs import Log, SessionInfo
from windlass.messages import TextPart, user
from windlass.outcomes import Completed
from windlass.ownership import Claim
from windlass.protocols import Store, StoredValue
from windlass.records import (
    Answered,
    Asked,
    InboxTaken,
    Injected,
    MessageAdded,
    Record,
    Resumed,
    SessionEnded,
    SessionOpened,
    SlotSet,
    Suspended,
    TurnEnded,
    TurnStarted,
    Unknown,
    decode,
)

from .examples import PLAIN, records

Make: TypeAlias = Callable[[], Store | Awaitable[Store]]
Check: TypeAlias = Callable[["StoreBench"], Coroutine[Any, Any, None]]

OPENED, ADDED, ENDED = SessionOpened(agent="checker", at=100.0), MessageAdded(), SessionEnded(at=200.0)
LONE = "lone \ud800 surrogate, \0 and \udfff"


class StoreReport(Struct, frozen=True):
    """The result of `check_store`: the checks that passed, why others failed, and which were skipped."""

    passed: tuple[str, ...]
    failed: dict[str, str]
    skipped: tuple[str, ...]

    def __str__(self) -> str:
        count = len(self.passed) + len(self.failed)
        result = f"fails {len(self.failed)} of {count} checks" if self.failed else f"passes all {count} checks"
        return "\n".join([f"the store {result}", *[f"- {check}: {why}" for check, why in self.failed.items()]])


class StoreFailed(AssertionError):
    """A store fails a check of `check_store`.

    `report.failed` has the reason for each failed check.
    """

    def __init__(self, message: str, *, report: StoreReport) -> None:
        super().__init__(message)
        self.report = report


async def check_store(
    make: Make,
    *,
    durable: bool = True,
    tamper: Callable[[str], object] | None = None,
    cut: Callable[[str], object] | None = None,
) -> StoreReport:
    """Check a store. Raises `StoreFailed`, an AssertionError that lists all failures.

    `make`, plain or async, opens the same storage each time it is called. Use a storage for the checks alone, because
    they prune and erase. For a store that is not `durable`, `make` returns the same object, which is closed only at the
    end. `tamper`, plain or async, changes the middle of a session's log behind the store's back, and `cut` removes its
    last batch; without them, the checks that the store detects this are skipped.

    - *the log*: batches are stored whole and in order, whatever they contain; any part of a log can be read
    - *versions*: of several appends at the same length one wins, whether by tasks, threads or several stores
    - *the inbox*: a key is accepted once; entries that the log says were taken are gone; an append returns whether
      entries wait
    - *sessions*: they can be found and erased, their open questions listed, and their transient parts pruned
    - *ownership*: a claim begins a pass, also without records; the end of the turn or a release ends it; an append with
      the epoch of another pass is refused, in the session and in those below it
    - *the chain*: it can be verified, also after pruning, and whoever reads a changed log gets a `StoreError`
    - *values*: they come back, by storage and key; concurrent changes all count, those with the same id once; expired
      ones are pruned
    - *opening*: the storage can be closed and reopened, and used by several stores at once, from any thread and any
      event loop
    """
    bench = StoreBench(make, durable, tamper, cut)
    passed, failed, skipped = list[str](), dict[str, str](), list[str]()
    for name, (run, needs) in CHECKS.items():
        if needs is not None and not getattr(bench, needs):
            skipped.append(name)
            continue
        try:
            await run(bench)
        except Exception as error:
            failed[name] = str(error) if type(error) is AssertionError else f"{type(error).__name__}: {error}"
        else:
            passed.append(name)
        finally:
            await bench.close()
    await bench.close(for_good=True)
    report = StoreReport(tuple(passed), failed, tuple(skipped))
    if failed:
        raise StoreFailed(str(report), report=report)
    return report


class StoreBench:
    """Opens the storage for the checks, as often as they need, and makes unused ids."""

    def __init__(
        self,
        make: Make,
        durable: bool,
        tamper: Callable[[str], object] | None,
        cut: Callable[[str], object] | None,
    ) -> None:
        self.make = make
        self.durable = durable
        self.tamper = tamper
        self.cut = cut
        self.opened: list[Store] = []

    async def open(self) -> Store:
        made = self.make()
        store: Store = await made if inspect.isawaitable(made) else made
        if all(store is not other for other in self.opened):
            self.opened.append(store)
        return store

    async def close(self, *, for_good: bool = False) -> None:
        """Close the stores that a check has opened; a store that is not durable stays open for the next check."""
        if self.durable or for_good:
            for store in self.opened:
                await store.close()
            self.opened.clear()

    def id(self, what: str = "session") -> str:
        return f"{what}-{secrets.token_hex(6)}"


CHECKS: dict[str, tuple[Check, str | None]] = {}
"""The checks by name, each with the attribute of the bench that it needs."""


def check(needs: str | None = None) -> Callable[[Check], Check]:
    """Add a check; the name of its function says what must hold."""

    def add(run: Check) -> Check:
        CHECKS[run.__name__.strip("_").replace("_", " ")] = run, needs
        return run

    return add


def same(found: Any, wanted: Any, what: str) -> None:
    """Fail unless they are equal."""
    if found != wanted:
        raise AssertionError(f"{what}: {_short(found)}, not {_short(wanted)}")


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 400 else f"{text[:400]}… ({len(text)} characters)"


async def refused(append: Awaitable[Any], session: str, what: str) -> None:
    """Fail unless it raises SessionConflict with the session's name."""
    try:
        await append
    except SessionConflict as error:
        same(error.session, session, f"the session that the error of {what} names")
    else:
        raise AssertionError(f"{what} was not refused with SessionConflict")


async def reads(store: Store, session: str, wanted: Sequence[Record], start: int = 0) -> None:
    same(list(await store.read(session, start)), list(wanted), f"the records from {start} on")


async def in_threads(works: Sequence[Callable[[], Coroutine[Any, Any, Any]]]) -> list[Any]:
    """Run each in its own thread and event loop, all at once; returns their results or exceptions."""
    together = [asyncio.to_thread(asyncio.run, work()) for work in works]
    return list(await asyncio.gather(*together, return_exceptions=True))


# ---------------------------------------------------------------- the log


@check()
async def _records_are_read_in_the_order_in_which_they_were_appended(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    log: list[Record] = [OPENED]
    await store.append(session, log, 0)
    for size in (1, 3, 2):
        batch = [SlotSet(slot=f"{len(log)}.{number}", value=number) for number in range(size)]
        await store.append(session, batch, len(log))
        log += batch
    await reads(store, session, log)


@check()
async def _a_log_can_be_read_from_any_position(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    log: list[Record] = [SlotSet(slot=str(number), value=number) for number in range(7)]
    for start, end in ((0, 3), (3, 4), (4, 7)):
        await store.append(session, log[start:end], start)
    for start in range(9):
        await reads(store, session, log[start:], start)


@check()
async def _an_unknown_session_is_empty(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    await reads(store, session, [])
    same(list(await store.batches(session)), [], "its batches")
    same(list(await store.inbox(session, ())), [], "its inbox")
    same(list(await store.approvals(session)), [], "its questions")
    same(await store.cursor(session, "reader"), 0, "its cursor")
    same(session in await store.sessions(), False, "whether it is listed")


@check()
async def _an_append_at_another_length_is_refused_and_writes_nothing(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    await refused(store.append(session, [OPENED], 1), session, "an append to nothing at length 1")
    same(session in await store.sessions(), False, "whether a refused append made a session")
    await store.append(session, [OPENED, ADDED], 0)
    for expected in (0, 1, 3, 200, -1):
        await refused(store.append(session, [ENDED], expected), session, f"an append to 2 records at {expected}")
    await reads(store, session, [OPENED, ADDED])
    await store.append(session, [ENDED], 2)
    await reads(store, session, [OPENED, ADDED, ENDED])


@check()
async def _an_empty_batch_changes_nothing(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    same(await store.append(session, [], 0), False, "what an empty append returns")
    same(session in await store.sessions(), False, "whether it made a session")
    await store.append(session, [OPENED], 0)
    await store.append(session, [], 1)
    await refused(store.append(session, [], 0), session, "an empty append at another length")
    await store.append(session, [ADDED], 1)
    await reads(store, session, [OPENED, ADDED])
    await store.verify(session)


@check()
async def _every_kind_of_record_comes_back(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    log = [*records(), decode(b'{"kind":"FromTheFuture","a":[1,{"b":null}]}')]
    same(type(log[-1]), Unknown, "the last of them")
    for start in range(0, len(log), 20):
        await store.append(session, log[start : start + 20], start)
    for found, wanted in zip(await store.read(session), log, strict=True):
        same(found, wanted, f"a record of kind {type(wanted).__name__}")


@check()
async def _odd_texts_come_back(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    asked = _asked("c1", LONE)
    log: list[Record] = [
        SessionOpened(agent=LONE, at=1.0), TurnStarted(turn=1, message=user(LONE), ref="t1", at=2.0),
        MessageAdded(message=user(LONE)), asked,
    ]  # fmt: skip
    await store.append(session, log, 0)
    await reads(store, session, log)
    same(list(await store.approvals(session)), [(session, asked)], "an open question")
    same([info.session for info in await store.find(search=session)], [session], "the sessions found")


@check()
async def _a_record_of_ten_megabytes_comes_back(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    large = MessageAdded(message=user(secrets.token_hex(1000) * 5000))
    await store.append(session, [OPENED, large], 0)
    same(list(await store.read(session)) == [OPENED, large], True, "whether it is the same")


@check()
async def _sessions_are_apart_whatever_their_ids(bench: StoreBench) -> None:
    store, stem = await bench.open(), bench.id()
    names = [
        stem + end for end in ("", "/1", "/1/2", " space", "'quote\"", "%", "_", "é🌍", "A", "a", ";--", "x" * 300)
    ]
    for number, name in enumerate(names):
        await store.append(name, [SlotSet(slot="number", value=number)], 0)
    for number, name in enumerate(names):
        await reads(store, name, [SlotSet(slot="number", value=number)])
    same([name for name in await store.sessions() if name.startswith(stem)], names, "the sessions, in their order")


@check()
async def _changing_a_list_that_was_written_or_read_does_not_change_the_log(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    batch: list[Record] = [OPENED]
    await store.append(session, batch, 0)
    batch.append(ADDED)
    read = await store.read(session)
    if isinstance(read, list):
        read.clear()
    await reads(store, session, [OPENED])


# ---------------------------------------------------------------- versions


@check()
async def _of_many_appends_at_once_one_wins(bench: StoreBench) -> None:
    stores, session = [await bench.open() for _ in range(3)], bench.id()
    for length in range(4):
        appends = [
            stores[number % 3].append(session, [SlotSet(slot="by", value=[length, number])], length)
            for number in range(12)
        ]
        _one_won(await asyncio.gather(*appends, return_exceptions=True))
    for store in stores:
        same(len(await store.read(session)), 4, "the length of the log")
        await store.verify(session)


@check()
async def _of_many_appends_from_threads_one_wins(bench: StoreBench) -> None:
    stores, session = [await bench.open() for _ in range(2)], bench.id()

    def appending(length: int, number: int) -> Callable[[], Coroutine[Any, Any, Any]]:
        batch = [OPENED, SlotSet(slot="by", value=[length, number])]
        return lambda: _append(stores[number % 2], session, batch, length)

    for length in range(0, 6, 2):
        _one_won(await in_threads([appending(length, number) for number in range(8)]))
    same(len(await stores[0].read(session)), 6, "the length of the log")
    await stores[1].verify(session)


async def _append(store: Store, session: str, batch: Sequence[Record], expected: int) -> bool:
    return await store.append(session, batch, expected)


def _one_won(results: Sequence[Any]) -> None:
    others = [result for result in results if not isinstance(result, bool)]
    same(len(results) - len(others), 1, "how many appends at the same length succeeded")
    wrong = [repr(other) for other in others if not isinstance(other, SessionConflict)]
    same(wrong, [], "what the others got instead of SessionConflict")


@check()
async def _any_store_may_append_at_the_right_length(bench: StoreBench) -> None:
    first, second, session = await bench.open(), await bench.open(), bench.id()
    await first.append(session, [OPENED], 0)
    await first.append(session, [ADDED], 1)
    await second.append(session, [Resumed(at=1.0)], 2)
    await refused(first.append(session, [ADDED], 2), session, "an append by a store that was overtaken")
    await second.append(session, [ADDED], 3)
    await reads(first, session, [OPENED, ADDED, Resumed(at=1.0), ADDED])
    await first.append(session, [ADDED], 4)
    await reads(second, session, [ADDED], 4)


@check()
async def _a_reader_never_sees_half_a_batch(bench: StoreBench) -> None:
    writer, reader, session = await bench.open(), await bench.open(), bench.id()
    writing = asyncio.ensure_future(_write_threes(writer, session))
    while not writing.done():
        same(len(await reader.read(session)) % 3, 0, "what is left over of batches of three")
        await asyncio.sleep(0)
    await writing
    same(len(await reader.read(session)), 60, "the length of the log")


async def _write_threes(store: Store, session: str) -> None:
    for length in range(0, 60, 3):
        await store.append(session, [ADDED, ADDED, ADDED], length)


@check()
async def _after_a_cancelled_append_the_log_has_all_of_it_or_nothing(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    length = 0
    for pauses in (0, 1, 2, 3, 5, 8, 13, 21):
        appending = asyncio.ensure_future(store.append(session, [ADDED, ADDED], length))
        for _ in range(pauses):
            await asyncio.sleep(0)
        appending.cancel()
        await asyncio.wait([appending])
        length = len(await store.read(session))
        same(length % 2, 0, "what is left over of batches of two")
        await store.append(session, [ADDED, ADDED], length)
        length += 2
    same(len(await store.read(session)), length, "the length of the log")


@check("durable")
async def _a_batch_that_cannot_be_encoded_leaves_nothing_behind(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    await store.append(session, [OPENED], 0)
    batches: list[list[Record]] = [[ADDED], [ADDED, SlotSet(slot="bad", value=_Unencodable())], [ADDED, ADDED]]
    names = [session, bench.id(), bench.id()]
    appends = [
        store.append(name, batch, 1 if name is session else 0) for name, batch in zip(names, batches, strict=True)
    ]
    results = await asyncio.gather(*appends, return_exceptions=True)
    same([isinstance(result, Exception) for result in results], [False, True, False], "which of three appends fail")
    await reads(store, names[1], [])
    await reads(store, session, [OPENED, ADDED])
    await reads(store, names[2], [ADDED, ADDED])
    await store.append(names[1], [OPENED], 0)


class _Unencodable:
    def __str__(self) -> str:
        raise ValueError("it cannot be encoded")

    __repr__ = __str__


# ---------------------------------------------------------------- the inbox, cursors, pipelines


@check()
async def _an_inbox_accepts_a_key_once_and_keeps_the_order(bench: StoreBench) -> None:
    store, session, other = await bench.open(), bench.id(), bench.id()
    same(await store.put(session, "k2", "steer", "two"), True, "what the first put returns")
    same(await store.put(session, "k1", "cancel", "one"), True, "what the second put returns")
    same(await store.put(session, "k2", "steer", "again"), False, "what a put of the same key returns")
    same(await store.put(other, "k2", "steer", "other"), True, "what a put for another session returns")
    wanted = [("k2", "steer", "two"), ("k1", "cancel", "one")]
    same(list(await store.inbox(session, ())), wanted, "the inbox")
    same(list(await store.inbox(session, ("k2",))), wanted[1:], "the inbox without what was taken")
    same(session in await store.sessions(), False, "whether an entry of the inbox makes a session")


@check()
async def _of_many_puts_of_the_same_key_one_wins(bench: StoreBench) -> None:
    stores, session = [await bench.open() for _ in range(2)], bench.id()
    puts = [stores[number % 2].put(session, "key", "steer", number) for number in range(10)]
    same(sorted(await asyncio.gather(*puts)), [False] * 9 + [True], "what they return")
    same(len(await stores[0].inbox(session, ())), 1, "how many entries there are")


@check()
async def _an_append_returns_whether_the_inbox_has_entries(bench: StoreBench) -> None:
    store, session, other = await bench.open(), bench.id(), bench.id()
    same(await store.append(session, [OPENED], 0), False, "what it returns while the inbox is empty")
    await store.put(session, "k1", "steer", "one")
    await store.put(session, "k2", "steer", "two")
    same(await store.append(session, [ADDED], 1), True, "what it returns when the inbox has entries")
    same(await store.append(session, [], 2), True, "what an empty append returns when the inbox has entries")
    same(await store.append(other, [OPENED], 0), False, "what it returns for another session")
    same(
        await store.append(session, [InboxTaken(key="k1", entry="steer")], 2),
        True,
        "what it returns when an entry is left",
    )
    same([key for key, _, _ in await store.inbox(session, ())], ["k2"], "what is left")
    taken = [ADDED, InboxTaken(key="k2", entry="steer")]
    same(await store.append(session, taken, 3), False, "what it returns when all entries were taken")
    same(list(await store.inbox(session, ())), [], "what is left in the end")
    same(await store.put(session, "k1", "steer", "one"), False, "what a put of a key that was taken returns")
    same(await store.append(session, [ADDED], 5), False, "what it returns afterwards")


@check()
async def _an_entry_may_come_before_its_session(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    await store.put(session, "early", "steer", "hello")
    same(await store.append(session, [OPENED], 0), True, "what the first append returns")
    same(list(await store.inbox(session, ())), [("early", "steer", "hello")], "the inbox")


@check()
async def _the_inbox_stores_any_json_value(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    values = [*PLAIN, LONE, {"text": LONE}, "x" * 1_000_000]
    for number, value in enumerate(values):
        await store.put(session, f"k{number}", "steer", value)
    found = [data for _, _, data in await store.inbox(session, ())]
    for value, wanted in zip(found, values, strict=True):
        same(value, wanted, "an entry")


@check()
async def _every_reader_of_every_session_has_its_own_cursor(bench: StoreBench) -> None:
    store, session, other = await bench.open(), bench.id(), bench.id()
    await store.advance(session, "audit", 3)
    await store.advance(session, "other", 1)
    await store.advance(other, "audit", 7)
    await store.advance(session, "audit", 5)
    found = [await store.cursor(session, "audit"), await store.cursor(session, "other")]
    same(found, [5, 1], "the cursors of the session")
    same(await store.cursor(other, "audit"), 7, "the cursor of the other session")
    same(await store.cursor(other, "other"), 0, "a cursor that was never set")


@check()
async def _a_cursor_is_moved_only_from_where_it_is_expected(bench: StoreBench) -> None:
    store, other, session = await bench.open(), await bench.open(), bench.id()
    same(await store.advance(session, "audit", 3, 1), False, "an advance from 1 of a cursor that was never set")
    same(await store.cursor(session, "audit"), 0, "the cursor after that")
    same(await store.advance(session, "audit", 3, 0), True, "an advance from 0 of a cursor that was never set")
    same(await other.advance(session, "audit", 4, 0), False, "an advance from 0 of a cursor that is at 3")
    same(await other.advance(session, "audit", 5, 3), True, "an advance from where the cursor is")
    same(await store.advance(session, "audit", 6, 3), False, "an advance from where the cursor was before")
    same(await store.cursor(session, "audit"), 5, "the cursor in the end")
    same(await store.advance(session, "audit", 2), True, "an advance from anywhere")
    same(await other.cursor(session, "audit"), 2, "the cursor after that")


@check()
async def _a_store_lists_the_sessions_that_a_reader_has_not_read_to_the_end(bench: StoreBench) -> None:
    store = await bench.open()
    reader, sessions = bench.id("reader"), [bench.id() for _ in range(4)]
    for session in sessions:
        await store.append(session, [OPENED], 0)

    async def found() -> list[str]:
        return [info.session for info in await store.behind(reader) if info.session in sessions]

    same(await found(), sessions, "the sessions that it has not read at all")
    await store.advance(sessions[0], reader, 1)
    await store.erase(sessions[1])
    same(await found(), sessions[2:], "the sessions without the one it has read and the one that was erased")
    await store.append(sessions[0], [ENDED], 1)
    same(await found(), [sessions[0], *sessions[2:]], "the sessions with the one that got another record")
    (info,) = [info for info in await store.behind(reader) if info.session == sessions[0]]
    same((info.status, info.records), ("ended", 2), "the status and length of that one")


@check()
async def _a_pipeline_is_kept_under_its_hash(bench: StoreBench) -> None:
    store, other, digest = await bench.open(), await bench.open(), bench.id("digest")
    same(await store.pipeline(digest), None, "a pipeline that was never put")
    await store.put_pipeline(digest, b'{"hooks":[]}\0\xff')
    await other.put_pipeline(digest, b'{"hooks":[]}\0\xff')
    same(await other.pipeline(digest), b'{"hooks":[]}\0\xff', "the pipeline")


# ---------------------------------------------------------------- sessions and their questions


def _asked(id: str, question: str = "May it?") -> Asked:
    return Asked(id=id, event="ToolCalling", question=question, allow=("approve",), digest="d", by=("gate",))


def _started(text: str, at: float) -> list[Record]:
    return [SessionOpened(agent="checker", at=at), TurnStarted(turn=1, message=user(text), ref="t1", at=at), ADDED]


async def _found(store: Store, session: str) -> SessionInfo:
    found = [info for info in await store.find(search=session) if info.session == session]
    same(len(found), 1, f"how often find lists session {session!r}")
    return found[0]


@check()
async def _find_reports_the_status_of_a_session(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    batches: list[tuple[str, list[Record]]] = [
        ("running", _started("the title", 1000.0)),
        ("suspended", [_asked("c1"), Suspended(at=1001.0)]),
        ("running", [Resumed(at=1002.0), Answered(id="c1", answer=Approve(), digest="d")]),
        ("open", [TurnEnded(outcome=Completed(), at=1003.0)]),
        ("running", [TurnStarted(turn=2, message=user("not the title"), ref="t2", at=1004.0)]),
        ("open", [TurnEnded(outcome=Completed(), at=1005.0)]),
        ("ended", [SessionEnded(at=1006.0)]),
    ]
    length = 0
    for number, (status, batch) in enumerate(batches):
        await store.append(session, batch, length)
        length += len(batch)
        waiting = 1 if status == "suspended" else 0
        wanted = SessionInfo(session, status, "checker", "the title", 1000.0, 1000.0 + number, length, waiting)
        same(await _found(store, session), wanted, f"what find says after {type(batch[-1]).__name__}")


@check()
async def _find_and_behind_name_the_parent_of_a_sub_agents_session(bench: StoreBench) -> None:
    store, session, reader = await bench.open(), bench.id(), bench.id("reader")
    child = f"{session}//1/1"
    await store.append(session, [OPENED, ADDED], 0)
    await store.append(child, [SlotSet(slot="first", value=1), OPENED.replace(parent=session)], 0)
    await store.append(child, [SessionOpened("resumed", "checker", at=101.0)], 2)
    for infos in (await store.find(search=session), await store.behind(reader)):
        parents = {info.session: info.parent for info in infos if info.session in (session, child)}
        same(parents, {session: "", child: session}, "the parents of a session and of its sub-agent's")


@check()
async def _sessions_are_found_by_id_title_agent_and_status(bench: StoreBench) -> None:
    store, stem = await bench.open(), bench.id()
    names = [f"{stem}-{number}" for number in range(5)]
    for number, name in enumerate(names):
        await store.append(name, _started(f"Title 100% {stem} no_{number}", 2000.0 + number), 0)
    await store.append(names[0], [TurnEnded(outcome=Completed(), at=1999.0)], 3)

    async def found(search: str, **options: Any) -> list[str]:
        return [info.session for info in await store.find(search=search, **options)]

    same(await found(stem), [*names[:0:-1], names[0]], "what is found by id, the latest first")
    same(await found(stem.upper()), [*names[:0:-1], names[0]], "what is found in capitals")
    same(await found(f"100% {stem} no_3"), [names[3]], "what is found by title")
    same(await found(f"10_% {stem}"), [], "what is found by a text with wildcards")
    same(await found(f"{stem}%"), [], "what is found by a text with a wildcard at its end")
    same(set(names) <= set(await found("CHECKER")), True, "whether they are found by their agent")
    same(await found(stem, status="open"), [names[0]], "what is found by status")
    same(await found(stem, status="ended"), [], "what is found by a status that no session has")
    same(await found(stem, limit=2), [names[4], names[3]], "what is found with a limit")
    same(await found(stem, limit=0), [], "what is found with a limit of 0")


@check()
async def _find_answers_odd_arguments_like_every_store(bench: StoreBench) -> None:
    store, stem = await bench.open(), bench.id()
    titles = ["100%", "a_b", "back\\slash", "\u00c4rger", "a\0b", "\ud800", "Stra\u00dfe"]
    names = [f"{stem}-{number}" for number in range(len(titles))]
    for name, title in zip(names, titles, strict=True):
        await store.append(name, _started(title, 3000.0), 0)

    async def found(search: Any = stem, **options: Any) -> list[str]:
        infos = await store.find(search=search, **options)
        return [info.session for info in infos if info.session in names]

    same(await found(), names[::-1], "sessions of the same time, the latest first")
    for limit in (None, 2**63, 10**30):
        same(await found(limit=limit), names[::-1], f"what is found with limit={limit}")
    texts = {
        "0%": 0,
        "_b": 1,
        "K\\S": 2,
        "\u00e4RG": 3,
        "\u00c4r": 3,
        "STRASSE": None,
        "stra\u00dfe": 6,
        "a%b": None,
        "a.b": None,
    }
    for search, place in texts.items():
        same(await found(search), [] if place is None else [names[place]], f"what is found by {search!r}")
    for search in ("\0", "a\0b", "\ud800", "%" * 60_000):
        same(await found(search), [], f"what is found by {search[:9]!r}")
    wrong: list[dict[str, Any]] = [{"limit": limit} for limit in (-1, 1.0, "1", True)]
    wrong += [{"status": "lost"}, {"status": ""}, {"status": 1}, {"search": None}, {"search": b"a"}]
    for options in wrong:
        try:
            await found(**options)
        except ConfigError as error:
            same(next(iter(options)) in str(error), True, f"whether the error of {options} names the argument")
        else:
            raise AssertionError(f"find accepted {options}")


@check()
async def _open_questions_are_listed_until_they_are_answered_or_the_turn_ends(bench: StoreBench) -> None:
    store, session, other = await bench.open(), bench.id(), bench.id()
    asks = [_asked(f"c{number}", f"May it {number}?") for number in (2, 10, 1)]
    await store.append(session, [*_started("t", 1.0), *asks[:2]], 0)
    await store.append(session, [asks[2], Suspended(at=2.0)], 5)
    await store.append(other, [*_started("t", 1.0), _asked("c2", "Other?")], 0)
    same(list(await store.approvals(session)), [(session, ask) for ask in asks], "the questions, as they were asked")
    everywhere = await store.approvals()
    same([item for item in everywhere if item[0] in (session, other)].count((other, _asked("c2", "Other?"))), 1,
         "how often the question of another session is listed")  # fmt: skip
    await store.append(session, [Answered(id="c10", answer=Approve(), digest="d")], 7)
    same([ask.id for _, ask in await store.approvals(session)], ["c2", "c1"], "the questions after an answer")
    await store.append(session, [Answered(id="c2", answer=Approve("ann"), digest="d", partial=True)], 8)
    same([ask.id for _, ask in await store.approvals(session)], ["c2", "c1"], "the questions after a partial answer")
    passing = [_asked("c7"), Answered(id="c7", answer=Approve(), digest="d")]
    await store.append(session, passing, 9)
    same(
        [ask.id for _, ask in await store.approvals(session)],
        ["c2", "c1"],
        "the questions after one was asked and answered in the same batch",
    )
    await store.append(session, [TurnEnded(outcome=Completed(), at=3.0)], 11)
    same(list(await store.approvals(session)), [], "the questions after the turn")
    same([ask.id for _, ask in await store.approvals(other)], ["c2"], "the questions of the other session")


def _turn(at: float, *, ended: bool = True) -> list[Record]:
    """A turn with a transient and a durable injection."""
    log: list[Record] = [
        *_started("t", at),
        Injected(parts=(TextPart("transient"),), hook="recall"),
        Injected(parts=(TextPart("durable"),), durable=True, hook="recall"),
    ]
    return [*log, TurnEnded(outcome=Completed(), at=at)] if ended else log


@check()
async def _pruning_drops_transient_parts_and_never_touches_open_turns(bench: StoreBench) -> None:
    store = await bench.open()
    old, running, suspended, recent = bench.id("old"), bench.id("running"), bench.id("suspended"), bench.id("recent")
    logs = {
        old: _turn(10.0),
        running: [*_turn(10.0), *_turn(11.0, ended=False)],
        suspended: [*_turn(10.0, ended=False), _asked("c1"), Suspended(at=11.0)],
        recent: _turn(1000.0),
    }
    for session, log in logs.items():
        await store.append(session, log[:4], 0)
        await store.append(session, log[4:], 4)
    before = {session: await store.verify(session) for session in logs}
    same(await store.prune(before=500.0) >= 1, True, "whether something was pruned")
    for session in (running, suspended, recent):
        await reads(store, session, logs[session])
    wanted = [record.replace(parts=()) if record is logs[old][3] else record for record in logs[old]]
    await reads(store, old, wanted)
    for session in logs:
        after = await store.verify(session)
        same(after.records, before[session].records, "how many records the chain covers")
        if bench.durable:
            same(after.head, before[session].head, "the head of the chain")
            same(after.pruned > 0, session == old, f"whether the chain of {session!r} says that it was pruned")
    await store.append(old, [ADDED], len(wanted))
    await store.verify(old)


@check()
async def _an_erased_session_is_gone_for_good(bench: StoreBench) -> None:
    store, other, session = await bench.open(), await bench.open(), bench.id()
    gone = [session, f"{session}//1/1", f"{session}//1/2.3", f"{session}//1/2.3//4/5", f"{session}/1/2"]
    kept = [f"{session}0", f"{session}-b", f"{session}%/1", f"{session.upper()}/1/1", f"x{session}/1/1"]
    kept += [f"{session}/chat", f"{session}/1", f"{session}/1/1", f"{session}/1/1/chat", f"{session}//1/9"]
    parents = dict.fromkeys(gone[1:], session) | {gone[3]: gone[2], kept[-1]: kept[-2]}
    log = [*_started("secret", 10.0), _asked("c1"), Suspended(at=11.0)]
    for name in (*gone, *kept):
        opened = SessionOpened(agent="checker", at=10.0, parent=parents.get(name, ""))
        await store.append(name, [opened, *log[1:]], 0)
    await store.put(session, "k1", "steer", "secret")
    await store.advance(session, "audit", 3)
    same(await other.erase(session), True, "what erase returns")
    same(await other.erase(session), False, "what a second erase returns")
    same(await other.erase(bench.id()), False, "what erase of an unknown session returns")
    for name in gone:
        await reads(store, name, [])
        same(list(await store.batches(name)), [], "the batches of an erased session")
        same(list(await store.approvals(name)), [], "the questions of an erased session")
        for expected in (len(log), 0):
            await refused(store.append(name, [OPENED], expected), name, f"an append at {expected} to an erased session")
        found = await _found(store, name)
        same((found.status, found.title, found.waiting), ("erased", "", 0), "what find says of an erased session")
    erased = {info.session for info in await store.find(search=session, status="erased")}
    same(erased, set(gone), "what is found as erased")
    same([name for name in await store.sessions() if name in gone], [], "what is still listed")
    same(list(await store.inbox(session, ())), [], "the inbox of an erased session")
    same(await store.cursor(session, "audit"), 0, "a cursor of an erased session")
    for name in kept:
        await reads(store, name, log[1:], 1)


@check()
async def _pruning_again_finds_nothing_left(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    await store.append(session, _turn(10.0), 0)
    await store.prune(before=500.0)
    same(await store.prune(before=500.0), 0, "what a second prune returns")


@check()
async def _new_sessions_are_created_with_all_their_batches(bench: StoreBench) -> None:
    store, source, one, two = await bench.open(), bench.id(), bench.id(), bench.id()
    log = [*_turn(10.0), *_started("t", 20.0), _asked("c1"), Suspended(at=21.0)]
    await store.append(source, log[:4], 0)
    await store.append(source, log[4:], 4)
    batches = tuple(await store.batches(source))
    await store.create([Log(one, batches), Log(two, batches[:1])])
    await reads(store, one, log)
    if bench.durable:
        await reads(store, two, log[:4])
    found, original = await _found(store, one), await _found(store, source)
    same(found, original.replace(session=one), "what find says of a created session")
    same([ask.id for _, ask in await store.approvals(one)], ["c1"], "its open questions")
    same((await store.verify(one)).records, len(log), "how many records its chain covers")
    await store.append(one, [Resumed(at=30.0)], len(log))
    await store.verify(one)


@check()
async def _of_new_sessions_all_are_created_or_none(bench: StoreBench) -> None:
    store, source = await bench.open(), bench.id()
    free, used, erased = bench.id(), bench.id(), bench.id()
    for name in (source, used, erased):
        await store.append(name, [OPENED, ADDED], 0)
    await store.erase(erased)
    batches = tuple(await store.batches(source))
    for taken in (used, erased):
        logs = [Log(free, batches), Log(taken, batches)]
        await refused(store.create(logs), taken, f"to create sessions of which {taken!r} exists")
        await reads(store, free, [])
    same([name for name in await store.sessions() if name == free], [], "what is listed")
    await store.create([Log(free, batches)])
    await reads(store, free, [OPENED, ADDED])


# ---------------------------------------------------------------- who owns a session


def _claims(session: str, epoch: int) -> tuple[Claim, Claim]:
    """The claims of the first batch of a pass, and of its further ones."""
    return Claim(session, epoch, begins=True), Claim(session, epoch)


def _begun() -> list[Record]:
    """Two records with which a turn begins."""
    return _started("hello", 1.0)[:2]


async def _owned(store: Store, session: str, epoch: int, *, owned: bool) -> None:
    """Fail unless the session is at an epoch, and owned or not. Within a process, `alive` is always false."""
    found = await store.ownership(session)
    same(found.epoch, epoch, "the epoch of the session")
    same(found.alive, False, "whether another process is said to own it")
    if store.durable:
        same(found.owner != "", owned, "whether the session has an owner")


@check()
async def _a_claim_is_stored_with_the_first_batch_and_ends_with_the_turn(bench: StoreBench) -> None:
    store, other, session = await bench.open(), await bench.open(), bench.id()
    await _owned(store, session, 0, owned=False)
    begins, goes_on = _claims(session, 1)
    await store.append(session, _begun(), 0, begins)
    await _owned(other, session, 1, owned=True)
    await store.append(session, [ADDED], 2, goes_on)
    await _owned(other, session, 1, owned=True)
    await store.append(session, [Suspended(at=2.0)], 3, goes_on)
    await _owned(other, session, 1, owned=False)
    begins, goes_on = _claims(session, 2)
    await other.append(session, [Resumed(at=3.0)], 4, begins)
    await _owned(store, session, 2, owned=True)
    await other.append(session, [TurnEnded(Completed(), at=4.0)], 5, goes_on)
    await _owned(store, session, 2, owned=False)


@check()
async def _a_pass_that_suspends_a_turn_and_goes_on_owns_it_again(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    begins, goes_on = _claims(session, 1)
    await store.append(session, [*_begun(), Suspended(at=2.0)], 0, begins)
    await _owned(store, session, 1, owned=False)
    await store.append(session, [Resumed(at=3.0)], 3, goes_on)
    await _owned(store, session, 1, owned=True)
    await store.append(session, [TurnEnded(Completed(), at=4.0)], 4, goes_on)
    await store.append(session, [InboxTaken("k", "steer")], 5, goes_on)
    await _owned(store, session, 1, owned=False)


@check()
async def _a_claim_that_ends_its_pass_leaves_no_owner(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    await store.append(session, [OPENED], 0, Claim(session, 1, begins=True, ends=True))
    await _owned(store, session, 1, owned=False)
    await store.append(session, [ADDED], 1, Claim(session, 2, begins=True, ends=True))
    await _owned(store, session, 2, owned=False)
    await reads(store, session, [OPENED, ADDED])


@check()
async def _a_claim_without_records_begins_a_pass(bench: StoreBench) -> None:
    store, other, session = await bench.open(), await bench.open(), bench.id()
    begins, goes_on = _claims(session, 1)
    await store.append(session, (), 0, begins)
    await _owned(other, session, 1, owned=True)
    same(session in await other.sessions(), False, "whether a session without records is listed")
    same([info.session for info in await other.find(search=session)], [], "the sessions without records that are found")
    await reads(other, session, [])
    await store.append(session, _begun(), 0, goes_on)
    await refused(store.append(session, (), 0, Claim(session, 2, begins=True)), session, "a claim at another length")
    await _owned(other, session, 1, owned=True)
    await store.append(session, (), 2, Claim(session, 2, begins=True))
    await _owned(other, session, 2, owned=True)
    await store.verify(session)


@check()
async def _an_append_with_the_epoch_of_another_pass_is_refused_and_writes_nothing(bench: StoreBench) -> None:
    store, other, session = await bench.open(), await bench.open(), bench.id()
    log = _begun()
    await store.append(session, log, 0, _claims(session, 1)[0])
    await other.append(session, (), len(log), _claims(session, 2)[0])  # a takeover; the log is as long as it was
    await refused(store.append(session, [ADDED], 2, _claims(session, 1)[1]), session, "an append of the former owner")
    ended = [TurnEnded(Completed(), at=2.0)]
    await refused(
        store.append(session, ended, 2, _claims(session, 1)[1]), session, "the former owner's end of the turn"
    )
    await refused(
        store.append(session, [ADDED], 2, _claims(session, 2)[0]), session, "a second claim of the same epoch"
    )
    await refused(store.append(session, [ADDED], 2, _claims(session, 9)[0]), session, "a claim of a later epoch")
    await reads(store, session, log)
    await _owned(store, session, 2, owned=True)
    await other.append(session, [ADDED], 2, _claims(session, 2)[1])
    await reads(store, session, [*log, ADDED])
    await store.verify(session)


@check()
async def _of_many_claims_at_once_one_wins(bench: StoreBench) -> None:
    stores, session = [await bench.open() for _ in range(4)], bench.id()
    await stores[0].append(session, [OPENED], 0)
    begins = Claim(session, 1, begins=True)
    batches = [[SlotSet(slot="claim", value=number)] for number in range(len(stores))]
    appends = [store.append(session, batch, 1, begins) for store, batch in zip(stores, batches, strict=True)]
    results = await asyncio.gather(*appends, return_exceptions=True)
    won = [number for number, result in enumerate(results) if not isinstance(result, BaseException)]
    same(len(won), 1, "how many claims of the same epoch were accepted")
    lost = [result for result in results if isinstance(result, BaseException)]
    same([error for error in lost if not isinstance(error, SessionBusy | SessionConflict)], [], "the other errors")
    await reads(stores[0], session, [OPENED, *batches[won[0]]])


@check()
async def _the_epoch_of_the_root_fences_the_sessions_below_it(bench: StoreBench) -> None:
    store, other, root = await bench.open(), await bench.open(), bench.id()
    child, new = f"{root}/1/1", f"{root}/1/2"
    log = _begun()
    mine, theirs = Claim(root, 1), Claim(root, 2)
    await refused(store.append(child, log, 0, mine), child, "an append below a root that no pass has claimed")
    await store.append(root, _begun(), 0, _claims(root, 1)[0])
    await store.append(child, log, 0, mine)
    await other.append(root, (), 2, _claims(root, 2)[0])
    await refused(store.append(child, [ADDED], 2, mine), child, "an append of the former owner below its root")
    await refused(store.append(new, log, 0, mine), new, "a new session of the former owner below its root")
    await reads(other, child, log)
    await reads(other, new, [])
    await other.append(child, [TurnEnded(Completed(), at=2.0)], 2, theirs)
    await _owned(other, root, 2, owned=True)  # the end of a turn below is not the end of the pass
    same((await other.ownership(child)).owner, "", "the owner of a session below")


@check()
async def _a_pass_is_released_by_its_epoch(bench: StoreBench) -> None:
    store, other, session = await bench.open(), await bench.open(), bench.id()
    await store.release(session, 1)  # there is no such session
    await store.append(session, _begun(), 0, _claims(session, 1)[0])
    await store.append(session, (), 2, _claims(session, 2)[0])
    await other.release(session, 1)
    await _owned(other, session, 2, owned=True)
    await other.release(session, 2)
    await other.release(session, 2)
    await _owned(store, session, 2, owned=False)
    await store.append(session, [Resumed(at=2.0)], 2, _claims(session, 3)[0])
    await _owned(store, session, 3, owned=True)


@check()
async def _unread_names_the_sessions_whose_inbox_has_entries(bench: StoreBench) -> None:
    store, other = await bench.open(), await bench.open()
    names = [bench.id() for _ in range(3)]
    same(list(await store.unread(names)), [], "the sessions with entries, before there are any")
    same(list(await store.unread([])), [], "the sessions with entries among none")
    await other.put(names[0], "k1", "steer", "hello")
    await other.put(names[2], "k1", "cancel", "enough")
    await other.put(names[2], "k2", "steer", "hello")
    same(sorted(await store.unread(names)), sorted([names[0], names[2]]), "the sessions with entries")
    same(list(await store.unread(names[:2])), names[:1], "those of the sessions that were asked for")
    await store.append(names[0], [OPENED, InboxTaken("k1", "steer")], 0)
    same(list(await other.unread(names)), names[2:], "the sessions with entries, after one was taken")


@check()
async def _the_passes_of_a_store_are_those_of_all_stores_of_its_address(bench: StoreBench) -> None:
    store, other = await bench.open(), await bench.open()
    same(store.passes is other.passes, True, "whether two stores of one storage share their passes")


# ---------------------------------------------------------------- the chain


@check()
async def _the_chain_covers_every_batch(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    await store.append(session, [OPENED, ADDED], 0)
    first = await store.verify(session)
    await store.append(session, [ADDED], 2)
    second = await store.verify(session)
    same((first.session, first.records, second.records), (session, 2, 3), "what the chain covers")
    same(first.head == second.head, False, "whether the head of the chain stays the same")
    batches = await store.batches(session)
    lines = b"\n".join([batch.lines for batch in batches]).split(b"\n")
    same([decode(line) for line in lines], [OPENED, ADDED, ADDED], "the records in the lines of its batches")
    same(batches[-1].link.hex(), second.head, "the last link")
    same(sum(batch.count for batch in batches), 3, "how many records the batches say they have")
    if bench.durable:
        same([(batch.seq, batch.count) for batch in batches], [(0, 2), (2, 1)], "where its batches begin")
        same([batch.seq for batch in await store.batches(session, 2)], [2], "its batches from 2 on")
        same([batch.seq for batch in await store.batches(session, 1)], [0, 2], "its batches from 1 on")
        same([batch.seq for batch in await store.batches(session, 3)], [], "its batches after its end")


@check("durable")
async def _a_link_depends_on_all_before_it(bench: StoreBench) -> None:
    store, one, two = await bench.open(), bench.id(), bench.id()
    heads = []
    for session, first in ((one, OPENED), (two, ENDED)):
        await store.append(session, [first], 0)
        await store.append(session, [ADDED], 1)
        heads.append((await store.verify(session)).head)
    same(heads[0] == heads[1], False, "whether different first batches lead to the same head")


@check("tamper")
async def _tampering_is_detected(bench: StoreBench) -> None:
    assert bench.tamper is not None
    await _is_detected(bench, bench.tamper)


@check("cut")
async def _a_truncated_log_is_detected(bench: StoreBench) -> None:
    assert bench.cut is not None
    _, session = await _is_detected(bench, bench.cut)
    try:
        await (await bench.open()).append(session, [ADDED], 2)
    except (StoreError, SessionConflict):
        return
    raise AssertionError("the store appended to it as if nothing were missing")


async def _is_detected(bench: StoreBench, damage: Callable[[str], object]) -> tuple[Store, str]:
    """Fail unless `verify` and reads detect the damage to a session, and `verify` accepts another session."""
    store, session, other = await bench.open(), bench.id(), bench.id()
    for name in (session, other):
        for length in range(3):
            await store.append(name, [SlotSet(slot="number", value=length)], length)
        await store.verify(name)
    done = damage(session)
    if inspect.isawaitable(done):
        await done
    await store.verify(other)
    uses: dict[str, Callable[[], Awaitable[Any]]] = {
        "verify": lambda: store.verify(session),
        "read": lambda: store.read(session),
        "a read from the middle": lambda: store.read(session, 1),
        "batches": lambda: store.batches(session),
    }
    for name, use in uses.items():
        try:
            await use()
        except StoreError as error:
            same(session in str(error), True, f"whether the error of {name} names the session")
        else:
            raise AssertionError(f"{name} did not detect it")
    return store, session


# ---------------------------------------------------------------- opening, threads, loops


@check("durable")
async def _acknowledged_records_survive_closing(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    await store.append(session, [*_started("t", 10.0), _asked("c1")], 0)
    await store.put(session, "k1", "steer", {"a": 1})
    await store.advance(session, "audit", 2)
    await store.put_pipeline(session, b"data")
    head = (await store.verify(session)).head
    await store.close()
    again = await bench.open()
    same(len(await again.read(session)), 4, "the length of the log")
    same((await again.verify(session)).head, head, "the head of the chain")
    same(list(await again.inbox(session, ())), [("k1", "steer", {"a": 1})], "the inbox")
    same(await again.cursor(session, "audit"), 2, "the cursor")
    same(await again.pipeline(session), b"data", "the pipeline")
    same([ask.id for _, ask in await again.approvals(session)], ["c1"], "the questions")
    same(await again.append(session, [ADDED], 4), True, "what the next append returns")


@check()
async def _another_store_sees_acknowledged_records(bench: StoreBench) -> None:
    first, second, session = await bench.open(), await bench.open(), bench.id()
    for length in range(10):
        await (first if length % 2 else second).append(session, [ADDED], length)
        same(len(await (second if length % 2 else first).read(session)), length + 1, "the length of the log")


@check("durable")
async def _a_closed_store_says_so(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    await store.append(session, [OPENED], 0)
    await store.close()
    await store.close()
    uses: dict[str, Callable[[], Awaitable[Any]]] = {
        "append": lambda: store.append(session, [ADDED], 1),
        "read": lambda: store.read(session),
        "put": lambda: store.put(session, "k", "steer", 1),
        "find": lambda: store.find(),
    }
    for name, use in uses.items():
        try:
            await use()
        except StoreError as error:
            same("closed" in str(error), True, f"whether the error of {name} says that the store is closed")
        else:
            raise AssertionError(f"{name} after close did not raise StoreError")


@check()
async def _fifty_sessions_can_be_written_from_several_threads(bench: StoreBench) -> None:
    stores = [await bench.open() for _ in range(2)]
    names = [bench.id() for _ in range(50)]

    async def write(names: Sequence[str], store: Store) -> None:
        async def one(name: str) -> None:
            for length in range(5):
                await store.append(name, [SlotSet(slot=name, value=length)], length)

        await asyncio.gather(*[one(name) for name in names])

    def writing(start: int) -> Callable[[], Coroutine[Any, Any, Any]]:
        return lambda: write(names[start::5], stores[start % 2])

    same(await in_threads([writing(start) for start in range(5)]), [None] * 5, "the results of five threads")
    for name in names:
        await reads(stores[0], name, [SlotSet(slot=name, value=length) for length in range(5)])
        await stores[1].verify(name)


@check()
async def _it_can_be_used_from_several_event_loops(bench: StoreBench) -> None:
    store, session = await bench.open(), bench.id()
    for length in range(3):
        (result,) = await in_threads([lambda length=length: _append(store, session, [ADDED], length)])  # type: ignore[misc]
        same(result, False, "what an append in another loop returns")
    same(len(await store.read(session)), 3, "the length of the log")


# ---------------------------------------------------------------- values


def _plus_one(value: StoredValue | None) -> tuple[StoredValue, int]:
    total = 1 if value is None else int(value.data) + 1
    return StoredValue(b"%d" % total), total


def _always(made: tuple[StoredValue, int], value: StoredValue | None) -> tuple[StoredValue, int]:
    return made


async def _has_value(store: Store, name: str, key: str, wanted: StoredValue | None) -> None:
    same(await store.values.read(name, key), wanted, f"the value of {key!r}")


async def _are_sound(store: Store, name: str) -> None:
    same([text for text in await store.verify_store() if name in text], [], "what is wrong with the values")


@check()
async def _a_value_comes_back_until_it_is_replaced_or_deleted(bench: StoreBench) -> None:
    store, other, name = await bench.open(), await bench.open(), bench.id("storage")
    await _has_value(store, name, "k", None)
    for value in (StoredValue(b'{"a":1}'), StoredValue(b"2", 1e9 + 0.125), StoredValue(b"x" * 1_000_000), None):
        await store.values.write(name, "k", value, now=0.0)
        await _has_value(store, name, "k", value)
        await _has_value(other, name, "k", value)
    await store.values.write(name, "k", None, now=0.0)
    await _are_sound(store, name)


@check()
async def _values_are_apart_by_storage_and_key_and_found_by_prefix(bench: StoreBench) -> None:
    store, name = await bench.open(), bench.id("storage")
    keys = ["", "A", "a", "a%", "a/1", "a/2", "a_", LONE, "x" * 1000, "é🌍", "\U0010ffff"]
    for number, key in enumerate(keys):
        await store.values.write(name, key, StoredValue(b"%d" % number, float(number)), now=0.0)
        await store.values.write(name + "x", key, StoredValue(b"other"), now=0.0)
    for number, key in enumerate(keys):
        await _has_value(store, name, key, StoredValue(b"%d" % number, float(number)))
    for prefix in ("", "a", "a/", "é", "\U0010ffff", "none"):
        wanted = [key for key in keys if key.startswith(prefix)]
        same([key for key, _ in await store.values.find(name, prefix)], wanted, f"the keys with prefix {prefix!r}")
    same(
        list(await store.values.find(name, "a/")),
        [("a/1", StoredValue(b"4", 4.0)), ("a/2", StoredValue(b"5", 5.0))],
        "the values found",
    )
    same([value for _, value in await store.values.find(name, "a/1", data=False)], [StoredValue(b"", 4.0)], "no data")
    last = [key for key, _ in await store.values.find(name, "a", last=2, now=5.0)]
    same(last, ["a_"], "the last keys that have not expired")
    last = [key for key, _ in await store.values.find(name, "a", data=False, last=2)]
    same(last, ["a/2", "a_"], "the last two keys")
    same(await store.values.clear(name, "a"), 5, "how many were cleared")
    same([key for key, _ in await store.values.find(name)], ["", "A", *keys[7:]], "the keys that are left")
    same(len(await store.values.find(name + "x")), len(keys), "how many keys another storage has")


@check()
async def _many_changes_of_a_value_all_count(bench: StoreBench) -> None:
    stores, name = [await bench.open() for _ in range(3)], bench.id("storage")

    def adding(number: int) -> Callable[[], Coroutine[Any, Any, Any]]:
        return lambda: _add(stores[number % 3], name, "k")

    totals = await in_threads([adding(number) for number in range(6)])
    totals += await asyncio.gather(*[_add(stores[number % 3], name, "k") for number in range(20)])
    same(sorted(totals), list(range(1, 27)), "what the changes answered")
    await _has_value(stores[0], name, "k", StoredValue(b"26"))


async def _add(store: Store, name: str, key: str, once: str = "") -> int | None:
    return await store.values.change(name, key, _plus_one, now=0.0, once=once)


@check()
async def _of_many_changes_with_the_same_id_one_is_made(bench: StoreBench) -> None:
    stores, name = [await bench.open() for _ in range(3)], bench.id("storage")
    for key in ("a", "b"):
        for once in ("1", LONE):
            answers = await asyncio.gather(*[_add(stores[number % 3], name, key, once) for number in range(9)])
            same(len([answer for answer in answers if answer is not None]), 1, "how many changes were made")
        await _has_value(stores[1], name, key, StoredValue(b"2"))
    store = stores[0]
    await store.values.write(name, "a", None, now=0.0)
    same(await _add(store, name, "a", "1"), 1, "a change after the key was deleted")
    same(await _add(store, name, "b", "1"), None, "a change of another key")
    await store.values.clear(name, "b")
    same(await _add(store, name, "b", "1"), 1, "a change after the key was cleared")


@check()
async def _a_change_that_writes_nothing_does_not_use_its_id(bench: StoreBench) -> None:
    store, name = await bench.open(), bench.id("storage")

    def nothing(value: StoredValue | None) -> tuple[StoredValue | None, str]:
        return value, "nothing"

    def fails(value: StoredValue | None) -> tuple[StoredValue | None, str]:
        raise ConfigError("no")

    for wanted in (None, StoredValue(b"1")):
        same(await store.values.change(name, "k", nothing, now=0.0, once="1"), "nothing", "its answer")
        try:
            await store.values.change(name, "k", fails, now=0.0, once="1")
        except ConfigError as error:
            same(str(error), "no", "the error of a change")
        else:
            raise AssertionError("the error of a change was lost")
        await _has_value(store, name, "k", wanted)
        same(len(await store.values.find(name)), 0 if wanted is None else 1, "how many keys there are")
        await store.values.write(name, "k", StoredValue(b"1"), now=0.0)
    same(await _add(store, name, "k", "1"), 2, "a change with an id that was not used")
    gone: tuple[StoredValue | None, str] = (None, "gone")
    same(await store.values.change(name, "k", lambda value: gone, now=0.0), "gone", "the answer of one that deletes")
    await _has_value(store, name, "k", None)


@check()
async def _values_that_expired_are_pruned_with_their_ids_and_erasing_leaves_values(bench: StoreBench) -> None:
    store, name, session = await bench.open(), bench.id("storage"), bench.id()
    for key, expires in (("old", 10.0), ("later", 20.0), ("never", None)):
        made = (StoredValue(b"1", expires), 0)
        await store.values.change(name, key, partial(_always, made), now=0.0, once="1", until=expires)
    await store.append(session, [OPENED, *_turn(5.0)], 0)
    await store.prune(before=20.0)
    same([key for key, _ in await store.values.find(name)], ["later", "never"], "the values that are left")
    same(await _add(store, name, "old", "1"), 1, "a change with an id that was pruned")
    same(await _add(store, name, "later", "1"), None, "a change with an id that was kept")
    await store.erase(session)
    same(len(await store.values.find(name)), 3, "how many values are left after an erase")
    await _are_sound(store, name)


@check("durable")
async def _values_survive_closing(bench: StoreBench) -> None:
    store, name = await bench.open(), bench.id("storage")
    await store.values.write(name, "k", StoredValue(b"1", 5.5), now=0.0)
    await _add(store, name, "n", "1")
    await bench.close()
    store = await bench.open()
    await _has_value(store, name, "k", StoredValue(b"1", 5.5))
    same(await _add(store, name, "n", "1"), None, "a change with an id that was used before")
    await _has_value(store, name, "n", StoredValue(b"1"))
