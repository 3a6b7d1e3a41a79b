"""What each family of models at Bedrock supports: Converse is one API, but no family supports all of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from windlass.errors import ConfigError
from windlass.models.claude import thinking

Fields: TypeAlias = dict[str, Any]


def _claude(model: str, reasoning: Any, room: int | None) -> Fields:
    config, effort = thinking(model, reasoning, room)
    fields: Fields = {} if config is None else {"additionalModelRequestFields": {"thinking": config}}
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


def _unknown(model: str, reasoning: Any, room: int | None) -> Fields:
    if reasoning is False or reasoning == "none":
        return {}
    hint = "pass the model's own fields as a mapping, which goes into additionalModelRequestFields"
    raise ConfigError(f"reasoning={reasoning!r}: this adapter cannot set the reasoning of {model!r}; {hint}")


class Family(NamedTuple):
    """A family of models.

    `cached`: where cache points may be set. `output`: it accepts a schema for its answer. `failing`: it accepts the
    status of a result. `objects`: a result must be an object, not a text. `signed`: it signs its thinking, and accepts
    it back. `reasoning`: the fields that set its reasoning. `beside`: which other blocks a message with results may
    have; None for any. `inside`: which content a result may have; None for any. `opening`: a conversation may start
    with an answer. `ids`: the ids of calls that it accepts. `top_k`: the path of that setting in the model's own
    fields; empty if it has none.
    """

    cached: tuple[str, ...] = ()
    output: bool = False
    failing: bool = True
    objects: bool = False
    signed: bool = False
    reasoning: Callable[[str, Any, int | None], Fields] = _unknown
    beside: tuple[str, ...] | None = None
    inside: tuple[str, ...] | None = None
    opening: bool = False
    ids: str = r"[a-zA-Z0-9_.:-]{1,64}"
    top_k: tuple[str, ...] = ()


EVERYWHERE = ("tools", "system", "messages")
CLAUDE = Family(
    EVERYWHERE, output=True, signed=True, reasoning=_claude, beside=("text", "image"), opening=True,
    ids=r"[a-zA-Z0-9_-]{1,64}", top_k=("top_k",),
)  # fmt: skip

# The first pattern that matches the model's id counts. Newer models are expected to support what the newest known do.
FAMILIES: tuple[tuple[str, Family], ...] = (
    (r"claude-(3-(opus|sonnet|haiku)|3-5-sonnet|v2|instant)", CLAUDE._replace(cached=(), output=False)),
    (r"claude-(3-|(opus|sonnet)-4-([01]\b|2025))", CLAUDE._replace(output=False)),
    (r"claude", CLAUDE),
    (r"\bnova-(micro|lite|pro|premier)", Family(("system", "messages"), top_k=("inferenceConfig", "topK"))),
    (r"\bnova", Family(("system", "messages"), reasoning=_nova, top_k=("inferenceConfig", "topK"))),
    (r"gpt-oss", Family(output=True, reasoning=_openai)),
    (r"openai\.", Family(output=True, signed=True, reasoning=_gpt)),
    (
        r"mistral\.(mi[sx]tral|pixtral)-(?!large-3)",
        Family(objects=True, beside=(), inside=("document",), top_k=("top_k",)),
    ),
    (r"mistral\.", Family(output=True, beside=(), inside=("document",), ids=r"[a-zA-Z0-9]{9}")),
    (r"\bmeta\.", Family(beside=())),
    (r"qwen", Family(output=True, reasoning=_qwen, inside=(), opening=True)),
    (r"deepseek\.v3|gemma|minimax|kimi|nemotron", Family(output=True)),
    (r"palmyra", Family(failing=False)),
)


def family(model: str) -> Family:
    """The family of a model; an unknown model gets what all families support."""
    return next((found for named, found in FAMILIES if re.search(named, model)), Family(signed=True))


def model_fields(family: Family, model: str, settings: Mapping[str, Any]) -> Fields:
    """The model's own fields for the settings `reasoning` and `top_k`."""
    fields = _reasoning_fields(family, model, settings)
    if not family.top_k or "top_k" not in settings:
        return fields
    chosen: Any = settings["top_k"]
    for name in reversed(family.top_k):
        chosen = {name: chosen}
    return {**fields, "additionalModelRequestFields": {**fields.get("additionalModelRequestFields", {}), **chosen}}


def _reasoning_fields(family: Family, model: str, settings: Mapping[str, Any]) -> Fields:
    reasoning = settings.get("reasoning")
    if reasoning is None:
        return {}
    if isinstance(reasoning, Mapping) and family.reasoning is not _claude:
        return {"additionalModelRequestFields": dict(reasoning)}
    return family.reasoning(model, reasoning, settings.get("max_tokens"))


__all__ = ["EVERYWHERE", "FAMILIES", "Family", "family", "model_fields"]
