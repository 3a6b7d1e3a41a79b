"""The commands of `chat` that begin with a slash."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from windlass._text import one_line, visible_id
from windlass.cli.view import spent
from windlass.records import TurnStarted
from windlass.sessions import new_id

if TYPE_CHECKING:
    from .conversation import Conversation

IDLE = ("fork", "rewind", "compact", "new", "open", "resume")
"""Commands that change the session: they wait until the turn is over."""
NEED_MESSAGES = ("fork", "rewind", "compact", "resume", "cost", "why")
"""Commands that need a session in which something has been said."""


async def run_command(chat: Conversation, text: str) -> None:
    """Run a command such as `/fork`. A mistake is said, and the conversation goes on."""
    word, _, rest = text[1:].partition(" ")
    word = word or "help"
    found = [name for name in COMMANDS if name == word] or [name for name in COMMANDS if word and name.startswith(word)]
    if len(found) != 1:
        chat.say(f"there is no command /{word}; /help lists all", "red")
    elif found[0] in IDLE and chat.works:
        chat.say(f"/{found[0]} waits until the turn is over; Ctrl-C cancels it", "red")
    elif found[0] in IDLE and chat.asks:
        chat.say(f"/{found[0]} waits until the question is answered; Ctrl-C leaves it open", "red")
    elif found[0] in NEED_MESSAGES and not await chat.has_begun():
        chat.say("nothing has been said in this session yet", "red")
    else:
        try:
            await COMMANDS[found[0]][0](chat, rest.strip())
        except Exception as error:
            chat.report(error)


async def _help(chat: Conversation, rest: str) -> None:
    for name, (_, text) in COMMANDS.items():
        chat.say(f"  /{name:<10} {text}")
    chat.say("  Enter sends, Esc Enter begins a new line. While the agent works, a text reaches it after its step.")


async def _sessions(chat: Conversation, rest: str) -> None:
    found = [info for info in await chat.turns.agent.store.find(search=rest, limit=50) if not info.parent]
    for info in found[:15]:
        mark = "*" if info.session == chat.turns.session else " "
        chat.say(f"{mark} {visible_id(info.session)}  {info.status:<9}  {one_line(info.title, 60)}")
    if not found:
        chat.say("no sessions yet")


async def _open(chat: Conversation, rest: str) -> None:
    if not rest:
        raise ValueError("/open needs the id of a session; /sessions lists them")
    await chat.turns.agent.state(rest)
    await _switch(chat, rest)


async def _new(chat: Conversation, rest: str) -> None:
    await _switch(chat, rest or new_id())


async def _switch(chat: Conversation, session: str) -> None:
    chat.turns = chat.turns._replace(session=session)
    chat.say(f"session {visible_id(session)}", "dim")
    await chat.pick_up()


async def _fork(chat: Conversation, rest: str) -> None:
    await _switch(chat, await chat.turns.agent.fork(chat.turns.session, to=rest or None))


async def _rewind(chat: Conversation, rest: str) -> None:
    """Go back before the last turns, in a fork: the session itself stays as it is."""
    back = int(rest or 1) if (rest.isascii() and rest.isdigit()) or not rest else 0
    records = await chat.turns.agent.store.read(chat.turns.session)
    starts = [at for at, record in enumerate(records) if isinstance(record, TurnStarted)]
    if not 0 < back <= len(starts):
        raise ValueError(f"/rewind takes a number of turns, from 1 to {len(starts)}")
    if back == len(starts):
        await _new(chat, "")
        return
    await _switch(chat, await chat.turns.agent.fork(chat.turns.session, at=starts[-back]))


async def _compact(chat: Conversation, rest: str) -> None:
    async def work() -> None:
        made = await chat.turns.agent.compact(chat.turns.session, instructions=rest)
        for one in made:
            chat.say(f"{one.by}: {one.before:,} → {one.after:,} tokens")
        if not made:
            chat.say("there was nothing to compact")

    chat.work("compacts", work())


async def _model(chat: Conversation, rest: str) -> None:
    if rest:
        chat.turns.agent.variant(model=rest)  # raises if there is no such model
        chat.model = rest
    chat.say(f"model: {chat.model or chat.turns.agent.model.name}")


async def _cost(chat: Conversation, rest: str) -> None:
    usage = (await chat.turns.agent.state(chat.turns.session)).usage
    cost = "" if usage.cost is not None else "; the price is not known"
    chat.say(f"this session: {usage.requests} requests, {spent(usage) or 'no tokens'}{cost}")


async def _why(chat: Conversation, rest: str) -> None:
    chat.say(str(await chat.turns.agent.why(chat.turns.session)))


async def _explain(chat: Conversation, rest: str) -> None:
    chat.say(str(chat.turns.agent.explain()))


async def _queue(chat: Conversation, rest: str) -> None:
    if not rest:
        raise ValueError("/queue needs a text, which is sent when the turn is over")
    chat.queue.append(rest)
    chat.send_queued()


async def _resume(chat: Conversation, rest: str) -> None:
    if (await chat.turns.agent.state(chat.turns.session)).over:
        chat.say("the last turn is over: there is nothing to resume")
    else:
        await chat.pick_up()


async def _exit(chat: Conversation, rest: str) -> None:
    chat.over = True


COMMANDS: dict[str, tuple[Callable[[Conversation, str], Awaitable[None]], str]] = {
    "help": (_help, "list the commands"),
    "sessions": (_sessions, "[TEXT]: list the latest sessions, or those with a text"),
    "open": (_open, "ID: continue another session"),
    "new": (_new, "[ID]: begin a new session"),
    "fork": (_fork, "[ID]: continue in a copy of this session"),
    "rewind": (_rewind, "[N]: go back before the last N turns, in a copy"),
    "compact": (_compact, "[INSTRUCTIONS]: shorten what the model sees of the conversation"),
    "model": (_model, "[NAME]: use another model from now on"),
    "queue": (_queue, "TEXT: send this when the turn is over"),
    "resume": (_resume, "go on with a turn that was interrupted, or ask its questions again"),
    "cost": (_cost, "what this session has spent"),
    "why": (_why, "why the last turn went as it did, and who decided what"),
    "explain": (_explain, "how the agent is put together: hooks, tools, limits"),
    "exit": (_exit, "leave; Ctrl-D does the same"),
}
