"""The process behind `crash_points`: it has no threads, forks a process for each run, and checks what they leave."""

from __future__ import annotations

import asyncio
import gc
import importlib.util
import os
import secrets
import signal
import sys
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, cast

import msgspec
from msgspec import Struct

from windlass.agent import Agent
from windlass.errors import WindlassError
from windlass.logs import tree_of
from windlass.messages import ToolResultPart
from windlass.protocols import Store
from windlass.records import Delegated, ModelAttempted, ModelReplied, Record, SideReplied, Suspended
from windlass.run_options import RunOptions
from windlass.states import State, fold
from windlass.stores import open_store
from windlass.stores.sqlite import SQLiteStore

from .crashes import CrashPoint, CrashReport, Job, Play, Scenario
from .transcripts import unpaired
from .ways import answer_to
from .worlds import CrashingStore, Cut, Journal, Note, World


class Life(Struct):
    """The report of a process that was not killed: the calls it found recorded, its writes and the final state."""

    recorded: dict[str, int]
    writes: list[str] = []
    notes: int = 0
    outcome: str = ""
    text: str = ""
    transcript: list[Any] = []
    slots: str = ""
    interrupted: list[str] = []
    violations: list[str] = []


# ---------------------------------------------------------------- in the processes that are killed


async def live(play: Play, world: World, leave: Callable[[str, object], None]) -> None:
    """Run the scenario from where it stands to its end, and write a report."""
    scenario = as_scenario(play(world), world)
    life = Life(recorded_calls(await _logs(world)))
    leave("found", life.recorded)
    state: State | None = None
    for number, message in enumerate(scenario.messages, 1):
        state = await _one_message(scenario, world, number, message, life) or state
    await _inspect(world, life, state)
    await world.store.close()
    leave("life", life)


def as_scenario(made: object, world: World) -> Scenario:
    """Check what the scenario function returned, and that its agent uses the world's store."""
    scenario = Scenario(made) if isinstance(made, Agent) else made
    if not isinstance(scenario, Scenario):
        raise TypeError(f"a scenario must return an Agent or a Scenario, not {type(made).__name__}")
    if scenario.agent.store is not world.store:
        raise TypeError("the agent of a scenario must use the world's store: Agent(…, store=world.store)")
    return scenario


async def _one_message(scenario: Scenario, world: World, number: int, message: str, life: Life) -> State | None:
    """Start or resume a turn and run it to its end; None if it had ended before."""
    found = fold(world.session, await world.store.read(world.session))
    if found.turns > number or (found.turns == number and found.over):
        return None
    state = await _enter(scenario, world, message if found.turns < number else None)
    while scenario.answers is not None and isinstance(state.outcome, Suspended):
        answers = {asked.id: answer_to(asked, scenario.answers) for asked in state.waiting}
        state = await _enter(scenario, world, None, answers)
    return state


async def _enter(scenario: Scenario, world: World, message: str | None, answers: Any = None) -> State:
    agent, session, scope = scenario.agent, world.session, scenario.scope
    options = _code(scenario.options) if message is None else scenario.options
    if scenario.stream:
        async with agent.stream(message, session=session, answers=answers, scope=scope, **options) as stream:
            async for _ in stream:
                pass
        return stream.result.state
    if message is not None:
        return (await agent.run(message, session=session, scope=scope, **options)).state
    return (await agent.resume(session, answers=answers, scope=scope, **options)).state


def _code(options: RunOptions) -> RunOptions:
    """The options without settings and names, which the log keeps."""
    code = options.copy()
    code.pop("settings", None)
    if isinstance(code.get("model"), str):
        code.pop("model")
    return code


async def _logs(world: World) -> dict[str, list[Record]]:
    """The logs of the session and of its sub-agents' sessions."""
    tree = tree_of(world.session, await world.store.find())
    mine = [name for name in await world.store.sessions() if name in tree]
    return {name: list(await world.store.read(name)) for name in mine}


def recorded_calls(logs: dict[str, list[Record]]) -> dict[str, int]:
    """The number of recorded replies to each model call; "" counts the attempts with a recorded error.

    A reply that a resumed wrap took from the log is recorded twice, but was made once.
    """
    counted: Counter[str] = Counter()
    for record in [record for log in logs.values() for record in log]:
        reply = record.reply if isinstance(record, ModelReplied | ModelAttempted | SideReplied) else None
        if isinstance(record, ModelReplied) and not record.paid:
            continue
        if reply is not None and reply.response_id is not None:
            counted[reply.response_id] += 1
        elif isinstance(record, ModelAttempted):
            counted[""] += 1
    return dict(counted)


