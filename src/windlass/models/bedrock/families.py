"""What each family of models at Bedrock takes beyond what all do: Converse is one API, but not all of it is for all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from windlass.errors import ConfigError
from windlass.models.claude import thinking

Fields: TypeAlias = dict[str, Any]


def _claude(model: str, reasoning: Any, room: int | None) -> Fields:
    told, effort = thinking(model, reasoning, room)
    fields: Fields = {} if told is None else {"additionalModelRequestFields": {"thinking": told}}
    return fields if effort is None else {**fields, "outputConfig": {"effort": effort}}


def _nova(model: str, reasoning: Any, room: int | None) -> Fields:
    effort = {True: "medium", "minimal": "low", "xhigh": "high", "max": "high"}.get(reasoning, reasoning)
    off = reasoning is False or reasoning == "none"
    config = {"type": "disabled"} if off else {"type": "enabled", "maxReasoningEffort": effort}
    return {"additionalModelRequestFields": {"reasoningConfig": config}}


def _gpt(model: str, reasoning: Any, room: int | None) -> Fields:
    effort = {True: "medium", False: "none", "minimal": "low"}.get(reasoning, reasoning)
    return {"additionalModelRequestFields": {"reasoning": {"effort": effort}}}


def _openai(model: str, reasoning: Any, room: int | None) -> Fields:
    effort = {True: "medium", False: "low", "none": "low", "minimal": "low"}.get(reasoning, reasoning)
    return {"additionalModelRequestFields": {"reasoning_effort": effort}}


def _qwen(model: str, reasoning: Any, room: int | None) -> Fields:
    if reasoning is False or reasoning == "none":
        return {}
    return {"additionalModelRequestFields": {"reasoning_config": "low" if reasoning in ("minimal", "low") else "high"}}


def _untold(model: str, reasoning: Any, room: int | None) -> Fields:
    if reasoning is False or reasoning == "none":
        return {}
    hint = "say it in the words of the model, as a mapping, which goes into additionalModelRequestFields"
    raise ConfigError(f"reasoning={reasoning!r}: nobody knows how {model!r} is told to reason; {hint}")


class Family(NamedTuple):
    """A family of models.

    `cached`: where the end of what can be cached may be marked. `output`: it takes a schema for its answer. `failing`:
    it takes the status of a result. `objects`: a result is an object for it, not a text. `signed`: it signs what it
    thinks, and takes that back. `reasoning`: how it is told to reason. `beside`: what else a message with results may
    have, if not anything. `inside`: what a result may show, if not anything. `opening`: its conversations may open with
    an answer. `ids`: the ids of calls that it takes.
    """

    cached: tuple[str, ...] = ()
    output: bool = False
    failing: bool = True
    objects: bool = False
    signed: bool = False
    reasoning: Callable[[str, Any, int | None], Fields] = _untold
    beside: tuple[str, ...] | None = None
    inside: tuple[str, ...] | None = None
    opening: bool = False
    ids: str = r"[a-zA-Z0-9_.:-]{1,64}"


EVERYWHERE = ("tools", "system", "messages")
CLAUDE = Family(
    EVERYWHERE, output=True, signed=True, reasoning=_claude, beside=("text", "image"), opening=True,
    ids=r"[a-zA-Z0-9_-]{1,64}",
)  # fmt: skip

# The first that is found in the id of the model; newer ones of a family are expected to take what the newest does.
FAMILIES: tuple[tuple[str, Family], ...] = (
    (r"claude-(3-(opus|sonnet|haiku)|3-5-sonnet|v2|instant)", CLAUDE._replace(cached=(), output=False)),
    (r"claude-(3-|(opus|sonnet)-4-([01]\b|2025))", CLAUDE._replace(output=False)),
    (r"claude", CLAUDE),
    (r"\bnova-(micro|lite|pro|premier)", Family(("system", "messages"))),
    (r"\bnova", Family(("system", "messages"), reasoning=_nova)),
    (r"gpt-oss", Family(output=True, reasoning=_openai)),
    (r"openai\.", Family(output=True, signed=True, reasoning=_gpt)),
    (r"mistral\.(mi[sx]tral|pixtral)-(?!large-3)", Family(objects=True, beside=(), inside=("document",))),
    (r"mistral\.", Family(output=True, beside=(), inside=("document",), ids=r"[a-zA-Z0-9]{9}")),
    (r"\bmeta\.", Family(beside=())),
    (r"qwen", Family(output=True, reasoning=_qwen, inside=(), opening=True)),
    (r"deepseek\.v3|gemma|minimax|kimi|nemotron", Family(output=True)),
    (r"palmyra", Family(failing=False)),
)


def family(model: str) -> Family:
    """The family of a model; one of which nothing is known gets what all take."""
    return next((found for named, found in FAMILIES if re.search(named, model)), Family(signed=True))


def reasoning_fields(family: Family, model: str, settings: Mapping[str, Any]) -> Fields:
    """What the settings say of reasoning, in the words of the model."""
    reasoning = settings.get("reasoning")
    if reasoning is None:
        return {}
    if isinstance(reasoning, Mapping) and family.reasoning is not _claude:
        return {"additionalModelRequestFields": dict(reasoning)}
    return family.reasoning(model, reasoning, settings.get("max_tokens"))


__all__ = ["EVERYWHERE", "FAMILIES", "Family", "family", "reasoning_fields"]
