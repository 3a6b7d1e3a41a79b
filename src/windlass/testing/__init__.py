"""The public testing kit: models, clocks, observers and checks that need no network, no waiting and no luck."""

from __future__ import annotations

from .adapters import ModelFailed, ModelReport, check_model
from .caches import PrefixCache
from .cassettes import Cassette, UnexpectedRequest
from .clocks import FakeClock
from .conformance import CapabilityFailed, CapabilityReport, check_capability
from .crashes import CrashPoint, CrashReport, Scenario, crash_points
from .exchanges import Exchange, sse
from .hook_sets import HookSet, PlannedHook
from .models import FunctionModel, Scripted, ScriptedModel, UnexpectedCall, breaks, calls, says
from .observers import RecordingObserver
from .prefixes import assert_prefix_stable
from .scenes import SCENES, Scene
from .simulation import (
    Faults,
    Grammar,
    Moment,
    NotSimulated,
    SimulatedCase,
    SimulatedWorld,
    Simulation,
    SimulationFailed,
    SimulationReport,
    between,
    lists_of,
    may_call,
    one_of,
    simulate,
)
from .storages import fake_storage
from .stores import StoreFailed, StoreReport, check_store
from .times import without_times
from .traces import HookTrace, assert_same
from .transcripts import unpaired
from .turns import FakeTurn, fake_turn
from .ways import Lived, agreeable, assert_same_everywhere, run_everywhere, traces
from .worlds import World

__all__ = [
    "ScriptedModel", "FunctionModel", "Scripted", "UnexpectedCall", "says", "calls", "breaks",
    "FakeClock", "without_times", "RecordingObserver", "fake_turn", "FakeTurn", "fake_storage",
    "HookTrace", "assert_same", "Lived", "agreeable", "run_everywhere", "traces", "assert_same_everywhere",
    "HookSet", "PlannedHook", "check_capability", "CapabilityReport", "CapabilityFailed",
    "crash_points", "CrashPoint", "CrashReport", "Scenario", "World", "unpaired",
    "simulate", "Simulation", "SimulationReport", "SimulationFailed", "SimulatedCase", "SimulatedWorld", "NotSimulated",
    "Grammar", "may_call", "one_of", "between", "lists_of", "Faults", "Moment",
    "check_store", "StoreReport", "StoreFailed", "check_model", "ModelReport", "ModelFailed", "Scene", "SCENES",
    "assert_prefix_stable", "PrefixCache",
    "Cassette", "Exchange", "sse", "UnexpectedRequest",
]  # fmt: skip
