"""Plays one simulated session: its users, its crashes and restarts, until every turn has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from functools import partial
from typing import Any

from windlass._kernel.child_program import tools_below
from windlass.agent import Agent
from windlass.decisions import AnyResolution
from windlass.errors import (
    ConfigError,
    NotSuspended,
    SessionError,
    StaleAnswer,
    StoreError,
    WindlassError,
    text_of,
)
from windlass.messages import AnyMessage
from windlass.states import State, over

from .grammar import MESSAGES
from .loops import SimulatedLoop
from .people import answers_to
from .variables import Variables
from .worlds import SESSION, Stage, describe_running

CALM_AFTER = 6
"""After how many passes over one step nothing more goes wrong,"""

PASSES = 16
"""and after how many the next step must have come."""

Build = Callable[[Stage], Agent[Any, Any]]


class Play:
    """One session, from its first message to its end."""

    def __init__(
        self, world: Stage, loop: SimulatedLoop, build: Build, scope: Any, patience: float, variables: Variables
    ) -> None:
        self.world = world
        self._loop = loop
        self._build = build
        self._scope = scope
        self._patience = patience
        self._variables = variables
        self._final: State | None = None
        self._answered = False
        world.act = self._act

    async def run(self, *, verify: bool) -> None:
        """Play the session, and look at what it left."""
        world = self.world
        assert world.watcher is not None
        self._start()
        low, high = world.grammar.turns
        turns = world.draw("turns", lambda random: random.randint(low, high)) or 1
        for number in range(1, turns + 1):
            if not world.violations:
                await self._turn(number)
            if not world.violations and self._at_work():
                await self._meanwhile(number == turns)
        if not world.violations:
            await self._close()
        if not world.violations:
            await world.watcher.finish(self._final, verify=verify)

    def _start(self) -> None:
        """Start a process: the agent is built anew."""
        world = self.world
        if world.lives and self._variables.alone:
            self._variables.reset(crash=True)
        life = world.begin()
        assert world.watcher is not None
        try:
            life.agent = life.context.run(self._build, world)
        except Exception as error:
            if isinstance(error, ConfigError) and len(world.lives) == 1:
                raise  # the agent cannot be simulated at all
            world.violate("build", f"the agent could not be built: it raised {type(error).__name__}: {text_of(error)}")
            return
        program = life.agent._compile()
        world.watcher.tools = program.tools
        if program.below:
            world.watcher.tools = {**{tool.name: tool for tool in tools_below(program)}, **program.tools}

    # ------------------------------------------------------------ a turn

    async def _turn(self, number: int) -> None:
        world, watcher = self.world, self.world.watcher
        assert watcher is not None
        low, high = world.grammar.steps
        world.steps = world.choices_random.randint(low, high)
        text = world.draw("message", lambda random: random.choice(world.grammar.messages)) or MESSAGES[0]
        idle, steps, fold = 0, -1, watcher.fold_of()
        while idle < PASSES:
            idle = 0 if fold.steps != steps else idle + 1
            steps = fold.steps
            world.calm = idle >= CALM_AFTER
            if fold.turns >= number and over(fold):
                return
            if fold.turns < number:
                await self._pass(text, None)
            elif waiting := fold.state.waiting:
                answers = None if self._answered else await self._answers(waiting)
                self._answered = False
                await self._pass(None, answers)
            else:
                await self._pass(None, None)
            if world.violations:
                return
        if not over(fold):
            asks = [asked.question for asked in fold.state.waiting]
            still = f"it asks {asks[0]!r} again and again" if asks else "it does not end"
            world.violate(
                "endless", f"turn {number} was resumed {PASSES} times in one step, lately without any fault: {still}"
            )

    async def _answers(self, waiting: Any) -> Mapping[str, AnyResolution] | None:
        """What people answer. Sometimes each answer reaches the session by itself."""
        world = self.world
        answers = await answers_to(world, waiting)
        apart = answers and world.draw("apart", lambda random: True if random.random() < 0.2 else None)
        if not apart or world.calm:
            return answers
        for ask_id, answer in answers.items():
            await self._live(lambda agent, i=ask_id, a=answer: agent.resolve(SESSION, i, a))  # type: ignore[misc]
        return None

    async def _pass(self, message: str | None, answers: Mapping[str, AnyResolution] | None) -> None:
        """One pass over the turn. It may end in a crash."""
        way = self.world.draw("way", _way)
        enter = {"stream": self._stream, "iterate": self._iterate}.get(way or "", self._run)
        result = await self._live(lambda agent: enter(agent, message, answers))
        self._final = None if result is None else result.state

    async def _run(self, agent: Agent[Any, Any], message: AnyMessage | None, answers: Any) -> Any:
        if message is not None:
            return await agent.run(message, session=SESSION, scope=self._scope)
        return await agent.resume(SESSION, answers=answers, scope=self._scope)

    async def _stream(self, agent: Agent[Any, Any], message: AnyMessage | None, answers: Any) -> Any:
        async with agent.stream(message, session=SESSION, answers=answers, scope=self._scope) as stream:
            async for _ in stream:
                pass
        return stream.result

    async def _iterate(self, agent: Agent[Any, Any], message: AnyMessage | None, answers: Any) -> Any:
        states = [state async for state in agent.iterate(message, session=SESSION, answers=answers, scope=self._scope)]
        return _Ended(states[-1]) if states else None

    async def _close(self) -> None:
        """The process ends in good order: observers hear of everything."""
        self.world.calm = True
        await self._live(lambda agent: agent.aclose())

    # ------------------------------------------------------------ in the background

    def _at_work(self) -> list[str]:
        """The sessions of the agents in the background that have not come to their end."""
        watcher = self.world.watcher
        assert watcher is not None
        started = [child.started.session for child in watcher.fold_of().background if not child.taken]
        return [session for session in started if not over(watcher.fold_of(session))]

    async def _meanwhile(self, last: bool) -> None:
        """Between two turns, agents in the background may get on; after the last turn they come to their end."""
        world, watcher = self.world, self.world.watcher
        assert watcher is not None
        passes = PASSES if last else int(world.draw("meanwhile", lambda random: random.randint(0, 2)) or 0)
        idle, steps = 0, -1
        while idle < passes and (working := self._at_work()) and not world.violations:
            now = sum([watcher.fold_of(session).steps for session in working])
            idle, steps = 0 if last and now != steps else idle + 1, now
            world.calm = idle >= CALM_AFTER
            asked = {session: watcher.fold_of(session).state.waiting for session in working}
            answers = (
                {}
                if self._answered
                else await answers_to(world, [one for waiting in asked.values() for one in waiting])
            )
            self._answered = False
            given = {
                session: {one.id: answers[one.id] for one in waiting if one.id in answers}
                for session, waiting in asked.items()
            }
            await self._live(lambda agent, given=given: self._go_on(agent, given))  # type: ignore[misc]
        if last and not world.violations and (left := [one for one in self._at_work() if one in watcher.logs]):
            world.violate("endless", f"the agent in session {left[0]!r}, in the background, does not come to its end")

    async def _go_on(self, agent: Agent[Any, Any], given: Mapping[str, Mapping[str, AnyResolution]]) -> None:
        """Hand over the answers to what agents in the background ask, and wait for all of them."""
        for session, answers in given.items():
            if answers and self.world.draw("apart", lambda random: True if random.random() < 0.2 else None):
                for ask_id, answer in answers.items():
                    await agent.resolve(session, ask_id, answer)
            elif answers:
                await agent.resume(session, answers=answers, scope=self._scope)
        for task in await agent.resume_background(SESSION, scope=self._scope):
            with suppress(SessionError):  # it was interrupted: the next pass continues it
                await task.result()

    # ------------------------------------------------------------ in the process

    async def _live(self, make: Callable[[Agent[Any, Any]], Coroutine[Any, Any, Any]]) -> Any:
        """Do something in the process, until it is done or the process dies; then start another one."""
        world = self.world
        if world.life is None or world.life.dead:  # it died between two passes, by what somebody did to it
            self._start()
        life = world.life
        assert life is not None
        if world.violations:  # it could not be started
            return None
        failures = world.errors_injected
        life.end = self._loop.create_future()
        task = self._loop.create_task(make(life.agent), context=life.context.copy())
        task.add_done_callback(partial(_end, life.end, "done"))
        timer = _Patience(self._loop, self._patience, world, life.end)
        ended = await life.end
        timer.cancel()
        if ended == "crashed":
            self._start()
            return None
        if ended != "done":
            self._hang(ended)
            return None
        try:
            result = task.result()
            return result if world.errors_injected == failures else None
        except ConfigError:
            raise
        except (StaleAnswer, NotSuspended):  # somebody was too late: the question, or the turn, was over
            self._answered = True
        except (Exception, asyncio.CancelledError, SystemExit) as error:
            if not isinstance(error, StoreError) or world.errors_injected == failures:
                world.violate("error", f"the turn raised {type(error).__name__}: {text_of(error)}")
        return None

    def _hang(self, ended: str) -> None:
        world, life = self.world, self.world.life
        assert life is not None
        running = describe_running(list(world.running.values()))
        why = {
            "stalled": "nothing can run and no timer is set",
            "spins": "it runs on and on without waiting for anything, such as `while True: await asyncio.sleep(0)`",
            "late": f"it has recorded nothing for {self._patience:g} s, and still runs",
        }[ended]
        world.violate("hang", f"{why}; under way: {running}")
        self._loop.freeze(life)

    def _act(self, what: str, after: float) -> None:
        """Somebody does something to the turn, a little later."""
        self._loop.call_later(after, self._begin_act, what)

    def _begin_act(self, what: str) -> None:
        life = self.world.life
        if life is None or life.dead:
            return

        async def act() -> None:
            try:
                if what == "cancel":
                    await life.agent.cancel(SESSION, "simulated")
                else:
                    await life.agent.steer(SESSION, "simulated: one more thing")
            except SessionError:
                pass  # there is no session yet
            except WindlassError as error:
                if not isinstance(error, StoreError):
                    self.world.violate("error", f"{what} raised {type(error).__name__}: {error}")

        self._loop.create_task(act())


class _Patience:
    """Ends what has recorded nothing for so many virtual seconds."""

    def __init__(self, loop: SimulatedLoop, seconds: float, world: Stage, end: asyncio.Future[str]) -> None:
        self._loop = loop
        self._seconds = seconds
        self._world = world
        self._end = end
        self._wait()

    def cancel(self) -> None:
        self._timer.cancel()

    def _wait(self) -> None:
        self._seen = self._world.records_seen
        self._timer = self._loop.call_later(self._seconds, self._look)

    def _look(self) -> None:
        if self._world.records_seen > self._seen:
            self._wait()
        else:
            _end(self._end, "late")


class _Ended:
    """The last state of a turn that was iterated."""

    def __init__(self, state: State) -> None:
        self.state = state


def _way(random: Any) -> str | None:
    at = random.random()
    return "stream" if at < 0.25 else "iterate" if at < 0.35 else None


def _end(end: asyncio.Future[str], how: str, _: object = None) -> None:
    if not end.done():
        end.set_result(how)
