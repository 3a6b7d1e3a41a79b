"""Makes the body of a request for Gemini: messages, tools and settings."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from windlass.messages import ModelRequest, ToolSpec, thawed
from windlass.models.parts import readable
from windlass.models.settings import check_choice, choose_tools, merge_extra, system_with_schema

from .encode import Json, history, with_opening

LACKS = ("parallel_tool_calls", "cache", "prompt_cache_key")
"""The common settings that the vendor does not have."""
GENERATION = {
    "temperature": "temperature",
    "top_p": "topP",
    "top_k": "topK",
    "presence_penalty": "presencePenalty",
    "frequency_penalty": "frequencyPenalty",
    "max_tokens": "maxOutputTokens",
    "stop": "stopSequences",
    "seed": "seed",
}
CHOICES = {"auto": "AUTO", "required": "ANY", "none": "NONE"}
BUDGETS = {"minimal": 512, "low": 1024, "medium": 8192, "high": 24576}
LEVELS = {"xhigh": "HIGH", "max": "HIGH"}
"""Gemini's thinking levels for words that it does not know."""
NEWER = re.compile(r"(^|\.)gemini-(?![12]|robotics-er-1)")
"""Models since Gemini 3; a region may precede the name."""
MINIMAL = re.compile(r"gemini-3(\.[0-6])?-flash")
"""Models with the level MINIMAL; the lowest level of others is LOW."""
LEAST = 128
"""The smallest thinking budget of Gemini 2.5 Pro, which always thinks."""


class Encoder:
    """Encodes the requests of one model. It caches its work, so that only what is new in a step is encoded."""

    def __init__(self, model: str) -> None:
        plain = model.rpartition("/")[2]
        self._plain = plain
        self.newer = NEWER.search(plain) is not None
        self._history = history(newer=self.newer)
        self._tools: tuple[tuple[ToolSpec, ...], list[Json]] = ((), [])
        self._output: tuple[Mapping[str, Any] | None, Json] = (None, {})

    def body(self, request: ModelRequest, settings: Mapping[str, Any]) -> Json:
        """The body of a request."""
        body: Json = {"contents": with_opening(self._history.encoded(request.messages))}
        output = request.output
        system = request.system
        check_choice(request.tools, settings)
        choice = settings.get("tool_choice") if request.tools else None
        if output is not None and not self.takes_output(request, settings):
            system, output = system_with_schema(output, system), None
        if system:
            body["systemInstruction"] = {"parts": [{"text": readable(system)}], "role": "user"}
        if request.tools:
            body["tools"] = self._declare(request.tools)
            if choice:
                body["toolConfig"] = {"functionCallingConfig": _choice(choice, request.tools)}
        body["generationConfig"] = self._generation(settings, output)
        if "service_tier" in settings:
            body["serviceTier"] = settings["service_tier"]
        extra = thawed(settings["extra"])
        return merge_extra(body, extra) if extra else body

    def takes_output(self, request: ModelRequest, settings: Mapping[str, Any]) -> bool:
        """Whether the model can be given the schema of an answer. Older models accept none together with tools; newer
        ones accept none while they must call a tool."""
        forced = settings.get("tool_choice") not in (None, "auto", "none")
        return not request.tools or (self.newer and not forced)

    def _declare(self, specs: tuple[ToolSpec, ...]) -> list[Json]:
        """The declarations of the tools; encoded again only when the tools change."""
        if specs is not self._tools[0]:
            self._tools = (specs, [{"functionDeclarations": [_declaration(spec) for spec in specs]}])
        return self._tools[1]

    def _generation(self, settings: Mapping[str, Any], output: Mapping[str, Any] | None) -> Json:
        config: Json = {theirs: settings[ours] for ours, theirs in GENERATION.items() if ours in settings}
        if "stopSequences" in config:
            stop = config["stopSequences"]
            config["stopSequences"] = [stop] if isinstance(stop, str) else list(stop)
        if "reasoning" in settings:
            config["thinkingConfig"] = _thinking(self._plain, settings["reasoning"], newer=self.newer)
        if output is not None:
            if output is not self._output[0]:
                self._output = (output, thawed(output))
            config["responseMimeType"] = "application/json"
            config["responseJsonSchema"] = self._output[1]
        return config


def _declaration(spec: ToolSpec) -> Json:
    declared: Json = {"name": spec.name, "description": spec.description}
    if spec.schema:
        declared["parametersJsonSchema"] = thawed(spec.schema)
    return declared


def _choice(choice: Any, tools: tuple[ToolSpec, ...]) -> Json:
    """The config for a tool choice: a word for all tools, one name, several names, or the vendor's own mapping."""
    if isinstance(choice, Mapping):
        return dict(choice)
    if isinstance(choice, str):
        mode = CHOICES.get(choice)
        return {"mode": mode} if mode else {"mode": "ANY", "allowedFunctionNames": [choice]}
    choose_tools(tools, choice)
    return {"mode": "ANY", "allowedFunctionNames": list(choice)}


def _thinking(model: str, reasoning: Any, *, newer: bool) -> Json:
    """The config for `reasoning`: a word, a bool, a number of tokens, or the vendor's own mapping."""
    if isinstance(reasoning, Mapping):
        return dict(reasoning)
    if reasoning is True:
        return {"includeThoughts": True}
    if reasoning is False or reasoning == "none":
        budget = LEAST if "2.5-pro" in model else 0
        return {"thinkingLevel": _level(model, "minimal")} if newer else {"thinkingBudget": budget}
    if not isinstance(reasoning, str):
        return {"includeThoughts": True, "thinkingBudget": reasoning}
    if newer:
        return {"includeThoughts": True, "thinkingLevel": _level(model, reasoning)}
    return {"includeThoughts": True, "thinkingBudget": BUDGETS.get(reasoning, -1)}


def _level(model: str, word: str) -> str:
    if word == "minimal" and not MINIMAL.search(model):
        return "LOW"
    return LEVELS.get(word, word.upper())
