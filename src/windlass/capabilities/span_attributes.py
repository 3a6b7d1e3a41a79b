"""The attributes of spans and metrics, under the names of OpenTelemetry's conventions for generative AI."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from windlass.events import HookRan
from windlass.messages import ModelReply, ModelRequest, ToolCall, Usage
from windlass.outcomes import Failed, Stopped
from windlass.records import Outcome
from windlass.states import TurnState
from windlass.tools import Tool
from windlass.turns import Turn

Value: TypeAlias = str | bool | int | float | Sequence[str] | Sequence[bool] | Sequence[int] | Sequence[float]
Attributes: TypeAlias = Mapping[str, Value]
Extra: TypeAlias = Mapping[str, Any] | Callable[[Turn[Any]], Mapping[str, Any]]

ERROR = "error.type"
OPERATION = "gen_ai.operation.name"
PROVIDER = "gen_ai.provider.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
TOKEN_TYPE = "gen_ai.token.type"

_PROVIDERS = {
    "anthropic": "anthropic",
    "azure": "azure.ai.openai",
    "bedrock": "aws.bedrock",
    "google": "gcp.gemini",
    "mistral": "mistral_ai",
    "moonshot": "moonshot_ai",
    "openai-chat": "openai",
    "openai-responses": "openai",
    "vertex": "gcp.vertex_ai",
    "xai": "x_ai",
}
"""The names of providers in the conventions, where they differ from those in our names of models."""

_SETTINGS = {
    "frequency_penalty": "gen_ai.request.frequency_penalty",
    "max_tokens": "gen_ai.request.max_tokens",
    "presence_penalty": "gen_ai.request.presence_penalty",
    "seed": "gen_ai.request.seed",
    "temperature": "gen_ai.request.temperature",
    "top_k": "gen_ai.request.top_k",
    "top_p": "gen_ai.request.top_p",
}


def provider_and_model(name: str) -> tuple[str, str]:
    """The provider and the model of a name such as `openai:gpt-5`. The provider of a plain name is `unknown`."""
    vendor, colon, model = name.partition(":")
    return (_PROVIDERS.get(vendor, vendor), model) if colon else ("unknown", name)


def of_agent(agent: str, session: str) -> dict[str, Value]:
    """The attributes of a span `invoke_agent`."""
    return {OPERATION: "invoke_agent", "gen_ai.agent.name": agent, "gen_ai.conversation.id": session}


def of_outcome(outcome: Outcome | None) -> dict[str, Value]:
    """How a turn ended."""
    attributes: dict[str, Value] = {"windlass.outcome": type(outcome).__name__.lower()}
    if isinstance(outcome, Failed):
        attributes[ERROR] = outcome.error.type
    if isinstance(outcome, Stopped):
        attributes["windlass.stop_reason"] = outcome.reason.value
    return attributes


def of_request(request: ModelRequest, agent: str, session: str) -> dict[str, Value]:
    """The attributes of a span `chat` that are known when the request is sent."""
    provider, model = provider_and_model(request.model)
    attributes: dict[str, Value] = {
        OPERATION: "chat",
        PROVIDER: provider,
        REQUEST_MODEL: model,
        "gen_ai.agent.name": agent,
        "gen_ai.conversation.id": session,
    }
    for setting, name in _SETTINGS.items():
        value = request.settings.get(setting)
        if isinstance(value, int | float) and not isinstance(value, bool):
            attributes[name] = value
    stop = request.settings.get("stop")
    if stop:
        attributes["gen_ai.request.stop_sequences"] = [stop] if isinstance(stop, str) else list(stop)
    if request.output is not None:
        attributes["gen_ai.output.type"] = "json"
    if request.side:
        attributes["windlass.side"] = request.side
    return attributes


def of_reply(reply: ModelReply) -> dict[str, Value]:
    """The attributes of a span `chat` that are known when the model has replied."""
    attributes: dict[str, Value] = {"gen_ai.response.finish_reasons": [reply.raw_finish or reply.finish]}
    if reply.model:
        attributes[RESPONSE_MODEL] = provider_and_model(reply.model)[1]
    if reply.response_id:
        attributes["gen_ai.response.id"] = reply.response_id
    return attributes | of_usage(reply.usage)


def of_usage(usage: Usage) -> dict[str, Value]:
    """The tokens and the cost of a model call."""
    attributes: dict[str, Value] = {
        "gen_ai.usage.input_tokens": usage.input,
        "gen_ai.usage.output_tokens": usage.output,
    }
    rare = {
        "gen_ai.usage.cache_read.input_tokens": usage.cached,
        "gen_ai.usage.cache_creation.input_tokens": usage.cache_written,
        "gen_ai.usage.reasoning.output_tokens": usage.reasoning,
        "windlass.usage.cost_usd": usage.cost,
    }
    return attributes | {name: count for name, count in rare.items() if count}


def of_turn(turn: TurnState, before: Usage) -> dict[str, Value]:
    """The reference of a turn, and what it spent, without what it had spent `before`.

    The tokens of model calls have other names: a backend that adds up all spans must not count them twice.
    """
    usage = turn.usage
    attributes: dict[str, Value] = {
        "windlass.turn.ref": turn.ref,
        "windlass.turn.input_tokens": usage.input - before.input,
        "windlass.turn.output_tokens": usage.output - before.output,
    }
    if usage.cost is not None:
        attributes["windlass.turn.cost_usd"] = usage.cost - (before.cost or 0.0)
    return attributes


def of_call(call: ToolCall, tool: Tool[..., object] | None, agent: str, session: str) -> dict[str, Value]:
    """The attributes of a span `execute_tool`."""
    attributes: dict[str, Value] = {
        OPERATION: "execute_tool",
        "gen_ai.tool.name": call.name,
        "gen_ai.tool.call.id": call.id,
        "gen_ai.tool.type": "function",
        "gen_ai.agent.name": agent,
        "gen_ai.conversation.id": session,
    }
    if tool is not None and tool.spec.description:
        attributes["gen_ai.tool.description"] = tool.spec.description
    return attributes


def of_hook(fact: HookRan, session: str) -> dict[str, Value]:
    """The attributes of the span of a hook."""
    known = {
        "windlass.hook.name": fact.hook,
        "windlass.hook.verb": fact.verb,
        "windlass.hook.event": fact.event,
        "windlass.hook.verdict": fact.verdict,
        "windlass.hook.capability": fact.capability,
        "windlass.hook.about": fact.about,
        "gen_ai.conversation.id": session,
    }
    return {name: text for name, text in known.items() if text}