async def _inspect(world: World, life: Life, final: State | None) -> None:
    """Read the final state from the store, and check every log."""
    logs = await _logs(world)
    life.violations += [_plain(wrong, world) for wrong in left_over(logs)]
    for name, log in logs.items():
        state = fold(name, log)
        life.violations += [f"session {_plain(name, world)}: {wrong}" for wrong in unpaired(state.messages)]
        if any(later.at < record.at for record, later in pairwise(log)):
            life.violations.append(f"session {_plain(name, world)}: time goes back in the log")
        try:
            await world.store.verify(name)
        except WindlassError as error:
            life.violations.append(f"session {_plain(name, world)}: {error}")
        results = [part for m in state.messages for part in m.parts if isinstance(part, ToolResultPart)]
        life.interrupted += [_plain(part.call_id, world) for part in results if part.status == "interrupted"]
        if name == world.session:
            _report(life, state, world)
            if final is not None and final != state:
                life.violations.append("the log does not fold to the state that the agent returned")


def left_over(logs: dict[str, list[Record]]) -> list[str]:
    """The sub-agents that have not ended, although the turn that they work for has."""
    states = {name: fold(name, log) for name, log in logs.items()}
    started = [
        (name, record.session)
        for name, log in logs.items()
        for record in log
        if isinstance(record, Delegated) and not record.background and states[name].over
    ]
    return [
        f"session {child}: it has not ended, although session {parent} has"
        for parent, child in started
        if child in states and not states[child].over
    ]


def _report(life: Life, state: State, world: World) -> None:
    outcome = state.outcome
    if isinstance(outcome, Suspended):
        outcome = outcome.replace(active=0.0, at=0.0, waiting_for=())
    life.outcome, life.text = _plain(repr(outcome), world), state.text
    life.slots = _plain(repr(dict(sorted(state.slots.items()))), world)
    encoded = msgspec.json.encode(list(state.messages), enc_hook=str).decode()
    life.transcript = msgspec.json.decode(_plain(encoded, world))


def _plain(text: str, world: World) -> str:
    return text.replace(world.session, "session")


# ---------------------------------------------------------------- in the process that kills

Lives: TypeAlias = Generator[tuple[int, Cut | None], int, list[int]]


class Run(Struct):
    """One run of the scenario: a sequence of processes, each killed by a cut, except the last."""

    cuts: tuple[Cut, ...]
    folder: Path
    session: str
    labels: tuple[str, ...] = ()

    def lives(self) -> Lives:
        statuses: list[int] = []
        for number, cut in enumerate((*self.cuts, None)):
            status = yield number, cut
            statuses.append(status)
            if status != -signal.SIGKILL:
                break
        return statuses

    def left(self, number: int, what: str) -> Path:
        """The file in which a process leaves a report."""
        return self.folder / f"{number}.{what}"

    @property
    def journal(self) -> Journal:
        """The notes of its processes."""
        return Journal(self.folder / "journal")

    @property
    def where(self) -> str:
        labelled = zip(self.cuts, self.labels, strict=True)
        return ", then ".join([f"{cut.moment} {cut.number}{label}" for cut, label in labelled]) or "not killed"


