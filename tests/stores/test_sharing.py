"""Stores of one address share threads, connections and files, and the last one that is closed or dropped frees them."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from windlass.errors import StoreError
from windlass.records import MessageAdded, SessionOpened
from windlass.stores import open_store
from windlass.stores.postgres import PostgresStore
from windlass.stores.sqlite import SQLiteStore

OPENED, ADDED = SessionOpened(), MessageAdded()

needs_limits = pytest.mark.skipif(sys.platform == "win32", reason="this platform has no limit of open files")
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "logs.db"


@pytest.fixture(params=["sqlite", "postgres"])
def address(request, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/logs.db" if request.param == "sqlite" else request.getfixturevalue("database")


# ---------------------------------------------------------------- an agent per request

REQUESTS = """
import asyncio, gc, os, resource, sys, threading, time, warnings

warnings.simplefilter("error")
from windlass import Agent
from windlass.testing import FunctionModel, says

mode, address, count = sys.argv[1], sys.argv[2], int(sys.argv[3])


def descriptors():
    return len(os.listdir("/dev/fd"))


async def answer(request):
    where = address.replace("logs.db", f"logs{request}.db") if mode == "addresses" else address
    agent = Agent(FunctionModel(lambda _: says("done")), store=where)
    assert (await agent.run("hello", session=f"s{request}")).text == "done"
    await agent.store.read(f"s{request}")
    if mode == "closed":
        await agent.aclose()


def serve(requests):
    for request in requests:
        asyncio.run(answer(request))


async def main():
    for request in range(count):
        await answer(request)


asyncio.run(asyncio.sleep(0))
import windlass.stores.sqlite, psycopg
before = descriptors()
resource.setrlimit(resource.RLIMIT_NOFILE, (before + 50, before + 50))
if mode == "loops":
    serving = [threading.Thread(target=serve, args=(range(at, count, 4),)) for at in range(4)]
    [thread.start() for thread in serving]
    [thread.join() for thread in serving]
else:
    asyncio.run(main())
gc.collect()
until = time.monotonic() + 50
while (threading.active_count() > 1 or descriptors() > before) and time.monotonic() < until:
    time.sleep(0.01)
print(threading.active_count(), descriptors() - before)
"""


def python(script: str, *arguments: object) -> str:
    """What a script prints. It may not complain about anything."""
    command = [sys.executable, "-W", "error", "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.strip()


@needs_limits
@pytest.mark.parametrize("mode", ["dropped", "closed", "loops"])
def test_an_agent_per_request_leaves_no_thread_and_no_descriptor(address, mode):
    assert python(REQUESTS, mode, address, 120) == "1 0"


@needs_limits
def test_an_agent_and_a_file_per_request_leave_no_thread_and_no_descriptor(tmp_path):
    assert python(REQUESTS, "addresses", f"sqlite:///{tmp_path}/logs.db", 120) == "1 0"


SEVERAL = """
import asyncio, sys, threading
from windlass.records import SessionOpened
from windlass.stores import open_store

async def main():
    stores, counts = [], set()
    for at in range(30):
        stores.append(open_store(sys.argv[1]))
        await stores[-1].append(f"s{at}", [SessionOpened()], 0)
        await asyncio.gather(*[stores[-1].sessions() for _ in range(20)])
        counts.add(threading.active_count())
    print(max(counts) < 16)

