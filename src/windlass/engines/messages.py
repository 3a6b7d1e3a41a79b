"""Messages that wait in an inbox for a turn of their own, and the results of these turns."""

from __future__ import annotations

from typing import Any, TypeVar

from windlass.agent import Agent, user_message
from windlass.errors import ConfigError
from windlass.ids import check_id, check_new_id
from windlass.messages import AnyMessage, Message
from windlass.protocols import Store, WakingStore
from windlass.records import Record
from windlass.results import Result
from windlass.states import fold_in_slices
from windlass.watching import LAST_PAUSE_WOKEN, Bell, listen

OutputT = TypeVar("OutputT")

_FIRST_PAUSE, _FIRST_PAUSE_WOKEN, _LAST_PAUSE = 0.02, 0.1, 0.5
"""How long to wait, in seconds, before looking again whether a turn is over: at first, at first if the store tells of
ends of turns, and at most if it does not."""


def checked_message(message: AnyMessage) -> Message:
    """A message of a user; raises `ConfigError` if it is not one."""
    return user_message(message)


async def check_session(store: Store, session: str) -> None:
    """Raise unless messages may be sent to a session of this id. With `//` in its name, it must exist."""
    check_id(session)
    if ("//" in session or "\0" in session) and not await store.read(session):
        check_new_id(session)


def inbox_key(key: Any) -> str:
    """The key of a message among the entries of an inbox."""
    if not isinstance(key, str) or not key:
        raise ConfigError(f"key={key!r} must be a text that identifies the message within its session")
    return f"turn/{key}"


async def latest_result(agent: Agent[Any, OutputT], session: str) -> Result[OutputT]:
    """The result of a session's latest turn, as it stands."""
    records = await agent.store.read(session)
    fold = await fold_in_slices(session, records)
    program = agent._compile()  # pyright: ignore[reportPrivateUsage]
    return Result(fold.state, agent._output, program.hooks.slots, None, records)  # pyright: ignore[reportPrivateUsage]


async def result_of(agent: Agent[Any, OutputT], session: str, key: str) -> Result[OutputT]:
    """Wait until the turn of a message has ended or waits for a person."""
    sessions, program, store = agent._sessions, agent._compile(), agent.store  # pyright: ignore[reportPrivateUsage]
    woken, bell, records = isinstance(store, WakingStore), Bell(), list[Record]()
    pause, longest = (_FIRST_PAUSE_WOKEN, LAST_PAUSE_WOKEN) if woken else (_FIRST_PAUSE, _LAST_PAUSE)
    leave = listen(store, session, bell, ends=True)
    try:
        while True:
            if since := await store.read(session, len(records)):
                records += since
                if (result := await sessions.steered_in(program, session, key, records)) is not None:
                    return result
            if not await bell.rings(pause):
                pause = min(2 * pause, longest)
    finally:
        leave()
