"""Memory: what was remembered is read when a turn starts, and what is new is kept when it ends."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from windlass.errors import ToolError
from windlass.events import SessionStarting, TurnEnding, TurnStarting
from windlass.outcomes import Completed
from windlass.protocols import Model
from windlass.tools import Tool, tool
from windlass.turns import Turn

from .memos import Memo, MemoBackend, StoredMemos
from .option_types import check_types
from .options import require, require_count, require_name

if TYPE_CHECKING:
    from windlass import Assembly, Hooks

HEADING = "What you remember from before. It may be out of date:"
LEARN = (
    "Below is one exchange between a user and an assistant. List what is worth remembering for later conversations: "
    "lasting facts about the user and their work, decisions, preferences. Write each as one short sentence that can be "
    "understood alone. Leave out what is only about this exchange, guesses, secrets, and what is already remembered. "
    "Reply with a JSON list of texts, often an empty one."
)
SHARE = 0.8
"""The part of `ending_timeout` that learning may take, so that the end of the turn is never late because of it."""

Learned: TypeAlias = str | Sequence[str] | None
Learn: TypeAlias = Callable[[TurnEnding], Learned | Awaitable[Learned]]


class Memory:
    """Let an agent remember across sessions: memos are shown to it when a turn starts, and new ones kept at its end.

    Memos are kept in the agent's store, or in a `backend` such as `MemoryFiles`, under a `key`: a text, or a function
    of the turn, such as `lambda turn: turn.scope["user"]`; by default the id of the session. A key of None remembers
    nothing. The newest memos are shown, at most `most` of them and `reserve` tokens: with `shown="turn"` beside each
    user message, with `shown="session"` in the system text, as they are when the session begins.

    `learn` says what a completed turn teaches: a function of the `TurnEnding` event, async or not, that returns texts,
    or a model that is asked for them. If it fails, a note `memory.failed` says so and the turn ends as it would. With
    `tools`, the model gets `remember` and `forget`. A text of more than `longest` characters is refused.
    `heading` is the line before the memos. If memos cannot be read, the turn fails; with `optional` it goes on without.
    """

    @check_types
    def __init__(
        self,
        backend: MemoBackend | None = None,
        *,
        key: str | Callable[[Turn[Any]], str | None] | None = None,
        learn: Learn | Model | str | None = None,
        tools: bool = False,
        shown: Literal["turn", "session"] = "turn",
        most: int = 50,
        reserve: int = 1500,
        longest: int = 1000,
        optional: bool = False,
        heading: str = HEADING,
        name: str = "memory",
    ) -> None:
        require_name("Memory", name)
        for option, count in (("most", most), ("reserve", reserve), ("longest", longest)):
            require_count("Memory", option, count)
        require("Memory", "shown", shown, shown in ("turn", "session"), "'turn' or 'session'")
        legal = learn is None or isinstance(learn, str) or callable(learn) or hasattr(learn, "reply")
        require("Memory", "learn", learn, legal, "a function of the event, or a model")
        self.name, self.heading = name, heading
        self.backend, self.key, self.learn = backend, key, learn
        self.tools, self.shown, self.optional = tools, shown, optional
        self.most, self.reserve, self.longest = most, reserve, longest

    def install(self, registrar: Hooks) -> None:
        """Register the injection, and the hook and tools that write."""
        _Installed(self, registrar)

    def summary(self) -> str:
        """The options, for `explain`."""
        place = "the store" if self.backend is None else repr(self.backend)
        learns = "" if self.learn is None else ", learns at the end of a turn"
        tools = ", remember and forget" if self.tools else ""
        return f"in {place}, shown for each {self.shown}, at most {self.reserve} tokens{learns}{tools}"


class _Installed:
    """The memory of one agent."""

    def __init__(self, memory: Memory, registrar: Hooks) -> None:
        self.memory = memory
        self.mask = registrar.mask
        self.backend = memory.backend or StoredMemos(registrar.storage(memory.name))
        self.known: list[Assembly] = []
        registrar.check(self.known.append)
        registrar.check(self._check)
        event: Any = TurnStarting if memory.shown == "turn" else SessionStarting
        registrar.inject(event, name=f"{memory.name}.recall", optional=memory.optional)(self.recall)
        learn: Any = memory.learn
        self.model = registrar.model(learn) if isinstance(learn, str) or hasattr(learn, "reply") else None
        if learn is not None:
            registrar.gate(TurnEnding, name=f"{memory.name}.learn", live=True)(self.keep)
        for made in self._tools() if memory.tools else ():
            registrar.tool(made)

    def _check(self, assembly: Assembly) -> str | None:
        there = assembly.bounds["injection_reserve"]
        if self.memory.reserve <= there:
            return None
        return f"reserve={self.memory.reserve} is more than injection_reserve={there}"

    def _key(self, turn: Turn[Any]) -> str | None:
        key = self.memory.key
        return turn.session_id if key is None else key(turn) if callable(key) else key

    # ------------------------------------------------------------ reading

    async def recall(self, event: TurnStarting | SessionStarting, turn: Turn[Any]) -> str | None:
        """The newest memos that fit, in the order in which they were made."""
        memory, key = self.memory, self._key(turn)
        memos = [] if not key else await self.backend.read(key, memory.most)
        room, shown = min(memory.reserve, turn.reserve), ""
        chosen: list[Memo] = []
        for memo in memos:
            text = self._render([memo, *chosen])
            if turn.tokens(text) <= room:
                chosen, shown = [memo, *chosen], text
        if len(chosen) < len(memos):
            turn.note("memory.left_out", {"count": len(memos) - len(chosen), "reserve": room})
        return shown or None

    def _render(self, memos: Sequence[Memo]) -> str:
        lines = [f"- [{one.id}] {one.text}" if self.memory.tools else f"- {one.text}" for one in memos]
        return "\n".join([self.memory.heading, *[line.replace("\n", "\n  ") for line in lines]])

    # ------------------------------------------------------------ writing

    async def keep(self, event: TurnEnding, turn: Turn[Any]) -> None:
        """Keep what a completed turn teaches. It never changes how the turn ends."""
        key = self._key(turn) if isinstance(event.outcome, Completed) else None
        if not key:
            return
        try:
            async with turn.timeout(self.known[-1].bounds["ending_timeout"] * SHARE):
                for number, text in enumerate(await self._learned(event, turn, key)):
                    await self._add(key, text, f"{turn.turn_ref} {number}", turn)
        except Exception as error:
            turn.note("memory.failed", {"error": type(error).__name__, "text": str(self.mask(str(error)))[:500]})

    async def _learned(self, event: TurnEnding, turn: Turn[Any], key: str) -> list[str]:
        learn: Any = self.memory.learn
        if self.model is not None:
            before = [one for one in await self.backend.read(key, self.memory.most) if one.at < _started_at(turn)]
            known = "\n".join([f"- {memo.text}" for memo in before]) or "(nothing)"
            said = f"User:\n{turn.user_message.text}\n\nAssistant:\n{event.text}"
            text = f"Already remembered:\n{known}\n\n{said}"
            return await turn.ask(self.model, text, system=LEARN, output=list[str])
        found = learn(event)
        found = await found if inspect.isawaitable(found) else found
        texts = [found] if isinstance(found, str) else [] if found is None else found
        if not isinstance(texts, Iterable) or isinstance(texts, (Mapping, bytes)):
            raise TypeError(f"learn returned {found!r:.80}: return a text, a list of texts or None")
        texts = list(texts)
        if not all(isinstance(text, str) for text in texts):
            raise TypeError(f"learn returned {found!r:.80}: return a text, a list of texts or None")
        return texts

    async def _add(self, key: str, text: str, origin: str, turn: Turn[Any]) -> None:
        text = str(self.mask(text)).strip()
        if not text or len(text) > self.memory.longest:
            raise ToolError(f"a memo has 1 to {self.memory.longest} characters; this one has {len(text)}")
        await self.backend.add(key, Memo.of(text, origin, _started_at(turn)))

    # ------------------------------------------------------------ the tools

    def _tools(self) -> list[Tool[..., Any]]:
        @tool(effect="idempotent")
        async def remember(text: str, turn: Turn[Any], idempotency_key: str) -> str:
            """Remember something for later conversations, such as a lasting fact about the user.

            Args:
                text: one short sentence that can be understood alone
            """
            await self._add(self._require_key(turn), text, idempotency_key, turn)
            return "It is remembered."  # the same if the call is made again after a crash

        @tool(effect="idempotent")
        async def forget(id: str, turn: Turn[Any]) -> str:
            """Forget something that is wrong or out of date.

            Args:
                id: the id in brackets before the text
            """
            await self.backend.remove(self._require_key(turn), id.strip("[] "))
            return f"Nothing with the id {id!r} is remembered any more."

        return [remember, forget]

    def _require_key(self, turn: Turn[Any]) -> str:
        if not (key := self._key(turn)):
            raise ToolError("nothing can be remembered here")
        return key


def _started_at(turn: Turn[Any]) -> float:
    """When the turn began: the same if it is resumed, so what it keeps is the same, too."""
    started = turn.state.turn
    return turn.now() if started is None else started.started_at
