"""The endpoints of what-if: recorded sessions asked again with a hook off, on or new, while the page looks on."""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, cast

from msgspec import Meta, Struct

from windlass import Agent
from windlass.context.replay import described
from windlass.errors import ConfigError, SessionUnknown, StoreError, WindlassError
from windlass.logs import SessionInfo
from windlass.messages import ToolCallPart, Value
from windlass.protocols import Store
from windlass.records import HookDecided, ModelReplied, Record, ToolDecided
from windlass.replay import Difference, Replay, Report, SessionReplay, Summary
from windlass.replay.plans import is_asked_again
from windlass.replay.policies import RULES, NoModel, agent_of_policy
from windlass.server.errors import Problem
from windlass.server.json import to_json
from windlass.server.streams import sse

from .requests import Call, Endpoint, Endpoints
from .words import ROW, Data, cut, cut_text

MOST = 5000
"""How many sessions are replayed at once; more are refused."""

PATIENCE = 20.0
"""How many seconds the replay of one session may take."""

STUCK = 30.0
"""After how many seconds without progress a hook counts as one that blocks its thread."""

PAUSE = 0.12
"""How often the page hears of progress, in seconds."""

SHOWN = 1000
"""How many sessions that are not the same are sent with details."""

LOOKED_AT = 24
"""How many sessions are looked at to find out which gates the log has."""

FEW = 4000
"""Longer sessions are not looked at for that."""

Name = Annotated[str, Meta(max_length=400)]


class Question(Struct, frozen=True, forbid_unknown_fields=True):
    """What is tried on which sessions.

    With `agent` the hooks of the agent are asked, but those in `off`; shadow gates in `on` count. Otherwise the
    recorded gates in `off` are taken out of the log, and `rules`, the text of a policy file, take their place.
    """

    agent: bool = False
    off: Annotated[tuple[Name, ...], Meta(max_length=200)] = ()
    on: Annotated[tuple[Name, ...], Meta(max_length=200)] = ()
    rules: Annotated[str, Meta(max_length=200_000)] = ""
    sessions: Annotated[tuple[Name, ...], Meta(max_length=MOST)] = ()
    search: Name = ""
    since: Annotated[float, Meta(ge=0)] = 0.0


# ---------------------------------------------------------------- what can be tried


async def offer(call: Call) -> Data:
    """The hooks that can be switched: those of the agent, and the gates that the log knows."""
    agent = call.inspector.agent
    total = len(await call.inspector.source.store.find(limit=MOST + 1))
    return {
        "store": call.inspector.source.name,
        "sessions": min(total, MOST),
        "most": MOST,
        "agent": None if agent is None else {"name": cut_text(agent.name, ROW), "hooks": _hooks_of(agent)},
        "recorded": await _recorded_gates(call),
        "rules": RULES,
    }


def _hooks_of(agent: Agent[Any, Any]) -> list[Data]:
    program = agent._compile()  # pyright: ignore[reportPrivateUsage]
    return [
        {
            "name": hook.name,
            "kind": hook.kind,
            "event": hook.event.__name__,
            "tool": cut_text(str(hook.tool or ""), 80),
            "band": hook.band,
            "shadow": hook.shadow,
        }
        for hook in program.hooks.all
        if is_asked_again(hook, (hook.name,))
    ]


async def _recorded_gates(call: Call) -> list[Data]:
    """The gates on tool calls of the agents that wrote the latest sessions, but those that only recorded."""
    source, names = call.inspector.source, set[str]()
    digests, shadows = set[str](), set[str]()
    for info in await source.store.find(limit=LOOKED_AT):
        if not info.records or info.records > FEW:
            continue
        try:
            score = (await source.log(info.session)).score
        except (SessionUnknown, StoreError):
            continue
        digests |= {turn.pipeline for turn in score.turns} | {score.pipeline}
        answers = [one for turn in score.turns for row in turn.rows for one in row.get("says", ())]
        shadows |= {one["hook"] for one in answers if one["shadow"]}
        await asyncio.sleep(0)
    for digest in digests - {""}:
        rows = described(await source.store.pipeline(digest)).hooks
        names |= {str(row["name"]) for row in rows if row["kind"] == "gate" and row["event"] == "ToolCalling"}
    shown = {"kind": "gate", "event": "ToolCalling", "tool": "", "shadow": False}
    return [{**shown, "name": name} for name in sorted(names - shadows)]


# ---------------------------------------------------------------- the replay


