"""Steering: sends messages to a turn that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

from windlass.decisions import Veto
from windlass.events import Stopping
from windlass.messages import ModelCall, ModelReply, ModelRequest, ToolCall, ToolResult, Usage, assistant
from windlass.randomness import random_bytes
from windlass.slots import Slot
from windlass.turns import Turn
from windlass.types import CallModel, CallTool, RunTurn

from .option_types import check_types
from .options import require, require_name
from .suspending import once_it_waits

if TYPE_CHECKING:
    from windlass import Agent, Assembly, Hooks
    from windlass.storage import Storage

T = TypeVar("T")
Entry: TypeAlias = tuple[asyncio.AbstractEventLoop, asyncio.Timeout]
"""Where work runs, and the limit that breaks it off."""
INTERRUPTED = ModelReply(assistant("(interrupted by the user)"), Usage(requests=0))
BROKEN_OFF = ToolResult.of("The user interrupted this call.", status="interrupted")
BROKEN_OFF_UNSAFE = ToolResult.of("The user interrupted this call. Its outcome is unknown.", status="interrupted")


class Steering:
    """Send messages to a turn that runs, from any task or process: `await steering.interrupt(agent, "s1", "Stop.")`.

    - `steer`: the model reads the message after the step that is running; the same as `agent.steer`.
    - `interrupt`: the same, but the model call or the tools of that step are broken off first, if the turn runs in this
      process.
    - `follow_up`: the model reads the message when it is done, and the turn goes on; several are read one by one.
    - `collect`: the same, but all messages that were collected until then are read as one.

    Messages wait in the agent's store. If no turn is running, the next turn of the session reads them. A turn goes on
    for follow-ups at most `Agent(max_vetoes=…)` times; the others wait for the next turn.
    """

    @check_types
    def __init__(self, *, name: str = "steering") -> None:
        require_name("Steering", name)
        self.name = name
        self._running: dict[str, list[Entry]] = {}
        self._session: ContextVar[str] = ContextVar(f"windlass_{name}", default="")
        self._read: Slot[list[str]] = Slot(f"{name}.read", list[str])

    def install(self, registrar: Hooks) -> None:
        """Register the gate that lets follow-ups in, and the wraps that can be interrupted."""
        storage = registrar.storage(self.name)
        registrar.slot(self._read)
        known: list[Assembly] = []
        registrar.check(known.append)

        async def follow(event: Stopping, turn: Turn[Any]) -> Veto | None:
            return await self._follow(turn, storage, known[-1].bounds["max_vetoes"])

        def takes_time(call: ToolCall) -> bool:
            tool = known[-1].tools.get(call.name)
            return tool is None or tool.is_async or not tool.inline

        async def interruptible_tool(call: ToolCall, call_next: CallTool) -> ToolResult:
            tool = known[-1].tools.get(call.name)
            instead = BROKEN_OFF if tool is not None and tool.repeatable else BROKEN_OFF_UNSAFE
            return await self._interruptible(call.id.rsplit("/", 2)[0], call_next(call), instead)

        registrar.gate(Stopping, name=f"{self.name}.follow_up")(follow)
        registrar.wrap(Turn, name=f"{self.name}.turn")(self._note_session)
        registrar.wrap(ModelCall, name=f"{self.name}.model")(self._call_model)
        registrar.wrap(ToolCall, name=f"{self.name}.tool", tool=takes_time)(interruptible_tool)

    # ------------------------------------------------------------ sending

    async def steer(self, agent: Agent[Any, Any], session: str, text: str) -> None:
        """Let the model read a message after the step that is running."""
        _check_text(text)
        await agent.steer(session, text)

    async def interrupt(self, agent: Agent[Any, Any], session: str, text: str) -> bool:
        """Break off the step that is running, and let the model read a message. Whether something was broken off."""
        await self.steer(agent, session, text)
        running = tuple(self._running.get(session, ()))
        for loop, limit in running:
            loop.call_soon_threadsafe(_expire, limit)
        return bool(running)

    async def follow_up(self, agent: Agent[Any, Any], session: str, text: str) -> None:
        """Let the model read a message when it is done."""
        await self._queue(agent, session, text, "follow_up")

    async def collect(self, agent: Agent[Any, Any], session: str, text: str) -> None:
        """Let the model read a message when it is done, together with others."""
        await self._queue(agent, session, text, "collect")

    async def _queue(
        self, agent: Agent[Any, Any], session: str, text: str, mode: Literal["follow_up", "collect"]
    ) -> None:
        _check_text(text)
        storage = agent.storage(self.name)
        number = await storage.add("sent")  # the order in which they were sent, whoever sent them
        await storage.put(f"{_prefix(session)}{int(number):016d}-{random_bytes(4).hex()}", {"mode": mode, "text": text})

    # ------------------------------------------------------------ reading

    async def _follow(self, turn: Turn[Any], storage: Storage, most: int) -> Veto | None:
        """Let the turn go on with what waits. The slot has what was read, so that a crash does not repeat it."""
        waiting = await storage.items(_prefix(turn.session_id))
        if not waiting:
            return None
        read = turn.get(self._read)
        for key in [key for key in waiting if key in read]:
            await storage.delete(key)
            del waiting[key]
        keys = [key for key, entry in waiting.items() if entry["mode"] == "collect"] or list(waiting)[:1]
        state = turn.state.turn
        if not keys or state is None or state.vetoes >= most:
            return None
        turn.set(self._read, keys)
        return Veto("\n\n".join([waiting[key]["text"] for key in keys]))

    # ------------------------------------------------------------ interrupting

    async def _note_session(self, turn: Turn[Any], call_next: RunTurn) -> None:
        token = self._session.set(turn.session_id)
        try:
            await call_next(turn)
        finally:
            self._session.reset(token)

    async def _call_model(self, request: ModelRequest, call_next: CallModel) -> ModelReply:
        return await self._interruptible(self._session.get(), call_next(request), INTERRUPTED)

    async def _interruptible(self, session: str, work: Awaitable[T], instead: T) -> T:
        """The result of some work, or another one if it is interrupted."""
        running = _Running(self._running, session)
        try:
            return await once_it_waits(work, running)
        except TimeoutError:
            if not running.was_interrupted():
                raise
            return instead


class _Running:
    """Work that waits, and can be interrupted meanwhile."""

    __slots__ = ("_all", "_entry", "_session")

    def __init__(self, running: dict[str, list[Entry]], session: str) -> None:
        self._all = running
        self._session = session
        self._entry: Entry | None = None

    async def __aenter__(self) -> None:
        limit = asyncio.timeout(None)
        self._entry = (asyncio.get_running_loop(), limit)
        self._all.setdefault(self._session, []).append(self._entry)
        await limit.__aenter__()

    async def __aexit__(self, *raised: Any) -> None:
        assert self._entry is not None
        mine = self._all[self._session]
        mine.remove(self._entry)
        if not mine:
            self._all.pop(self._session, None)
        await self._entry[1].__aexit__(*raised)

    def was_interrupted(self) -> bool:
        return self._entry is not None and self._entry[1].expired()


def _check_text(text: object) -> None:
    require("Steering", "text", text, isinstance(text, str) and text != "", "a text")


def _prefix(session: str) -> str:
    return f"to {session}\n"


def _expire(limit: asyncio.Timeout) -> None:
    try:
        limit.reschedule(asyncio.get_running_loop().time())
    except RuntimeError:  # it has ended meanwhile
        pass