class Killer:
    """Runs a scenario again and again, several runs at a time."""

    def __init__(self, job: Job, play: Play) -> None:
        self.job = job
        self.play = play
        self.prefix = f"c{secrets.token_hex(4)}"
        self.made = 0
        if job.store is not None:
            open_store(job.store)  # imports its modules once, before the forks

    def run(self, cuts: tuple[Cut, ...] = (), labels: tuple[str, ...] = ()) -> Run:
        self.made += 1
        folder = Path(self.job.folder) / str(self.made)
        folder.mkdir()
        return Run(cuts, folder, f"{self.prefix}-{self.made}", labels)

    def report(self) -> CrashReport:
        whole = self.run()
        [(_, statuses)] = self._play([whole])
        if statuses[-1]:
            raise RuntimeError(f"it failed without a crash:\n{_output(whole, 0, statuses[-1])}")
        base, journal = _life(whole, 0), whole.journal.notes()
        if base.violations:
            raise RuntimeError("it has violations without a crash:\n" + "\n".join(base.violations))
        points: list[CrashPoint] = []
        runs = [self.run((cut,), (label,)) for cut, label in cuts_of(base)]
        for depth in range(self.job.crashes):
            played = self._play(runs)
            points += [_judge(run, statuses, base, journal, self.job.exact) for run, statuses in played]
            if depth + 1 < self.job.crashes:
                runs = [
                    self.run((*run.cuts, cut), (*run.labels, label))
                    for run, statuses in played
                    if len(statuses) == len(run.cuts) + 1 and not statuses[-1]
                    for cut, label in cuts_of(_life(run, len(run.cuts)))
                ]
        return CrashReport(self.job.target, base.outcome, base.text, tuple(base.writes), tuple(points))

    def _play(self, runs: list[Run]) -> list[tuple[Run, list[int]]]:
        """Run all, several at a time; returns the exit statuses of each run's processes."""
        waiting, going = deque(runs), dict[int, tuple[Run, Lives]]()
        ended: dict[str, list[int]] = {}
        while waiting or going:
            while waiting and len(going) < self.job.workers:
                run = waiting.popleft()
                lives = run.lives()
                going[self._fork(run, *next(lives))] = run, lives
            pid, status = os.wait()
            run, lives = going.pop(pid)
            try:
                going[self._fork(run, *lives.send(os.waitstatus_to_exitcode(status)))] = run, lives
            except StopIteration as stop:
                ended[run.session] = stop.value
        return [(run, ended[run.session]) for run in runs]

    def _fork(self, run: Run, number: int, cut: Cut | None) -> int:
        pid = os.fork()
        if pid:
            return pid
        code = 1

        def leave(what: str, word: object) -> None:
            run.left(number, what).write_bytes(msgspec.json.encode(word))

        try:
            signal.alarm(self.job.timeout)
            words = os.open(run.left(number, "words"), os.O_WRONLY | os.O_CREAT)
            os.dup2(words, 1)
            os.dup2(words, 2)
            journal = Journal(run.journal.path, number, cut)
            store = CrashingStore(self._store(run), journal.strike)
            asyncio.run(live(self.play, World(journal, cast(Store, store), run.session), leave))
            leave("writes", (store.writes, journal.written))
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _store(self, run: Run) -> Store:
        if self.job.store is not None:
            return open_store(self.job.store)
        return SQLiteStore(run.folder / "store.db", synchronous="NORMAL")


def cuts_of(life: Life) -> list[tuple[Cut, str]]:
    """The places where a process with this report can be killed, and what it does there."""
    cuts: list[tuple[Cut, str]] = []
    for number, what in enumerate(life.writes, 1):
        cuts += [(Cut("before write", number), f" ({what})"), (Cut("after write", number), f" ({what})")]
    return cuts + [(Cut("after note", number), "") for number in range(1, life.notes + 1)]


def _life(run: Run, number: int) -> Life:
    life = msgspec.json.decode(run.left(number, "life").read_bytes(), type=Life)
    life.writes, life.notes = msgspec.json.decode(run.left(number, "writes").read_bytes())
    return life


def _output(run: Run, number: int, status: int) -> str:
    path = run.left(number, "words")
    output = path.read_text(errors="replace").strip()[-3000:] if path.exists() else ""
    ended = "timed out" if status == -signal.SIGALRM else f"ended with status {status}"
    return f"process {number + 1} {ended}: {output}"


def _judge(run: Run, statuses: list[int], base: Life, journal: list[Note], exact: bool) -> CrashPoint:
    last = len(statuses) - 1
    reached = len(statuses) == len(run.cuts) + 1
    if statuses[-1]:
        return CrashPoint(run.where, (_output(run, last, statuses[-1]),), reached)
    life, notes = _life(run, last), run.journal.notes()
    found = [
        msgspec.json.decode(run.left(number, "found").read_bytes(), type=dict[str, int])
        for number in range(last + 1)
        if run.left(number, "found").exists()
    ]
    wrong = [*life.violations, *_differences(base, life, exact)]
    for number, recorded in enumerate(found[1:], 1):
        wrong += _repeated_calls(journal, notes, recorded, number, exact)
    wrong += _wrong_effects(journal, notes, life)
    return CrashPoint(run.where, tuple(wrong), reached)


