"""Evaluations: cases, checks, judges and pass rates for agents, live or recorded."""

from . import checks as checks
from .evaluation import evaluate, evaluate_sessions
from .files import load_cases
from .judges import ModelJudge
from .reports import junit
from .runs import CaseReport, Change, Comparison, EvalRun, TrialReport, compare
from .trials import Case, Check, Decided, Trial, Verdict

__all__ = [
    "Case",
    "CaseReport",
    "Change",
    "Check",
    "Comparison",
    "Decided",
    "EvalRun",
    "ModelJudge",
    "Trial",
    "TrialReport",
    "Verdict",
    "compare",
    "evaluate",
    "evaluate_sessions",
    "junit",
    "load_cases",
]
