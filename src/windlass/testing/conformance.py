"""What every capability should keep to, as checks that a third party can run: `await check_capability(make)`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from msgspec import Struct

from windlass.agent import Agent
from windlass.criteria import name_of
from windlass.decisions import Ask, Deny
from windlass.errors import ModelError, ToolError
from windlass.events import ToolCalling
from windlass.messages import ModelRequest, user
from windlass.policies import ErrorPolicy
from windlass.protocols import Capability
from windlass.records import ErrorHandled, HookFailed, Record, ToolReturned
from windlass.tools import tool

from .clocks import FakeClock
from .models import FunctionModel, Scriptable, Scripted, calls, says
from .ways import AnyAgent, Lived, assert_alike, assert_same_everywhere, by_run, live

PUBLIC = (
    "observe", "inject", "rewrite", "gate", "wrap", "hook", "transform", "tool", "slot", "criterion", "compactor",
    "instruct", "add", "masked",
)  # fmt: skip
"""What a capability may use of the registrar."""


class CapabilityReport(Struct, frozen=True):
    """What came of the checks of one capability: those it passed, and why it failed the others."""

    name: str
    passed: tuple[str, ...]
    failed: dict[str, str]

    def __str__(self) -> str:
        checks = len(self.passed) + len(self.failed)
        lines = [f"capability {self.name!r} fails {len(self.failed)} of the {checks} checks that were made"]
        lines += [f"- {check}: {why}" for check, why in self.failed.items()]
        return "\n".join(lines)


class CapabilityFailed(AssertionError):
    """A capability does not keep to what every capability should.

    `report.failed` says for each check that failed why it did.
    """

    def __init__(self, message: str, *, report: CapabilityReport) -> None:
        super().__init__(message)
        self.report = report


class Bench(Struct, frozen=True):
    """What the checks are made with."""

    make: Callable[[], Capability]
    prepare: Callable[[AnyAgent], object]
    changes_answer: bool
    scope: Any = None

    def agent(
        self,
        *,
        capable: bool = True,
        verdict: Ask | Deny | None = None,
        reply: Callable[[ModelRequest], Any] | None = None,
    ) -> AnyAgent:
        """An agent whose model calls two tools, one of which fails, and then answers. A gate has a verdict on one."""
        agent = Agent(
            FunctionModel(reply or _reply),
            tools=[_echo, _fail],
            errors=ErrorPolicy.retrying(1),
            clock=FakeClock(auto=True),
            name="checked",
        )

        @agent.gate(ToolCalling, tool="echo")
        def check(event: ToolCalling) -> Ask | Deny | None:
            return verdict

        self.prepare(agent)
        return agent.with_capability(self.make()) if capable else agent

    def names(self) -> set[str]:
        """What the log calls the hooks, criteria and strategies of the capability."""
        return _names(self.agent()) - _names(self.agent(capable=False))

    async def live(self, session: str = "session", *, agent: AnyAgent | None = None, capable: bool = True) -> Lived:
        """A turn of such an agent."""
        return await live(
            by_run, agent or self.agent(capable=capable), user("Echo it."), session=session, scope=self.scope
        )


def _names(agent: AnyAgent) -> set[str]:
    program = agent.compile()
    strategies = {compactor.name for compactor in program.compactors}
    return strategies | {hook.name for hook in program.hooks.all} | {name_of(one) for one in program.criteria}


async def check_capability(
    make: Callable[[], Capability],
    *,
    changes_answer: bool = False,
    prepare: Callable[[AnyAgent], object] = lambda agent: None,
    scope: Any = None,
) -> CapabilityReport:
    """Check a capability; raise `CapabilityFailed`, an AssertionError that lists all it fails.

    `make` makes one, anew each time. `changes_answer` says that it is meant to change what the agent answers. `prepare`
    gives an agent what the capability needs of it, such as slots or other capabilities; `scope` is that of all turns.

    - *installs*: through the public registrar, also where the application puts it into the guard band, which it must
      not ask for itself
    - *named*: its hooks have names that a reader of the log can tell, and two agents with it are the same pipeline
    - *harmless*: an ordinary turn ends with the answer it has without it
    - *separate*: a session knows nothing of those before it or beside it, in the same agent or another
    - *same everywhere*: the turn is the same in every way of running it, suspended and gone on with by another process
    - *unshaken*: no hook of its fails, also when tools fail or a model writes broken arguments
    - *silent*: if nothing in the log is from it, the log is what it is without it
    - *tidy*: no task and no thread is left behind

    The turns have a scripted model, two tools and a fake clock. What a capability is *for* remains to be
    tested by its own tests.
    """
    bench = Bench(make, prepare, changes_answer, scope)
    passed: list[str] = []
    failed: dict[str, str] = {}
    for name, check in _CHECKS.items():
        try:
            await check(bench)
            passed.append(name)
        except Exception as error:
            failed[name] = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            if name == "installs":
                break
    report = CapabilityReport(_label(make()), tuple(passed), failed)
    if failed:
        raise CapabilityFailed(str(report), report=report)
    return report


def _label(capability: Capability) -> str:
    return getattr(capability, "name", None) or type(capability).__name__


# ---------------------------------------------------------------- the model and the tools


@tool(name="echo", effect="pure", inline=True)
def _echo(text: str) -> str:
    """Say it again."""
    return text


@tool(name="fail", effect="pure", inline=True)
def _fail(text: str) -> str:
    """Fail."""
    raise ToolError(f"no {text}")


def _reply(request: ModelRequest) -> Scripted:
    """Call both tools, one of them also with broken arguments, then answer. Asked beside the turn, say yes."""
    if not any(spec.name == "echo" for spec in request.tools):
        return says("Yes.")
    if any(message.role == "tool" for message in request.messages):
        return says("It said hello.", chunks=["It said ", "hello."])
    return calls([("echo", {"text": "hello"}), ("fail", {"text": "luck"}), ("echo", '{"text"')], _text="Let me see.")


def _moody() -> Callable[[ModelRequest], Scriptable]:
    """A model that fails when it is asked first, and when it is asked last has nothing to say."""
    asked: list[ModelRequest] = []

    def reply(request: ModelRequest) -> Scriptable:
        asked.append(request)
        said = _reply(request)
        return ModelError("busy") if len(asked) == 1 else says("") if "hello." in said.chunks else said

    return reply


# ---------------------------------------------------------------- the checks


class _Public:
    """A registrar with nothing but what is public, in front of the real one."""

    def __init__(self, registrar: Any) -> None:
        self._registrar = registrar

    def __getattr__(self, name: str) -> Any:
        assert name in PUBLIC, f"it uses registrar.{name}; a capability may use {', '.join(PUBLIC)}"
        return getattr(self._registrar, name)


class _Installing:
    """A capability that sees only what is public."""

    def __init__(self, capability: Capability) -> None:
        self.name = _label(capability)
        self.capability = capability

    def install(self, registrar: Any, /) -> None:
        self.capability.install(_Public(registrar))


async def _installs(bench: Bench) -> None:
    bench.agent(capable=False).with_capability(_Installing(bench.make())).compile()
    bench.agent(capable=False).with_capability(bench.make(), band="guard").compile()


async def _named(bench: Bench) -> None:
    for hook in bench.agent().registered.hooks:
        if hook.capability is not None:
            named = hook.name and "<lambda>" not in hook.name
            assert named, f"a hook of it ({hook.source}) on {hook.event.__name__} has no name: add name=…"
    one, other = bench.agent().compile(), bench.agent().compile()
    told = "two agents with it are two different pipelines, so that one cannot resume what the other began"
    assert one.digest == other.digest, told


async def _harmless(bench: Bench) -> None:
    if not bench.changes_answer:
        with_it, without = await bench.live(), await bench.live(capable=False)
        for what in ("outcome", "text"):
            told, expected = with_it.story[what], without.story[what]
            assert told == expected, (
                f"the {what} is {told}, without it {expected}; say changes_answer=True if it is meant"
            )


async def _separate(bench: Bench) -> None:
    alone = await bench.live("the-second")
    agent = bench.agent()
    await bench.live("the-first", agent=agent)
    assert_alike(alone, await bench.live("the-second", agent=agent), names=("a session alone", "one after another"))
    assert_alike(alone, await bench.live("the-second"), names=("a session alone", "one of another agent"))
    agent = bench.agent()
    _, beside = await asyncio.gather(bench.live("the-first", agent=agent), bench.live("the-second", agent=agent))
    assert_alike(alone, beside, names=("a session alone", "one beside another"))


async def _same_everywhere(bench: Bench) -> None:
    await assert_same_everywhere(lambda: bench.agent(verdict=Ask("May it?")), "Echo it.", scope=bench.scope)


async def _unshaken(bench: Bench) -> None:
    names = bench.names()
    troubled = bench.agent(verdict=Deny("not today"), reply=_moody())
    log = (*(await bench.live()).log, *(await bench.live(agent=troubled)).log)
    wrong = {why: None for record in log for hook, why in _failures(record, names) if hook in names}
    assert not wrong, "; ".join(wrong)


def _failures(record: Record, names: set[str]) -> Iterator[tuple[str | None, str]]:
    """The hooks that failed according to a record. A failed rewrite of a result is in the result, and only there."""
    match record:
        case HookFailed(hook=hook, error=error):
            yield hook, f"{hook!r} failed: {error.message}"
        case ErrorHandled(error=error):
            yield error.hook, f"{error.hook!r} failed: {error.message}"
        case ToolReturned(result=result) if result.is_error:
            yield from ((name, result.text) for name in names if f"{name!r} failed on" in result.text)
        case _:
            pass


async def _silent(bench: Bench) -> None:
    with_it, without = (await bench.live()).log, (await bench.live(capable=False)).log
    names = bench.names()
    if not any(_says(record, names) for record in with_it[1:]):
        kinds = [type(record).__name__ for record in with_it]
        expected = [type(record).__name__ for record in without]
        assert kinds == expected, f"nothing in the log is from it, but the log is {kinds}, without it {expected}"


def _says(record: Record, names: set[str]) -> bool:
    told = repr(record)
    return any(repr(name) in told for name in names)


async def _tidy(bench: Bench) -> None:
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    agent = bench.agent()
    async with agent.session("tidy") as session:
        await session.run("Echo it.", scope=bench.scope)
    for pause in [0.0] * 20 + [0.01] * 100:  # what is about to end has a second for it
        await asyncio.sleep(pause)
        if not _left(tasks, threads):
            return
    raise AssertionError(f"it left behind {', '.join(_left(tasks, threads))}")


def _left(tasks: set[asyncio.Task[Any]], threads: set[threading.Thread]) -> list[str]:
    """The tasks and threads beside these, but for the runtime's own threads."""
    new = [thread.name for thread in set(threading.enumerate()) - threads]
    return [
        *[f"task {task.get_name()!r}" for task in asyncio.all_tasks() - tasks],
        *[f"thread {name!r}" for name in new if not name.startswith(("windlass", "asyncio_"))],
    ]


_CHECKS: dict[str, Callable[[Bench], Awaitable[None]]] = {
    "installs": _installs,
    "named": _named,
    "harmless": _harmless,
    "separate": _separate,
    "same everywhere": _same_everywhere,
    "unshaken": _unshaken,
    "silent": _silent,
    "tidy": _tidy,
}
