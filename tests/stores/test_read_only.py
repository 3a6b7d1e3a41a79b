"""A file that this process may not write can be shown, verified and exported, and nothing is created beside it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from windlass import Agent
from windlass.capabilities import RequestArchive
from windlass.cli import main
from windlass.errors import StoreError
from windlass.records import Asked, MessageAdded, SessionOpened, Suspended, decode
from windlass.stores import sqlite_schema
from windlass.stores.sqlite import SQLiteStore
from windlass.testing import ScriptedModel, says
from windlass.transfer import export_session

from .old_stores import CHILDREN, LOGS, write_sqlite

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no users to change to"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
]

ASKED = Asked(id="c1", event="ToolCalling", question="May it?", allow=("approve",), digest="d", by=("gate",))
LOG = [SessionOpened(agent="a", at=1.0), ASKED, Suspended(at=2.0)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that anybody may enter."""
    made = Path(tempfile.mkdtemp(prefix="windlass-"))
    made.chmod(0o777)
    yield made
    for path in (made, *made.rglob("*")):
        path.chmod(0o777)
    shutil.rmtree(made)


def as_nobody(work: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """What a piece of work returns for a user whom permissions bind: in a child, if this is root."""
    receiving, sending = os.pipe()
    child = os.fork()
    if not child:
        try:
            if os.geteuid() == 0:
                os.setgid(65534)
                os.setuid(65534)
            told: Any = asyncio.run(work())
        except BaseException as error:
            told = f"{type(error).__name__}: {error}"
        with os.fdopen(sending, "wb") as pipe:
            pipe.write(msgspec.json.encode(told))
        os._exit(0)
    os.close(sending)
    with os.fdopen(receiving, "rb") as pipe:
        found = pipe.read()
    os.waitpid(child, 0)
    return msgspec.json.decode(found)


def lock(folder: Path, *, writable_folder: bool = False) -> None:
    """Let nobody write the files of a folder."""
    for path in folder.iterdir():
        path.chmod(0o444)
    folder.chmod(0o777 if writable_folder else 0o555)


def write(file: Path, *, hot: bool = False, index: bool = False) -> None:
    """A store with one session. `hot`: its latest records are in the write-ahead log, as after a crash."""

    async def work() -> None:
        store = SQLiteStore(file)
        await store.append("s", LOG[:1], 0)
        if hot:
            await store._write(lambda db: 0)
            db = sqlite3.connect(file)
            db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
            db.close()
        await store.append("s", LOG[1:], 1)
        await store.put("s", "k", "steer", "x")
        if hot:
            for ending in ("", "-wal", *(["-shm"] if index else [])):
                shutil.copy(f"{file}{ending}", f"{file}.copy{ending}")
        await store.close()

    asyncio.run(work())
    if hot:
        for path in file.parent.iterdir():
            if ".copy" not in path.name:
                path.unlink()
        for path in list(file.parent.iterdir()):
            path.rename(path.with_name(path.name.replace(".copy", "")))
        assert Path(f"{file}-wal").stat().st_size > 0


async def look(file: Path) -> dict[str, Any]:
    """All that can be read of the session."""
    store = SQLiteStore(file, timeout=1)
    try:
        return {
            "read": list(await store.read("s")) == LOG,
            "sessions": list(await store.sessions()),
            "find": [(info.session, info.status) for info in await store.find()],
            "approvals": [ask.id for _, ask in await store.approvals()],
            "verify": (await store.verify("s")).records,
            "inbox": [key for key, _, _ in await store.inbox("s", ())],
            "export": len(await export_session(store, "s")),
        }
    finally:
        await store.close()


SEEN = {
    "read": True, "sessions": ["s"], "find": [["s", "suspended"]], "approvals": ["c1"], "verify": 3, "inbox": ["k"],
    "export": 6,
}  # fmt: skip


@pytest.mark.parametrize("writable_folder", [False, True])
@pytest.mark.parametrize(("hot", "index"), [(False, False), (True, False), (True, True)])
def test_a_read_only_file_can_be_read_as_it_is(folder, writable_folder, hot, index):
    write(folder / "logs.db", hot=hot, index=index)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    lock(folder, writable_folder=writable_folder)
    found = as_nobody(lambda: look(folder / "logs.db"))
    assert found == SEEN
    after = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert after.keys() == before.keys()
    assert {name: data for name, data in after.items() if name != "logs.db-shm"} == {
        name: data for name, data in before.items() if name != "logs.db-shm"
    }


def test_a_writable_file_in_a_read_only_folder_can_be_read(folder):
    write(folder / "logs.db")
    (folder / "logs.db").chmod(0o666)
    folder.chmod(0o555)
    found = as_nobody(lambda: look(folder / "logs.db"))
    assert isinstance(found, dict), found
    assert found["verify"] == 3


def test_a_read_only_file_is_read_while_its_owner_writes_it(folder):
    file = folder / "logs.db"
    write(file)

    async def both() -> None:
        store = SQLiteStore(file)
        await store.append("s", [MessageAdded()], 3)
        for path in folder.iterdir():
            path.chmod(0o444)
        assert as_nobody(lambda: length(file)) == 4
        await store.append("s", [MessageAdded()], 4)
        assert as_nobody(lambda: length(file)) == 5
        await store.close()

    async def length(file: Path) -> int:
        store = SQLiteStore(file, timeout=1)
        found = len(await store.read("s"))
        await store.close()
        return found

    asyncio.run(both())


WRITES: dict[str, Callable[[SQLiteStore], Any]] = {
    "append": lambda store: store.append("s", [MessageAdded()], 3),
    "put": lambda store: store.put("s", "k2", "steer", "x"),
    "erase": lambda store: store.erase("s"),
    "advance": lambda store: store.advance("s", "r", 1),
}


@pytest.mark.parametrize("way", WRITES)
@pytest.mark.parametrize("writable_folder", [False, True])
def test_a_write_to_a_read_only_file_says_what_to_do(folder, way, writable_folder):
    file = folder / "logs.db"
    write(file)
    before = file.read_bytes()
    lock(folder, writable_folder=writable_folder)

    async def work() -> None:
        store = SQLiteStore(file, timeout=1)
        try:
            await WRITES[way](store)
        finally:
            await store.close()

    told = as_nobody(work)
    assert told.startswith(f"StoreError: could not write {file}: it is read-only")
    assert "make the file and its folder writable for this user" in told
    assert file.read_bytes() == before


@pytest.mark.parametrize("version", [1, 2])
def test_a_read_only_file_of_an_older_format_is_read_and_not_upgraded(folder, version):
    file = folder / "logs.db"
    write_sqlite(file, version)
    before = file.read_bytes()
    lock(folder)

    async def work() -> dict[str, Any]:
        store = SQLiteStore(file, timeout=1)
        parents = {info.session: info.parent for info in await store.find() if info.parent}
        records = {name: len(await store.read(name)) for name in LOGS}
        verified = {name: (await store.verify(name)).records for name in LOGS}
        await store.close()
        return {"parents": parents, "records": records, "verified": verified}

    lengths = {name: len(log) for name, log in LOGS.items()}
    assert as_nobody(work) == {"parents": CHILDREN, "records": lengths, "verified": lengths}
    assert file.read_bytes() == before


def test_a_read_only_file_of_a_newer_format_is_refused(folder):
    file = folder / "logs.db"
    write(file)
    db = sqlite3.connect(file)
    db.execute(f"PRAGMA user_version = {sqlite_schema.VERSION + 1}")
    db.close()
    lock(folder)
    assert "was written by a newer Windlass" in as_nobody(lambda: look(file))


@pytest.mark.parametrize(
    "command",
    [["show", "q"], ["show", "q", "--records"], ["sessions", "list"], ["sessions", "verify"], ["sessions", "head"],
     ["sessions", "export", "q"], ["approve"]],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("version", [2, sqlite_schema.VERSION])
def test_a_command_that_only_reads_works_on_a_read_only_file(folder, command, version):
    file = folder / "logs.db"
    write_sqlite(file, 2)
    if version > 2:
        asyncio.run(_upgrade(file))
    lock(folder)
    CliRunner().invoke(main, [*command, "--help"])  # imports what a user without rights may not be able to

    async def work() -> tuple[int, str]:
        result = await asyncio.to_thread(
            CliRunner().invoke, main, [*command[:2], *command[2:], "--store", f"sqlite:///{file}"]
        )
        return result.exit_code, result.output + repr(result.exception)

    code, output = as_nobody(work)
    assert code == 0, output
    assert "q" in output


async def _upgrade(file: Path) -> None:
    store = SQLiteStore(file)
    assert decode(LOGS["q"][0].encode()) == (await store.read("q"))[0]
    await store.close()


# ---------------------------------------------------------------- who may read new files


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o277])
async def test_new_files_are_for_their_owner_alone(tmp_path, umask):
    before = os.umask(umask)
    try:
        store, archive = SQLiteStore(tmp_path / "logs.db"), RequestArchive(tmp_path / "archive.db")
        agent = Agent(ScriptedModel(says("hi")), store=store).with_capability(archive)
        await agent.run("go", session="s")
        await agent.aclose()
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
        assert {"logs.db", "logs.db-wal", "logs.db-shm", "archive.db", "archive.db-wal"} <= modes.keys()
        assert {mode for name, mode in modes.items() if not name.endswith("-owners")} == {0o600}
        await store.close()
        archive.close()
    finally:
        os.umask(before)


async def test_an_existing_file_keeps_its_permissions(tmp_path):
    file = tmp_path / "logs.db"
    for make in (file.touch, lambda: None):
        make()
        file.chmod(0o640)
        store = SQLiteStore(file)
        await store.append(str(make), [SessionOpened()], 0)
        assert stat.S_IMODE(file.stat().st_mode) == 0o640
        await store.close()


async def test_a_link_to_a_new_file_is_followed(tmp_path):
    (tmp_path / "link.db").symlink_to(tmp_path / "real.db")
    store = SQLiteStore(tmp_path / "link.db")
    await store.append("s", [SessionOpened()], 0)
    assert stat.S_IMODE((tmp_path / "real.db").stat().st_mode) == 0o600
    await store.close()


async def test_a_file_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "folder").touch()
    store = SQLiteStore(tmp_path / "folder" / "logs.db")
    with pytest.raises(StoreError, match=r"part of its path is a file"):
        await store.append("s", [SessionOpened()], 0)
    await store.close()
