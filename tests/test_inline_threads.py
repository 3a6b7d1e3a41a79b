"""The port for threads: a simulation can run the work of all threads inline, and the log is the same."""

from __future__ import annotations

import asyncio
import os
import re
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import pytest

import windlass
from windlass import Agent, ModelCall, ModelReplied, ToolCalling, ToolReturned, tool
from windlass._system_threads import SystemThreads
from windlass._threads import InlineThreads, run_alone, threads, use_threads
from windlass.records import HookFailed
from windlass.stores import SQLiteStore
from windlass.testing import FunctionModel, ScriptedModel, calls, check_store, says, without_times

BESIDE: ContextVar[str] = ContextVar("beside", default="nothing")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of the threads that are started."""
    names: list[str] = []
    start = threading.Thread.start

    def note(thread: threading.Thread) -> None:
        names.append(thread.name)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", note)
    return names


@pytest.fixture
def inline() -> Iterator[None]:
    with use_threads(InlineThreads()):
        yield


@tool(effect="pure")
def look(where: str) -> str:
    """Look somewhere."""
    return f"{where}: sea"


def everything(file: Path, seen: list[str]) -> Agent:
    """An agent with one of each that asks for a thread, except for a plain wrap."""
    script = calls("look", where="north"), calls("look", where="south"), says("done")
    agent = Agent(ScriptedModel(*script), tools=[look], store=SQLiteStore(file))

    @agent.gate(ToolCalling, thread=True)
    def judge(event):
        seen.append(f"gate {event.call.id}")

    @agent.observe(ToolReturned)
    def queued(event):
        seen.append(f"queued {event.call}")

    @agent.observe(ToolReturned, timeout=60)
    def in_time(event):
        seen.append(f"in time {event.call}")

    @agent.observe(ToolReturned, wait=True, thread=True)
    def awaited(event):
        seen.append(f"awaited {event.call}")

    @agent.observe(ModelReplied, durable=True)
    def durable(event):
        seen.append("durable")

    @agent.observe(ModelReplied)
    def fails(event):
        raise ValueError("no")

    return agent


async def live(file: Path) -> tuple[list[Any], list[str]]:
    """The log of a turn, and what hooks and observers saw.

    When a thread gets its turn is up to the machine: the failures of observers, and what was seen, are put in order.
    """
    seen: list[str] = []
    agent = everything(file, seen)
    async with agent:
        assert (await agent.run("go", session="s")).text == "done"
    log = [without_times(record) for record in await agent.store.read("s")]
    await agent.store.close()
    return sorted(log, key=lambda record: isinstance(record, HookFailed)), sorted(seen)


async def test_a_turn_that_runs_inline_starts_no_thread_and_leaves_the_same_log(tmp_path: Path, started: list[str]):
    with use_threads(SystemThreads()):
        log, seen = await live(tmp_path / "threads.db")
    expected = {"windlass-agent", "windlass-observer", "windlass-sqlite", "windlass-sqlite-read"}
    assert expected <= {re.sub(r"_\d+$", "", name) for name in started}
    started.clear()

    with use_threads(InlineThreads()):
        inline_log, inline_seen = await live(tmp_path / "inline.db")

    assert started == []
    assert inline_log == log
    assert inline_seen == seen
    assert [record.hook for record in log if isinstance(record, HookFailed)] == ["fails"] * 3


async def test_a_plain_wrap_is_the_one_hook_that_gets_a_thread(inline: None, started: list[str]):
    agent = Agent(ScriptedModel(says("done")))

    @agent.wrap(ModelCall)
    def around(request, call_next):
        return call_next(request)

    assert (await agent.run("go")).text == "done"
    assert started == ["windlass-wrap"]


async def test_run_sync_in_a_coroutine_gets_a_thread(inline: None, started: list[str]):
    assert Agent(ScriptedModel(says("done"))).run_sync("go").text == "done"
    assert started == ["windlass-run-sync"]


async def test_a_plain_tool_that_runs_its_own_agent_runs_inline_too(inline: None, started: list[str]):
    def reply(request: Any) -> Any:
        last = request.messages[-1]
        if last.role != "user" or last.text == "0":
            return says("done").reply
        return calls([("descend", {"level": int(last.text) - 1})] * 2).reply

    @tool(effect="pure")
    def descend(level: int) -> str:
        """Go one level down."""
        return agent.run_sync(str(level)).text

    agent = Agent(FunctionModel(reply), tools=[descend], max_parallel=1)

    assert (await agent.run("3")).text == "done"
    assert started == []


async def test_inline_work_sees_neither_the_loop_nor_the_context_of_its_caller(inline: None):
    BESIDE.set("the caller")
    seen: list[Any] = []

    def work() -> None:
        seen.append((asyncio._get_running_loop(), BESIDE.get()))
        BESIDE.set("the work")

    threads().lend(work)
    assert seen == []
    await run_alone(work, "alone")
    assert seen == [(None, "nothing")] * 2
    assert BESIDE.get() == "the caller"
    assert asyncio.get_running_loop().is_running()


async def test_a_plain_tool_sees_the_context_of_its_caller(inline: None):
    @tool(effect="pure")
    def who() -> str:
        """Who calls?"""
        return BESIDE.get()

    agent = Agent(ScriptedModel(calls("who"), says("done")), tools=[who])
    BESIDE.set("the caller")

    assert "the caller" in repr((await agent.run("go")).messages)


async def test_an_inline_tool_that_takes_too_long_is_out_of_time(inline: None):
    @tool(effect="pure", timeout=0.01)
    def slow() -> str:
        """Take a moment."""
        time.sleep(0.03)
        return "too late"

    agent = Agent(ScriptedModel(calls("slow"), says("done")), tools=[slow])
    result = await agent.run("go")

    assert result.text == "done"
    assert "too late" not in repr(result.messages)


async def test_an_error_of_inline_work_reaches_the_caller(inline: None):
    def fails() -> None:
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await run_alone(fails, "alone")


async def test_work_that_nobody_waits_for_any_more_is_not_begun(inline: None):
    done: list[int] = []
    waiting = threads().pool(1, "pool").submit(done.append, 1)
    waiting.cancel()
    await asyncio.sleep(0)
    assert done == []


async def test_a_store_that_runs_inline_passes_the_checks_of_a_store(inline: None, tmp_path: Path):
    report = await check_store(lambda: SQLiteStore(tmp_path / "logs.db"))
    assert report.passed


async def test_writes_that_wait_together_are_committed_together(inline: None, tmp_path: Path):
    batches: list[int] = []

    store = SQLiteStore(tmp_path / "logs.db")
    file = store._file.get()
    commit = file._commit

    def count(db: Any, jobs: list[Any]) -> Any:
        batches.append(len(jobs))
        return commit(db, jobs)

    file._commit = count  # type: ignore[method-assign]
    await asyncio.gather(*[store.put(f"s{at}", "key", "steer", "go") for at in range(5)])
    await store.close()
    assert batches == [5]


def test_closing_finishes_the_jobs_that_wait(started: list[str]):
    for implementation in (threads(), InlineThreads()):
        done: list[int] = []
        worker = implementation.worker(done.extend, "worker")
        for job in range(3):
            worker.put(job)
        worker.close()
        assert done == [0, 1, 2]
        assert worker.empty()
    assert started == ["worker"]
    assert "worker" not in [thread.name for thread in threading.enumerate()]


def test_blocks_that_overlap_leave_the_threads_as_they_were():
    before = threads()
    first, second = InlineThreads(), InlineThreads()
    outer, inner = use_threads(first), use_threads(second)
    outer.__enter__()
    inner.__enter__()
    assert threads() is second
    outer.__exit__(None, None, None)
    assert threads() is second
    inner.__exit__(None, None, None)
    assert threads() is before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this platform has no fork")
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_plain_tools_run_in_a_forked_process():
    def reply(request: Any) -> Any:
        last = request.messages[-1]
        return (calls("look", where="north") if last.role == "user" else says("done")).reply

    agent = Agent(FunctionModel(reply), tools=[look])
    assert agent.run_sync("go").text == "done"
    child = os.fork()
    if not child:
        code = 1
        try:
            asyncio.run(asyncio.wait_for(agent.run("go"), 50))
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


STARTS = re.compile(r"threading\.Thread\(|ThreadPoolExecutor|to_thread\(|run_in_executor|start_new_thread")
OWN = {
    "_threads.py": "the port",
    "_system_threads.py": "the machine's threads, behind the port",
    "capabilities/memos.py": "reads and writes files beside the event loop",
    "capabilities/permissions.py": "parses a long shell command beside the event loop",
    "capabilities/retrieve.py": "calls a search that is a plain function beside the event loop",
    "capabilities/webhook.py": "waits for the answer of a server beside the event loop",
    "compat/claude_code/engine.py": "parses a long condition of a hook beside the event loop",
    "compat/claude_code/handlers.py": "posts to a hook's server, with a client that blocks, beside the event loop",
    "compat/claude_code/processes.py": "waits for the end of a hook's process beside the event loop",
    "compat/claude_code/transcripts.py": "writes the transcript file beside the event loop",
    "compat/langchain/own_model.py": "runs plain methods of middlewares beside the event loop",
    "inspector/contexts.py": "rebuilds the requests of a long log beside the event loop",
    "inspector/diffs.py": "compares two long logs beside the event loop",
    "inspector/evaluations.py": "reads saved evaluations beside the event loop",
    "inspector/governance.py": "sums up long logs beside the event loop",
    "inspector/sessions.py": "reads a huge record beside the event loop",
    "inspector/whatif.py": "asks hooks that may be slow beside the event loop of the page",
    "mcp/sources.py": "keeps the list of tools of a server in a file beside the event loop",
    "mcp/workers.py": "drives the connection to a server, which outlives event loops",
    "tools/shell_tool.py": "starts, reads and ends a shell beside the event loop",
    "testing/simulation/loops.py": "starts none: it names what asks for one",
    "testing/simulation/refusals.py": "starts none: it refuses those of others",
    "testing/stores.py": "checks a store with several event loops at once",
}
"""The files that may start threads themselves. Models start those that their vendors' packages need."""


def test_only_the_port_starts_threads():
    root = Path(windlass.__file__).parent
    files = {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*.py")}
    found = {name for name, text in files.items() if STARTS.search(text)}
    assert {name for name in found if not name.startswith(("models/", "cli/"))} == set(OWN)
