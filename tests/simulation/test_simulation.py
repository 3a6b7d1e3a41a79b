"""Simulation: the same seed gives the same session everywhere, in virtual time, and nothing of it is real."""

from __future__ import annotations

import _thread
import asyncio
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import date, timedelta
from decimal import Decimal
from importlib import import_module
from pathlib import Path
from time import sleep
from time import sleep as doze
from typing import Annotated, Any, Literal
from uuid import UUID

import msgspec
import pytest
from click.testing import CliRunner

from windlass import Agent, Ask, ToolCall, ToolCalling, Turn, tool
from windlass.capabilities import Retry
from windlass.cli import main
from windlass.errors import ConfigError
from windlass.records import Answered, ModelReplied, ToolCalled, ToolReturned, TurnEnded
from windlass.testing import (
    Faults,
    Grammar,
    Moment,
    NotSimulated,
    ScriptedModel,
    SimulatedCase,
    SimulatedWorld,
    Simulation,
    between,
    may_call,
    one_of,
    says,
    simulate,
)
from windlass.testing.simulation.batches import play, simulating

sys.path.insert(0, str(Path(__file__).parent))
import planted
import remembering

sys.path.pop(0)


def lines(simulation: Simulation, seeds: list[int]) -> list[list[str]]:
    """The logs of some seeds, played beside each other."""
    with simulating():
        return [played.lines for played in play(simulation._setting(None), [SimulatedCase(seed) for seed in seeds])]


# ---------------------------------------------------------------- the same seed


def test_a_seed_gives_the_same_session_alone_and_beside_others() -> None:
    together = lines(planted.CLEAN, list(range(40)))
    assert len({tuple(log) for log in together}) > 35
    for seed in (0, 7, 39):
        assert lines(planted.CLEAN, [seed]) == [together[seed]]


DIGEST = """
import hashlib, sys
sys.path.insert(0, sys.argv[1])
import planted, test_simulation
print(hashlib.sha256(repr(test_simulation.lines(planted.CLEAN, list(range(30)))).encode()).hexdigest())
"""


def test_a_seed_gives_the_same_session_in_every_process_and_with_every_hash_seed() -> None:
    digests = set()
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-c", DIGEST, str(Path(__file__).parent)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        )
        digests.add(done.stdout)
    assert len(digests) == 1


def observed_durably() -> Agent[Any, Any]:
    agent: Agent[Any, Any] = Agent(ScriptedModel(), tools=[planted.pay])

    @agent.observe(ToolReturned, durable=True)
    async def follow(fact: ToolReturned) -> None:
        await asyncio.sleep(3)

    @agent.observe(ToolReturned, wait=True)
    async def wait(fact: ToolReturned) -> None:
        await asyncio.sleep(3)

    return agent


def test_durable_observers_of_sessions_beside_each_other_do_not_wait_for_each_other() -> None:
    simulation = Simulation(observed_durably)
    together = lines(simulation, list(range(32)))
    assert [lines(simulation, [seed])[0] for seed in range(32)] == together
    simulation.run(seeds=60)


def test_a_turn_that_takes_long_and_gets_on_does_not_hang() -> None:
    @tool
    async def think() -> str:
        """Think."""
        await asyncio.sleep(100)
        return ""

    def build() -> Agent[Any, Any]:
        return Agent(ScriptedModel(), tools=[think])

    report = simulate(build, seeds=10, grammar=Grammar(steps=(6, 6)), faults=Faults.none(), patience=120)
    assert report.steps > 60


def test_everything_that_may_happen_happens_in_some_session() -> None:
    happened: Counter[str] = Counter()
    with simulating():
        for start in range(0, 400, 40):
            cases = [SimulatedCase(seed) for seed in range(start, start + 40)]
            for played in play(planted.CLEAN._setting(None), cases):
                for name, value in played.choices.items():
                    kind = name.partition(" ")[0]
                    fields = value if isinstance(value, dict) else {str(value): None}
                    happened.update(f"{kind} {field}" for field in fields)
                    if kind in ("write", "person", "tool"):
                        happened.update(f"{kind} {field} {of}" for field, of in fields.items())
    assert happened.keys() >= {
        "reply say", "reply calls", "reply error", "reply cut", "tool fails before", "tool fails after",
        "write crash before", "write crash after", "write error before", "write error after", "write cancel",
        "write steer", "write takes", "person does reject", "person does edit", "person does respond",
        "person does nothing", "person waits", "way stream", "way iterate", "apart True",
    }  # fmt: skip


