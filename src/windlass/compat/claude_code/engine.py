"""Fires an event: picks the hooks that it is about, runs them side by side, and merges what they answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, structs

from windlass.capabilities.commands import commands_of, is_parsed
from windlass.capabilities.shell_parser import Unparsable
from windlass.trust import is_trusted
from windlass.turns import Turn

from .answers import Output
from .environment import CannotStart
from .handlers import Handlers, HookRun, Limits, Payload, Running
from .matchers import Subject, condition_holds, matches
from .plain_text import first_line
from .protocol import TOOL_EVENTS
from .settings import Handler
from .sources import Found, stamp_of
from .verdicts import Verdict, merge
from .workers import Workers

log = logging.getLogger("windlass.compat")
KEPT = 200
"""So many of the latest runs are kept for people who look."""


class Firing(Struct, frozen=True):
    """An event that happens: what matchers are compared with, and its input.

    `subject` is the call that it is about. `seconds` limits all hooks, whatever they say.
    """

    event: str
    value: str
    payload: Payload
    subject: Subject | None = None
    seconds: float | None = None


Finished = Callable[[HookRun, Payload], None]


class Engine:
    """The hooks of a project, ready to run. `finished` is called for each hook that ran in the background."""

    def __init__(
        self, found: Found, *, closed: bool, workers: Workers | None, model: str | None, finished: Finished
    ) -> None:
        self._by_event: dict[str, list[Handler]] = {}
        for handler in found.handlers:
            self._by_event.setdefault(handler.event, []).append(handler)
        self._scripts = {place: dict(stamps) for place, stamps in found.scripts.items()}
        limits = Limits(closed, found.http_urls, found.http_env, found.env)
        self._handlers = Handlers(limits, workers, model, self._adopt)
        self._workers = workers
        self._finished = finished
        self._tasks: set[asyncio.Task[None]] = set()
        self._told: set[tuple[str, str]] = set()
        self.runs: deque[HookRun] = deque(maxlen=KEPT)

    def has(self, *events: str) -> bool:
        """Whether there are hooks for one of these events."""
        return any(event in self._by_event for event in events)

    def has_conditions(self, event: str) -> bool:
        """Whether a hook for an event has an `if`, so that the call decides whether it runs."""
        return any(one.condition is not None for one in self._by_event.get(event, ()))

    @property
    def wakes(self) -> bool:
        """Whether a hook in the background may wake the model."""
        return any(one.rewakes for handlers in self._by_event.values() for one in handlers)

    def timeouts(self, event: str) -> list[float]:
        """The time limits that the hooks of an event state."""
        return [one.timeout for one in self._by_event.get(event, ()) if one.timeout is not None]

    def select(self, event: str, value: str, subject: Subject | None = None) -> list[Handler]:
        """The hooks that an event is about, in the order of their settings, each once."""
        values = [value] if subject is None or not subject.also else [value, subject.also]
        chosen: dict[Any, Handler] = {}
        for handler in self._by_event.get(event, ()):
            if any(matches(handler.matcher, event, one) for one in values) and _condition_holds(handler, subject):
                chosen.setdefault(handler.key, handler)
        return list(chosen.values())

    async def fire(self, firing: Firing, turn: Turn[Any] | None) -> Verdict:
        """Run the hooks of an event, all at the same time, and merge their answers."""
        if firing.subject is not None:
            await self._parse(firing.event, firing.subject)
        chosen = self.select(firing.event, firing.value, firing.subject)
        if not chosen:
            return Verdict()
        if len(chosen) == 1:
            runs = [await self._run(chosen[0], firing, turn)]
        else:
            runs = await _together([self._run(handler, firing, turn) for handler in chosen])
        self.runs.extend(runs)
        self._report(runs)
        return merge(runs)

    async def _parse(self, event: str, subject: Subject) -> None:
        """Parse a command beside the event loop, if conditions will look into it."""
        script = subject.input.get("command")
        looked_at = any(one.condition for one in self._by_event.get(event, ()))
        if looked_at and isinstance(script, str) and not is_parsed(script):
            await asyncio.to_thread(_parsed, script)

    async def _run(self, handler: Handler, firing: Firing, turn: Turn[Any] | None) -> HookRun:
        changed = self._changed_script(handler)
        if changed is not None:
            text = f"{changed} has changed since it was trusted: run `windlass hooks trust`"
            output = Output(None, failure=text)
            return HookRun(handler.event, handler, self._handlers.read(handler, output), output)
        if handler.background and handler.type == "command":
            return self._begin(handler, firing.payload)
        return await self._handlers.run(handler, firing.payload, turn, firing.seconds)

    def _changed_script(self, handler: Handler) -> Path | None:
        """A script of the project that is no longer as the user trusted it."""
        stamps = self._scripts.get(f"{handler.source.path}:{handler.place}", {})
        for path, known in stamps.items():
            stamp = stamp_of(path)
            if stamp != known:
                if not stamp or not is_trusted(path):
                    return path
                stamps[path] = stamp
        return None

    # ------------------------------------------------------------ in the background

    def _begin(self, handler: Handler, payload: Payload) -> HookRun:
        try:
            running = self._handlers.start(handler, payload)
        except CannotStart as error:
            output = error.output
        except (OSError, ValueError) as error:
            output = Output(None, failure=f"it could not be started: {first_line(str(error))}")
        else:
            self._adopt(running, payload)
            output = Output(0, stdout='{"async": true}')
        return HookRun(handler.event, handler, self._handlers.read(handler, output), output, background=True)

    def _adopt(self, running: Running, payload: Payload) -> None:
        """Wait for a command beside the turn."""

        async def work() -> None:
            output = await running.process.wait(running.seconds)
            assert output is not None
            if running.process.declared is not None:  # what it declared first is no part of its answer
                output = structs.replace(output, stdout=output.stdout.partition("\n")[2])
            answer = self._handlers.read(running.handler, output)
            seconds = time.monotonic() - running.began
            run = HookRun(running.handler.event, running.handler, answer, output, seconds, background=True)
            self.runs.append(run)
            self._report([run])
            self._finished(run, payload)

        task = asyncio.get_running_loop().create_task(work())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def close(self) -> None:
        """End all hooks in the background, and the workers."""
        mine = [task for task in self._tasks if task.get_loop() is asyncio.get_running_loop()]
        for task in mine:
            task.cancel()
        await asyncio.gather(*mine, return_exceptions=True)
        if self._workers is not None:
            self._workers.close()

    # ------------------------------------------------------------ reports

    def _report(self, runs: Iterable[HookRun]) -> None:
        """Log what had no effect: the first time as a warning, after that for those who debug."""
        for run in runs:
            if run.why:
                key = (f"{run.handler.source.path}:{run.handler.place}", run.why)
                level = logging.DEBUG if key in self._told or len(self._told) > KEPT else logging.WARNING
                self._told.add(key)
                name = first_line(run.handler.name, 120)
                log.log(level, "hook %s (%s, %s): %s", run.handler.place, name, key[0], run.why)


def _parsed(script: str) -> None:
    try:
        commands_of(script)
    except Unparsable:
        pass


def _condition_holds(handler: Handler, subject: Subject | None) -> bool:
    """Whether the `if` of a hook lets it run. Away from the events of tools, a hook with one never runs."""
    if handler.condition is None:
        return True
    if subject is None or handler.event not in TOOL_EVENTS:
        return False
    return condition_holds(handler.condition, subject)


async def _together(runs: Sequence[Any]) -> list[HookRun]:
    """Run several hooks at the same time. A cancel ends them all."""
    tasks = [asyncio.ensure_future(run) for run in runs]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def note_of(run: HookRun) -> Mapping[str, Any]:
    """What the log keeps of a run that said something or failed."""
    answer, output = run.answer, run.output
    said = {
        "permission": answer.permission,
        "blocked": answer.blocked or None,
        "reason": answer.reason[:1000],
        "stops": answer.stops or None,
        "updated_input": True if answer.input is not None else None,
        "updated_output": answer.replaces_output or None,
        "context": sum([len(text) for text in answer.context]),
        "why": run.why[:1000],
        "stderr": first_line(output.stderr) if output is not None else "",
        "exit": output.exit if output is not None else None,
    }
    kept = {key: value for key, value in said.items() if value not in (None, "", 0) or key == "exit"}
    return {
        "event": run.event,
        "hook": first_line(run.handler.name, 200),
        "source": f"{run.handler.source.path}:{run.handler.place}",
        "ms": round(run.seconds * 1000, 1),
        **kept,
    }
