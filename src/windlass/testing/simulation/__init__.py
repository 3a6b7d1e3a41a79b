"""Deterministic simulation: one seed decides everything that can happen to an agent."""

from __future__ import annotations

from .choices import SimulatedCase
from .faults import Faults
from .grammar import Grammar, MayCall, may_call
from .invariants import Invariant, Moment
from .refusals import NotSimulated
from .reports import Failure, SimulationFailed, SimulationProgress, SimulationReport
from .simulations import Simulation, simulate
from .values import Drawn, between, fitting, lists_of, one_of
from .worlds import SimulatedWorld, Violation

__all__ = [
    "simulate", "Simulation", "SimulationReport", "SimulationFailed", "SimulationProgress", "Failure", "Violation",
    "Grammar", "MayCall", "may_call", "one_of", "between", "lists_of", "fitting", "Drawn",
    "Faults", "Invariant", "Moment", "SimulatedWorld", "SimulatedCase", "NotSimulated",
]  # fmt: skip