async def ask(call: Call) -> Any:
    """Replay the sessions, as a stream of progress. It ends when it is done or when the page leaves."""
    inspector, question = call.inspector, cast(Question, call.body)
    if inspector.replaying:
        raise Problem(
            409, "busy", "another what-if is running, or a hook of it does not return: wait for it, or cancel it"
        )
    inspector.replaying = True
    try:
        infos = await _chosen(call, question)
        run = await asyncio.to_thread(_Run, inspector, question, infos, asyncio.get_running_loop())

        async def left() -> None:
            run.stop()

        return call.stream(_progress(run), left=left)
    except BaseException:
        inspector.replaying = False
        raise


async def _chosen(call: Call, question: Question) -> list[SessionInfo]:
    """The sessions to replay, the latest first."""
    store = call.inspector.source.store
    infos = await store.find(search=question.search, limit=MOST + 1)
    if question.sessions:
        known = {info.session: info for info in await store.find()}
        if missing := [name for name in question.sessions if name not in known]:
            raise SessionUnknown(f"there is no session {missing[0]!r}", session=missing[0])
        infos = [known[name] for name in question.sessions]
    found = [info for info in infos if info.status != "erased" and info.records and info.updated >= question.since]
    if not found:
        raise Problem(400, "no_sessions", "no session matches: choose others")
    if len(found) > MOST:
        raise Problem(400, "too_many_sessions", f"more than {MOST} sessions: narrow the search or the time")
    return found


class _Reader:
    """The store as the thread of a replay sees it: it is read on the event loop that it belongs to."""

    def __init__(self, store: Store, loop: asyncio.AbstractEventLoop) -> None:
        self._store = store
        self._loop = loop

    async def read(self, session: str, start: int = 0) -> Sequence[Record]:
        """The records of a session."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._read(session, start), self._loop))

    async def pipeline(self, digest: str) -> bytes | None:
        """The description of an agent."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._pipeline(digest), self._loop))

    async def _read(self, session: str, start: int) -> Sequence[Record]:
        return await self._store.read(session, start)

    async def _pipeline(self, digest: str) -> bytes | None:
        return await self._store.pipeline(digest)


class _Run:
    """One replay, in a thread of its own with its own event loop, so that the page stays quick."""

    def __init__(
        self, inspector: Any, question: Question, infos: Sequence[SessionInfo], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._store = _Reader(inspector.source.store, loop)
        self._infos = infos
        self._scope = inspector.scope
        self._judge = _judge(inspector.agent, question, cast(Store, self._store), self._scope)
        self.total = len(infos)
        self.done = 0
        self.began = time.monotonic()
        self.report = Report()
        self.found: list[Data] = []
        self.failure = ""
        self.over = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._stopped = False
        self._inspector = inspector
        threading.Thread(target=self._work, name="windlass what-if", daemon=True).start()

    def stop(self) -> None:
        """End after the session at hand, or while it waits."""
        self._stopped = True
        if self._loop is not None and self._task is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._task.cancel)

    @property
    def stopped(self) -> bool:
        """Whether it ended before its time."""
        return self._stopped and self.done < self.total

    def _work(self) -> None:
        try:
            asyncio.run(self._replay())
        except asyncio.CancelledError:
            pass
        except Exception as error:
            self.failure = str(error) if isinstance(error, WindlassError) else f"{type(error).__name__}: {error}"
        finally:
            self._inspector.replaying = False
            self.over.set()

    async def _replay(self) -> None:
        self._loop, self._task = asyncio.get_running_loop(), asyncio.current_task()
        ahead: asyncio.Task[Sequence[Record]] | None = None
        try:
            for at, info in enumerate(self._infos):
                if self._stopped:
                    return
                reading = ahead or asyncio.create_task(self._store.read(info.session))
                following = self._infos[at + 1] if at + 1 < len(self._infos) else None
                ahead = None if following is None else asyncio.create_task(self._store.read(following.session))
                one, records = await self._one(info.session, reading)
                self.report.add(one)
                if one.status != "same" and len(self.found) < SHOWN:
                    self.found.append(_view(info, one, records))
                self.report.sessions.clear()
                self.done += 1
                await asyncio.sleep(0)
        finally:
            if ahead is not None:
                ahead.cancel()
                await asyncio.gather(ahead, return_exceptions=True)

    async def _one(
        self, session: str, reading: asyncio.Task[Sequence[Record]]
    ) -> tuple[SessionReplay, Sequence[Record]]:
        try:
            records = await reading
        except StoreError as error:
            return SessionReplay(session, error=str(error)), ()
        if not records:
            return SessionReplay(session, error="it is not there any more"), ()
        limit = asyncio.timeout(PATIENCE)
        try:
            async with limit:
                return await self._judge.log(session, records), records
        except ConfigError:
            raise
        except Exception as error:  # a log that no agent wrote, a function for scopes that fails
            why = (
                f"its hooks took longer than {PATIENCE:g} s" if limit.expired() else f"{type(error).__name__}: {error}"
            )
            return SessionReplay(session, error=why), records