asyncio.run(main())
"""


def test_stores_of_the_same_address_share_their_threads_and_a_process_may_end_with_them_open(address):
    assert python(SEVERAL, address) == "True"


# ---------------------------------------------------------------- one of several


async def test_a_store_that_is_closed_leaves_the_others_of_its_address_working(address):
    first, second = open_store(address), open_store(address)
    await first.append("s", [OPENED], 0)
    assert list(await second.read("s")) == [OPENED]
    await first.close()
    await first.close()
    for use in (first.read("s"), first.append("s", [ADDED], 1), first.put("s", "k", "steer", 1)):
        with pytest.raises(StoreError, match="is closed; make a new one"):
            await use
    await second.append("s", [ADDED], 1)
    assert list(await second.read("s")) == [OPENED, ADDED]
    await second.close()
    with pytest.raises(StoreError, match="is closed; make a new one"):
        await second.read("s")


async def test_closing_waits_for_the_stores_own_writes_also_if_others_go_on(address):
    first, second = open_store(address), open_store(address)
    await second.append("other", [OPENED], 0)
    writing = [asyncio.ensure_future(first.append(f"s{at}", [OPENED], 0)) for at in range(20)]
    await asyncio.sleep(0)
    await first.close()
    assert len(await second.sessions()) == 21
    await asyncio.gather(*writing)
    await second.close()


async def test_a_store_that_is_dropped_while_it_writes_has_written(file):
    first, second = SQLiteStore(file), SQLiteStore(file)
    writing = asyncio.ensure_future(first.append("s", [OPENED], 0))
    del first
    await asyncio.sleep(0)
    gc.collect()
    await writing
    assert list(await second.read("s")) == [OPENED]
    await second.close()


def own_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("windlass-s")}


def soon(happened: Callable[[], bool]) -> bool:
    until = time.monotonic() + 50
    while not happened() and time.monotonic() < until:
        time.sleep(0.01)
    return happened()


async def test_dropping_a_store_closes_its_file(file):
    store = SQLiteStore(file)
    await store.append("s", [OPENED], 0)
    await store.read("s")
    assert file.with_name("logs.db-wal").exists()
    del store
    assert soon(lambda: not file.with_name("logs.db-wal").exists())


async def test_a_file_that_takes_the_place_of_a_deleted_one_is_opened_anew(file):
    first = SQLiteStore(file)
    await first.append("s", [OPENED], 0)
    for path in file.parent.iterdir():
        path.unlink()
    second, third = SQLiteStore(file), SQLiteStore(file)
    assert list(await second.read("s")) == []
    await second.append("s", [ADDED], 0)
    assert list(await third.read("s")) == [ADDED]
    for store in (first, second, third):
        await store.close()


async def test_other_settings_are_kept_apart(file, database):
    careful, quick = SQLiteStore(file), SQLiteStore(file, synchronous="NORMAL")
    await careful.append("s", [OPENED], 0)
    asked = await quick._write(lambda db: db.execute("PRAGMA synchronous").fetchone()[0])
    assert asked == 1
    one, two = PostgresStore(database, schema="one"), PostgresStore(database, schema="two")
    await one.append("s", [OPENED], 0)
    assert list(await two.read("s")) == []
    for store in (careful, quick, one, two):
        await store.close()


@needs_fork
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_a_forked_process_frees_what_it_opened_itself(address):
    store = open_store(address)
    asyncio.run(store.append("s", [OPENED], 0))  # type: ignore[arg-type]
    time.sleep(0.5)  # what a thread of the parent is busy with at the fork, the child never frees
    child = os.fork()
    if not child:
        code = 1
        try:
            asyncio.run(store.append("s", [ADDED], 1))  # type: ignore[arg-type]
            assert len(asyncio.run(store.read("s"))) == 2  # type: ignore[arg-type]
            del store
            gc.collect()
            code = 0 if soon(lambda: threading.active_count() == 1) else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert len(asyncio.run(store.read("s"))) == 2  # type: ignore[arg-type]
    asyncio.run(store.close())  # type: ignore[arg-type]


# ---------------------------------------------------------------- no descriptors left

EXHAUSTED = """
import asyncio, os, resource, sys
from windlass.errors import StoreError
from windlass.records import SessionOpened
from windlass.stores import open_store

async def main():
    store = open_store(sys.argv[1])
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    left, held = int(sys.argv[2]), []
    try:
        while True:
            held.append(os.open(os.devnull, os.O_RDONLY))
    except OSError:
        for one in held[:left]:
            os.close(one)
    for use in (store.append("s", [SessionOpened()], 0), store.read("s")):
        try:
            await use
        except StoreError as error:
            print(error)
    for one in held:
        try:
            os.close(one)
        except OSError:
            pass
    await store.append("s", [SessionOpened()], 0)
    await store.close()

asyncio.run(main())
"""


@needs_limits
@pytest.mark.parametrize("left", [0, 1, 2])
def test_when_descriptors_have_run_out_the_error_says_so(tmp_path, left):
    told = python(EXHAUSTED, f"sqlite:///{tmp_path}/logs.db", left).splitlines()
    assert len(told) == 2
    for line in told:
        assert "too many files are open: close stores" in line
        assert "ulimit -n" in line
