"""One event passing through its hooks: rewrite, then gate, then inject."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from time import monotonic as real_time
from typing import Any, Protocol

from msgspec import Struct
from msgspec.structs import replace

from windlass.checking import checked_decision, checked_parts
from windlass.decisions import (
    Again,
    Allow,
    Answer,
    Ask,
    Decision,
    Deny,
    Finish,
    Halt,
    Ignore,
    Says,
    Vote,
)
from windlass.errors import (
    BadReply,
    HookError,
    HookTimeout,
    IllegalAnswer,
    InjectionOverflow,
    ToolError,
    text_of,
)
from windlass.events import Continuing, ModelCalling
from windlass.messages import FrozenDict, ToolCall
from windlass.outcomes import error_value
from windlass.records import HookDecided, HookFailed, Injected, Record, Rewritten
from windlass.turns import Asker, HookTurn, Host, Turn, Writes, askers, check_not_broken_off

from .compiled import Point
from .hooks import Hook, legal_answers
from .merging import Answers, rank_of, strictest
from .payloads import changes, coerced

BLOCKED_AFTER = 0.05
"""A plain function that holds the loop for longer than this is named."""


class Site(Host, Protocol):
    """Where an event happens: what dispatching needs of the pass."""

    @property
    def turn(self) -> Turn[Any]: ...
    @property
    def reserve(self) -> int: ...
    def record(self, record: Record, /) -> None: ...
    @property
    def monotonic(self) -> Callable[[], float]: ...
    def keep(self, writes: Writes, stage: str = "") -> None: ...
    def beside(self, coroutine: Any) -> None: ...
    def tell_time(
        self, hook: Hook, began: float, about: str, verdict: str, inside: float = 0.0
    ) -> None: ...
    def tokens(self, parts: Any) -> int: ...
    def injected_tokens(self) -> int: ...

    injecting: tuple[list[tuple[Hook, Any, float]], ...]

    def completed(self, call: ToolCall) -> ToolCall: ...
    def has_injected(self, item: Injected, beside: Sequence[Injected]) -> bool: ...
    async def in_thread(self, fn: Callable[[], Any]) -> Any: ...


async def call(
    hook: Hook, event: Any, site: Site, about: str = "", *, may_write: bool = True
) -> Any:
    """What a hook answers.

    Plain functions run inline and are watched; threads and time-outs only where asked for.
    """
    turn: HookTurn[Any] | None = None
    try:
        if hook.plain:
            if hook.is_async:
                return await hook.fn(_given(hook, event))
            answer = call_inline(hook, event, site, site.monotonic())
            return await answer if answer is not None and inspect.isawaitable(answer) else answer
        given, chain = _given(hook, event), askers(event.turn)
        if hook.wants:
            turn = HookTurn(site, hook, about, chain, may_write)
        if hook.guards_models and hook.view is None:
            asker = Asker(hook.event.__name__, about, hook.name, (*chain, hook))
            given = replace(event, turn=Turn(site, asker=asker))
        began, verdict = site.monotonic() if hook.timed else 0.0, "failed"
        try:
            run = partial(hook.fn, given, **supplied(hook, site, turn))
            if hook.timeout is not None or hook.thread:
                answer = await _bounded(hook, run, site)
            elif hook.is_async:
                answer = await run()
            else:
                since = real_time()
                answer = run()
                if (held := real_time() - since) > BLOCKED_AFTER:
                    _blocked(hook, held, site)
                if answer is not None and inspect.isawaitable(answer):
                    answer = await answer
            if hook.timed:
                verdict = _verdict_in_words(hook, answer)
        except HookTimeout:
            verdict = "timeout"
            raise
        finally:
            if hook.timed:
                site.tell_time(hook, began, about, verdict)
            if turn is not None:
                check_not_broken_off(turn)
    except asyncio.CancelledError as error:
        if cancelled():
            raise
        raise unasked(hook) from error
    if turn is not None and (writes := turn.end_run()) is not None:
        site.keep(writes, stage_of(hook.event.__name__, about))
    return answer


def _verdict_in_words(hook: Hook, answer: Any) -> str:
    """What a hook answered, for `HookRan`; empty if it was silent."""
    if hook.kind == "gate" and type(answer) is tuple and answer:  # a vote and its reason
        answer = answer[0]
    if isinstance(answer, Says) and answer.decision is not None:
        answer = answer.decision
    if isinstance(answer, Vote):
        return answer.name.lower()
    if isinstance(answer, Decision):
        return type(answer).__name__.lower()
    if answer is None or hook.kind == "gate":
        return ""
    inject = hook.kind == "inject" or (isinstance(answer, Says) and answer.rewrite is None)
    return "inject" if inject else "rewrite"


def call_inline(hook: Hook, event: Any, site: Site, began: float) -> Any:
    """What a plain function answers that only takes the event: mostly nothing that has to be
    awaited."""
    since = began if site.monotonic is real_time else real_time()
    answer = hook.fn(event if hook.view is None else _given(hook, event))
    if (held := real_time() - since) > BLOCKED_AFTER:
        _blocked(hook, held, site)
    return answer


def _given(hook: Hook, event: Any) -> Any:
    """What a hook is shown of an event."""
    return event if hook.view is None else hook.view(getattr(event, event.payload))


def stage_of(event: str, about: str) -> str:
    """What the log calls an event with what it is about."""
    return f"{event}:{about}"


def unasked(hook: Hook) -> HookError:
    """The error of a hook that raised a CancelledError although nobody cancelled the turn."""
    text = f"{hook.kind} {hook.name!r} raised CancelledError, but nobody cancelled the turn"
    return HookError(text, hook=hook.name, event=hook.event.__name__)


def supplied(hook: Hook, site: Site, turn: HookTurn[Any] | None) -> dict[str, Any]:
    """The parameters a hook asked for by name (`turn`) or by type (slots)."""
    if not hook.wants_slots:
        return {} if turn is None else {"turn": turn}
    return {
        name: turn if source == "turn" else site.slot(source).load(site.state.slots)
        for name, source in hook.wants
    }


async def _bounded(hook: Hook, run: Callable[[], Any], site: Site) -> Any:
    if hook.timeout is None:
        return await _run(hook, run, site)
    limit = asyncio.timeout(hook.timeout)
    try:
        async with limit:
            answer = await _run(hook, run, site)
    except TimeoutError as error:
        if not limit.expired():
            raise
        raise _late(hook) from error
    if (
        limit.expired()
    ):  # it swallowed the cancellation: what it answers after its time does not count
        raise _late(hook)
    return answer


def _late(hook: Hook) -> HookTimeout:
    text = f"{hook.kind} {hook.name!r} took longer than {hook.timeout} s"
    return HookTimeout(text, hook=hook.name, event=hook.event.__name__)


async def _run(hook: Hook, run: Callable[[], Any], site: Site) -> Any:
    if hook.thread and not hook.is_async:
        return await site.in_thread(run)
    since = real_time()
    answer = run()
    if not hook.is_async and (held := real_time() - since) > BLOCKED_AFTER:
        _blocked(hook, held, site)
    return await answer if inspect.isawaitable(answer) else answer


def _blocked(hook: Hook, seconds: float, site: Site) -> None:
    blocked = f"{hook.kind} {hook.name!r} blocked the event loop for {seconds * 1000:.0f} ms"
    error = HookError(f"{blocked}; make it async or add thread=True", hook=hook.name)
    effect, took = "blocked the loop", round(seconds, 6)
    site.record(HookFailed(hook.name, hook.event.__name__, error_value(error), effect, took=took))


def failing(hook: Hook, point: Point, error: Exception) -> HookError:
    """The error of a hook that failed, in its name; one that names another hook came from
    elsewhere."""
    if isinstance(error, HookError) and error.hook == hook.name:
        return error
    text = f"{hook.kind} {hook.name!r} failed on {point.name}: {type(error).__name__}: {text_of(error)}"
    return HookError(text, hook=hook.name, event=point.name)


def failed_hook(error: HookError) -> str:
    """What a model may read of a hook that failed: not its error, which may quote what it was to
    withhold."""
    where = f" on {error.event}" if error.event else ""
    return f"hook {error.hook!r} failed{where}; the log has the details"


class Passage(Struct, gc=False):
    """One event on its way through one point. `about` is the id of what the event is about.

    `took` is how many seconds those who spoke of it needed, but for rewrites: they have records of
    their own. `reasons` are those of votes, each with the name of its hook.
    """

    point: Point
    event: Any
    site: Site
    about: str
    answers: tuple[tuple[str, Any], ...] = ()
    said: tuple[tuple[Hook, Says, Any], ...] = ()
    heard: bool = False
    took: float = 0.0
    reasons: tuple[tuple[str, str], ...] = ()

    def begin_with(self, answers: Answers) -> None:
        """Start from answers that the log has, or that count instead of those given."""
        self.answers = tuple(answers)

    def show(self, **payload: Any) -> None:
        """Show another payload to the hooks from here on."""
        self.event = replace(self.event, **payload)

    # ------------------------------------------------------------ rewrite

    async def rewrite(self) -> Any:
        """The event with its final payload. A hook that fails fails the action."""
        self.heard = True
        point, event, site = self.point, self.event, self.site
        monotonic, view, alike = site.monotonic, point.view, point.alike
        given = event if view is None else view(getattr(event, event.payload))
        for hook in point.changing:
            fn, began = hook.fn, monotonic()
            try:
                if alike:
                    answer = await fn(given)
                elif hook.matches is not None and not hook.matches(self.event):
                    continue
                elif hook.inline:
                    answer = call_inline(hook, self.event, site, began)
                    if answer is not None and inspect.isawaitable(answer):
                        answer = await answer
                else:
                    answer = await call(hook, self.event, site, self.about)
            except asyncio.CancelledError as error:
                if cancelled():
                    raise
                raise unasked(hook) from error
            except Exception as error:
                self.took = round(monotonic() - began, 6)
                raise failing(hook, point, error) from error
            if answer is not None:
                self._answered(hook, answer, monotonic() - began)
                alike = False  # the next hooks see another payload
        return self.event

    def _answered(self, hook: Hook, answer: Any, took: float) -> None:
        if hook.kind == "hook":
            self._say(hook, answer, took)
        else:
            self._change(hook, answer, took)

    def _say(self, hook: Hook, answer: Any, took: float) -> None:
        answer = self._answer(hook, answer)
        says = answer if isinstance(answer, Says) else Says(decision=answer)
        if says.rewrite is not None:
            self._change(hook, says.rewrite, took)
        self._count(took)
        if says.decision is not None:
            says = replace(says, decision=self._accepted(hook, says.decision))
        if says.inject is not None and self.point.event.injects is None:
            raise IllegalAnswer(
                f"hook {hook.name!r} injects on {self.point.name}, where nothing can be added",
                hook=hook.name,
                event=self.point.name,
            )
        self.said = (*self.said, (hook, says, self._payload()))

    def _count(self, took: float) -> None:
        self.took = round(self.took + took, 6)

    def _change(self, hook: Hook, answer: Any, took: float) -> None:
        name = self.point.event.payload
        if name is None:
            raise illegal(hook, self.point, answer)
        if hook.kind != "hook":
            answer = self._answer(hook, answer)
        old = getattr(self.event, name)
        new = coerced(self.point.event, hook, old, answer)
        if type(new) is ToolCall:
            new = self._completed(hook, new)
        fields = changes(old, new)
        if fields:
            self.event = replace(self.event, **{name: new})
            values, took = FrozenDict(fields), round(took, 6)
            self.site.record(Rewritten(self.point.name, hook.name, self.about, values, took))

    def _completed(self, hook: Hook, call: ToolCall) -> ToolCall:
        """A rewritten call as the next hooks see it.

        Arguments that do not fit the tool are the error of the hook.
        """
        try:
            return self.site.completed(call)
        except ToolError as error:
            text = f"{hook.kind} {hook.name!r} ({hook.source}) changed the arguments, and they do not fit: {error}"
            raise IllegalAnswer(text, hook=hook.name, event=self.point.name) from error

    def _answer(self, hook: Hook, answer: Any) -> Any:
        """What a method of a lifecycle answered, as an answer to the event."""
        if hook.answer is None:
            return answer
        try:
            return hook.answer(self.event, answer)
        except (TypeError, ValueError) as error:
            text = f"{hook.kind} {hook.name!r} ({hook.source}) returned an invalid answer: {error}"
            raise IllegalAnswer(text, hook=hook.name, event=self.point.name) from error

    def _payload(self) -> Any:
        name = self.point.event.payload
        return None if name is None else getattr(self.event, name)

    # ------------------------------------------------------------ gate

    async def judge(self, only: Callable[[Hook], bool] | None = None) -> Any:
        """The verdict: the strictest of all answers, or None if no gate answered. All gates are
        asked.

        `only` picks gates. A gate that fails answers closed. Costly gates are only asked if no
        other gate refused.
        """
        point, event, site, costly = self.point, self.event, self.site, self.point.costly
        monotonic = site.monotonic
        is_real, since = monotonic is real_time, real_time()
        asked = point.asked if not point.says else self._with_says()
        for hook in asked if only is None else filter(only, asked):
            if costly and hook.costly and self._refused(costly):
                break
            began = since if is_real else monotonic()  # `since` is when the hook before it ended
            try:
                if not hook.direct and hook.matches is not None and not hook.matches(event):
                    answer = None
                elif hook.inline:
                    answer = hook.fn(event if hook.direct else _given(hook, event))
                    now = real_time()
                    if now - since > BLOCKED_AFTER:
                        _blocked(hook, now - since, site)
                    since = now
                    if answer is None:
                        continue
                    if not isinstance(answer, Decision) and inspect.isawaitable(answer):
                        answer = await answer
                else:
                    answer = await call(hook, event, site, self.about)
                if answer is not None:
                    answer = self._decision(hook, answer)
            except asyncio.CancelledError:
                if cancelled():
                    raise
                answer = self._failed(hook, unasked(hook), monotonic() - began)
            except Exception as error:
                answer = self._failed(hook, error, monotonic() - began)
            if answer is not None:
                self._count(monotonic() - began)
                self.answers = (*self.answers, (hook.name, answer))
            since = real_time()
        for hook in point.shadows:
            site.beside(self._shadow(hook))
        return strictest(point.event, self.answers) if self.answers else None

    def _with_says(self) -> Iterable[Hook]:
        """The gates, where hooks combine several verbs: these are asked too, unless they were asked
        to rewrite."""
        if not self.heard:
            return (
                *[hook for hook in self.point.changing if hook.kind == "hook"],
                *self.point.asked,
            )
        for hook, says, payload in self.said:
            if says.decision is not None and not (
                type(says.decision) is Allow and payload is not self._payload()
            ):
                self.answers = (*self.answers, (hook.name, says.decision))
        return self.point.asked

    def _decision(self, hook: Hook, answer: Any) -> Any:
        """What a hook answered, as a decision that its event takes."""
        if hook.kind == "hook":
            answer = self._answer(hook, answer)
            answer = answer.decision if isinstance(answer, Says) else answer
        return None if answer is None else self._accepted(hook, answer)

    def _accepted(self, hook: Hook, answer: Any) -> Any:
        """A decision that the event takes. The reason of a vote is kept apart."""
        if self.point.event is Continuing and type(answer) is tuple:
            vote, why = answer if len(answer) == 2 else (answer, None)
            if isinstance(vote, Vote) and type(why) is str:
                self.reasons = (*self.reasons, (hook.name, why))
                answer = vote
        return _check_decision(hook, self.point, answer)

    def _note_failure(self, hook: Hook, error: BaseException, effect: str, took: float) -> None:
        self.site.record(
            HookFailed(hook.name, self.point.name, error_value(error), effect, took=round(took, 6))
        )

    def _failed(self, hook: Hook, error: Exception, took: float) -> Any:
        """What a gate that raised or timed out counts as: the matrix says, and it is closed."""
        raised = self.point.event.raised
        if raised is None or hook.on_error == "unreviewed":
            self._note_failure(hook, error, "unreviewed", took)
            return None
        reason = f"gate {hook.name!r} failed on {self.point.name}; the log has the details"
        effect = raised.name if isinstance(raised, Vote) else raised.__name__
        self._note_failure(hook, error, effect, took)
        if isinstance(raised, Vote):
            return raised
        if raised is Ask:
            return Ask(reason, allow=("approve", "reject"))
        return Deny(reason) if raised is Deny else Halt(reason)

    def _refused(self, costly: Sequence[Hook]) -> bool:
        """Whether a gate that is not costly has refused."""
        going_on = (Allow, Ask, Answer, Finish, Ignore, Again)
        names = {hook.name for hook in costly}
        return any(
            not isinstance(d, going_on) and d not in (Vote.REQUEST, Vote.ALLOW, Vote.ALLOW_STOP)
            for name, d in self.answers
            if name not in names
        )

    async def _shadow(self, hook: Hook) -> None:
        """A shadow gate: what it answers is recorded and nothing else.

        Whatever it does, the turn goes on.
        """
        monotonic = self.site.monotonic
        began = monotonic()
        try:
            if hook.matches is not None and not hook.matches(self.event):
                return
            answer = await call(hook, self.event, self.site, self.about, may_write=False)
            if answer is not None:
                answer = self._accepted(hook, answer)
        except asyncio.CancelledError:
            late = HookTimeout(
                f"shadow {hook.name!r} had not finished when the turn ended", hook=hook.name
            )
            self._note_failure(hook, late, "shadow", monotonic() - began)
            raise
        except (Exception, SystemExit) as error:
            self._note_failure(hook, error, "shadow", monotonic() - began)
            return
        if answer is not None:
            took, answers = round(monotonic() - began, 6), ((hook.name, answer),)
            self.site.record(HookDecided(self.point.name, self.about, answer, answers, True, took))

    # ------------------------------------------------------------ inject

    @property
    def injects(self) -> bool:
        """Whether somebody may add something here."""
        return bool(self.point.groups or self.said)

    async def inject(
        self, about: str | None = None, only: Callable[[Hook], bool] | None = None
    ) -> list[Injected]:
        """What is injected here, in declared order, checked against the reserve; members of a group
        run together."""
        answers: list[tuple[Hook, Any, float]] = []
        if self.said:
            answers += [
                (hook, says.inject, 0.0) for hook, says, _ in self.said if says.inject is not None
            ]
        groups, site = self.point.groups, self.site
        if len(groups) > 1:  # a later hook may ask how much room the earlier ones have left
            site.injecting += (answers,)
        try:
            for group in groups:
                mine = group if only is None else tuple(filter(only, group))
                if len(group) > 1:
                    answers += await self._ask_together(mine)
                    continue
                for hook in mine:
                    if hook.matches is None or self._looks(hook):
                        answer = await self._injecting(hook, may_write=hook.group is None)
                        if answer is not None:
                            answers.append(answer)
        finally:
            if len(groups) > 1:
                site.injecting = tuple([one for one in site.injecting if one is not answers])
        return self._checked(answers, self.about if about is None else about) if answers else []

    async def _ask_together(self, hooks: Iterable[Hook]) -> list[tuple[Hook, Any, float]]:
        """Ask the hooks of a parallel group at once; what they inject, in their order."""
        asked = [self._injecting(hook, may_write=False) for hook in hooks if self._looks(hook)]
        return [answer for answer in await asyncio.gather(*asked) if answer is not None]

    def _checked(self, answers: Iterable[tuple[Hook, Any, float]], about: str) -> list[Injected]:
        """What hooks injected, each with how long it took, as it is recorded."""
        injected: list[Injected] = []
        spent = self.site.injected_tokens()
        for hook, answer, took in answers:
            made = self._injected(hook, answer, about, took)
            if self.site.has_injected(made, injected):
                continue
            self._within_own_reserve(hook, made)
            size = self._within_reserve(hook, made, 0 if made.durable else spent)
            spent += 0 if made.durable else size  # a message of the history, from here on
            injected.append(made)
        return injected

    def _looks(self, hook: Hook) -> bool:
        """Whether a hook looks at this event; a matcher that raises is that hook's failure."""
        try:
            return hook.matches is None or hook.matches(self.event)
        except Exception as error:
            self._not_injected(hook, error, 0.0)
            return False

    async def _injecting(self, hook: Hook, *, may_write: bool) -> tuple[Hook, Any, float] | None:
        """What a hook injects, and how long it took; None if it is silent."""
        site = self.site
        began = site.monotonic()
        try:
            if hook.inline:
                answer = call_inline(hook, self.event, site, began)
                if answer is not None and inspect.isawaitable(answer):
                    answer = await answer
            else:
                answer = await call(hook, self.event, site, self.about, may_write=may_write)
        except asyncio.CancelledError:
            if cancelled():
                raise
            self._not_injected(hook, unasked(hook), site.monotonic() - began)
            return None
        except Exception as error:
            self._not_injected(hook, error, site.monotonic() - began)
            return None
        return None if answer is None else (hook, answer, site.monotonic() - began)

    def _not_injected(self, hook: Hook, error: Exception, took: float) -> None:
        if not hook.optional:
            raise failing(hook, self.point, error) from error
        self._note_failure(hook, error, "skipped", took)

    def _injected(self, hook: Hook, answer: Any, about: str, took: float) -> Injected:
        given = answer if isinstance(answer, Injected) else Injected(answer)
        try:
            parts = checked_parts(given.parts, hook.name)
            flags: tuple[object, ...] = (given.durable, given.record)
            if any(type(flag) is not bool for flag in flags):
                raise TypeError("durable and record are True or False")
        except TypeError as error:
            text = (
                f"{hook.kind} {hook.name!r} injected an invalid value on {self.point.name}: {error}"
            )
            raise IllegalAnswer(text, hook=hook.name, event=self.point.name) from error
        name, took = self.point.name, round(took, 6)
        return Injected(parts, given.durable, given.record, hook.name, name, about, took)

    def _within_own_reserve(self, hook: Hook, made: Injected) -> None:
        if hook.reserve is not None and (size := self.site.tokens(made.parts)) > hook.reserve:
            raise self._too_much(hook, size, hook.reserve, f"but may add {hook.reserve}")

    def _within_reserve(self, hook: Hook, made: Injected, spent: int) -> int:
        size = self.site.tokens(made.parts)
        left = max(self.site.reserve - spent, 0)
        if size > left:
            left_over = f"but only {left} of the reserve of {self.site.reserve} are left"
            raise self._too_much(hook, size, self.site.reserve, left_over)
        return size

    def _too_much(self, hook: Hook, size: int, reserve: int, why: str) -> InjectionOverflow:
        text = f"inject {hook.name!r} adds about {size} tokens on {self.point.name}, {why}; nothing was truncated"
        return InjectionOverflow(
            text, hook=hook.name, event=self.point.name, size=size, reserve=reserve
        )


