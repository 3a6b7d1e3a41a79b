"""One run of middlewares at one point: the state that they see, and what their updates change."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage, message_to_dict
from langgraph.errors import GraphBubbleUp
from langgraph.runtime import Runtime
from langgraph.types import Command
from msgspec.structs import replace

from windlass.errors import HookError
from windlass.messages import ModelReply
from windlass.slots import Slot
from windlass.turns import Turn

from .checking import jumps_of, method_of
from .fields import Fields
from .own_model import in_thread, working
from .runtimes import runtime_in
from .transcripts import Entry, Pieces, Transcript, View, added, reply_with_ids

SESSIONS = 256
"""The maximum number of sessions whose converted messages are kept."""

RESTARTS = 100
"""How often `before_model` may jump to "model" in one step."""


class Memory:
    """What the middlewares of one agent share: their fields, the slots of the view, and converted messages."""

    def __init__(self, name: str, fields: Fields, store: Any) -> None:
        self.fields = fields
        self.store = store
        self._pieces: Slot[Pieces] = Slot(f"{name}.messages", Pieces, input=False, output=False, merge=_newer)
        self._step: Slot[View] = Slot(f"{name}.view", View, input=False, output=False, merge=_newer)
        self.slots: tuple[Slot[Any], ...] = (self._pieces, self._step, *fields.slots)
        self._converted: OrderedDict[str, list[Entry]] = OrderedDict()

    def view(self, turn: Turn[Any]) -> View:
        """What middlewares show of the messages, and what they said in the latest step."""
        shown = turn.get(self._pieces)
        return replace(turn.get(self._step), pieces=shown.pieces, upto=shown.upto)

    def keep(self, turn: Turn[Any], view: View, was: View) -> None:
        """Set what has changed. Messages are recorded only if they have: they may be long."""
        shown, before = Pieces(view.pieces, view.upto), Pieces(was.pieces, was.upto)
        if shown != before:
            turn.set(self._pieces, shown)
        view, was = replace(view, pieces=[], upto=0), replace(was, pieces=[], upto=0)
        if view != was:
            turn.set(self._step, view)

    def transcript(self, turn: Turn[Any], reply: ModelReply | None = None) -> Transcript:
        """The messages of the session, and the reply of a step that is not in it yet."""
        known = self._converted.get(turn.session_id, ())
        made = Transcript.of(turn.context, known)
        self._converted[turn.session_id] = made.entries
        self._converted.move_to_end(turn.session_id)
        if len(self._converted) > SESSIONS:
            self._converted.popitem(last=False)
        last = turn.state.turn.last if turn.state.turn is not None else None
        if last is not None:
            made = made.with_step(f"{turn.session_id}/{last.number}", last)
        if reply is not None:
            step = f"{turn.session_id}/{turn.state.steps + 1}"
            made = made.with_reply(reply_with_ids(reply, step), reply)
        return made

    def runtime(self, turn: Turn[Any]) -> Runtime[Any]:
        """What LangGraph gives to a node."""
        return runtime_in(turn, self.store)

    def release(self, turn: Turn[Any]) -> None:
        """The turn is over."""
        self.fields.release(turn.session_id)


def _newer(old: Any, new: Any) -> Any:
    return new


class Run:
    """One run of middlewares. `reply` is that of a step whose messages are not in the session yet."""

    def __init__(self, memory: Memory, turn: Turn[Any], reply: ModelReply | None = None) -> None:
        self.memory = memory
        self.turn = turn
        self.view = memory.view(turn)
        self.was = self.view
        self.transcript = memory.transcript(turn, reply)
        self.messages: list[BaseMessage] = self.transcript.seen(self.view)
        self.values = memory.fields.values(turn)
        self.update: dict[str, Any] = {}
        self.jump: str | None = None
        self.by = ""
        self.moved = False
        self._called = False
        self._place = str(turn.state.steps)

    @classmethod
    def in_step(cls, memory: Memory, turn: Turn[Any]) -> Run:
        """A run while the calls of a step are at work: the reply that asked for them is the last message."""
        step = turn.state.open
        return cls(memory, turn, step.reply if step is not None else None)

    @property
    def state(self) -> dict[str, Any]:
        """The state as a middleware sees it."""
        return {"messages": list(self.messages), **self.values}

    async def call(self, middleware: Any, hook: str, *, jumps: bool = False) -> None:
        """Call a method of a middleware and apply what it returns. With `jumps` it may jump without declaring it."""
        name = f"{middleware.name}.{hook}"
        method, is_async = method_of(middleware, hook)
        runtime = self.memory.runtime(self.turn)
        given = self.state, runtime
        with working(self.turn, asyncio.get_running_loop(), name, runtime):
            try:
                result = await (method(*given) if is_async else in_thread(method, *given))
            except Exception as error:
                raise failed(name, error) from error
        self.memory.fields.forget_ephemeral(self.turn.session_id)
        self._called = True
        self.apply(name, result)
        if self.jump is not None and not jumps and self.jump not in jumps_of(middleware, hook):
            self.jump = None  # as in LangGraph, which has no such edge
        if self.jump is not None:
            self.by = name

    def apply(self, name: str, result: Any) -> None:
        """Apply an update: a dict, or a `Command` with one."""
        if isinstance(result, Command):
            result = update_of(name, result)
        if result is None:
            return
        if not isinstance(result, dict):
            raise HookError(f"{name} returned {type(result).__name__}; it may return a dict or None", hook=name)
        rest = dict(result)
        self.jump = rest.pop("jump_to", None)
        if self.jump not in (None, "end", "model", "tools"):
            raise HookError(f"{name} jumped to {self.jump!r}; it may jump to 'end', 'model' or 'tools'", hook=name)
        if (messages := rest.pop("messages", None)) is not None:
            try:
                self.messages = added(self.messages, messages, self._place)
            except (ValueError, TypeError, NotImplementedError) as error:
                raise failed(name, error) from error
            self.moved = True
        rest.pop("structured_response", None)
        self.values = self.memory.fields.merged(self.values, rest)
        self.update.update(rest)

    def keep(self, *, whole: bool = True, awaits_results: bool = False) -> None:
        """Set the slots that were changed. A message that was changed in place counts like one that was returned."""
        if self.update:
            self.memory.fields.write(self.turn, self.values, self.update, whole=whole)
        if self.moved or (self._called and not self.transcript.shows(self.was, self.messages)):
            self.view = self.transcript.changed(self.view, self.messages, awaits_results=awaits_results)
        self.memory.keep(self.turn, self.view, self.was)

    def take_results(self, calls: Sequence[str]) -> dict[str, dict[str, Any]]:
        """Take the results that middlewares answered for calls out of the messages."""
        found: dict[str, dict[str, Any]] = {}
        rest: list[BaseMessage] = []
        for message in self.messages:
            if isinstance(message, ToolMessage) and message.tool_call_id in calls:
                found[message.tool_call_id] = message_to_dict(message)
            else:
                rest.append(message)
        if found:
            self.messages, self.moved = rest, True
        return found

    def last_reply(self) -> AIMessage | None:
        """The last message of the model."""
        return next((one for one in reversed(self.messages) if isinstance(one, AIMessage)), None)

    def last_text(self) -> str | None:
        """The text of the last message of the model, if a middleware wrote it."""
        known = {one.id for entry in self.transcript.entries for one in entry.shown}
        for message in reversed(self.messages):
            if isinstance(message, AIMessage):
                return None if message.id in known else str(message.text)
        return None

    def begin_turn(self) -> bool:
        """Whether the middlewares have not seen this turn yet."""
        if self.view.turn == self.turn.turn_ref:
            return False
        self.view = replace(self.view, turn=self.turn.turn_ref, results={}, jump="", text=None, tools=False)
        return True


def update_of(name: str, command: Command[Any]) -> Any:
    """The update of a command; what only a graph can do is refused."""
    for field in ("goto", "resume", "graph"):
        if getattr(command, field):
            raise HookError(f"{name} returned Command({field}=…), which only a graph can follow", hook=name)
    update = command.update
    if update is None or isinstance(update, dict):
        return update
    if isinstance(update, list | tuple):
        return dict(update)
    raise HookError(f"{name} returned a Command whose update is a {type(update).__name__}, not a dict", hook=name)


def failed(name: str, error: BaseException) -> HookError:
    """The error of a middleware, with its name."""
    if isinstance(error, HookError):
        return error
    if isinstance(error, GraphBubbleUp) or "__pregel_scratchpad" in str(error):
        return HookError(f"{name} calls interrupt(), which only LangGraph can resume; answer Ask in a gate", hook=name)
    return HookError(f"{name} failed: {type(error).__name__}: {error}", hook=name)
