"""Breakpoints: hooks of the guard band that pause a live turn until a person at the inspector lets it go on."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import count
from typing import Any, Literal

from msgspec import Struct

from windlass import Agent, Hooks
from windlass.decisions import (
    Again,
    Allow,
    Answer,
    Ask,
    Deny,
    Fail,
    Finish,
    Halt,
    Ignore,
    Regenerate,
    Veto,
    Vote,
)
from windlass.errors import ConfigError, HookError, ToolError
from windlass.events import (
    EVENTS,
    Compacting,
    Continuing,
    Delegating,
    MessageAdding,
    ModelCalling,
    ModelReplying,
    Resuming,
    SessionStarting,
    StepEnding,
    ToolCalling,
    ToolReturning,
    TurnEnding,
    TurnStarting,
)
from windlass.outcomes import Cancelled
from windlass.turns import Turn
from windlass.types import AnyEvent

from .words import ROW, WHOLE, Data, cut, cut_text, plain, said, shown_json

UNWATCHED = 60.0
"""After so many seconds in which no page of the inspector is open, a paused turn goes on as if it had not paused."""

LOOKS = 0.2
"""How often a paused turn looks whether it was cancelled, or whether nobody watches any more, in seconds."""

HOUR = 3600.0

REMEMBERED = 50
"""How many pauses that are over are shown."""

LAST = -(10**9)
"""The priority of the rewrites: they see what is left when all others have changed it."""

POINTS: dict[str, type[AnyEvent]] = {event.__name__: event for event in EVENTS}

_VERDICTS: dict[str, Callable[[str], Any]] = {
    "Allow": lambda text: Allow(),
    "Deny": lambda text: Deny(text or "denied by a person at a breakpoint"),
    "Halt": lambda text: Halt(text or "halted by a person at a breakpoint"),
    "Answer": Answer,
    "Ask": lambda text: Ask(text or "Approve?"),
    "Regenerate": Regenerate,
    "Veto": Veto,
    "Finish": Finish,
    "Again": lambda text: Again(),
    "Ignore": lambda text: Ignore(),
    "Fail": lambda text: Fail(),
    **{vote.name: (lambda text, vote=vote: (vote, text) if text else vote) for vote in Vote},  # type: ignore[misc]
}
"""What a person may decide, by name. `Rewind` is left out: it needs a step that a person cannot know here."""

TAKES_TEXT = frozenset({"Deny", "Halt", "Answer", "Ask", "Regenerate", "Veto", "Finish", *Vote.__members__})


def verdicts_of(event: type[AnyEvent]) -> list[str]:
    """What a person may decide at an event, the strictest first."""
    names = [rank.name if isinstance(rank, Vote) else rank.__name__ for rank in event.ranks]
    return [name for name in names if name in _VERDICTS]


class Breakpoint(Struct, frozen=True, forbid_unknown_fields=True):
    """Where to pause: at an event, or only if it is about one tool; `*` and `?` stand for any characters."""

    event: str
    tool: str = ""

    def holds(self, event: Any) -> bool:
        """Whether this event pauses."""
        if type(event).__name__ != self.event:
            return False
        return not self.tool or fnmatchcase(_tool_of(event), self.tool)


class Reply(Struct, frozen=True, forbid_unknown_fields=True):
    """What a person lets a paused turn do. Without a verdict it goes on; `arguments` or `text` change the payload."""

    verdict: str = ""
    reason: str = ""
    arguments: dict[str, Any] | None = None
    text: str | None = None
    inject: str = ""


class Pause:
    """A turn that waits at a breakpoint."""

    def __init__(self, number: int, event: Any, turn: Turn[Any]) -> None:
        self.number = number
        self.event = event
        self.began = time.time()
        self.session = turn.session_id
        self.loop = asyncio.get_running_loop()
        self.over = asyncio.Event()
        self.reply = Reply()
        self.by = ""
        self.how = ""
        self.view = _shown(event, turn)

    def answer(self, reply: Reply, by: str, how: str) -> None:
        """Let the turn go on, from any thread."""
        self.reply, self.by, self.how = reply, by, how
        self.loop.call_soon_threadsafe(self.over.set)


class Breakpoints:
    """A capability that pauses turns where a person has set breakpoints: `agent.with_capability(it, band="guard")`.

    It is installed only in a process that is started with `--inspect`; elsewhere it costs nothing. A paused turn goes
    on as if it had not paused when no page has been open for `unwatched` seconds: all its own gates still hold. A
    cancel ends a pause at once. What people do is noted in the log with their names.
    """

    name = "breakpoints"

    def __init__(self, set_first: Iterable[Breakpoint] = (), *, unwatched: float = UNWATCHED) -> None:
        self.unwatched = unwatched
        self.version = 0
        self.sessions: set[str] = set()
        self.history: deque[Data] = deque(maxlen=REMEMBERED)
        self._set: tuple[Breakpoint, ...] = ()
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._paused: dict[int, Pause] = {}
        self._replies: dict[tuple[str, str, str], Reply] = {}
        self._injects: dict[tuple[str, str, str], str] = {}
        self._watchers = 0
        self._unwatched_since = time.monotonic()
        self.set(set_first)

    # ------------------------------------------------------------ what the inspector does, in its own thread

    def set(self, breakpoints: Iterable[Breakpoint]) -> None:
        """Take these breakpoints instead of those before. One that does not exist is a `ConfigError`."""
        given = tuple(dict.fromkeys(breakpoints))
        for one in given:
            if one.event not in POINTS:
                raise ConfigError(f"there is no event {one.event!r}; known: {', '.join(POINTS)}")
            if one.tool and not has_tool(POINTS[one.event]):
                raise ConfigError(f"{one.event} is not about a tool: leave {one.tool!r} out")
        self._set = given
        self.version += 1

    @property
    def all(self) -> tuple[Breakpoint, ...]:
        """The breakpoints."""
        return self._set

    @property
    def paused(self) -> list[Pause]:
        """The turns that wait, the oldest first."""
        with self._lock:
            return list(self._paused.values())

    def answer(self, number: int, reply: Reply, by: str) -> bool:
        """Let a paused turn go on. False if it does not wait any more."""
        with self._lock:
            pause = self._paused.pop(number, None)
        if pause is None:
            return False
        pause.answer(reply, by, "answered")
        return True

    def watch(self, by: int) -> None:
        """A page was opened (1) or closed (-1)."""
        with self._lock:
            self._watchers += by
            self._unwatched_since = time.monotonic()

    def release(self) -> None:
        """Let all turns go on: the inspector ends."""
        self._set = ()
        for pause in self.paused:
            if self._take(pause):
                pause.answer(Reply(), "", "the inspector was closed")

    def _take(self, pause: Pause) -> bool:
        with self._lock:
            return self._paused.pop(pause.number, None) is not None

    def _unwatched_for(self) -> float:
        with self._lock:
            return 0.0 if self._watchers else time.monotonic() - self._unwatched_since

    # ------------------------------------------------------------ hooks, on the event loop of the turn

    def install(self, registrar: Hooks) -> None:
        """Register the hooks of every event: one that pauses, and those that say what the person said."""
        for name, event in POINTS.items():
            options: Any = {"live": True} if event in (ModelReplying, TurnEnding) else {}
            base = f"breakpoint.{name}"
            if event.payload is not None:
                registrar.rewrite(event, name=f"{base}.edit", priority=LAST, **options)(self._pause_and_edit)
                registrar.gate(event, name=base, **options)(self._decide)
            else:
                registrar.gate(event, name=base, **options)(self._pause_and_decide)
            if event.injects is not None:
                registrar.inject(event, name=f"{base}.inject", priority=LAST)(self._inject)

    async def _pause_and_edit(self, event: Any, turn: Turn[Any]) -> Any:
        reply = await self._pause(event, turn)
        return None if reply is None else _edited(event, reply)

    async def _pause_and_decide(self, event: Any, turn: Turn[Any]) -> Any:
        await self._pause(event, turn)
        return self._decide(event)

    def _decide(self, event: Any) -> Any:
        """The verdict of the person, once: a gate that is asked again about something else says nothing."""
        reply = self._replies.pop(_key(event), None) if self._replies else None
        return _VERDICTS[reply.verdict](reply.reason) if reply is not None and reply.verdict else None

    def _inject(self, event: Any) -> Any:
        return self._injects.pop(_key(event), None) if self._injects else None

    async def _pause(self, event: Any, turn: Turn[Any]) -> Reply | None:
        if type(event) in (TurnStarting, SessionStarting, Resuming) and len(self.sessions) < 100_000:
            self.sessions.add(turn.session_id)
        key = _key(event)
        if self._replies or self._injects:
            self._replies.pop(key, None)
            self._injects.pop(key, None)
        if not self._set or not any(one.holds(event) for one in self._set) or _is_closing(event):
            return None
        self.sessions.add(turn.session_id)
        pause = Pause(next(self._numbers), event, turn)
        with self._lock:
            self._paused[pause.number] = pause
        self.version += 1
        host: Any = turn._host  # pyright: ignore[reportPrivateUsage]
        try:
            await host.journal.time.wait_outside(self._wait(pause, host))
        finally:
            self._take(pause)
            self._remember(pause, turn)
        reply, key = pause.reply, _key(event, pause.reply.text)
        if reply.verdict:
            self._replies[key] = reply
        if reply.inject:
            self._injects[key] = reply.inject
        return reply

    async def _wait(self, pause: Pause, host: Any) -> None:
        while not pause.over.is_set():
            try:
                async with asyncio.timeout(LOOKS):
                    await pause.over.wait()
            except TimeoutError:
                waited = min(self._unwatched_for(), time.time() - pause.began)
                if host.was_cancelled:
                    how = "the turn was cancelled"
                elif waited > self.unwatched:
                    how = f"no page was open for {self.unwatched:g} s"
                else:
                    continue
                if self._take(pause):
                    pause.how = how
                    return

    def _remember(self, pause: Pause, turn: Turn[Any]) -> None:
        reply = pause.reply
        done = {
            "by": pause.by,
            "event": type(pause.event).__name__,
            "did": reply.verdict or "went on",
            "how": pause.how or "the turn was cancelled",
            "edited": reply.arguments is not None or reply.text is not None,
            "injected": bool(reply.inject),
            "paused": round(time.time() - pause.began, 3),
        }
        self.history.appendleft({**done, "session": pause.session, "tool": pause.view["tool"], "at": time.time()})
        self.version += 1
        try:
            turn.note("breakpoint", done)
        except HookError:
            return  # the turn is over


def inspect_agent(agent: Agent[Any, Any], breakpoints: Breakpoints) -> None:
    """Let an agent that has not run yet pause at breakpoints. At the end of steps and turns its hooks may then take
    an hour, so that a person has time there, too."""
    agent.with_capability(breakpoints, band="guard")
    options = agent._options  # pyright: ignore[reportPrivateUsage]
    agent._options = replace(options, ending_timeout=max(options.ending_timeout, HOUR))  # pyright: ignore[reportPrivateUsage]


# ---------------------------------------------------------------- events


def has_tool(event: type[AnyEvent]) -> bool:
    """Whether an event is about a tool."""
    return event in (ToolCalling, ToolReturning, Delegating)


def _tool_of(event: Any) -> str:
    call = getattr(event, "call", None)
    if call is not None:
        return str(call.name)
    return str(event.agent) if type(event) is Delegating else ""


def _key(event: Any, text: str | None = None) -> tuple[str, str, str]:
    """What an answer is about; `text` is what it makes of the payload.

    The events of one session come one after the other, but for those of calls, of tasks, and of hooks that ask models.
    """
    match event:
        case Delegating(task=task):
            about = f"{task.agent}: {task.task if text is None else text}"
        case ModelCalling():
            about = event.side
        case _:
            call = getattr(event, "call", None)
            about = "" if call is None else call.id
    return event.turn.session_id, type(event).__name__, about


def _is_closing(event: Any) -> bool:
    """Whether an event comes only because the turn was cancelled: nobody may hold that up."""
    match event:
        case ToolReturning(result=result):
            return result.status in ("cancelled", "interrupted")
        case StepEnding(error=error):
            return isinstance(error, asyncio.CancelledError)
        case TurnEnding(outcome=outcome):
            return isinstance(outcome, Cancelled)
        case _:
            return False


def _edited(event: Any, reply: Reply) -> Any:
    """The payload as the person wrote it; None if it is not changed."""
    if reply.arguments is not None:
        return event.call.replace(arguments=reply.arguments)
    if reply.text is None:
        return None
    match event:
        case ModelCalling(request=request):
            return request.replace(system=reply.text)
        case SessionStarting(setup=setup):
            return setup.replace(system=reply.text)
        case _:
            return reply.text


def check_reply(pause: Pause, reply: Reply) -> None:
    """Raise a `ConfigError` or a `ToolError` if a reply does not fit its pause, before the turn sees it."""
    event = type(pause.event)
    if reply.verdict and reply.verdict not in verdicts_of(event):
        raise ConfigError(f"{event.__name__} takes {', '.join(verdicts_of(event))}, not {reply.verdict!r}")
    if reply.inject and event.injects is None:
        raise ConfigError(f"nothing can be added at {event.__name__}")
    if reply.arguments is not None and pause.view["edit"] != "arguments":
        raise ConfigError(f"{event.__name__} has no arguments")
    if reply.text is not None and pause.view["edit"] != "text":
        raise ConfigError(f"{event.__name__} has no text that could be changed")
    if reply.arguments is not None:
        host = pause.event.turn._host
        try:
            host.completed(pause.event.call.replace(arguments=reply.arguments))
        except ToolError as error:
            raise ToolError(f"the arguments do not fit: {error}") from None


def _shown(event: Any, turn: Turn[Any]) -> Data:
    """A paused event as the page shows it. A payload that is too long to show whole cannot be changed."""
    edit: Literal["", "arguments", "text"] = ""
    text: str | None = None
    arguments: Data | None = None
    match event:
        case ToolCalling(call=call):
            edit, arguments = "arguments", dict(call.arguments)
        case SessionStarting(setup=payload) | ModelCalling(request=payload):
            edit, text = "text", payload.system
        case TurnStarting(message=message) | MessageAdding(message=message):
            text = said(message)
            edit = "text" if text == message.text and message.role != "tool" else ""
        case ModelReplying(reply=reply):
            edit, text = "text", reply.text
        case ToolReturning(result=result):
            edit, text = "text", result.text
        case Delegating(task=task):
            edit, text = "text", task.task
        case Compacting(plan=plan):
            edit, text = "text", plan.instructions
        case TurnEnding():
            edit, text = "text", event.text
        case _:
            pass
    texts = {name: shown_json(value) for name, value in (arguments or {}).items()}
    whole = len(text or "") + sum([len(one or "") for one in texts.values()]) <= WHOLE and None not in texts.values()
    shown = {name: one or '"…"' for name, one in texts.items()}
    return {
        "event": type(event).__name__,
        "session": turn.session_id,
        "agent": cut_text(turn.agent, ROW),
        "step": turn.steps if type(event) is TurnEnding else turn.steps + 1,
        "tool": cut_text(_tool_of(event), ROW),
        "edit": edit if whole else "",
        "arguments": None if arguments is None else shown if whole else cut(shown, ROW),
        "text": None if text is None else shown_json(text[:WHOLE]),
        "whole": whole,
        "more": cut(_about(event), 4000),
        "verdicts": [{"name": name, "text": name in TAKES_TEXT} for name in verdicts_of(type(event))],
        "inject": type(event).injects is not None,
    }


def _about(event: Any) -> list[Data]:
    """What else a person should see of an event: names and texts."""
    match event:
        case SessionStarting(setup=setup):
            return [{"name": "tools", "text": ", ".join([tool.name for tool in setup.tools])}]
        case ModelCalling(request=request):
            last = [{"name": one.origin or one.role, "text": said(one)} for one in list(request.messages)[-8:]]
            return [{"name": "model", "text": request.model}, *last]
        case ModelReplying(reply=reply):
            calls = [{"name": "calls", "text": f"{call.name} {call.json}"} for call in reply.message.tool_calls]
            return [{"name": "finish", "text": str(reply.finish)}, *calls]
        case ToolReturning(call=call, result=result):
            return [{"name": "call", "text": f"{call.name} {call.json}"}, {"name": "status", "text": result.status}]
        case Compacting(plan=plan):
            words = f"messages {plan.range[0]} to {plan.range[1] - 1}, by {plan.by}"
            return [{"name": "replaces", "text": words}, {"name": "why", "text": plan.reason}]
        case StepEnding(step=step, error=error):
            calls = [{"name": "call", "text": f"{call.name} {call.json}"} for call in step.calls]
            failed = [] if error is None else [{"name": "error", "text": f"{type(error).__name__}: {error}"}]
            return [*failed, *calls]
        case Continuing(state=state):
            return [{"name": "steps", "text": str(event.turn.steps)}, {"name": "text", "text": state.text}]
        case TurnEnding(outcome=outcome):
            return [{"name": "outcome", "text": type(outcome).__name__.lower()}]
        case _:
            names = ("step", "reason", "stop_active", "agent", "drift", "error", "category", "attempt")
            found = [(name, getattr(event, name, None)) for name in names]
            return [{"name": name, "text": _words(value)} for name, value in found if value not in (None, "", ())]


def _words(value: Any) -> str:
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    found = plain(value)
    return found if isinstance(found, str) else str(found)