def _check_decision(hook: Hook, point: Point, decision: Any) -> Any:
    """The decision as a log gives it back.

    Refuses one that the event does not take or that a log could not hold.
    """
    if rank_of(point.event, decision) is None:
        raise illegal(hook, point, decision)
    if type(decision) is Allow:  # it has no fields
        return decision
    try:
        decision = checked_decision(decision, reply=point.event is ModelCalling)
    except (BadReply, TypeError) as error:
        who, what = f"{hook.kind} {hook.name!r} ({hook.source})", type(decision).__name__
        raise IllegalAnswer(
            f"{who} answered {what} on {point.name} with a value that cannot be kept: {error}",
            hook=hook.name,
            event=point.name,
        ) from error
    if isinstance(decision, Ask) and not set(decision.allow) & set(point.event.answers):
        text = f"{hook.kind} {hook.name!r} ({hook.source}) asks on {point.name}, where a person cannot answer by"
        legal = ", ".join(point.event.answers)
        raise IllegalAnswer(
            f"{text} {', '.join(decision.allow)}; legal: {legal}", hook=hook.name, event=point.name
        )
    return decision


def cancelled() -> bool:
    """Whether somebody asked for the running task to be cancelled."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_MEANT = {"Approve": "Allow", "Reject": "Halt", "Respond": "Answer"}
"""What a hook should answer instead of a person's answer."""


def illegal(hook: Hook, point: Point, answer: Any) -> IllegalAnswer:
    """The error of an answer that the event does not take."""
    got = f"Vote.{answer.name}" if isinstance(answer, Vote) else type(answer).__name__
    hint = f" {got} is what a person answers: did you mean {_MEANT[got]}?" if got in _MEANT else ""
    return IllegalAnswer(
        f"{hook.kind} {hook.name!r} ({hook.source}) answered {got} on {point.name}; "
        f"it may answer {legal_answers(point.event)}.{hint}",
        hook=hook.name,
        event=point.name,
    )