def test_variables_of_a_module_are_memory_of_the_process_or_of_the_world_if_an_invariant_uses_them() -> None:
    invariants = [planted.every_seat_that_was_given_is_in_the_table]
    simulation = Simulation(planted.in_the_module, grammar=planted.SEATS, invariants=invariants)
    report = simulation.run(seeds=120)
    assert report.crashes > 5
    assert planted.table == {}
    assert not planted.at_a_time.locked()


def test_nothing_that_a_module_remembers_outlives_a_process() -> None:
    simulation = Simulation(remembering.build)
    assert simulation.logs(range(40)) == simulation.logs(range(40))
    assert simulation.run(seeds=40).crashes > 2
    known = [remembering.nested, remembering.lazy, remembering.Single.made, vars(remembering.settings)]
    assert known == [{"a": [1, {2}]}, None, [], {"number": 3}]


def test_people_answer_in_any_order() -> None:
    orders: set[tuple[str, ...]] = set()

    @tool
    async def ask(number: int) -> str:
        """Ask."""
        return ""

    def build() -> Agent[Any, Any]:
        agent: Agent[Any, Any] = Agent(ScriptedModel(), tools=[ask])

        @agent.gate(ToolCalling)
        def gate(event: ToolCalling) -> Ask:
            return Ask("May it?")

        return agent

    def note(moment: Moment) -> None:
        if isinstance(moment.record, Answered):
            moment.world.data.setdefault("answers", []).append(moment.record.id.rpartition("/")[2])
        if moment.at_end:
            orders.add(tuple(moment.world.data.get("answers", ())))

    simulate(build, seeds=60, grammar=Grammar(parallel=3, steps=(1, 1), turns=(1, 1)), invariants=[note])
    assert len([order for order in orders if sorted(order) == ["1", "2", "3"]]) > 3


def test_agents_in_the_background_are_answered_continued_and_come_to_their_end() -> None:
    ended: Counter[str] = Counter()

    def build(world: SimulatedWorld) -> Agent[Any, Any]:
        child: Agent[Any, Any] = Agent(ScriptedModel(), tools=[planted.pay], name="payer")

        @child.gate(ToolCalling, tool="pay")
        def ask(event: ToolCalling) -> Ask:
            return Ask("May it pay?")

        @tool(effect="pure")
        async def have_it_paid(turn: Turn[Any]) -> str:
            """Have it paid."""
            await turn.delegate(child, "Pay.", background=True)
            return "begun"

        return Agent(ScriptedModel(), tools=[have_it_paid], subagents=[child])

    def note(moment: Moment) -> None:
        if isinstance(moment.record, TurnEnded) and "//" in moment.session:
            ended[type(moment.record.outcome).__name__] += 1

    report = simulate(build, seeds=100, invariants=[note])
    assert ended["Completed"] > 20
    assert report.crashes > 10
    assert report.never_ran == ()


# ---------------------------------------------------------------- virtual time


def test_a_month_passes_in_no_time() -> None:
    woken: list[float] = []

    def build(world: SimulatedWorld) -> Agent[Any, Any]:
        @tool
        async def wait_a_month() -> str:
            """Wait."""
            began = world.now()
            await asyncio.sleep(30 * 86_400)
            woken.append(world.now() - began)
            return "a month later"

        return Agent(ScriptedModel(), tools=[wait_a_month])

    began = time.monotonic()
    simulate(build, seeds=5, faults=Faults.none(), grammar=Grammar(steps=(1, 1)), patience=1e7)
    assert time.monotonic() - began < 30
    assert min(woken) >= 30 * 86_400


def test_a_plain_tool_and_a_thread_of_asyncio_work() -> None:
    threads: set[int] = set()

    @tool
    def plain(number: int) -> int:
        """Think."""
        threads.add(threading.get_ident())
        return number

    @tool
    async def threaded(number: int) -> int:
        """Think elsewhere."""
        threads.add(await asyncio.to_thread(threading.get_ident))
        return number

    def build() -> Agent[Any, Any]:
        return Agent(ScriptedModel(), tools=[plain, threaded])

    assert simulate(build, seeds=60).steps > 60
    assert threads == {threading.get_ident()}