def _differences(base: Life, life: Life, exact: bool) -> list[str]:
    """The differences to the run without a crash."""
    wrong: list[str] = []
    for what in ("outcome", "text", "slots") if exact and not life.interrupted else ("outcome", "text"):
        one, other = getattr(base, what), getattr(life, what)
        if one != other:
            wrong.append(f"the {what} is {other}, but {one} without a crash")
    if exact:
        unknown = {*life.interrupted}
        one, other = _masked(base.transcript, unknown), _masked(life.transcript, unknown)
        if one != other:
            at = next((i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), -1)
            shown = [each[at] if 0 <= at < len(each) else f"{len(each)} messages" for each in (other, one)]
            wrong.append(f"the transcript differs: {shown[0]}, but {shown[1]} without a crash")
    return wrong


def _masked(transcript: list[Any], unknown: set[str]) -> list[Any]:
    """The transcript without the content of unknown results."""
    masked: list[Any] = []
    for message in transcript:
        parts = [
            {"type": "tool_result", "call_id": part["call_id"]} if part.get("call_id") in unknown else part
            for part in message.get("parts", ())
        ]
        masked.append({**message, "parts": parts})
    return masked


def _repeated_calls(
    journal: list[Note], notes: list[Note], recorded: dict[str, int], process: int, exact: bool
) -> list[str]:
    """Model calls that were made although their replies were recorded when the process started."""
    usual = Counter(note.name for note in journal if note.what == "asked")
    since = Counter(note.name for note in notes if note.what == "asked" and note.process == process)
    wrong = [
        f"model call {name} was made again although its reply was recorded"
        for name, count in since.items()
        if count + recorded.get(name, 0) > max(usual[name], 1)
    ]
    if exact and not wrong and since.total() + sum(recorded.values()) > usual.total():
        made, known = since.total(), sum(recorded.values())
        wrong.append(f"{made} model calls were made, but {known} of {usual.total()} were recorded already")
    return wrong


def _wrong_effects(journal: list[Note], notes: list[Note], life: Life) -> list[str]:
    """Effects that happened too often, or are missing although the transcript does not say so."""
    usual, found = _effects(journal), _effects(notes)
    wrong: list[str] = []
    missing = 0
    for name, key in {*usual, *found}:
        before, after = usual[name, key], found[name, key]
        keyed = "" if key is None else f" with key {key}"
        if (after > before) if key is None else (bool(after) != bool(before)):
            wrong.append(f"the effect {name}{keyed} happened {after} times, but {before} times without a crash")
        if key is None:
            missing += before - after
    undone = sum(note.what == "undone" for note in notes)
    if max(missing, undone) > (noted := len(life.interrupted)):
        wrong.append(
            f"{missing} effects are missing and {undone} were undone, but only {noted} results say that they may be"
        )
    return wrong


def _effects(notes: list[Note]) -> Counter[tuple[str, str | None]]:
    """How often each effect happened, less how often it was undone."""
    counted: Counter[tuple[str, str | None]] = Counter()
    for note in notes:
        if note.what == "effect":
            counted[note.name, note.key] += 1
        elif note.what == "undone" and counted[note.name, note.key]:
            counted[note.name, note.key] -= 1
    return counted


# ---------------------------------------------------------------- the entry point


def load(target: str) -> Play:
    """Import the scenario function that a target names."""
    where, _, name = target.rpartition(":")
    module = _file(Path(where)) if where.endswith(".py") else import_module(where)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part)
    return found  # type: ignore[no-any-return]


def _file(path: Path) -> ModuleType:
    """Import a file as a module, under the name by which it can be imported, if it has one."""
    path = path.resolve()
    for place in map(Path, sys.path):
        if path.is_relative_to(place.resolve()):
            name = ".".join(path.relative_to(place.resolve()).with_suffix("").parts)
            spec = importlib.util.find_spec(name) if all(part.isidentifier() for part in name.split(".")) else None
            if spec is not None and spec.origin and Path(spec.origin).resolve() == path:
                return import_module(name)
    spec = importlib.util.spec_from_file_location(f"_windlass_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> None:
    """Read the job, run it, write the report."""
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    out = os.dup(1)
    os.dup2(2, 1)
    sys.path[:] = job.path
    killer = Killer(job, load(job.target))
    gc.freeze()  # all forked processes share the objects that exist now
    report = killer.report()
    with os.fdopen(out, "wb") as stream:
        stream.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
