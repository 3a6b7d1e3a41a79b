"""Asks the gates of an agent about something that is in a log, and compares what they say with what was said then."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from windlass._hooks.compiled import Point
from windlass._kernel.handing_over import NOBODY_TO_ASK as NO_TASK_TO_ASK
from windlass._kernel.questions import NOBODY_TO_ASK, Questions, Settled, after_answer, asks_of
from windlass._kernel.step import has_begun
from windlass.context.replay import Description
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
from windlass.records import ErrorHandled, HookDecided, Record, Resumed, ToolDecided
from windlass.states import pipeline_of_turn
from windlass.types import AnyEvent

from .findings import Difference, SessionReplay, Unjudged
from .plans import Plan
from .sites import RecordedSite
from .verdicts import Said, said, same

Answers: TypeAlias = Sequence[tuple[str, Any]]

NOT_KEPT = "its content was withheld and is not in the log"
NOT_SENT = "a wrap had changed it, and what it made was not sent and is not in the log"
SECRET = "it held a secret that the log does not have"

_UNKNOWN = Description([])
_ASKED_ANEW = ("Resuming", "ToolReturning")
"""The events on which gates are asked in every pass as if it were the first."""

_BEFORE_STEPS = (SessionStarting, TurnStarting)
_OF_NEXT_STEP = (StepStarting, ModelCalling, Compacting)


class Given(NamedTuple):
    """What was said of a stage: the verdict, and all answers."""

    verdict: Any = None
    answers: Answers = ()


SILENT = Given()


class Judge:
    """The verdicts of one session, given again.

    `number` is that of the record at hand, `passes` counts how often a turn was resumed so far. `among_calls` says that
    a call of the step at hand is decided otherwise: its other calls are still judged.
    """

    def __init__(
        self, plan: Plan, site: RecordedSite, records: Sequence[Record], known: Mapping[str, Description]
    ) -> None:
        self.plan = plan
        self._known = known
        self.site = site
        self.fold = site.journal.fold
        self.questions = Questions(site.journal, resumed=True)
        self.number = self.passes = self._first_pass = 0
        self.among_calls = self._diverged = False
        self.calls: dict[str, tuple[int, ToolDecided]] = {}
        self.done: set[tuple[str, str]] = set()
        self.given: dict[tuple[str, str], Given] = {}
        self._decided: dict[tuple[str, str], list[tuple[int, HookDecided]]] = {}
        self._differences: list[Difference] = []
        self._unjudged: list[Unjudged] = []
        self._broken: set[str] = set()
        self._verdicts = self._reworded = passes = 0
        for record in records:
            if type(record) is HookDecided:
                if not record.shadow:
                    self._decided.setdefault((record.event, place_of(record)), []).append((passes, record))
            elif type(record) is ToolDecided:
                self.calls.setdefault(record.call, (passes, record))
            elif type(record) is ErrorHandled and record.error.hook:
                self._broken.add(record.error.hook)
            elif type(record) is Resumed:
                passes += 1
        self._resumed = passes > 0

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

    # ------------------------------------------------------------ the agent that wrote the log

    @property
    def unmatched(self) -> str:
        """What the log's agent did with calls that no gate spoke of."""
        return self._known.get(pipeline_of_turn(self.fold), _UNKNOWN).unmatched

    def serves(self, tool: str) -> bool:
        """Whether the agent has a tool. One that the log's agent did not have of its own makes no difference."""
        if self.plan.serves(tool):
            return True
        prompt, turn = self._known.get(pipeline_of_turn(self.fold), _UNKNOWN).prompt, self.fold.turn
        of_turn = () if turn is None or turn.options is None else turn.options.tools
        return prompt is None or tool in of_turn or all(spec.name != tool for spec in prompt.tools)

    # ------------------------------------------------------------ what the log has

    @property
    def has_verdicts(self) -> bool:
        """Whether gates have spoken in this session of anything but a call."""
        return bool(self._decided)

    def recorded(self, event: str, about: str) -> HookDecided | None:
        """The verdict of the log on a stage that holds in the pass at hand: of that pass, or of an earlier one."""
        return self._of_pass(event, about) or self._of_earlier_pass(event, about)

    def asked_at(self, event: str, about: str) -> Settled:
        """The gates that asked a person about something, whatever they asked."""
        given = self.given.get((event, about), SILENT)
        return tuple([(name, None) for name, _ in asks_of(tuple(given.answers))])

    def _of_pass(self, event: str, about: str) -> HookDecided | None:
        found = self._decided.get((event, about), ())
        return next((record for number, record in found if number == self.passes), None)

    def _of_earlier_pass(self, event: str, about: str) -> HookDecided | None:
        if event in _ASKED_ANEW:
            return None
        passes = range(self._first_pass, self.passes)
        found = [record for number, record in self._decided.get((event, about), ()) if number in passes]
        return found[-1] if found else None

    def resume(self, *, superseded: bool = False) -> None:
        """The turn goes on in another pass: gates are asked again about everything that it has not done. One that is
        `superseded` only ends: what was said before does not count."""
        self.passes += 1
        self._first_pass = self.passes if superseded else 0
        fold, turn, step = self.fold, self.fold.turn, self.fold.open
        if turn is None:
            return
        session, number = fold.session, fold.steps + 1
        again = {("Resuming", f"{session}/t{turn.number}/resume")}
        if not turn.admitted:
            again |= {("TurnStarting", f"{session}/t{turn.number}")}
            again |= {("MessageAdding", f"{session}/t{turn.number}/message")}
        if turn.concluded is not None:
            again |= {("TurnEnding", f"{session}/t{turn.number}/end")}
        again |= {("Stopping", f"{session}/{fold.steps}/stop"), ("SubagentStopping", f"{session}/{fold.steps}/stop")}
        if step is None and not has_begun(fold):
            again |= {("StepStarting", f"{session}/{number}/start")}
        if step is None or step.reply is None:
            round_ = 1 if step is None else step.round
            again |= {("ModelCalling", about_request(session, number, round_))}
            again |= {key for key in self.done if key[0] == "Compacting"}
        else:
            again |= {("MessageAdding", f"{session}/{number}/{role}") for role in ("assistant", "tool")}
        if step is not None and step.reply is not None and not any(call.decided for call in step.calls.values()):
            again |= {("ModelReplying", about_reply(session, number, step.round))}
        self.done -= again

    # ------------------------------------------------------------ verdicts

    async def judge(
        self, event: type[AnyEvent], about: str, make: Callable[[], Any], lack: str = "", settled: Settled = ()
    ) -> None:
        """The verdict of the gates on an event, once in each pass that asks. `make` makes the event, `lack` says what
        is missing for it. `settled` are gates whose question was answered with the very words that are judged."""
        name = event.__name__
        point, key = self.plan.points.get(name), (name, about)
        if (point is None and key not in self._decided) or self.plan.only is not None or key in self.done:
            return
        if point is None and self.recorded(name, about) is None:
            return
        self.done.add(key)
        if point is None:
            self._note_without_gates(event, about)
        elif lack:
            self.lacks(event, about, point.asked[0].name if point.asked else name, lack)
        else:
            await self.ask(point, event, about, make(), settled)

    def _note_without_gates(self, event: type[AnyEvent], about: str) -> None:
        """The agent has no gates on an event."""
        self.note(event, about, self.holds(event, about), SILENT)

    def holds(self, event: type[AnyEvent], about: str) -> Given:
        """What holds in the pass at hand according to the log: what was said in it, or before, once people answered."""
        recorded = self._of_pass(event.__name__, about)
        if recorded is not None:
            return Given(recorded.verdict, recorded.answers)
        before = self._of_earlier_pass(event.__name__, about)
        if before is None:
            return SILENT
        return self._answered(event, about, Given(before.verdict, before.answers))

    def _answered(self, event: type[AnyEvent], about: str, given: Given) -> Given:
        """What is left of a verdict once a person has answered its question."""
        answered = self.questions.answer_to(about)
        if answered is None:
            return given
        return Given(after_answer(event, tuple(given.answers), answered), given.answers)

    async def ask(self, point: Point, event: type[AnyEvent], about: str, given: Any, settled: Settled = ()) -> None:
        """Ask the gates of a point, and compare their verdict with the recorded one."""
        key = event.__name__, about
        before = self.given.get(key) if key[0] not in _ASKED_ANEW and self._first_pass < self.passes else None
        if before is None and (earlier := self._of_earlier_pass(*key)) is not None:
            before = await self._ask_first(point, event, about, given, earlier)
            if before is None:
                return
        passage = self.site.passage(point, given, about)
        if before is not None and before.answers:
            now = await self._ask_again(passage, event, about, before)
        elif settled:
            judged = await self.questions.judge_again(passage, None, settled)
            now = Given(judged.verdict, judged.new)
        else:
            now = Given(await passage.judge(), passage.answers)
        if not self.take_lacks(event, about):
            self.note(event, about, self.holds(event, about), now)

    async def _ask_first(
        self, point: Point, event: type[AnyEvent], about: str, given: Any, earlier: HookDecided
    ) -> Given | None:
        """What gates would have said in an earlier pass, whose records do not show what it was about. None if that
        differs, or cannot be told."""
        passage = self.site.passage(point, given, about)
        now = Given(await passage.judge(), passage.answers)
        if self.take_lacks(event, about) or not self.note(event, about, Given(earlier.verdict, earlier.answers), now):
            return None
        return self.given[event.__name__, about]

    async def _ask_again(self, passage: Any, event: type[AnyEvent], about: str, before: Given) -> Given:
        """The strictest of what was said before, once a person has answered that, and what gates say now."""
        held = self._answered(event, about, before)
        settled = () if held is before else asks_of(tuple(before.answers))
        judged = await self.questions.judge_again(passage, held.verdict, settled, self.questions.asked_again(about))
        return Given(judged.verdict, (*before.answers, *judged.new))

    def note(self, event: type[AnyEvent], about: str, recorded: Given, given: Given, tool: str = "") -> bool:
        """Count a verdict. Whether it is the recorded one."""
        was, now = said(recorded.verdict), said(given.verdict)
        self._verdicts += 1
        nobody_to_ask = now.kind == "ask" and was.text.startswith((NOBODY_TO_ASK, NO_TASK_TO_ASK))
        failed, failed_then = self.site.failed, False
        if failed:
            failed_then, self.site.failed = recorded.verdict is None and self._failed_then(given), {}
        if same(was, now) or nobody_to_ask or failed_then:
            self._reworded += was.text != now.text
            if self._resumed:
                self.given[event.__name__, about] = Given(recorded.verdict, given.answers) if nobody_to_ask else given
            return True
        by = _givers(recorded.answers, was), _givers(given.answers, now)
        if errors := [(name, failed[name]) for name in by[1] if name in failed]:
            alone = len(by[1]) == 1
            told = [f"failed: {error}" if alone else f"{name} failed: {error}" for name, error in errors]
            now = now._replace(text="; ".join(told))
        words = str(was), f"{now} (on other terms)" if str(was) == str(now) else str(now)
        self.differs(event, about, words, by, tool=tool)
        return False

    def _failed_then(self, given: Given) -> bool:
        """Whether hooks refuse only because they fail, and failed then, too: one that rewrites ends the turn."""
        givers = _givers(given.answers, said(given.verdict))
        return bool(givers) and self.site.failed.keys() >= set(givers) and self._broken.issuperset(givers)

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
        arguments = self._arguments_of(about) if event is ToolCalling and kind != "arguments" else ""
        found = Difference(kind, event.__name__, about, *words, *by, tool, fold.turns, step, self.number, arguments)
        self._differences.append(found)
        if event in (ToolCalling, Delegating) and fold.open is not None:
            self.among_calls = True
        else:
            self._diverged = True

    def _arguments_of(self, about: str) -> str:
        step = self.fold.open
        state = None if step is None else step.calls.get(about.partition("/attempt.")[0])
        return "" if state is None else state.call.json

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


def about_request(session: str, step: int, round_: int) -> str:
    """The id of the request of a step, with the round if there was more than one."""
    return f"{session}/{step}/request" + (f".{round_}" if round_ > 1 else "")


def about_reply(session: str, step: int, round_: int) -> str:
    """The id of the reply of a step, with the round if there was more than one."""
    return f"{session}/{step}/reply" + (f".{round_}" if round_ > 1 else "")


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