# ---------------------------------------------------------------- nothing is real


@tool
def sleeps_by_another_name() -> str:
    """Sleep."""
    doze(0.001)
    return ""


@tool
def starts_multiprocessing() -> str:
    """Start."""
    multiprocessing.get_context("spawn").Process(target=print).start()
    return ""


@tool
def uses_a_pool() -> str:
    """Start."""
    ThreadPoolExecutor().submit(print)
    return ""


@tool
def replaces_itself() -> str:
    """Start."""
    os.execvp("true", ["true"])


@tool
async def starts_thread() -> str:
    """Start."""
    threading.Thread(target=print).start()
    return ""


@tool
async def opens_socket() -> str:
    """Open."""
    with socket.socket():
        return ""


@tool
async def starts_process() -> str:
    """Start."""
    subprocess.run(["true"], check=True)  # noqa: ASYNC221 -- refused
    return ""


@tool
async def connects() -> str:
    """Connect."""
    await asyncio.open_connection("127.0.0.1", 9)
    return ""


@tool
async def spawns() -> str:
    """Spawn."""
    await asyncio.create_subprocess_exec("true")
    return ""


@tool
def sleeps() -> str:
    """Sleep."""
    time.sleep(0.001)
    return ""


@tool
def sleeps_by_name() -> str:
    """Sleep."""
    sleep(0.001)
    return ""


@tool
def starts_bare_thread() -> str:
    """Start."""
    _thread.start_new_thread(print, ())
    return ""


@tool
def waits_for_thread() -> str:
    """Wait."""
    threading.Event().wait(0.001)
    return ""


@tool
def selects() -> str:
    """Wait."""
    select.select([], [], [], 0.001)
    return ""


@tool
def signals() -> str:
    """Signal."""
    os.kill(os.getpid(), 0)
    return ""


@tool
def sets_alarm() -> str:
    """Signal."""
    signal.alarm(0)
    return ""


@tool
def runs_loop() -> str:
    """Run."""
    asyncio.new_event_loop()
    return ""


@pytest.mark.parametrize(
    ("offender", "what"),
    [
        (starts_bare_thread, "starts a thread"),
        (waits_for_thread, "waits for another thread"),
        (selects, "waits in real time"),
        (signals, "sends a signal"),
        (sets_alarm, "uses signals"),
        (runs_loop, "starts an event loop"),
        (starts_thread, "starts a thread"),
        (opens_socket, "opens a socket"),
        (starts_process, "starts a process"),
        (connects, "network|host"),
        (spawns, "starts a process"),
        (sleeps, "sleeps in real time"),
        (sleeps_by_name, "sleeps in real time"),
        (sleeps_by_another_name, "sleeps in real time"),
        (starts_multiprocessing, "starts a process"),
        (uses_a_pool, "starts a thread"),
        (replaces_itself, "starts a process"),
    ],
    ids=lambda value: getattr(value, "name", ""),
)
def test_what_is_real_is_refused_by_name(offender: Any, what: str) -> None:
    def build() -> Agent[Any, Any]:
        return Agent(ScriptedModel(), tools=[offender])

    with pytest.raises(NotSimulated, match=what) as refused:
        simulate(build, seeds=20)
    assert repr(offender.name) in str(refused.value)
    assert refused.value.where.rpartition(":")[0].endswith("test_simulation.py")
    sleep(0)  # it is as it was


def test_a_module_that_is_imported_meanwhile_may_sleep_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sleeps_later.py").write_text("from time import sleep\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))

    @tool
    async def look() -> str:
        """Look."""
        import_module("sleeps_later")
        return ""

    simulate(lambda: Agent(ScriptedModel(), tools=[look]), seeds=5)
    sys.modules["sleeps_later"].sleep(0)


def test_a_plain_wrap_is_refused_and_says_why() -> None:
    def build() -> Agent[Any, Any]:
        agent: Agent[Any, Any] = Agent(ScriptedModel(), tools=[planted.pay])

        @agent.wrap(ToolCall)
        def around(call: Any, call_next: Any) -> Any:
            return call_next(call)

        return agent

    with pytest.raises(NotSimulated, match="async def"):
        simulate(build, seeds=20)


