"""Checks for capabilities, which third parties can run on their own: `await check_capability(make)`."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any

from msgspec import Struct

from windlass._hooks.hooks import Hook
from windlass.agent import Agent
from windlass.composition import label_of
from windlass.criteria import name_of
from windlass.decisions import Ask, Deny
from windlass.errors import ModelError, ToolError
from windlass.events import ToolCalling
from windlass.messages import ModelRequest, user
from windlass.ownership import Claim
from windlass.policies import ErrorPolicy
from windlass.protocols import Capability, Store
from windlass.records import ErrorHandled, HookFailed, Record, ToolReturned
from windlass.stores.memory import MemoryStore
from windlass.tools import tool

from .clocks import FakeClock
from .models import FunctionModel, Scriptable, Scripted, calls, says
from .ways import AnyAgent, Lived, assert_alike, assert_same_everywhere, by_run, hand_over, live, live_on

PUBLIC = (
    "observe", "inject", "rewrite", "gate", "wrap", "hook", "transform", "tool", "slot", "criterion", "compactor",
    "approver", "errors", "instruct", "model", "output", "reveal", "conceal", "shared", "storage", "subagent",
    "with_lifecycle",
    "mask", "check", "constrain", "resolve", "at_close",
)  # fmt: skip
"""The methods of the registrar that a capability may use."""


class CapabilityReport(Struct, frozen=True):
    """The result of `check_capability`: the checks that passed, and why others failed."""

    name: str
    passed: tuple[str, ...]
    failed: dict[str, str]

    def __str__(self) -> str:
        count = len(self.passed) + len(self.failed)
        result = f"fails {len(self.failed)} of {count} checks" if self.failed else f"passes all {count} checks"
        return "\n".join(
            [f"capability {self.name!r} {result}", *[f"- {check}: {why}" for check, why in self.failed.items()]]
        )


class CapabilityFailed(AssertionError):
    """A capability fails a check of `check_capability`.

    `report.failed` has the reason for each failed check.
    """

    def __init__(self, message: str, *, report: CapabilityReport) -> None:
        super().__init__(message)
        self.report = report


class Bench(Struct, frozen=True):
    """Builds the agents and turns for the checks."""

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
        store: Store | None = None,
    ) -> AnyAgent:
        """An agent whose model calls two tools, one of which fails, and then answers. A gate decides on the other."""
        agent = Agent(
            FunctionModel(reply or _reply),
            tools=[_echo, _fail],
            errors=ErrorPolicy.retrying(1),
            clock=FakeClock(auto=True),
            store=store,
            name="checked",
        )

        @agent.gate(ToolCalling, tool="echo")
        def check(event: ToolCalling) -> Ask | Deny | None:
            return verdict

        self.prepare(agent)
        return agent.with_capability(self.make()) if capable else agent

    def names(self) -> set[str]:
        """The names of the capability's hooks, criteria and strategies in the log."""
        return _names(self.agent()) - _names(self.agent(capable=False))

    async def live(self, session: str = "session", *, agent: AnyAgent | None = None, capable: bool = True) -> Lived:
        """Run a turn of such an agent."""
        return await live(
            by_run, agent or self.agent(capable=capable), user("Echo it."), session=session, scope=self.scope
        )


def _names(agent: AnyAgent) -> set[str]:
    program = agent._compile()  # pyright: ignore[reportPrivateUsage]
    strategies = {compactor.name for compactor in program.compactors}
    return strategies | {hook.name for hook in program.hooks.all} | {name_of(one) for one in program.criteria}


