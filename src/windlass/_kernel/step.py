"""One step: StepStarting, the request, the reply, and the calls it asks for.

An open step goes on where it stood.
"""

from __future__ import annotations

from typing import Any

import msgspec

from windlass._hooks.dispatch import Passage
from windlass.decisions import Halt
from windlass.errors import ToolError
from windlass.events import ModelReplying, StepStarted, StepStarting
from windlass.messages import ModelReply, ToolCallPart
from windlass.outcomes import Stopped, StopReason
from windlass.states import Fold, StepFold, step_id
from windlass.tools import Tool

from .cancellation import Cancellation
from .contracts import ToolExecutor
from .inbox import Inbox
from .injections import Injections
from .questions import Questions
from .replies import Replies
from .site import Site
from .step_end import StepEnd
from .transcript import Transcript
from .votes import cut_off


class Runner:
    """Runs a step, or goes on with an open one."""

    __slots__ = (
        "_attends", "_begins", "_cancellation", "_executor", "_inbox", "_injections", "_journal", "_program",
        "_questions", "_replies", "_reviewed", "_site", "_starting", "_step_end", "_transcript", "_voice",
    )  # fmt: skip

    def __init__(
        self,
        site: Site,
        replies: Replies,
        executor: ToolExecutor,
        inbox: Inbox,
        questions: Questions,
        injections: Injections,
        step_end: StepEnd,
        cancellation: Cancellation,
    ) -> None:
        journal, hooks = site.journal, site.hooks
        self._program = site.program
        self._journal = journal
        self._site = site
        self._replies = replies
        self._executor = executor
        self._inbox = inbox
        self._questions = questions
        self._injections = injections
        self._transcript: Transcript = injections.transcript
        self._step_end = step_end
        self._cancellation = cancellation
        self._voice = journal.audience.voice
        self._attends = journal.audience.attends
        self._reviewed = hooks.at(ModelReplying) is not None
        handlers = "before_step" in self._program.handlers
        self._starting = hooks.at(StepStarting)
        self._begins = handlers or self._starting is not None or journal.audience.hears(StepStarted)

    async def run(self, fold: Fold) -> StepFold:
        """Take the step to its end: a reply that stands, then its calls; or to where the turn waits
        or is over."""
        journal, number = self._journal, fold.steps + 1
        if journal.has_mail:
            await self._inbox.take()
        self._step_end.current_step = number
        if self._begins and fold.open is None and not (self._questions.resumed and has_begun(fold)):
            await self._begin(number)
        while fold.going:
            step = fold.open
            if step is None or step.reply is None:
                await self._replies.get(fold, number)
                if self._attends and journal.audience.has_work():
                    await journal.audience.flush()
            elif not self._replies.awaits_verdict or await self._replies.judge(step):
                if self._may_execute(fold, step):
                    await self._executor.execute(fold)
                break
        return fold.open or StepFold(number)

    async def _begin(self, number: int) -> None:
        """StepStarting, and the handlers of this phase."""
        journal, site, point = self._journal, self._site, self._starting
        journal.fact(StepStarted, number)
        if self._program.handlers:
            await self._transcript.run_handlers("before_step")
        if point is None or not journal.fold.going:
            return
        about = f"{journal.fold.session}/{number}"
        passage = Passage(point, StepStarting(number, site.turn), site, about + "/start")
        if point.changing:
            await passage.rewrite()
        if point.decides or self._questions.resumed:
            verdict = await self._questions.decide(passage)
            if isinstance(verdict, Halt):
                journal.conclude(Stopped(StopReason.HALTED, verdict.reason), verdict.reply)
                return
        for item in await passage.inject(about) if point.injects else ():
            await self._injections.take_in(item)

    def _may_execute(self, fold: Fold, step: StepFold) -> bool:
        """The reply stands: whether its calls are made."""
        if self._reviewed:
            self._step_end.accepted_step = step.number
        if self._voice is not None:
            self._voice.confirm()
        if not step.calls or not fold.going or (reply := step.reply) is None:
            return False
        if (task := self._cancellation.task) is not None and task.cancelling():
            self._cancellation.check()  # a hook may have swallowed it
        return reply.finish != "length" or not self._is_cut_off(reply)

    def _is_cut_off(self, reply: ModelReply) -> bool:
        """Whether a call in the reply was cut off at the limit of tokens: then none runs, and the
        turn stops."""
        for call in reply.tool_calls:
            if not _is_readable(call, self._program.tools.get(call.name)):
                detail = f"the call of {call.name!r} {cut_off(self._program.settings)}"
                self._journal.conclude(Stopped(StopReason.LENGTH, detail))
                return True
        return False


def has_begun(fold: Fold) -> bool:
    """Whether the log shows that the next step had begun when the process died."""
    about = step_id(fold.session, fold.steps + 1)
    injected = fold.turn.injected if fold.turn is not None else ()
    return any(item.about == about and item.event == "StepStarting" for item in injected)


def _is_readable(call: ToolCallPart, tool: Tool[..., Any] | None) -> bool:
    """Whether the arguments of a call are whole; where no tool is known by its name, whether they
    are JSON."""
    try:
        if tool is None:
            msgspec.json.decode(call.json)
        else:
            tool.complete(call.json)
    except (ToolError, msgspec.MsgspecError, ValueError):
        return False
    return True