def test_a_stand_in_takes_the_place_of_a_real_tool() -> None:
    def build() -> Agent[Any, Any]:
        return Agent(ScriptedModel(), tools=[opens_socket, sleeps])

    async def nothing() -> str:
        return "stood in"

    seen: list[str] = []

    def note(moment: Moment) -> None:
        if isinstance(moment.record, ToolReturned):
            seen.append(moment.record.result.text)

    simulate(build, seeds=20, tools={"opens_socket": nothing, "sleeps": lambda: "slept"}, invariants=[note])
    assert {"stood in", "slept"} <= set(seen)
    with pytest.raises(ConfigError, match="no such tool"):
        simulate(build, seeds=1, tools={"unknown": nothing})


# ---------------------------------------------------------------- grammar, agents, sub-agents


def test_the_model_calls_what_the_grammar_allows() -> None:
    called: list[tuple[str, Any]] = []

    def note(moment: Moment) -> None:
        if isinstance(moment.record, ModelReplied):
            called.extend((part.name, part.arguments) for part in moment.record.reply.message.tool_calls)

    @tool
    async def other() -> str:
        """Never called."""
        return ""

    def build() -> Agent[Any, Any]:
        return Agent(ScriptedModel(), tools=[planted.pay, other])

    grammar = Grammar(may_call("pay", amount=one_of(7, between(20, 21))), says=["Paid."], wrong=0.0)
    simulate(build, seeds=50, grammar=grammar, invariants=[note])
    assert {name for name, _ in called} == {"pay"}
    assert {arguments["amount"] for _, arguments in called} == {7, 20, 21}
    with pytest.raises(ConfigError, match="no such tool"):
        simulate(build, seeds=1, grammar=Grammar(may_call("paint")))


class Part(msgspec.Struct):
    code: Annotated[str, msgspec.Meta(pattern=r"^[A-Z]{2,3}-(\d+|[^a-z ]x)$")]
    price: Decimal
    size: Annotated[float, msgspec.Meta(gt=0.1, lt=0.9)] = 0.5


def test_arguments_fit_every_kind_of_type() -> None:
    refused: list[str] = []

    @tool
    async def order(parts: list[Part], day: date, wait: timedelta, key: UUID, place: tuple[int, str]) -> str:
        """Order."""
        return ""

    @tool
    async def store(counts: dict[str, int], names: frozenset[str], data: bytes, colour: Literal["red", 3]) -> str:
        """Store."""
        return ""

    def note(moment: Moment) -> None:
        if isinstance(moment.record, ToolReturned) and "was not run" in moment.record.result.text:
            refused.append(moment.record.result.text)

    def build() -> Agent[Any, Any]:
        return Agent(ScriptedModel(), tools=[order, store])

    report = simulate(
        build, seeds=60, grammar=Grammar(wrong=0.0, steps=(2, 4)), faults=Faults.none(), invariants=[note]
    )
    assert refused == []
    assert report.never_ran == ()


def test_a_tool_that_never_ran_is_named() -> None:
    @tool
    async def meet(at: Annotated[str, msgspec.Meta(pattern=r"^(?=a)b$")]) -> str:
        """Meet."""
        return ""

    report = simulate(lambda: Agent(ScriptedModel(), tools=[meet, planted.pay]), seeds=30)
    assert report.never_ran == ("meet",)
    assert "ran in no session: meet" in str(report)


def test_errors_that_hooks_and_tools_raise_by_mistake_are_listed() -> None:
    @tool
    async def meet(day: int) -> str:
        """Meet."""
        return ["mon", "tue"][day]

    def build() -> Agent[Any, Any]:
        agent: Agent[Any, Any] = Agent(ScriptedModel(), tools=[meet, planted.pay])

        @agent.gate(ToolCalling, tool="pay")
        def look(event: ToolCalling) -> None:
            event.call.arguments["sum"]

        return agent

    report = simulate(build, seeds=30)
    assert {text.split(":")[0] for text in report.raised} == {
        "tool 'meet' raised IndexError",
        "hook 'look' on ToolCalling raised KeyError",
    }
    assert "KeyError: 'sum' (seed" in str(report)
    assert not planted.CLEAN.run(seeds=60).raised


