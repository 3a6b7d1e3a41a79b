"""`take_lost` of the stores that workers share: an engine learns once that the process of a session has died."""

# ruff: noqa: ASYNC110, ASYNC220 - another process makes happen what is waited for

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.errors import SessionConflict
from windlass.ownership import Claim, Lost, queued_kind
from windlass.records import SessionEnded
from windlass.stores import open_store

BEGIN = """
import asyncio, os, sys
from windlass.ownership import Claim
from windlass.stores import open_store

async def begin(store):
    for session, engine in (("driven", "e"), ("other", "f"), ("plain", "")):
        await store.assign(session, engine)
        await store.append(session, (), 0, Claim(session, 1, begins=True))
    print(store.passes.owner, flush=True)
    sys.stdin.read()
    os._exit(1)

asyncio.run(begin(open_store(sys.argv[1])))
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def address(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/store.db" if request.param == "sqlite" else request.getfixturevalue("database")


async def test_sessions_of_a_dead_process_are_returned_once_and_to_their_engine(address: str):
    store: Any = open_store(address)
    process = subprocess.Popen(
        [sys.executable, "-c", BEGIN, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    owner = process.stdout.readline().strip()
    assert owner.partition(":")[2].startswith(f"{process.pid}@")
    assert list(await store.take_lost("e", 9)) == []
    assert (await store.ownership("driven")).alive
    process.communicate("")
    async with asyncio.timeout(30):
        while not (lost := list(await store.take_lost("e", 9))):  # not at once if the server has just started
            await asyncio.sleep(0.05)
    assert lost == [Lost("driven", owner)]
    assert list(await store.take_lost("e", 9)) == []
    assert (await store.ownership("driven")).owner == ""
    assert (await store.ownership("other")).owner == owner
    assert (await store.ownership("plain")).owner == owner
    assert list(await store.take_lost("f", 0)) == []
    await store.append("driven", (), 0, Claim("driven", 3, begins=True))
    assert list(await store.take_lost("e", 9)) == []
    await store.close()


async def test_a_silent_process_gives_no_sign_and_writes_no_more_once_its_sessions_are_taken(address: str):
    store: Any = open_store(address)
    await store.assign("s", "e")
    await store.append("s", (), 0, Claim("s", 1, begins=True))
    signs = await asyncio.to_thread(in_another_process, SIGNS, address)
    assert list(signs) == ([store.passes.owner] if store.shows_life else [])
    assert await asyncio.to_thread(in_another_process, SIGNS, address) == signs
    await store.unread(["s"])
    assert (await asyncio.to_thread(in_another_process, SIGNS, address) != signs) is store.shows_life
    lost = await asyncio.to_thread(in_another_process, TAKE, address)
    assert lost == [["s", store.passes.owner]]
    with pytest.raises(SessionConflict):
        await store.append("s", [SessionEnded()], 0, Claim("s", 1))
    assert await asyncio.to_thread(in_another_process, SIGNS, address) == {}
    await store.close()


PROGRAM = """
import asyncio, json, sys
from windlass.stores import open_store

async def main(store):
    print(json.dumps(await look(store)))
    await store.close()

async def look(store):
"""
SIGNS = "    return dict(await store.signs_of_life('e'))"
TAKE = """
    owner = (await store.ownership("s")).owner
    return [[one.session, one.owner] for one in await store.take_lost("e", 9, silent=[owner])]
"""
LOOK = "    return list(await store.unserved('e', 'clerk', 9))"
MAIN = "asyncio.run(main(open_store(sys.argv[1])))"


def in_another_process(program: str, address: str) -> Any:
    words = [sys.executable, "-c", f"{PROGRAM}{program}\n\n{MAIN}", address]
    return json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


async def test_unserved_sessions_are_those_of_an_engine_that_nobody_works_on(address: str):
    store: Any = open_store(address)
    for session, engine in (("driven", "e"), ("other", "f"), ("plain", "")):
        await store.assign(session, engine)
        await store.put(session, "turn/k", queued_kind("clerk", 5), {})
    assert await store.unserved("e", "clerk", 9) == ["driven"]
    assert await store.unserved("e", "another", 9) == []
    await store.append("driven", (), 0, Claim("driven", 1, begins=True))
    store.passes.enter("driven", object())
    working: Any = await asyncio.to_thread(in_another_process, LOOK, address)
    assert working == []
    await store.release("driven", 1)
    assert await asyncio.to_thread(in_another_process, LOOK, address) == ["driven"]
    await store.close()
