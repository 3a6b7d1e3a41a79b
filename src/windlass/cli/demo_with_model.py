"""The clerk of the demo with a real model, steered so that even a tiny one completes the whole lifecycle."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from windlass import Agent, Hooks, ModelCalling, Pipeline, StepLimit, ToolCalling
from windlass.messages import ModelRequest, ToolCall
from windlass.protocols import Model, Store

from .demo_shop import delete_customer, find_order, hooks, refund

ORDER, PAID = 4711, 80
CLERK = ("delete_customer", "courier", "refund")
COURIER = ("find_order",)
TINY: Mapping[str, Any] = {"temperature": 0.5, "seed": 4}
SHORT: Mapping[str, Any] = {"stop": [". ", "\n"], "max_tokens": 60}
"""A tiny model is cut off after one sentence; a larger one does not need this."""

steering = Hooks()


@steering.rewrite(ModelCalling)
def plan(event: ModelCalling) -> ModelRequest:
    """rewrite: sets the tool to call at each step"""
    return _planned(event.request, CLERK)


@steering.rewrite(ToolCalling, tool="refund")
def true_sum(event: ToolCalling) -> ToolCall:
    """rewrite: corrects arguments that the model made up"""
    return event.call.replace(arguments={"order": ORDER, "euros": PAID})


def _planned(request: ModelRequest, tools: tuple[str, ...]) -> ModelRequest:
    """A request that forces the next tool of the plan; after the last one, a request that forbids tools."""
    step = sum(message.role == "assistant" for message in request.messages)
    if step < len(tools):
        return request.replace(settings={**request.settings, "tool_choice": tools[step]})
    short = SHORT if request.settings == TINY else {}
    return request.replace(settings={**request.settings, **short, "tool_choice": "none"})


def make_agent(model: str | Model, store: Store | None = None) -> Agent[Any, str]:
    """The same clerk and the same courier, with one model for both."""
    settings = TINY if isinstance(model, str) and model.startswith("local:") else {}
    courier = Agent(
        model,
        tools=[find_order],
        name="courier",
        system="You are a courier.",
        settings=settings,
        criteria=[StepLimit(4)],
    )

    @courier.rewrite(ModelCalling)
    def find_it(event: ModelCalling) -> ModelRequest:
        return _planned(event.request, COURIER)

    return Agent(
        model,
        tools=[find_order, delete_customer, refund, courier.as_tool(description="Ask the courier about a parcel.")],
        name="clerk",
        system="You are a clerk in a shop. Answer the customer in one short sentence.",
        settings=settings,
        criteria=[StepLimit(8)],
        pipeline=Pipeline.minimal().with_hooks(hooks).with_hooks(steering),
        store=store,
        measure_hooks=store is not None,
    )