def test_an_agent_that_cannot_be_built_again_is_a_failure() -> None:
    def build(world: SimulatedWorld) -> Agent[Any, Any]:
        world.data["built"] = world.data.get("built", 0) + 1
        if world.data["built"] > 1:
            raise ConfigError("the port is taken")
        return planted.pays()

    report = Simulation(build).report(seeds=60)
    assert {failure.violation.check for failure in report.failures} == {"build"}


def test_a_grammar_that_fails_is_an_error() -> None:
    grammar = Grammar(may_call("pay", amount=lambda random: 1 // 0))
    with pytest.raises(ConfigError, match="ZeroDivisionError"):
        simulate(planted.pays, seeds=20, grammar=grammar)


def test_an_agent_object_can_be_simulated_and_used_afterwards() -> None:
    agent: Agent[Any, Any] = Agent(ScriptedModel(says("Hello.")), tools=[planted.pay])

    @agent.gate(ToolCalling)
    def ask(event: ToolCalling) -> Ask:
        return Ask("May it?")

    assert simulate(agent, seeds=60).crashes > 3
    assert agent.run_sync("Hi").text == "Hello."


def test_sub_agents_are_simulated_too() -> None:
    children: set[str] = set()

    def build(world: SimulatedWorld) -> Agent[Any, Any]:
        child: Agent[Any, Any] = Agent(ScriptedModel(), tools=[planted.pay], name="payer")
        return Agent(ScriptedModel(), tools=[child.as_tool(), planted.pay])

    def note(moment: Moment) -> None:
        if isinstance(moment.record, ToolCalled) and "//" in moment.session:
            children.add(moment.record.name)

    report = simulate(build, seeds=120, invariants=[note])
    assert children == {"pay"}
    assert report.crashes > 10


def test_a_simulation_may_run_inside_an_event_loop() -> None:
    async def inside() -> int:
        return simulate(planted.pays, seeds=5).sessions

    assert asyncio.run(inside()) == 5


def test_capabilities_with_waits_are_deterministic() -> None:
    def build() -> Agent[Any, Any]:
        return Agent(ScriptedModel(), tools=[planted.pay], capabilities=[Retry()])

    simulate(build, seeds=[0, 100, 200, 300], faults=Faults(model=0.5))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"seeds": 0}, "at least 1"),
        ({"grammar": Grammar(), "target": "agent"}, "give an agent"),
        ({"target": lambda: 3}, "must return an agent"),
    ],
)
def test_a_wrong_option_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        simulate(**{"target": planted.pays, **options})


@pytest.mark.parametrize("wrong", [{"model": 2}, {"crashes": True}, {"latency": -1}])
def test_wrong_rates_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Faults"):
        Faults(**wrong)


@pytest.mark.parametrize("wrong", [{"steps": (3, 1)}, {"turns": (0, 1)}, {"says": ()}, {"parallel": 0}])
def test_a_wrong_grammar_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="Grammar"):
        Grammar(**wrong)


# ---------------------------------------------------------------- the command line


