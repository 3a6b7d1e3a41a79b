"""Puts an agent into a simulation: its clock, store, models and tools become simulated ones, also of those below it."""

# pyright: reportPrivateUsage=false
# It takes an agent apart, so that no other module of the simulation has to.

from __future__ import annotations

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, TypeAlias

from windlass._background import LazyBackground
from windlass._kernel.program import Program
from windlass.agent import Agent
from windlass.errors import ConfigError
from windlass.sessions import Sessions
from windlass.storage import Place

from .edges import SimulatedClock, SimulatedModel, SimulatedStore, simulated_tools

AnyAgent: TypeAlias = Agent[Any, Any]
StandIns: TypeAlias = Mapping[str, Callable[..., Any]]

STORE: Any = SimulatedStore()
CLOCK = SimulatedClock()


def adopt(agent: AnyAgent, stand_ins: StandIns) -> AnyAgent:
    """Make an agent that a factory has just built part of the simulation. It is of no other use afterwards."""
    agent._options.clock = CLOCK
    try:
        agent.with_store(STORE)
    except ConfigError as error:
        text = "simulate: the factory returned an agent that has run or was compiled; it must build a new one each time"
        raise ConfigError(text) from error
    _simulate(agent._compile(), stand_ins)
    return agent


class Original:
    """An agent that exists already. Each simulated process gets a copy of it; they share its capabilities."""

    def __init__(self, agent: AnyAgent) -> None:
        agent.compile()
        self._agent = agent
        self._options = copy(agent._options)
        self._options.clock = CLOCK
        self._place: Place | None = None

    def __enter__(self) -> Original:
        home = self._agent._home
        self._place = home.place()
        home.move_to(Place(STORE, CLOCK, self._options.mask, self._agent._registered.conceals))
        return self

    def __exit__(self, *exc: object) -> None:
        if self._place is not None:
            self._agent._home.move_to(self._place)

    def copied(self, stand_ins: StandIns) -> AnyAgent:
        """A copy for one process."""
        agent = self._agent
        made = copy(agent)
        registered = made._registered = copy(agent._registered)
        registered.hooks = [hook.copied(above=hook.above) for hook in registered.hooks]
        made._options = self._options
        made._store = STORE
        made._owns_store = made._owns_parts = False
        made._assembled = made._program = None
        made._sessions = Sessions(STORE, agent._output, agent.busy, registered, self._options.mask)
        made._background = LazyBackground(STORE, made._sessions)
        _simulate(made._compile(), stand_ins)
        return made


class _Below(dict[Any, Program]):
    """The programs of the agents below an agent. Each becomes simulated when it is first asked for."""

    def __init__(self, parent: Program, stand_ins: StandIns) -> None:
        super().__init__()
        self._parent = parent
        self._stand_ins = stand_ins

    def get(self, key: Any, default: Any = None) -> Any:
        if key not in self:
            compiled, only = key
            self[key] = _simulate(compiled(self._parent, only), self._stand_ins)
        return self[key]


def _simulate(program: Program, stand_ins: StandIns) -> Program:
    program.models = {name: SimulatedModel(model) for name, model in program.models.items()}
    program.model = program.models[program.model_name]
    program.tools = simulated_tools(program.tools, stand_ins)
    program.children = _Below(program, stand_ins)
    return program


def tool_names(agent: AnyAgent) -> list[str]:
    """The names of the tools of an agent and of the agents below it."""
    from windlass._kernel.child_program import tools_below

    program = agent._compile()
    return list(dict.fromkeys([*program.tools, *[tool.name for tool in tools_below(program)]]))