def _judge(agent: Agent[Any, Any] | None, question: Question, store: Store, scope: Any) -> Replay:
    if question.agent:
        if agent is None:
            raise Problem(409, "no_agent", "there is no agent to ask: start with windlass ui --agent MODULE:AGENT")
        return Replay(agent, store, scope=scope, without=question.off, counting=question.on)
    if not question.rules.strip() and not question.off:
        raise Problem(400, "nothing_to_try", "switch a gate off, or write rules")
    replaced = (*question.off, RULES) if question.rules.strip() else question.off
    tried = _agent_of_rules(question.rules) if question.rules.strip() else Agent(NoModel(), name="policy")
    return Replay(tried, store, replacing=replaced)


def _agent_of_rules(text: str) -> Agent[Any, Any]:
    """An agent with the rules of a text, which is the content of a policy file in TOML."""
    with tempfile.TemporaryDirectory(prefix="windlass-") as folder:
        path = Path(folder) / "rules.toml"
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            return agent_of_policy(path)
        except ConfigError as error:
            message = str(error).replace(f"policy {str(path)!r}", "the rules").replace(str(path), "the rules")
            raise Problem(400, "invalid_rules", message) from None


async def _progress(run: _Run) -> AsyncGenerator[bytes, None]:
    """What has come of the replay since the last event."""
    sent, done, moved = 0, -1, time.monotonic()
    try:
        while True:
            if run.done != done:
                done, moved = run.done, time.monotonic()
            stuck = time.monotonic() - moved > STUCK
            over = run.over.is_set() or stuck
            if stuck:
                run.failure = f"a hook has not returned for {STUCK:g} s and cannot be ended: restart windlass ui"
            fresh = run.found[sent:]
            sent += len(fresh)
            data = {
                "done": run.done,
                "total": run.total,
                "seconds": round(time.monotonic() - run.began, 3),
                "over": over,
                "stopped": over and run.stopped,
                "failure": cut_text(run.failure, ROW),
                "summary": _summary(run.report.summary),
                "sessions": fresh,
            }
            yield sse(to_json(data), event="progress")
            if over:
                return
            await asyncio.sleep(PAUSE)
    finally:
        run.stop()  # a hook that does not return keeps its thread: until then there is no other replay


def _summary(summary: Summary) -> Data:
    data = _fields(summary)
    most = {name: [list(one) for one in data[name][:40]] for name in ("changes", "lacks")}
    return cast(Data, cut({**data, **most, "exit_code": summary.exit_code}, ROW))


def _view(info: SessionInfo, one: SessionReplay, records: Sequence[Record]) -> Data:
    """A session that is not the same: where it differs, and what its log has after that."""
    last = max([it.record for it in one.differences], default=0)
    later = sum([_is_verdict(record) for record in records[last:]]) if last else 0
    wanted = {it.about for it in one.differences}
    made = dict(_calls(records, wanted)) if wanted else {}
    return {
        "session": one.session,
        "title": cut_text(info.title, 240),
        "agent": cut_text(one.agent, 200),
        "status": one.status,
        "verdicts": one.verdicts,
        "later": later,
        "differences": [cut({**_difference(it), "call": made.get(it.about, "")}, ROW) for it in one.differences[:20]],
        "unjudged": [cut(_fields(it), ROW) for it in one.unjudged[:20]],
        "not_evaluated": cut(list(one.not_evaluated[:10]), ROW),
        "error": cut_text(one.error, ROW),
    }


def _difference(it: Difference) -> Data:
    was, now = it.was.partition(": "), it.now.partition(": ")
    return {**_fields(it), "was": was[0].capitalize(), "was_why": was[2], "now": now[0].capitalize(), "now_why": now[2]}


def _fields(value: Value) -> Data:
    """All fields, also those that have their defaults."""
    return {name: getattr(value, name) for name in value.__struct_fields__}


def _is_verdict(record: Record) -> bool:
    return isinstance(record, ToolDecided) or (isinstance(record, HookDecided) and not record.shadow)


def _calls(records: Iterable[Record], wanted: set[str]) -> Iterable[tuple[str, str]]:
    for record in records:
        if isinstance(record, ModelReplied):
            for part in record.reply.message.parts:
                if isinstance(part, ToolCallPart) and part.id in wanted:
                    yield part.id, part.json


ENDPOINTS: Endpoints = (
    Endpoint("/api/whatif", offer),
    Endpoint("/api/whatif/run", ask, body=Question),
)
"""A replay writes nothing, so that these routes exist without `--control`, too."""