async def check_capability(
    make: Callable[[], Capability],
    *,
    changes_answer: bool = False,
    prepare: Callable[[AnyAgent], object] = lambda agent: None,
    scope: Any = None,
) -> CapabilityReport:
    """Check a capability. Raises `CapabilityFailed`, an AssertionError that lists all failures.

    `make` returns a new capability each time. Set `changes_answer` if it is meant to change the agent's answers.
    `prepare` adds to an agent what the capability needs, such as slots or other capabilities. All turns get `scope`.

    - *installs*: it uses only the public registrar; the application may put it into the guard band, but the capability
      itself must not ask for that band
    - *named*: its hooks have readable names, and two agents with it compile to the same pipeline
    - *harmless*: an ordinary turn ends with the same answer as without it
    - *separate*: sessions do not influence each other, one after another or side by side, in one agent or in two
    - *same everywhere*: the turn is the same in every way of running it, also if another process resumes it
    - *recovers*: if the process dies after any write to the store, a resumed turn ends in the same way
    - *unshaken*: its hooks never fail, even when tools fail or a model writes broken arguments
    - *fails as it says*: a failing observer changes nothing; the failure of any other hook is in the log
    - *listed*: `explain` names it, and it beside each of its hooks
    - *silent*: if the log contains nothing from it, the log is the same as without it
    - *tidy*: it leaves no task and no thread behind

    The turns have a scripted model, two tools and a fake clock. Test the purpose of the capability with tests of its
    own.
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
    report = CapabilityReport(label_of(make()), tuple(passed), failed)
    if failed:
        raise CapabilityFailed(str(report), report=report)
    return report


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
    """Call both tools, one of them also with broken arguments, then answer. Answer a side call with "Yes."."""
    if not any(spec.name == "echo" for spec in request.tools):
        return says("Yes.")
    if any(message.role == "tool" for message in request.messages):
        return says("It said hello.", chunks=["It said ", "hello."])
    return calls([("echo", {"text": "hello"}), ("fail", {"text": "luck"}), ("echo", '{"text"')], _text="Let me see.")


def _flaky() -> Callable[[ModelRequest], Scriptable]:
    """A model whose first call fails and whose final answer is empty."""
    requests: list[ModelRequest] = []

    def reply(request: ModelRequest) -> Scriptable:
        requests.append(request)
        usual = _reply(request)
        return ModelError("busy") if len(requests) == 1 else says("") if "hello." in usual.chunks else usual

    return reply


# ---------------------------------------------------------------- the checks


class _Public:
    """A registrar that allows only public methods of the real one."""

    def __init__(self, registrar: Any) -> None:
        self._registrar = registrar

    def __getattr__(self, name: str) -> Any:
        assert name in PUBLIC, f"it uses registrar.{name}; a capability may use {', '.join(PUBLIC)}"
        return getattr(self._registrar, name)


class _InstalledPublicly:
    """A capability that is installed through the public methods only."""

    def __init__(self, capability: Capability) -> None:
        self.name = label_of(capability)
        self.capability = capability

    def install(self, registrar: Any, /) -> None:
        self.capability.install(_Public(registrar))


async def _installs(bench: Bench) -> None:
    bench.agent(capable=False).with_capability(_InstalledPublicly(bench.make())).compile()
    bench.agent(capable=False).with_capability(bench.make(), band="guard").compile()


async def _named(bench: Bench) -> None:
    for hook in _own_hooks(bench.agent()):
        named = hook.name and "<lambda>" not in hook.name
        assert named, f"its hook on {hook.event.__name__} ({hook.source}) has no name: add name=…"
    one, other = [bench.agent()._compile() for _ in range(2)]  # pyright: ignore[reportPrivateUsage]
    why = "two agents with it compile to different pipelines, so one cannot resume the turns of the other"
    assert one.digest == other.digest, why


async def _harmless(bench: Bench) -> None:
    if not bench.changes_answer:
        with_it, without = await bench.live(), await bench.live(capable=False)
        for what in ("outcome", "text"):
            found, expected = with_it.story[what], without.story[what]
            assert found == expected, (
                f"the {what} is {found}, but {expected} without it; pass changes_answer=True if this is intended"
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


class _DurableStore(MemoryStore):
    """A store that is written to as if it outlived the process; `sizes` has the length of a log after each write."""

    durable = True

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[str, list[int]] = {}

    async def append(self, session: str, records: Sequence[Record], expected: int, claim: Claim | None = None) -> bool:
        self.sizes.setdefault(session, []).append(expected + len(records))
        return await super().append(session, records, expected, claim)


async def _recovers(bench: Bench) -> None:
    store = _DurableStore()
    first = bench.agent(store=store)
    whole = await bench.live(agent=first)
    for count in [size for size in store.sizes[whole.session] if 0 < size < len(whole.log)]:
        agent = await hand_over(first, bench.agent(), whole.session)
        session = await agent.fork(whole.session, at=count, to="resumed")
        message = user("Echo it.") if (await agent.state(session)).over else None
        await by_run(agent, session, message, None, bench.scope)
        resumed = await live_on(by_run, agent, session=session, scope=bench.scope)
        after = f"after a crash after record {count} ({type(whole.log[count - 1]).__name__})"
        for what in ("outcome", "text", "messages", "slots"):
            found, expected = resumed.story[what], whole.story[what]
            assert found == expected, f"the {what} {after} is {found}, but {expected} without one"


async def _unshaken(bench: Bench) -> None:
    names = bench.names()
    troubled = bench.agent(verdict=Deny("not today"), reply=_flaky())
    log = (*(await bench.live()).log, *(await bench.live(agent=troubled)).log)
    wrong = {why: None for record in log for hook, why in _failures(record, names) if hook in names}
    assert not wrong, "; ".join(wrong)


def _failures(record: Record, names: set[str]) -> Iterator[tuple[str | None, str]]:
    """The hooks that failed according to a record. Only the result itself shows a failed rewrite of a result."""
    match record:
        case HookFailed(hook=hook, error=error):
            yield hook, f"{hook!r} failed: {error.message}"
        case ErrorHandled(error=error):
            yield error.hook, f"{error.hook!r} failed: {error.message}"
        case ToolReturned(result=result) if result.is_error:
            yield from ((name, result.text) for name in names if f"{name!r} failed on" in result.text)
        case _:
            pass


async def _fails_as_it_says(bench: Bench) -> None:
    usual = await bench.live()
    for index, hook in enumerate(_own_hooks(bench.agent())):
        agent = bench.agent()
        reached = _break(_own_hooks(agent)[index])
        lived = await bench.live(agent=agent)
        if hook.kind == "observe":
            for what in ("outcome", "text", "messages"):
                found, expected = lived.story[what], usual.story[what]
                assert found == expected, f"if observer {hook.name!r} fails, the {what} is {found}, not {expected}"
        elif reached:
            told = any(_mentions(record, {hook.name}) or BrokenHook.__name__ in repr(record) for record in lived.log)
            assert told, f"if {hook.kind} {hook.name!r} fails, the log does not say so"


def _own_hooks(agent: AnyAgent) -> list[Hook]:
    """The hooks that the capability brought."""
    hooks = agent._registered.hooks  # pyright: ignore[reportPrivateUsage]
    return [hook for hook in hooks if hook.capability is not None and hook.is_enabled()]


class BrokenHook(Exception):
    """The failure of a hook that a check has broken."""


def _break(hook: Hook) -> list[bool]:
    """Let a hook fail; the list says whether it was asked."""
    reached: list[bool] = []

    def fail(*_: Any, **__: Any) -> Any:
        reached.append(True)
        raise BrokenHook("check_capability broke this hook")

    async def fail_async(*_: Any, **__: Any) -> Any:
        fail()

    hook.fn = fail_async if hook.is_async else fail
    return reached


async def _listed(bench: Bench) -> None:
    name, agent = label_of(bench.make()), bench.agent()
    explained = agent.explain()
    listed = [one["name"] for one in explained.data["capabilities"]]
    assert name in listed, f"explain lists the capabilities {listed}, but not {name!r}"
    text = str(explained)
    missing = [hook.name for hook in _own_hooks(agent) if hook.name not in text]
    assert not missing, f"explain does not show its hooks {missing}"


async def _silent(bench: Bench) -> None:
    with_it, without = (await bench.live()).log, (await bench.live(capable=False)).log
    names = bench.names()
    if not any(_mentions(record, names) for record in with_it[1:]):
        kinds = [type(record).__name__ for record in with_it]
        expected = [type(record).__name__ for record in without]
        assert kinds == expected, f"the log contains nothing from it, but is {kinds}; without it, {expected}"


def _mentions(record: Record, names: set[str]) -> bool:
    text = repr(record)
    return any(repr(name) in text for name in names)


async def _tidy(bench: Bench) -> None:
    tasks, threads = asyncio.all_tasks(), set(threading.enumerate())
    agent = bench.agent()
    async with agent.session("tidy") as session:
        await session.run("Echo it.", scope=bench.scope)
    for pause in [0.0] * 20 + [0.01] * 100:  # tasks and threads that are about to end get a second
        await asyncio.sleep(pause)
        if not _leftovers(tasks, threads):
            return
    raise AssertionError(f"it left behind {', '.join(_leftovers(tasks, threads))}")


def _leftovers(tasks: set[asyncio.Task[Any]], threads: set[threading.Thread]) -> list[str]:
    """The new tasks and threads, except the runtime's own threads."""
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
    "recovers": _recovers,
    "unshaken": _unshaken,
    "fails as it says": _fails_as_it_says,
    "listed": _listed,
    "silent": _silent,
    "tidy": _tidy,
}
