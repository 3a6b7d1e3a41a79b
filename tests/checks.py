"""What several tests measure with: a clock that stands still, what a view of a stream shows, and the invariants that
hold after every turn."""

from __future__ import annotations

import asyncio
import gc
import sys
import warnings
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from windlass import (
    Agent,
    ModelReplied,
    ReplyRejected,
    Retracted,
    State,
    StepEnded,
    TextDelta,
    TurnEnded,
    TurnStarted,
    fold,
)
from windlass.records import Concluded, Rewound, decode, encode
from windlass.testing import FakeClock, unpaired


class FrozenClock(FakeClock):
    """A clock on which no time passes unless somebody sleeps."""

    def __init__(self, at: float = 1_000.0) -> None:
        super().__init__(at, auto=True)


async def check_log(agent: Agent, session: str, state: State | None = None) -> State:
    """The log folds to the state, also once it was written down and read again, no call lacks its result, and every
    record has a time that is not before that of the record before it."""
    log = await agent.store.read(session)
    times = [0.0, *[record.at for record in log]]
    assert all(times[1:])
    assert times == sorted(times)
    folded = fold(session, log)
    assert fold(session, [decode(encode(record)) for record in log]) == folded
    assert unpaired(folded.messages) == []
    if state is not None:
        assert state.pending == ()
        assert state == folded
    return folded


async def only_this_task() -> bool:
    """Whether nothing else runs; what has been told to end may do so first."""
    for _ in range(20):
        if len(asyncio.all_tasks()) == 1:
            return True
        await asyncio.sleep(0)
    return len(asyncio.all_tasks()) == 1


async def until(holds: Callable[[], Any]) -> None:
    """Let others run until something holds; threads, too, for which it takes a while."""
    for turn in range(20_000):
        if holds():
            return
        await asyncio.sleep(0 if turn < 10_000 else 0.002)
    raise AssertionError("it never came to hold")


async def out_of_time_once(begun: asyncio.Event, work: Awaitable[Any]) -> Any:
    """What the work gives, with a time limit that expires as soon as something has begun."""
    async with asyncio.timeout(None) as limit:
        waiting = asyncio.ensure_future(begun.wait())
        waiting.add_done_callback(lambda _: limit.reschedule(0))
        return await work


def visible(events: Iterable[Any]) -> str:
    """The answer as a view shows it that has seen these events of a stream.

    It shows the text of one reply: that of the latest step which has one. Text deltas of one step, round and attempt
    are pieces of one reply; another round or attempt begins anew. What is retracted, rejected or rewound is gone. A
    reply without text shows nothing. Round 0 is what a hook said in place of all replies. Of the words in facts it
    looks at two only: a step's messages, if the guard's door changed them, and an answer that was emptied at the end.
    """
    texts: dict[int, str] = {}
    replies: dict[int, tuple[int, int]] = {}
    instead: str | None = None
    for event in events:
        match event:
            case TurnStarted():
                texts, replies, instead = {}, {}, None
            case TextDelta(round=0, text=text):
                instead = (instead or "") + text
            case TextDelta(step=step, round=round_, attempt=attempt, text=text):
                said = texts.get(step, "") if replies.get(step) == (round_, attempt) else ""
                texts[step], replies[step] = said + text, (round_, attempt)
            case ModelReplied(step=step):
                texts.setdefault(step, "")
            case Retracted(step=step) | ReplyRejected(step=step):
                texts.pop(step, None)
                replies.pop(step, None)
            case StepEnded(step=step, messages=tuple(messages)):
                replies.pop(step, None)
                texts[step] = "".join([message.text for message in messages if message.role == "assistant"])
            case Rewound(to=to):
                texts = {step: text for step, text in texts.items() if step < to}
            case Concluded(text="") | TurnEnded(text=""):
                instead = ""
            case _:
                pass
    return instead if instead is not None else texts[max(texts)] if texts else ""


def numbers(events: Iterable[Any]) -> list[int]:
    """The numbers of the events of a stream."""
    return [event.seq for event in events]


def freeze_garbage() -> None:
    """Collect what earlier tests have left, then let the collector ignore all objects that exist now.

    A collection then looks only at newer objects. Looking at everything that the suite has loaded takes a second.
    """
    gc.collect()
    gc.freeze()


@contextmanager
def nothing_unraised(*, collect: bool = True) -> Iterator[list[str]]:
    """Fails if something goes wrong where nobody can catch it: in a finaliser, a callback, a task that was dropped.

    What others have left is not collected meanwhile.
    """
    if collect:
        freeze_garbage()
    wrong: list[str] = []
    loop = asyncio.get_running_loop()
    hook, handler = sys.unraisablehook, loop.get_exception_handler()
    sys.unraisablehook = lambda args: wrong.append(f"unraisable: {args.exc_value!r} in {args.object!r}")
    loop.set_exception_handler(lambda _, context: wrong.append(f"loop: {context}"))
    gc.disable()
    try:
        with warnings.catch_warnings(record=True, action="always") as caught:
            yield wrong
            if collect:
                gc.collect()
    finally:
        gc.enable()
        sys.unraisablehook = hook
        loop.set_exception_handler(handler)
    wrong += [str(warning.message) for warning in caught]
    assert wrong == []
