"""The public testing kit: scripted models and a recorder of what the hooks did."""

from __future__ import annotations

from .models import FunctionModel, ScriptedModel, UnexpectedCall, calls, says
from .traces import HookTrace

__all__ = ["FunctionModel", "HookTrace", "ScriptedModel", "UnexpectedCall", "calls", "says"]
