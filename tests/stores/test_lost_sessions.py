"""`take_lost` of the stores that workers share: an engine learns once that the process of a session has died."""

# ruff: noqa: ASYNC110, ASYNC220 - another process makes happen what is waited for

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from windlass.ownership import Claim, Lost
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
    await store.append("driven", (), 0, Claim("driven", 2, begins=True))
    assert list(await store.take_lost("e", 9)) == []
    await store.close()
