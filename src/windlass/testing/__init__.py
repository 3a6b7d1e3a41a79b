"""The public testing kit: scripted models and a recorder of what the hooks did."""

from __future__ import annotations

from .models import FunctionModel, Scripted, ScriptedModel, UnexpectedCall, breaks, calls, says
from .traces import HookTrace

__all__ = ["FunctionModel", "HookTrace", "Scripted", "ScriptedModel", "UnexpectedCall", "breaks", "calls", "says"]
