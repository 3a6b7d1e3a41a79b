"""Asks the gates of an agent about something that is in a log, and compares what they say with what was said then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

from windlass._hooks.compiled import Point
from windlass._kernel.handing_over import NOBODY_TO_ASK as NO_TASK_TO_ASK
from windlass._kernel.questions import NOBODY_TO_ASK
from windlass.decisions import Allow, Vote
from windlass.events import (
    Compacting,
    Delegating,
    ModelCalling,
    SessionStarting,
    StepStarting,
    ToolCalling,
    TurnStarting,
)
from windlass.records import ErrorHandled, HookDecided, Record, ToolDecided
from windlass.types import AnyEvent

from .findings import Difference, SessionReplay, Unjudged
from .plans import Plan
from .sites import RecordedSite
from .verdicts import Said, said, same

Answers: TypeAlias = Sequence[tuple[str, Any]]

NOT_KEPT = "its content was withheld and is not in the log"
NOT_SENT = "a wrap had changed it, and what it made was not sent and is not in the log"
SECRET = "it held a secret that the log does not have"

_BEFORE_STEPS = (SessionStarting, TurnStarting)
_OF_NEXT_STEP = (StepStarting, ModelCalling, Compacting)


class Judge:
    """The verdicts of one session, given again.

    `number` is that of the record at hand. `among_calls` says that a call of the step at hand is decided otherwise: its
    other calls are still judged.
    """

    def __init__(self, plan: Plan, site: RecordedSite, records: Sequence[Record]) -> None:
        self.plan = plan
        self.site = site
        self.fold = site.journal.fold
        self.number = 0
        self.among_calls = self._diverged = False
        self.decided: dict[tuple[str, str], HookDecided] = {}
        self.calls: dict[str, ToolDecided] = {}
        self.done: set[tuple[str, str]] = set()
        self._differences: list[Difference] = []
        self._unjudged: list[Unjudged] = []
        self._broken: set[str] = set()
        self._verdicts = self._reworded = 0
        for record in records:
            if type(record) is HookDecided:
                if not record.shadow:
                    self.decided.setdefault((record.event, place_of(record)), record)
            elif type(record) is ToolDecided:
                self.calls.setdefault(record.call, record)
            elif type(record) is ErrorHandled and record.error.hook:
                self._broken.add(record.error.hook)

    @property
    def found(self) -> SessionReplay:
        """What came of the session."""
        fold = self.fold
        agent = "" if fold.opened is None else fold.opened.agent
        differences, unjudged = tuple(self._differences), tuple(self._unjudged)
        counts = fold.turns, fold.steps, self._verdicts, self._reworded
        return SessionReplay(fold.session, agent, *counts, differences, unjudged)

    def is_over(self) -> bool:
        """Whether the agent decided otherwise: what follows in the log is not what would have followed."""
        return self._diverged

    # ------------------------------------------------------------ verdicts

    async def judge(self, event: type[AnyEvent], about: str, make: Callable[[], Any], lack: str = "") -> None:
        """The verdict of the gates on an event, once. `make` makes the event, `lack` says what is missing for it."""
        name = event.__name__
        point, recorded = self.plan.points.get(name), self.decided.get((name, about))
        if (point is None and recorded is None) or self.plan.only is not None or (name, about) in self.done:
            return
        self.done.add((name, about))
        if point is None:
            self.note(event, about, recorded, None, ())
        elif lack:
            self.lacks(event, about, point.asked[0].name if point.asked else name, lack)
        else:
            await self.ask(point, event, about, make())

    async def ask(self, point: Point, event: type[AnyEvent], about: str, given: Any) -> None:
        """Ask the gates of a point, and compare their verdict with the recorded one."""
        passage = self.site.passage(point, given, about)
        verdict = await passage.judge()
        if not self.take_lacks(event, about):
            self.note(event, about, self.decided.get((event.__name__, about)), verdict, passage.answers)

    def note(
        self,
        event: type[AnyEvent],
        about: str,
        recorded: HookDecided | ToolDecided | None,
        verdict: Any,
        answers: Answers,
        tool: str = "",
    ) -> bool:
        """Count a verdict. Whether it is the recorded one."""
        was, now = said(None if recorded is None else recorded.verdict), said(verdict)
        self._verdicts += 1
        nobody_to_ask = now.kind == "ask" and was.text.startswith((NOBODY_TO_ASK, NO_TASK_TO_ASK))
        if same(was, now) or nobody_to_ask or (recorded is None and self._failed_then(now, answers)):
            self._reworded += was.text != now.text
            return True
        by = _givers(() if recorded is None else recorded.answers, was), _givers(answers, now)
        words = str(was), f"{now} (on other terms)" if str(was) == str(now) else str(now)
        self.differs(event, about, words, by, tool=tool)
        return False

    def _failed_then(self, now: Said, answers: Answers) -> bool:
        """Whether hooks refuse only because they fail, and failed then, too: one that rewrites ends the turn."""
        return " failed on " in now.text and self._broken.issuperset(_givers(answers, now))

    def count(self) -> None:
        """Count a verdict that is compared elsewhere."""
        self._verdicts += 1

    def differs(
        self,
        event: type[AnyEvent],
        about: str,
        words: tuple[str, str],
        by: tuple[tuple[str, ...], tuple[str, ...]] = ((), ()),
        *,
        kind: Any = "verdict",
        tool: str = "",
    ) -> None:
        """Note a difference: what was decided and by whom, then and now."""
        fold = self.fold
        step = 0 if event in _BEFORE_STEPS else fold.steps + (fold.open is not None or event in _OF_NEXT_STEP)
        found = Difference(kind, event.__name__, about, *words, *by, tool, fold.turns, step, self.number)
        self._differences.append(found)
        if event in (ToolCalling, Delegating) and fold.open is not None:
            self.among_calls = True
        else:
            self._diverged = True

    # ------------------------------------------------------------ what cannot be judged

    def take_lacks(self, event: type[AnyEvent], about: str) -> bool:
        """Whether hooks wanted something that the log lacks. What they wrote counts from here on."""
        fold, site = self.fold, self.site
        if fold.pending:
            fold.stored += len(fold.pending)
            fold.pending = []
        if not site.lacks:
            return False
        for hook, why in dict.fromkeys(site.lacks):
            self.lacks(event, about, hook, why)
        site.lacks.clear()
        return True

    def lacks(self, event: type[AnyEvent], about: str, hook: str, why: str) -> None:
        """A verdict cannot be given."""
        self._unjudged.append(Unjudged(event.__name__, about, hook, why, self.number))

    def note_refused(self, record: HookDecided) -> None:
        """What hooks kept out is not in the log: the verdict on it cannot be given again."""
        key = record.event, place_of(record)
        loose = record.event in ("Delegating", "Compacting") or (
            record.event == "MessageAdding" and key[1] != record.about
        )
        refused = said(record.verdict).kind in ("deny", "halt")
        if record.event in ("ToolCalling", "ModelCalling") and "/attempt." in record.about:
            loose, refused = True, type(record.verdict) is not Allow  # a wrap had changed it, and it was not sent
        if loose and refused and key not in self.done and not self._stands(record):
            self.done.add(key)
            by = record.answers[0][0] if record.answers else record.event
            why = NOT_SENT if "/attempt." in record.about else NOT_KEPT
            self._unjudged.append(Unjudged(record.event, record.about, by, why, self.number))

    def _stands(self, record: HookDecided) -> bool:
        """Whether a recorded refusal holds whatever the hooks that are replayed say."""
        only = self.plan.only
        if only is None or record.event != "ToolCalling":
            return only is not None
        return any(name not in only and said(given).kind in ("deny", "halt") for name, given in record.answers)


def place_of(record: HookDecided) -> str:
    """What a verdict is about. Of a message that is not part of a step, without the digest of its words."""
    before, _, _ = record.about.rpartition("/")
    is_loose = record.event == "MessageAdding" and before.rpartition("/")[2].startswith("m")
    return before if is_loose else record.about


def vote_in_words(vote: Vote | None, reasons: Sequence[tuple[str, str]]) -> str:
    """A vote with its reasons."""
    why = "; ".join([f"{name}: {reason}" if reason else name for name, reason in reasons])
    name = "stop" if vote is None else vote.name.lower()
    return f"{name}: {why}" if why else name


def _givers(answers: Answers, verdict: Said) -> tuple[str, ...]:
    """The hooks that gave a verdict, among all that answered."""
    return tuple(sorted({name for name, decision in answers if said(decision).kind == verdict.kind}))
