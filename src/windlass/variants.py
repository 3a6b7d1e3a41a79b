"""Variants of a compiled agent: the same hooks, guards and store, with other options."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from threading import Lock
from typing import Any

from ._hooks.compiled import CompiledHooks
from ._hooks.streams import masking
from ._kernel.child_program import mask_of_tree, program_of
from ._kernel.program import Program
from ._kernel.scopes import require_scopes
from .criteria import Limit, StepLimit
from .errors import ConfigError
from .masking import Mask, joined_mask
from .messages import thawed
from .models import open_model
from .protocols import Model
from .records import TurnOptions
from .run_options import GivenOptions
from .tools import Tool
from .types import Criterion

_KEPT = 64
"""How many variants of an agent are kept compiled. The one that was used least recently goes first."""

_lock = Lock()


def variant_of(program: Program, given: GivenOptions, *, for_turn: bool) -> Program:
    """The agent with these options, compiled once. They are the agent's own, or `for_turn` those of one turn only."""
    key, known = (for_turn, *given.key), program.variants
    try:
        hash(key)
    except TypeError:  # a criterion or tool has no hash
        return _compile(program, given, for_turn)
    with _lock:
        if (found := known.pop(key, None)) is not None:
            known[key] = found
            return found
    made = _compile(program, given, for_turn)
    with _lock:
        known[key] = made
        while len(known) > _KEPT:
            del known[next(iter(known))]
    return made


def _compile(base: Program, given: GivenOptions, for_turn: bool) -> Program:
    model = _model(base, given.model, for_turn)
    settings = _merged(base.settings, given.settings)
    if (check_settings := getattr(model, "check_settings", None)) is not None:
        check_settings(settings)
    added = _added_tools(base, given)
    tools = {**base.tools, **added}
    mask = joined_mask([base.mask, mask_of_tree(None, added.values())])
    hooks = base.hooks if mask is base.mask else _masking_hooks(base.hooks, mask)
    criteria, default_limit = _criteria(base, given.criteria)
    windows = base.windows
    if base.models.get(model.name) is not model:
        windows = {**windows, model.name: getattr(model, "context_window", None)}
    run_tools = len(added) if for_turn else base.run_tools
    program = dataclasses.replace(
        base,
        model=model,
        models={**base.models, model.name: model},
        windows=windows,
        settings=settings,
        tools=tools,
        criteria=criteria,
        default_limit=default_limit,
        hooks=hooks,
        mask=mask,
        run_tools=run_tools,
        base=base if for_turn else None,
    )
    options = given.recorded().replace(tools=tuple(added), pipeline=program.digest)
    program.options = options if for_turn or base.options is None else _both(base.options, options)
    program.held = base.held
    for delegate in [tool for name, tool in program.delegates.items() if name in added]:
        declared = next((scope for name, scope in base.scopes if name == base.name), None)
        require_scopes(program, declared, program_of(program, delegate))
    base.check(program)
    return program


def _both(first: TurnOptions, second: TurnOptions) -> TurnOptions:
    """The options of a variant of a variant."""
    return second.replace(
        model=second.model or first.model,
        model_object=second.model_object if second.model else first.model_object,
        settings={**first.settings, **second.settings},
        criteria=(*first.criteria, *second.criteria),
        tools=(*first.tools, *second.tools),
    )


def _model(base: Program, given: Model | str | None, for_turn: bool) -> Model:
    """The model of a variant: one that the agent has, one that a text names, or an object.

    In a variant that is an agent of its own, an object may replace the agent's model of the same name.
    """
    if given is None:
        return base.model
    if isinstance(given, str):
        known = base.models.get(base.model_texts.get(given, given))
        if known is not None:
            return known
        if ":" not in given:
            names = ", ".join(map(repr, base.models))
            raise ConfigError(
                f"agent {base.name!r} has no model {given!r}; it has {names}. Use one of these names, add the model "
                "with Agent(models=…), or name a vendor's model, such as 'openai:gpt-5'"
            )
        given = open_model(given)
    replaces = not for_turn and given.name == base.model_name
    if base.models.get(given.name, given) is not given and not replaces:
        raise ConfigError(
            f"agent {base.name!r} has another model named {given.name!r}. Requests name their model, so give one of "
            "them another name"
        )
    return given


def _merged(own: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of an agent with those of a variant; `extra` and `headers` are merged key by key."""
    settings = {**own, **given}
    for name in ("extra", "headers"):
        if isinstance(own.get(name), Mapping) and isinstance(given.get(name), Mapping):
            settings[name] = {**own[name], **given[name]}
    return {name: thawed(value) for name, value in settings.items() if value is not None}


def _added_tools(base: Program, given: GivenOptions) -> dict[str, Tool[..., Any]]:
    """The tools that the agent does not have. Another tool of the same name is an error."""
    slots = list(base.hooks.slots.values())
    added: dict[str, Tool[..., Any]] = {}
    for tool in given.tools:
        known = base.tools.get(tool.name)
        if known is None:
            added[tool.name] = tool.bound(slots)
        elif known.fn != tool.fn:
            raise ConfigError(
                f"tools=…: agent {base.name!r} has a tool named {tool.name!r} already ({known.source}), and this is "
                f"another one ({tool.source}); rename it with `@tool(name=...)`"
            )
    return added


def _criteria(base: Program, given: tuple[Criterion, ...]) -> tuple[tuple[Criterion, ...], Limit | None]:
    """The criteria of a variant, and the default limit among them. As at an agent, a `StepLimit` replaces that."""
    if not any(isinstance(criterion, StepLimit) for criterion in given):
        return (*base.criteria, *given), base.default_limit
    return (*[criterion for criterion in base.criteria if criterion is not base.default_limit], *given), None


def _masking_hooks(hooks: CompiledHooks, mask: Mask | None) -> CompiledHooks:
    """The same hooks, which also remove the secrets of further sub-agents from what models say."""
    copies = [hook.copied(above=hook.above) for hook in hooks.all]
    transforms = [*hooks.transforms, *([] if mask is None else [masking(mask)])]
    slots = hooks.slots.values()
    return CompiledHooks(copies, transforms, slots, timed=hooks.timed, measured=hooks.measured)


__all__ = ["variant_of"]
