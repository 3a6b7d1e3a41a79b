"""Ready-made behaviours, one per file, built only on the public API that any plugin can use; imported on first use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .adapt import Adapt, Replayed
    from .adaptations import Adaptation, AdaptationRule, Bounds, Knowledge, Observation
    from .approval import Approval
    from .audit_trail import AuditTrail
    from .auto_approve import AutoApprove
    from .breakers import Breaker
    from .budget import Budget
    from .cache import Cache
    from .clear_results import ClearResults
    from .critic import Critic
    from .critiques import Critique
    from .detector_libraries import datafog_detector, presidio_detector
    from .detectors import Detector, Found, Pattern, Scanner
    from .dry_run import DryRun
    from .events import Events
    from .fallback import Fallback
    from .file_index import FileIndex, IndexChanges
    from .logging import Logging
    from .loop_guard import LoopGuard
    from .memory import Memory
    from .memos import Memo, MemoBackend, MemoryFiles
    from .metadata import Key, Metadata
    from .metrics import Metrics
    from .moderate import Moderate
    from .notify import Notify
    from .offload import Offload
    from .panel import Panel
    from .passages import Passage
    from .permissions import Permissions
    from .planning import Plan, PlanItem, Planning, plan_of
    from .posting import signature_of
    from .rate_limit import RateLimit
    from .redact import Redact
    from .refine import Refine
    from .remembered_rules import RememberedRules, user_rules
    from .request_archive import RequestArchive
    from .retrieve import Retrieve
    from .retry import Retry
    from .reviewers import Reviewer
    from .rewind import Rewind
    from .route import Destination, Route
    from .self_critique import SelfCritique
    from .skill_folders import Skill
    from .skills import Skills
    from .steering import Steering
    from .structured_output import StructuredOutput
    from .subagents import Subagent, Subagents
    from .summarize import Summarize
    from .telemetry import Telemetry
    from .timeout import Timeout
    from .tool_select import ToolSelect
    from .trail_lines import check_trail
    from .triggers import AtFraction, AtMessages, AtTokens, Trigger
    from .trim import Trim
    from .validate import Validate
    from .vaults import MemoryVault, Vault
    from .verdicts import Verdict
    from .webhook import Webhook, answer_from

__all__ = [
    "Adapt",
    "Adaptation",
    "AdaptationRule",
    "Approval",
    "AtFraction",
    "AtMessages",
    "AtTokens",
    "AuditTrail",
    "AutoApprove",
    "Bounds",
    "Breaker",
    "Budget",
    "Cache",
    "ClearResults",
    "Critic",
    "Critique",
    "Destination",
    "Detector",
    "DryRun",
    "Events",
    "Fallback",
    "FileIndex",
    "Found",
    "IndexChanges",
    "Key",
    "Knowledge",
    "Logging",
    "LoopGuard",
    "Memo",
    "MemoBackend",
    "Memory",
    "MemoryFiles",
    "MemoryVault",
    "Metadata",
    "Metrics",
    "Moderate",
    "Notify",
    "Observation",
    "Offload",
    "Panel",
    "Passage",
    "Pattern",
    "Permissions",
    "Plan",
    "PlanItem",
    "Planning",
    "RateLimit",
    "Redact",
    "Refine",
    "RememberedRules",
    "Replayed",
    "RequestArchive",
    "Retrieve",
    "Retry",
    "Reviewer",
    "Rewind",
    "Route",
    "Scanner",
    "SelfCritique",
    "Skill",
    "Skills",
    "Steering",
    "StructuredOutput",
    "Subagent",
    "Subagents",
    "Summarize",
    "Telemetry",
    "Timeout",
    "ToolSelect",
    "Trigger",
    "Trim",
    "Validate",
    "Vault",
    "Verdict",
    "Webhook",
    "answer_from",
    "check_trail",
    "datafog_detector",
    "plan_of",
    "presidio_detector",
    "signature_of",
    "user_rules",
]

_HOMES = {
    "Adapt": "adapt",
    "Adaptation": "adaptations",
    "AdaptationRule": "adaptations",
    "Approval": "approval",
    "AtFraction": "triggers",
    "AtMessages": "triggers",
    "AtTokens": "triggers",
    "AuditTrail": "audit_trail",
    "AutoApprove": "auto_approve",
    "Bounds": "adaptations",
    "Breaker": "breakers",
    "Budget": "budget",
    "Cache": "cache",
    "ClearResults": "clear_results",
    "Critic": "critic",
    "Critique": "critiques",
    "Destination": "route",
    "Detector": "detectors",
    "DryRun": "dry_run",
    "Events": "events",
    "Fallback": "fallback",
    "FileIndex": "file_index",
    "Found": "detectors",
    "IndexChanges": "file_index",
    "Key": "metadata",
    "Knowledge": "adaptations",
    "Logging": "logging",
    "LoopGuard": "loop_guard",
    "Memo": "memos",
    "MemoBackend": "memos",
    "Memory": "memory",
    "MemoryFiles": "memos",
    "MemoryVault": "vaults",
    "Metadata": "metadata",
    "Metrics": "metrics",
    "Moderate": "moderate",
    "Notify": "notify",
    "Observation": "adaptations",
    "Offload": "offload",
    "Panel": "panel",
    "Passage": "passages",
    "Pattern": "detectors",
    "Permissions": "permissions",
    "Plan": "planning",
    "PlanItem": "planning",
    "Planning": "planning",
    "RateLimit": "rate_limit",
    "Redact": "redact",
    "Refine": "refine",
    "RememberedRules": "remembered_rules",
    "Replayed": "adapt",
    "RequestArchive": "request_archive",
    "Retrieve": "retrieve",
    "Retry": "retry",
    "Reviewer": "reviewers",
    "Rewind": "rewind",
    "Route": "route",
    "Scanner": "detectors",
    "SelfCritique": "self_critique",
    "Skill": "skill_folders",
    "Skills": "skills",
    "Steering": "steering",
    "StructuredOutput": "structured_output",
    "Subagent": "subagents",
    "Subagents": "subagents",
    "Summarize": "summarize",
    "Telemetry": "telemetry",
    "Timeout": "timeout",
    "ToolSelect": "tool_select",
    "Trigger": "triggers",
    "Trim": "trim",
    "Validate": "validate",
    "Vault": "vaults",
    "Verdict": "verdicts",
    "Webhook": "webhook",
    "answer_from": "webhook",
    "check_trail": "trail_lines",
    "datafog_detector": "detector_libraries",
    "plan_of": "planning",
    "presidio_detector": "detector_libraries",
    "signature_of": "posting",
    "user_rules": "remembered_rules",
}
"""The module of each name."""


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_HOMES[name]}", __name__), name)
