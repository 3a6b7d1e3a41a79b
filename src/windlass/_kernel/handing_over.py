"""What every way to hand a task to a child agent has in common: its key, its judges, its result."""

from __future__ import annotations

from typing import Any

from windlass._hooks.compiled import Point
from windlass._hooks.dispatch import Passage
from windlass.decisions import Ask, Deny, Halt
from windlass.errors import DelegationRefused, HookError
from windlass.events import Delegating
from windlass.messages import Delegation, ToolResult, digest, text_result
from windlass.outcomes import Cancelled, Completed, Failed, Stopped, StopReason
from windlass.records import Asked, Delegated, HookDecided, Injected
from windlass.states import State
from windlass.turns import Asker, Invocation, Turn

from .delegation import Delegate
from .injections import Injections
from .program import Program
from .questions import WAITING, Questions
from .site import Site

NOBODY_TO_ASK = (
    "A person cannot be asked here about a task for an agent. Delegate it, not in the background, in a tool that is "
    "pure or idempotent, in a wrap of a model or tool call, or in a gate on an event that can ask."
)


def key_of(site: Site, asker: Asker, run: Invocation, agent: str, task: str) -> str:
    """What identifies a child: who started it at which event, about what, with which task, and its
    number among equal ones. The order in which children end changes nothing."""
    place = site.place_of(asker.about)
    if asker.tool is not None and (tried := _tried(site, asker.about)):
        place += f"/attempt.{tried + 1}"
    counted = f"{asker.event}:{place}:{asker.by}:{agent}:{digest(task)}"
    run.counts[counted] = number = run.counts.get(counted, 0) + 1
    return f"{counted}#{number}"


def _tried(site: Site, call: str) -> int:
    """How many attempts at a call did not stand: the next is another run of its tool."""
    step = site.journal.fold.open
    return 0 if step is None or call not in step.calls else len(step.calls[call].attempts)


def session_of(parent: str, key: str) -> str:
    """The session of a child that a hook or tool has started."""
    return f"{parent}//{_short(key)}"


def question_of(session: str, key: str) -> str:
    """The id of the question whether a child may be started: it names the event of its starter."""
    return f"{session}/{key.partition(':')[0]}.{_short(key)}"


def is_about_task(session: str, asked: Asked) -> bool:
    """Whether a question of this session is about a task that a hook or tool delegates."""
    return (
        asked.event == "Delegating"
        and asked.call is None
        and asked.id.rpartition("/")[0] == session
    )


def _short(key: str) -> str:
    from hashlib import blake2b

    return blake2b(key.encode(), digest_size=6).hexdigest()


def check_nesting(program: Program, asker: Asker, agent: str) -> None:
    """Raise if an agent cannot be started here."""
    if program.max_depth < 1:
        raise not_started(agent, "agents are nested too deep (max_depth)")
    if getattr(asker.chain[-1], "shadow", False):
        raise refused(asker, f"shadow gate {asker.by!r} cannot delegate: it only looks on")


def refused(asker: Asker, text: str) -> HookError:
    """The error for a task that is not handed over."""
    return HookError(text, hook="" if isinstance(asker.chain[-1], str) else asker.by)


def not_started(agent: str, reason: str) -> DelegationRefused:
    """The error for a task whose agent does not begin."""
    return DelegationRefused(
        f"agent {agent!r} was not started: {reason}", agent=agent, reason=reason
    )


async def judge_task(
    site: Site,
    injections: Injections,
    questions: Questions | None,
    tool: Delegate,
    asker: Asker,
    key: str,
    task: str,
) -> Delegation | None:
    """What is handed over, if the hooks on `Delegating` let it; None if a person must answer first.
    Without `questions` nobody can be asked."""
    given = tool.delegation(task)
    passage = _passage(site, asker, key, given)
    if passage is None:
        return given
    rewritten: Delegation = (await passage.rewrite()).task
    if questions is None:
        verdict = await _judge_unasked(site, passage)
    else:
        verdict = await questions.decide(passage, lambda: digest(repr(rewritten)))
    if verdict is WAITING:
        return None
    if isinstance(verdict, Halt):
        site.journal.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
    if isinstance(verdict, Halt | Deny):
        raise not_started(tool.agent, verdict.reason)
    await injections.inject_for_task(passage, f"{key}/t1")
    return rewritten


async def inject_again(
    site: Site, injections: Injections, tool: Delegate, asker: Asker, started: Delegated
) -> None:
    """On resume: hooks whose parts for a child are not in the log are asked once more."""
    given = tool.delegation(started.task).replace(tools=started.tools)
    passage = _passage(site, asker, started.key, given)
    if passage is not None:
        await injections.inject_for_child(passage, f"{started.key}/t1")


def _passage(site: Site, asker: Asker, key: str, given: Delegation) -> Passage | None:
    """The event of a task that a hook or tool gives; None if nobody listens. A hook does not meet its own."""
    hooks = [
        hook
        for hook in site.hooks.all
        if hook.event is Delegating and not any(hook is link for link in asker.chain)
    ]
    if not hooks:
        return None
    turn: Turn[Any] = Turn(site, asker=asker)
    about = question_of(site.session, key)
    return Passage(Point(Delegating, hooks), Delegating(given, turn), site, about)


async def _judge_unasked(site: Site, passage: Passage) -> Any:
    """The verdict on a task where no person can be asked: an `Ask` is a `Deny` that says so."""
    verdict = await passage.judge()
    if isinstance(verdict, Ask):
        verdict = Deny(f"{NOBODY_TO_ASK} The question was: {verdict.question}")
    if passage.answers:
        about, answers, took = passage.about, passage.answers, passage.took
        site.journal.record(HookDecided("Delegating", about, verdict, answers, took=took))
    return verdict


def injected_for(site: Site, started: Delegated, session: str) -> tuple[Injected, ...]:
    """What was injected for a child when its task was judged, as parts of its turn."""
    turn = site.journal.visible.turn
    items = (*(turn.injected if turn is not None else ()), *site.injected.unlogged)
    return tuple([item.replace(about=f"{session}/t1") for item in items if is_for(item, started)])


def is_for(item: Injected, started: Delegated) -> bool:
    """Whether something was injected for this child."""
    place = f"{started.key or started.call}/t1"
    return item.event == "Delegating" and item.about == place and bool(item.parts)


def result_of(agent: str, state: State) -> ToolResult:
    """What the parent's model reads of a child's turn."""
    match state.outcome:
        case Completed():
            return text_result(state.text)
        case Stopped(
            reason=StopReason.RETRY_LIMIT as reason
        ):  # whose detail is the text of an error
            return error_result(agent, f"was stopped ({reason.value})")
        case Stopped(reason=reason, detail=detail):
            return error_result(agent, f"was stopped ({reason.value}): {detail}")
        case Failed(error=error):
            return error_result(
                agent, f"failed: {error.type}" + (f" in {error.hook!r}" if error.hook else "")
            )
        case Cancelled(reason=why):
            return error_result(agent, f"was cancelled: {why}" if why else "was cancelled")
        case _:
            return error_result(agent, "is suspended without an open question and cannot continue")


def error_result(agent: str, what: str) -> ToolResult:
    """What the parent's model reads of a child that did not complete its task."""
    return text_result(f"Error: agent {agent!r} {what}", "error")
