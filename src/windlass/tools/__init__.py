"""Tools: functions that a model may call."""

from .definitions import (
    ArgumentsError,
    DoubtRule,
    EffectClass,
    Tool,
    ToolAnnotations,
    completed_arguments,
    tool,
    toolset,
)

__all__ = [
    "ArgumentsError",
    "DoubtRule",
    "EffectClass",
    "Tool",
    "ToolAnnotations",
    "completed_arguments",
    "tool",
    "toolset",
]