@pytest.fixture
def app(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    text = (Path(__file__).parent / "planted.py").read_text("utf-8")
    (tmp_path / "shop.py").write_text(
        f"{text}\nRACE = Simulation(racing_seats, grammar=SEATS, invariants=[one_guest_a_seat])\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    return tmp_path


def test_the_command_prints_the_report_and_exits_with_0(app: Path) -> None:
    done = CliRunner().invoke(main, ["simulate", "shop.py:clean", "--seeds", "40"])
    assert done.exit_code == 0, done.output
    assert "40 sessions" in done.output
    assert "none failed" in done.output


def test_the_command_exits_with_1_and_prints_the_test_as_text_and_as_json(app: Path) -> None:
    done = CliRunner().invoke(main, ["simulate", "shop.py:RACE", "--seeds", "60"])
    assert done.exit_code == 1
    assert "def test_simulated_seed_" in done.output
    told = json.loads(CliRunner().invoke(main, ["simulate", "shop.py:RACE", "--seeds", "60", "--json"]).stdout)
    failed = told["failures"][0]
    assert failed["violation"]["check"] == "one_guest_a_seat"
    again = CliRunner().invoke(main, ["simulate", "shop.py:RACE", "--seed", str(failed["seed"])])
    assert again.exit_code == 1
    assert "1 session," in again.output


def test_the_command_exits_with_2_if_the_agent_cannot_be_simulated(app: Path) -> None:
    (app / "real.py").write_text(
        "import socket\nfrom windlass import Agent, tool\nfrom windlass.testing import ScriptedModel\n"
        "@tool\nasync def look() -> str:\n    'Look.'\n    socket.socket()\n    return ''\n"
        "agent = Agent(ScriptedModel(), tools=[look])\n"
    )
    refused = CliRunner().invoke(main, ["simulate", "real.py", "--seeds", "20"])
    assert refused.exit_code == 2
    assert "opens a socket" in refused.output
    assert CliRunner().invoke(main, ["simulate", "real.py:nothing"]).exit_code == 2


SETS = """
from windlass import Agent, tool
from windlass.testing import ScriptedModel

@tool
async def join(number: int) -> str:
    'Join.'
    return ' '.join({'ann', 'bob', 'eve', str(number)})

def build():
    return Agent(ScriptedModel(), tools=[join])
"""


def test_the_order_of_a_set_is_found_in_another_process_and_the_printed_test_fails(app: Path) -> None:
    (app / "sets.py").write_text(SETS)
    command = [sys.executable, "-m", "windlass", "simulate", "sets.py:build", "--seeds", "1", "--json"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=app, check=False)
    assert found.returncode == 1, found.stderr
    [failed] = json.loads(found.stdout)["failures"]
    assert "PYTHONHASHSEED" in failed["violation"]["text"]
    assert_fails_when_pasted(failed["test"], app)


def assert_fails_when_pasted(test: str, folder: Path) -> None:
    (folder / "test_pasted.py").write_text(f"{test}\n")
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(folder),
        "test_pasted.py",
    ]
    done = subprocess.run(command, capture_output=True, text=True, cwd=folder, check=False)
    assert done.returncode == 1, done.stdout
    assert "1 failed" in done.stdout


def test_the_printed_test_fails_in_a_process_of_its_own(app: Path) -> None:
    """Also if the script that simulates is `__main__`, and its grammar says what users never say by default."""
    (app / "script.py").write_text(
        "from windlass import Agent, Deny, TurnStarting, Halt\n"
        "from windlass.testing import Grammar, ScriptedModel, SimulationFailed, simulate\n\n"
        "def build():\n"
        "    return Agent(ScriptedModel())\n\n"
        "def never_refunds(moment):\n"
        "    assert 'refund' not in str(moment.state.messages)\n\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        grammar = Grammar(messages=['Hello.', 'I want a refund.'], turns=(2, 3))\n"
        "        simulate(build, seeds=20, grammar=grammar, invariants=[never_refunds])\n"
        "    except SimulationFailed as failed:\n"
        "        print(failed.report.failures[0].test)\n"
    )
    printed = subprocess.run([sys.executable, "script.py"], capture_output=True, text=True, cwd=app, check=True).stdout
    assert "from script import build, never_refunds" in printed
    assert_fails_when_pasted(printed, app)


def test_every_kind_of_failure_is_reported() -> None:
    def check(number: int) -> Any:
        def invariant(moment: Moment) -> str:
            return "bad" if moment.world.seed == number else ""

        invariant.__name__ = f"check_{number}"
        return invariant

    simulation = Simulation(planted.pays, invariants=[check(number) for number in range(5)], scope={"user": "ann"})
    text = str(simulation.report(seeds=10))
    assert [f"check_{number}: bad" in text for number in range(5)] == [True] * 5
    assert "scope={'user': 'ann'}" in text
    assert "in the same ways" not in text


def test_what_cannot_be_imported_is_named_in_the_printed_test() -> None:
    def bad(moment: Moment) -> str:
        return "bad"

    report = Simulation(lambda: planted.pays(), invariants=[bad], faults=Faults.none()).report(seeds=1)
    test = report.failures[0].test
    compile(test, "test", "exec")
    assert "# bad: the function of " in test
    assert "the lambda of " in test
