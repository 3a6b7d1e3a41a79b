"""The rule language for tool calls, for capabilities and plugins that read rules themselves."""

from __future__ import annotations

from ._hooks.matching import Mismatch, RuleParts, glob_test, mismatches, name_test, parse_rule, under, values

__all__ = ["Mismatch", "RuleParts", "glob_test", "mismatches", "name_test", "parse_rule", "under", "values"]
